"""Linear layers for a handful of rows on a CPU with several threads.

PyTorch's CPU matrix library splits x W^T over rows of x, so 2 to 32 of them, which is what a block is, leave threads
idle. (W x^T)^T splits over the long side of W instead: same sums, same weights, no copy. Measured in docs/decisions.md.
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
        if _off or not FEWEST <= rows <= MOST or torch.get_num_threads() == 1 or torch.is_grad_enabled():
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
