"""Linear layers for a handful of rows on a CPU.

The matrix library that PyTorch uses on CPUs is written for many rows. For 2 to 16 of them, which is what a block is,
computing (W x^T)^T is about twice as fast as x W^T on wide layers (four times on a vocabulary head), because the long
side of W then runs over the library's parallel dimension. Same sums, same weights, no copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

FEWEST, MOST = 2, 32
_off = False


class SkinnyLinear(nn.Linear):
    """`nn.Linear` that computes few rows the other way round; made by `make_skinny`, never constructed."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if _off or not FEWEST <= rows <= MOST or torch.is_grad_enabled():
            return super().forward(x)
        y = torch.mm(self.weight, x.reshape(rows, -1).t()).t()
        y = y if self.bias is None else y + self.bias
        return y.reshape(*x.shape[:-1], -1)


def make_skinny(model: nn.Module) -> None:
    """Let every plain linear layer of a model on a CPU use `SkinnyLinear`'s forward; weights stay where they are."""
    for module in model.modules():
        if (
            type(module) is nn.Linear
            and module.weight.device.type == "cpu"
            and module.out_features > module.in_features
        ):
            module.__class__ = SkinnyLinear


@contextmanager
def plain_linear() -> Iterator[None]:
    """Within it `SkinnyLinear` is `nn.Linear`, so that a comparison runs the network as transformers has it."""
    global _off
    _off = True
    try:
        yield
    finally:
        _off = False
