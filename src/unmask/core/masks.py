"""Who sees whom: one predicate for decoding, one for training.

Both are plain functions of index tensors, so that the dense mask (sdpa, eager) and the flex BlockMask are two
renderings of the same rule. True means "may attend".
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CLEAN = 0
"""Stream number of the clean tokens; noisy streams (views) are numbered from 1."""
NOBODY = -1
"""Document number of padding: it sees padding only, and nothing else sees it."""


def sees(end: Tensor, position: Tensor, key: Tensor, window: int | None = None) -> Tensor:
    """Decoding: a query at `position` sees the keys below its `end`, at most `window` - 1 back where there is a window.

    The window counts back from the query: what lies right of it in its own block is always visible, what lies left of
    it in the block only while it is within the window, as in the network's own attention. Shapes broadcast.
    """
    visible = key < end
    return visible if window is None else visible & (key > position - window)


def decoding_mask(ends: Tensor, positions: Tensor, width: int, window: int | None = None) -> Tensor:
    """Bool [row, 1, query, width] from ends and positions, Long [row, query]."""
    key = torch.arange(width, device=ends.device)
    return sees(ends[..., None], positions[..., None], key, window)[:, None]


@dataclass(frozen=True)
class Streams:
    """Where each token of a training row stands; every field is Long [row, token].

    stream: CLEAN or the number of a view; start: first position of the token's block; position: logical position in
    its document; document: which document of the row, NOBODY for padding. Views may cut their blocks differently.
    """

    stream: Tensor
    start: Tensor
    position: Tensor
    document: Tensor

    def __getitem__(self, at: Any) -> "Streams":
        return Streams(self.stream[at], self.start[at], self.position[at], self.document[at])

    def cat(self, other: "Streams") -> "Streams":
        """Both along the token axis."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
        return Streams(*(torch.cat(pair, dim=-1) for pair in pairs))


def learns_from(q: Streams, k: Streams, causal: bool, window: int | None = None) -> Tensor:
    """Training (Fast-dLLM v2, section 3.2): may query q attend to key k? Fields broadcast.

    A noisy token sees its own block of its own view, in both directions, and the clean tokens of earlier blocks. A
    clean token sees clean tokens only: of its own and earlier blocks (`causal=False`, as published), or those up to
    itself (`causal=True`). Nobody sees another document.
    """
    clean_key = k.stream == CLEAN
    own_block = (q.stream == k.stream) & (q.start == k.start)
    earlier = k.position <= q.position if causal else k.start <= q.start
    noisy = torch.where(clean_key, k.position < q.start, own_block)
    allowed = torch.where(q.stream == CLEAN, clean_key & earlier, noisy)
    if window is not None:
        allowed = allowed & (k.position > q.position - window)
    return allowed & (q.document == k.document)


def training_mask(query: Streams, key: Streams, causal: bool, window: int | None = None) -> Tensor:
    """Bool [row, 1, query, key], rendered dense."""
    return learns_from(query[:, :, None], key[:, None, :], causal, window)[:, None]


def training_block_mask(query: Streams, key: Streams, causal: bool, window: int | None = None) -> object:
    """The same rule as a flex attention BlockMask (for GPUs): one for all layers and heads of a forward."""
    from torch.nn.attention.flex_attention import create_block_mask

    def rule(row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return learns_from(query[row, q], key[row, k], causal, window)

    rows, queries = query.stream.shape
    return create_block_mask(rule, rows, None, queries, key.stream.shape[1], device=query.stream.device)
