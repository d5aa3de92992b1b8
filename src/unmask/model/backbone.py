"""What decoding asks of a network.

Every row owns its logical positions 0, 1, 2, … in a static key/value buffer. One forward takes, per row, some tokens
at consecutive positions; it writes their keys and values at those positions (over whatever stood there) and lets each
query see the key positions below its own exclusive `end`. That one number describes every situation:

    AR, verification, causal commit    end = position + 1
    commit in block context            end = the end of the position's own block
    draft of a block                   end = the end of the block, for all queries (bidirectional inside)
    sub-block step (DualCache)         the same end; only the sub-block's slice of the block is rewritten

Rows in different states share a forward; a row that feeds fewer tokens is padded with queries that write to a spare
slot and are read by nobody.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Feed:
    """One row's part of one forward.

    tokens: ids, at positions start, start+1, …
    ends: per token the exclusive end of the key positions it sees
    masked: per token whether the slot is still masked (its id is then ignored)
    read: offsets into tokens whose logits are wanted, ascending
    draft: whether the draft adapters act (ignored by a checkpoint that has none); not on the first `settled` tokens
    checked: whether what is proposed will be checked, so that a draft may be computed roughly
    """

    tokens: list[int]
    start: int
    ends: list[int]
    masked: list[bool]
    read: list[int]
    draft: bool = False
    checked: bool = False
    settled: int = 0


class Cache(Protocol):
    """Static key/value buffers for `rows` rows of `capacity` positions each."""

    rows: int
    capacity: int

    def clear(self, row: int) -> None:
        """Forget what a row holds, before another request takes it."""
        ...

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the keys and values of a row's first `positions` positions to another row."""
        ...


class Backbone(Protocol):
    """A network that decodes. Implementations: `UniversalBackbone`, `NativeBackbone`, a scripted one in the tests.

    ragged: whether feeds of any width share a forward at no cost; else the shorter ones are padded.
    gates: whether drafts and committed tokens may share a forward, the draft adapters acting on the former only.
    position_bytes: what the keys and values of one position of one row take on `device`.
    """

    vocab_size: int
    max_positions: int
    position_bytes: int
    device: torch.device
    name: str
    ragged: bool
    gates: bool

    def new_cache(self, rows: int, capacity: int) -> Cache:
        """Buffers for `rows` rows of `capacity` positions; contents are undefined but finite."""
        ...

    def prepare(self) -> None:
        """Make what the first draft that is checked would otherwise wait for."""
        ...

    def apart(self, feed: Feed) -> bool:
        """Whether a backbone that gates computes this feed with other weights, and so in a forward of its own."""
        ...

    def forward(self, cache: Cache, rows: list[int], feeds: list[Feed]) -> Tensor:
        """Run one forward over `feeds`, the i-th for cache row `rows[i]`.

        All feeds agree on `draft` and `checked`, or, where the backbone gates, on being `apart`.

        Returns float logits [reads, vocab], the reads of the first feed first. Writes keys and values in place.
        """
        ...


def pack(feeds: list[Feed], spare: int) -> dict[str, Tensor]:
    """Pad feeds to one width: tokens, slots, positions, ends, masked [row, query] and read (flat indices).

    Padding queries have position 0, see key 0 only, and write to the slot `spare`.
    """
    width = max(len(feed.tokens) for feed in feeds)
    columns: dict[str, list[list[int]]] = {name: [] for name in ("tokens", "slots", "positions", "ends", "masked")}
    read: list[int] = []
    for row, feed in enumerate(feeds):
        n, pad = len(feed.tokens), width - len(feed.tokens)
        positions = list(range(feed.start, feed.start + n))
        columns["tokens"].append(feed.tokens + [0] * pad)
        columns["slots"].append(positions + [spare] * pad)
        columns["positions"].append(positions + [0] * pad)
        columns["ends"].append(feed.ends + [1] * pad)
        columns["masked"].append([int(m) for m in feed.masked] + [0] * pad)
        read.extend(row * width + offset for offset in feed.read)
    packed = {name: torch.tensor(rows) for name, rows in columns.items()}
    packed["masked"] = packed["masked"].bool()
    packed["read"] = torch.tensor(read, dtype=torch.long)
    return packed
