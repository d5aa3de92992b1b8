"""A conversation: its turns, how many of them the model still reads, and the file that keeps it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unmask.errors import ConfigError
from unmask.model.files import replace_text

Messages = list[dict[str, str]]


@dataclass
class Turn:
    """A question and what was answered; "" while nothing was."""

    question: str
    answer: str = ""


@dataclass
class Conversation:
    """The turns, oldest first. system: the system message, "" for none; unread: so many first turns are left out."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    unread: int = 0

    def messages(self, first: int = 0) -> Messages:
        """Messages as a chat template takes them, from turn `first` on; an open question is the last of them."""
        made = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns[first:]:
            made.append({"role": "user", "content": turn.question})
            if turn.answer:
                made.append({"role": "assistant", "content": turn.answer})
        return made

    def fit(self, encode: Callable[[Messages], Sequence[int]], room: int) -> list[int]:
        """Token ids of what the model reads, at most `room` of them where leaving out old turns can do it: so many
        first turns are then `unread`, never the last."""
        ids = encode(self.messages(self.unread))
        while len(ids) > room and self.unread < len(self.turns) - 1:
            self.unread += 1
            ids = encode(self.messages(self.unread))
        return list(ids)

    def clear(self) -> None:
        """Forget every turn; the system message stays."""
        self.turns, self.unread = [], 0

    def save(self, file: Path) -> None:
        """Write all turns as one line of JSON, {"messages": [...]}, which prompts files and training rows are made of.

        ConfigError where there is nothing to save or the file exists; CheckpointError where it cannot be written.
        """
        if not self.turns:
            raise ConfigError("there is nothing to save yet; ask something first")
        if file.exists():
            raise ConfigError(f"{file} exists; give another name")
        replace_text(file, json.dumps({"messages": self.messages()}, ensure_ascii=False) + "\n")
