"""Prefix reuse: a prompt that begins like an earlier one takes over its keys and values.

A row of the cache keeps what it holds until another request needs the row. Committed keys and values are a matter of
the tokens before them alone (of whole blocks, where committed tokens see their block), so what two sequences share may
be copied from row to row, also from one that is still being written.
"""

from collections.abc import Sequence, Set

from unmask.model.backbone import Cache
from unmask.row import Row, Step

SHORTEST = 16
"""Fewer positions are not worth the bookkeeping."""
COMMITTED = {"prefill", "ar", "check", "commit", "fused"}


class Held:
    """What the rows of a cache hold: the tokens whose committed keys and values stand at positions 0, 1, 2, …"""

    def __init__(self, rows: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.sight = [1] * rows
        self.taken = [0] * rows
        self.clock = 0

    def note(self, slot: int, row: Row, step: Step) -> None:
        """What a forward left behind: committed tokens are held, drafted ones only overwrite."""
        feed, held = step.feed, self.tokens[slot]
        del held[feed.start :]
        if step.kind in COMMITTED and feed.start == len(held):
            held += feed.tokens[: (*feed.masked, True).index(True)]
            self.sight[slot] = row.sight

    def forget(self, slot: int) -> None:
        """Nothing of this row can be trusted."""
        self.tokens[slot] = []

    def place(self, cache: Cache, row: Row, free: Set[int]) -> int:
        """The free row that a request takes, with `row.reused` positions of its prompt already in it.

        A row that held little else is taken over; else what is shared is copied to the row that waited longest, so that
        a long chat does not lose its row to everyone who shares its first lines.
        """
        shared = [self._shared(slot, row) for slot in range(len(self.tokens))]
        source = max(range(len(shared)), key=lambda slot: (shared[slot], slot in free))
        reused = shared[source] if shared[source] >= SHORTEST else 0
        oldest = min(free, key=lambda slot: (self.taken[slot], slot))
        own = source in free and reused > 0 and 2 * reused >= len(self.tokens[source])
        slot = source if own else oldest
        if reused and slot != source:
            cache.clear(slot)
            cache.copy(source, slot, reused)
        self.tokens[slot] = self.tokens[source][:reused]
        self.clock += 1
        self.taken[slot], self.sight[slot], row.reused = self.clock, row.sight, reused
        return slot

    def _shared(self, slot: int, row: Row) -> int:
        """Positions of the prompt that `slot` holds, whole blocks, and not the last of it: its logits are needed."""
        size = row.sight
        if self.sight[slot] != size:
            return 0
        most = max(0, len(row.prompt) // size * size - 1)
        return _common(self.tokens[slot], row.prompt[:most]) // size * size


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
