"""Text in and out: the chat template, decoding that never splits a character, stop strings.

A tokenizer is passed in (transformers' interface: encode, decode, apply_chat_template, bos_token, chat_template).
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from unmask.errors import RequestError

UNFINISHED = "\ufffd"


def render(tokenizer: Any, prompt: str | Sequence[dict[str, Any]], raw: bool = False) -> list[int]:
    """Token ids of a prompt, a text or a list of messages, with the chat template applied exactly once.

    With `raw`, or when the tokenizer has no chat template, a text is taken as it is. The beginning-of-text token comes
    once: from the template where there is one, else from the tokenizer unless the text already starts with it.
    """
    if isinstance(prompt, str):
        if raw or not getattr(tokenizer, "chat_template", None):
            return _encode(tokenizer, prompt)
        prompt = [{"role": "user", "content": prompt}]
    if raw:
        raise RequestError("raw takes one text, not a list of messages; give a prompt", field="messages")
    if not prompt:
        raise RequestError("messages is empty; give at least one message", field="messages", value=[])
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError(
            "this tokenizer has no chat template, so messages cannot be rendered; give a plain prompt", field="messages"
        )
    try:
        text = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # whatever a template raises is about these messages
        reason = " ".join(str(error).split())
        raise RequestError(f"the chat template refuses these messages: {reason}", field="messages") from error
    return list(tokenizer.encode(text, add_special_tokens=False))


def _encode(tokenizer: Any, text: str) -> list[int]:
    bos = getattr(tokenizer, "bos_token", None)
    return list(tokenizer.encode(text, add_special_tokens=not (bos and text.startswith(bos))))


class Decoder:
    """Token ids to text, one token at a time; a piece ends where a character ends.

    Each token is decoded behind the tokens of the piece before it, because a token's text may depend on its left
    neighbour (a leading blank, the bytes of one character). Special tokens are not shown.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.left: list[int] = []
        self.open: list[int] = []

    def push(self, token: int) -> str | None:
        """The text that is settled by this token; None while a character is unfinished."""
        self.open.append(token)
        piece = self._piece()
        if piece.endswith(UNFINISHED):
            return None
        if piece:
            self.left = self.open
        else:
            self.left = self.left + self.open
        self.open = []
        return piece

    def flush(self) -> str:
        """The unfinished rest, where an answer is cut inside a character; the only source of replacement characters."""
        piece = self._piece() if self.open else ""
        self.open = []
        return piece

    def _piece(self) -> str:
        before = self._text(self.left)
        return self._text(self.left + self.open)[len(before) :]

    def _text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class StopScanner:
    """Text in pieces to text that is safe to show: what might become a stop string is held back.

    The stop string that is complete first ends the text (the longer one where two end together), so the result does
    not depend on how the text was cut into pieces. Empty stop strings are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = [stop for stop in stops if stop]
        self.held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """The text that can be shown now."""
        if self.stopped:
            return ""
        self.held += piece
        hits = [(self.held.find(stop) + len(stop), -len(stop)) for stop in self.stops if stop in self.held]
        if hits:
            end, length = min(hits)
            shown, self.held, self.stopped = self.held[: end + length], "", True
            return shown
        keep = max((self._overlap(stop) for stop in self.stops), default=0)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back for a stop string that did not come."""
        shown, self.held = self.held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop`."""
        longest = min(len(stop) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(stop[:n])), 0)


class Stream:
    """An answer's tokens to its settled text, and to the tokens that belong to it.

    `released` counts the tokens whose text lies wholly in what was shown; no stop string can take them back, and after
    one they are the answer. Until then, and until `finish`, tokens behind them are held.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self.decoder, self.scanner = Decoder(tokenizer), StopScanner(stops)
        self.parts: list[str] = []
        self.shown = 0
        self.seen = 0
        self.released = 0
        self.held: deque[int] = deque()
        self.pending = 0

    @property
    def text(self) -> str:
        """All text that was shown."""
        return "".join(self.parts)

    @property
    def stopped(self) -> bool:
        return self.scanner.stopped

    def push(self, token: int) -> str:
        """Take the next token; returns newly settled text."""
        self.pending += 1
        piece = self.decoder.push(token)
        if piece is None:
            return ""
        return self._show(piece)

    def finish(self) -> str:
        """The rest of the text, when no further token comes; empty after a stop string."""
        if self.stopped:
            return ""
        shown = self._show(self.decoder.flush())
        if not self.stopped:
            shown += self._add(self.scanner.flush())
        return shown

    def _show(self, piece: str) -> str:
        self.seen += len(piece)
        self.held.extend([self.seen] * self.pending)
        self.pending = 0
        return self._add(self.scanner.push(piece))

    def _add(self, text: str) -> str:
        self.parts.append(text)
        self.shown += len(text)
        while self.held and self.held[0] <= self.shown:
            self.held.popleft()
            self.released += 1
        return text


def repeated_4grams(texts: list[list[int]]) -> float:
    """Share of 4-grams that occurred before in their own text; 0 where no text has four tokens."""
    repeated = total = 0
    for text in texts:
        grams = Counter(tuple(text[at : at + 4]) for at in range(len(text) - 3))
        repeated += sum(n - 1 for n in grams.values())
        total += grams.total()
    return repeated / total if total else 0.0
