"""Prompt lookup: what followed the last few tokens where they stood before, as a draft that costs no forward."""

from collections.abc import Iterable

SHORTEST, LONGEST = 2, 5


class Lookup:
    """The places of every run of SHORTEST to LONGEST tokens in a text that grows at its end; the last place wins."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens. A run is known once something follows it, so the end of the text never finds itself."""
        for token in tokens:
            at = len(self.tokens)
            for n in range(SHORTEST, min(LONGEST, at) + 1):
                self.after[tuple(self.tokens[at - n :])] = at
            self.tokens.append(token)

    def guess(self, most: int) -> tuple[int, list[int]]:
        """(n, tokens): the longest run of n tokens at the end that stood before, and up to `most` tokens that followed
        it there; (0, []) where none did."""
        for n in range(min(LONGEST, len(self.tokens)), SHORTEST - 1, -1):
            at = self.after.get(tuple(self.tokens[-n:]))
            if at is not None:
                return n, self.tokens[at : at + most]
        return 0, []
