"""Feeds as one flat list of tokens: nothing is padded, and rows in different states stand side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.model.backbone import Feed


@dataclass(frozen=True)
class Flat:
    """Per token: its id (-1 for a masked slot), the row of the cache, its position, the exclusive end of what it sees,
    and whether the draft adapters act on it (0 or 1).

    read: indices of the tokens whose logits are wanted.
    """

    token: list[int]
    row: list[int]
    position: list[int]
    end: list[int]
    draft: list[int]
    read: list[int]


def flatten(rows: Sequence[int], feeds: Sequence[Feed]) -> Flat:
    flat = Flat([], [], [], [], [], [])
    for row, feed in zip(rows, feeds, strict=True):
        n = len(feed.tokens)
        flat.read.extend(len(flat.token) + offset for offset in feed.read)
        flat.token.extend(-1 if masked else token for token, masked in zip(feed.tokens, feed.masked, strict=True))
        flat.row.extend([row] * n)
        flat.position.extend(range(feed.start, feed.start + n))
        flat.end.extend(feed.ends)
        flat.draft.extend([0] * feed.settled + [int(feed.draft)] * (n - feed.settled))
    return flat
