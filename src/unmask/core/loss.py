"""Cross entropy at masked labels. There is no 1/t weight: complementary views make every label count once (A.3)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

CHUNK = 2048
"""Labels whose vocabulary-sized logits exist at the same time."""
Head = Callable[[Tensor], Tensor]


def label_loss(hidden: Tensor, target: Tensor, head: Head, weight: Tensor | None = None) -> Tensor:
    """Sum over labels of -log p(target), in float32.

    hidden: Float [label, hidden], already taken one position to the left; target: Long [label]; head gives logits;
    weight: Float [label], by which each term is multiplied. Logits are made for labels alone; where they are more than
    a chunk, a chunk at a time and again in the backward pass.
    """

    def chunk_loss(part: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        if weights is None:
            return cross_entropy(head(part).float(), labels, reduction="sum")
        return torch.dot(weights, cross_entropy(head(part).float(), labels, reduction="none"))

    return _summed(chunk_loss, hidden, target, *([] if weight is None else [weight]))


def teacher_loss(hidden: Tensor, teacher: Tensor, head: Head) -> Tensor:
    """Sum over labels of the divergence KL(teacher, draft) of the two laws, in nats and float32.

    hidden, teacher: Float [label, hidden], the draft's and the clean stream's, both taken one position to the left of
    the label; no gradient reaches the teacher.
    """

    def chunk_loss(part: Tensor, wanted: Tensor) -> Tensor:
        with torch.no_grad():
            law = head(wanted).float().log_softmax(-1)
        return (law.exp() * (law - head(part).float().log_softmax(-1))).sum()

    return _summed(chunk_loss, hidden, teacher.detach())


def _summed(chunk_loss: Callable[..., Tensor], *columns: Tensor) -> Tensor:
    if len(columns[0]) <= CHUNK:
        return chunk_loss(*columns)
    total = columns[0].new_zeros((), dtype=torch.float32)
    for parts in zip(*(column.split(CHUNK) for column in columns), strict=True):
        total = total + checkpoint(chunk_loss, *parts, use_reentrant=False)
    return total
