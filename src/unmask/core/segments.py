"""The parts of the training mask that are worth computing.

Of the dense mask [query, key] over a batch of streams most is False: rows do not see each other, and a noisy block
sees its own slots and a stretch of clean tokens. A segment is some neighbouring queries with the keys that any of them
sees; what is outside of all segments is masked out. `learns_from` stays the one rule.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.masks import CLEAN, Streams, learns_from

LONGEST = 128
"""Queries of a segment, but for a block that is longer by itself."""


@dataclass(frozen=True)
class Segment:
    """Queries `start` to `stop` - 1, what they look at, and where they may: Bool [query, key].

    keys: stretches (start, stop) of the key axis, one behind the other.
    """

    start: int
    stop: int
    keys: tuple[tuple[int, int], ...]
    mask: Tensor


def segments(query: Streams, key: Streams, causal: bool, window: int | None = None) -> list[Segment]:
    """Segments of a batch's queries, in their order, all queries included.

    query, key: Long [1, token], laid out by `collate`: each document's clean tokens stand together, and each noisy
    block's. The keys hold all queries.
    """
    q, k = query[0], key[0]
    offset = len(k.stream) - len(q.stream)
    found = []
    for start, stop in _pieces(q):
        document, noisy = int(q.document[start]), int(q.stream[start]) != CLEAN
        clean = ((k.document == document) & (k.stream == CLEAN)).nonzero().flatten()
        stretches = [] if len(clean) == 0 else [(int(clean[0]), int(clean[-1]) + 1)]
        if noisy:
            stretches.append((start + offset, stop + offset))
        mask = torch.cat([_rule(q[start:stop], k[a:b], causal, window) for a, b in stretches], dim=1)
        if len(clean):
            seen = mask[:, : len(clean)].any(0).nonzero().flatten()
            first, last = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
            begin = stretches[0][0]
            stretches[0] = (begin + first, begin + last)
            mask = torch.cat([mask[:, first:last], mask[:, len(clean) :]], dim=1)
        found.append(Segment(start, stop, tuple((a, b) for a, b in stretches if b > a), mask))
    return found


def _rule(q: Streams, k: Streams, causal: bool, window: int | None) -> Tensor:
    return learns_from(q[:, None], k[None, :], causal, window)


def _pieces(q: Streams) -> list[tuple[int, int]]:
    """Runs of one document, clean or noisy, cut between blocks so that no piece is longer than LONGEST where it can."""
    block = torch.stack([q.document, q.stream, q.start])
    borders = [0, *((block[:, 1:] != block[:, :-1]).any(0).nonzero().flatten() + 1).tolist(), block.shape[1]]
    kinds = list(zip(q.document.tolist(), (q.stream == CLEAN).tolist(), strict=True))
    pieces: list[tuple[int, int]] = []
    for start, stop in zip(borders[:-1], borders[1:], strict=True):
        alike = bool(pieces) and kinds[pieces[-1][0]] == kinds[start]
        if alike and stop - pieces[-1][0] <= LONGEST:
            pieces[-1] = (pieces[-1][0], stop)
        else:
            pieces.append((start, stop))
    return pieces
