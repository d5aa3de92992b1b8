"""A backbone without a network: a script says which logits come out."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unmask.model.backbone import Feed

Script = Callable[[int, int, int], Tensor]


@dataclass
class ScriptedCache:
    rows: int
    capacity: int
    owner: dict[int, int] = field(default_factory=dict)

    def clear(self, row: int) -> None:
        """A script leaves nothing behind."""

    def copy(self, source: int, target: int, positions: int) -> None:
        """But for whose script it is."""
        self.owner[target] = self.owner[source]


class ScriptedBackbone:
    """`script(who, position, step)` gives the logits [vocab] that propose the token at `position`.

    who: the first token of the row's prompt; step: how many forwards that prompt took part in before.
    `calls` keeps every forward as a list of (who, feed).
    """

    name, ragged, gates = "scripted", False, False
    position_bytes, device = 0, torch.device("cpu")

    def __init__(self, script: Script, vocab_size: int = 64, max_positions: int = 4096) -> None:
        self.script, self.vocab_size, self.max_positions = script, vocab_size, max_positions
        self.calls: list[list[tuple[int, Feed]]] = []
        self.steps: Counter[int] = Counter()

    def new_cache(self, rows: int, capacity: int) -> ScriptedCache:
        return ScriptedCache(rows, capacity)

    def forward(self, cache: ScriptedCache, rows: list[int], feeds: list[Feed]) -> Tensor:
        assert rows == sorted(set(rows)) and len(rows) == len(feeds) and max(rows) < cache.rows
        assert len({feed.draft for feed in feeds}) == 1
        out: list[Tensor] = []
        for row, feed in zip(rows, feeds, strict=True):
            assert len(feed.tokens) == len(feed.ends) == len(feed.masked)
            assert max(feed.ends) <= cache.capacity and feed.start + len(feed.tokens) <= cache.capacity
            assert feed.read == sorted(set(feed.read)) and all(0 <= r < len(feed.tokens) for r in feed.read)
            if feed.start == 0:
                cache.owner[row] = feed.tokens[0]
            who = cache.owner[row]
            out += [self.script(who, feed.start + offset + 1, self.steps[who]) for offset in feed.read]
            self.steps[who] += 1
        self.calls.append([(cache.owner[row], feed) for row, feed in zip(rows, feeds, strict=True)])
        return torch.stack(out) if out else torch.zeros(0, self.vocab_size)


def sure(token: int, probability: float = 0.99, vocab: int = 64) -> Tensor:
    """Logits [vocab] that give `token` this probability and share the rest equally."""
    logits = torch.full((vocab,), (1 - probability) / (vocab - 1)).log()
    logits[token] = torch.tensor(probability).log()
    return logits


def writes(tokens: list[int], start: int, probability: float = 0.99, vocab: int = 64, filler: int = 0) -> Script:
    """A script that writes `tokens` from position `start` on, whatever the row, and then `filler` for ever."""

    def script(who: int, position: int, step: int) -> Tensor:
        place = position - start
        return sure(tokens[place] if 0 <= place < len(tokens) else filler, probability, vocab)

    return script
