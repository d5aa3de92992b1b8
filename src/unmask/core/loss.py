"""Cross entropy at masked labels. There is no 1/t weight: complementary views make every label count once (A.3)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

CHUNK = 2048
"""Labels whose vocabulary-sized logits exist at the same time."""


def label_loss(hidden: Tensor, target: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    """Sum over labels of -log p(target), in float32.

    hidden: Float [label, hidden], already taken one position to the left; target: Long [label]; head gives logits.
    Logits are made for labels alone, a chunk at a time, and made again in the backward pass.
    """

    def chunk_loss(part: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(head(part).float(), labels, reduction="sum")

    total = hidden.new_zeros((), dtype=torch.float32) + 0.0 * hidden.float().sum()
    for part, labels in zip(hidden.split(CHUNK), target.split(CHUNK), strict=True):
        if len(labels) == len(target):
            return chunk_loss(part, labels)
        total = total + checkpoint(chunk_loss, part, labels, use_reentrant=False)
    return total
