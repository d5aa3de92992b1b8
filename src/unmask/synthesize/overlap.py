"""Decontamination: whether a prompt shares a run of words with an evaluation text.

The measure is that of GPT-3 (arXiv 2005.14165, appendix C): words in lower case without punctuation, a run of 13 of
them in common. A text of 8 to 12 words is searched for as a whole; a shorter one must be the whole prompt.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from unmask.data import read_jsonl
from unmask.errors import DataError

WORDS, SHORTEST = 13, 8
WORD = re.compile(r"\w+")


class Overlap:
    """The runs of words of the texts that no prompt may share."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.runs: set[str] = set()
        self.whole: set[str] = set()
        self.sizes: set[int] = set()
        for text in texts:
            words = _words(text)
            if len(words) >= SHORTEST:
                self.sizes.add(size := min(WORDS, len(words)))
                self.runs.update(_runs(words, size))
            elif words:
                self.whole.add(" ".join(words))

    def hits(self, text: str) -> bool:
        words = _words(text)
        return " ".join(words) in self.whole or any(run in self.runs for n in self.sizes for run in _runs(words, n))


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _runs(words: list[str], size: int) -> Iterator[str]:
    return (" ".join(words[at : at + size]) for at in range(len(words) - size + 1))


def excluded_texts(file: str) -> Iterator[str]:
    """The texts of a file: of a JSONL line its prompt or user turns, else every string in it; or lines of plain text.

    Raises DataError, also for a file that holds no text.
    """
    try:
        start = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise DataError(f"cannot be read: {why}; give a file of texts to keep out", file=file) from None
    if not start.strip():
        raise DataError("holds no text; give at least one line", file=file)
    if start.lstrip()[0] != "{":
        yield from start.split("\n")
        return
    for _, record in read_jsonl(file):
        yield from _of_record(record)


def _of_record(record: dict[str, Any]) -> Iterator[str]:
    messages, prompt = record.get("messages"), record.get("prompt")
    if isinstance(messages, list):
        yield from (m["content"] for m in messages if isinstance(m, dict) and _asks(m))
    elif isinstance(prompt, str):
        yield prompt
    else:
        yield from (value for value in record.values() if isinstance(value, str))


def _asks(message: dict[str, Any]) -> bool:
    return message.get("role") == "user" and isinstance(message.get("content"), str)
