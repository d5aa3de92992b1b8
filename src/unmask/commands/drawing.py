"""An answer on a terminal: settled text, and below it the block being written.

A masked slot is a shaded box, a token that is proposed is coloured by how sure it is, settled text is plain. Lines that
are settled scroll away as ordinary output; only the last, unfinished one and the block are drawn anew at each step. No
control character of a model's text reaches the terminal: it could hide, recolour or overwrite what was written there.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.live import Live
from rich.text import Text

from unmask.events import Committed, Event, Provisional
from unmask.text import UNFINISHED

SURE, DOUBTFUL = 0.9, 0.5
"""Confidence above the one is green, below the other red, between them yellow."""
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
SHOWN: dict[int, str] = (
    {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
    | {0x7F: "\u2421"}
    | dict.fromkeys([*range(0x80, 0xA0), 0x2028, 0x2029, *map(ord, BIDI)], UNFINISHED)
)
"""What stands for characters that steer a terminal (ECMA-48's C0 and C1 sets) or turn the direction of its text."""


def visible(text: str) -> str:
    """The text with a picture in the place of each control character but line end and tab."""
    return text.translate(SHOWN)


def write_plainly(events: Iterable[Event], write: Callable[[str], Any], safe: bool) -> None:
    """Write text as it settles. safe: without control characters, for a terminal."""
    any_text = False
    try:
        for event in events:
            if isinstance(event, Committed) and event.text:
                any_text = True
                write(visible(event.text) if safe else event.text)
    finally:
        if any_text:
            write("\n")


def draw(events: Iterable[Event], console: Console, tokenizer: Any, start: int) -> None:
    """Draw an answer as it is written. start: tokens of the prompt, which tell the block's slots from settled ones.

    What was settled is left on the terminal, whatever ends the events.
    """
    width, line, told = max(console.width - 1, 2), "", 0
    block: Provisional | None = None
    live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
    try:
        with live:
            for event in events:
                if isinstance(event, Committed):
                    told += len(event.token_ids)
                    done, line = settled_lines(line + visible(event.text or ""), width, console)
                    for each in done:
                        _print(console, each)
                elif isinstance(event, Provisional):
                    block = event
                    if block.start > start + told:  # what settled before it is told next
                        continue
                picture = Text(line)
                if block is not None:
                    picture.append_text(slots(block, start + told, tokenizer, box(console)))
                live.update(Group(Constrain(picture, width)), refresh=True)
    finally:
        if line:
            _print(console, line)


def _print(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)


def settled_lines(text: str, width: int, console: Console) -> tuple[list[str], str]:
    """The lines, `width` cells wide at most, that more text cannot change any more, and the rest, which it can."""
    *whole, rest = text.split("\n")
    done = [line.plain for each in whole for line in _wrapped(each, width, console)]
    begun = rest.rstrip(" ")  # blanks at the end say where the next word begins, and wrapping may take them away
    *full, last = _wrapped(begun, width, console)
    return done + [line.plain for line in full], last.plain + rest[len(begun) :]


def _wrapped(text: str, width: int, console: Console) -> Sequence[Text]:
    return list(Text(text.expandtabs(8)).wrap(console, width)) or [Text()]


def box(console: Console) -> str:
    """A shaded box, where the terminal's encoding has one."""
    return "░░" if console.encoding.startswith("utf") else "##"


def slots(block: Provisional, settled: int, tokenizer: Any, masked: str) -> Text:
    """The slots of a block from position `settled` on: masked ones as `masked`, others as their text, coloured."""
    drawn = Text()
    for place in range(max(settled - block.start, 0), len(block.token_ids)):
        if block.masked[place]:
            drawn.append(masked + " ", "dim")
            continue
        left = [] if place == 0 or block.masked[place - 1] else [block.token_ids[place - 1]]
        drawn.append(_piece(tokenizer, left, block.token_ids[place]), f"italic {colour(block.confidence[place])}")
    return drawn


def colour(confidence: float) -> str:
    """green for a sure token, red for a doubtful one."""
    return "green" if confidence >= SURE else "yellow" if confidence >= DOUBTFUL else "red"


def _piece(tokenizer: Any, left: list[int], token: int) -> str:
    """A token's own text on one line; a dot where it is a part of a character."""
    before, whole = (
        tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) if ids else ""
        for ids in (left, [*left, token])
    )
    piece = whole[len(before) :]
    return "·" if UNFINISHED in piece else visible(piece.replace("\n", "⏎").replace("\t", " "))
