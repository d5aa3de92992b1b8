"""Linear layers for a handful of rows on a CPU.

PyTorch's CPU matrix library leaves threads idle and rearranges the weights at every call when x has few rows, and a
decoding step has one to a few dozen. So such products go through oneDNN with weights that were rearranged once, at the
layer's first use. Same sums up to rounding; the price is a second copy of the weights that are used. Measured in
docs/decisions.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unmask.model.files import available_memory

MOST = 32
"""Rows up to which it pays."""
SHARE = 0.25
"""Of the free memory that the second copy may take."""
_off = False
_rearranged: "WeakKeyDictionary[nn.Module, tuple[Any, Tensor]]" = WeakKeyDictionary()
"""By layer: which state of its weights was rearranged, and the result. Outside the layers, so that copying and saving
them is what it always is."""


class SkinnyLinear(nn.Linear):
    """`nn.Linear` with another product for few rows; made by `make_skinny`, never constructed."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if _off or not 1 <= rows <= MOST or torch.is_grad_enabled():
            return super().forward(x)
        weight: Tensor = _ready(self, rows)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x.reshape(rows, -1), weight, self.bias, "none", [], "")
        return y.reshape(*x.shape[:-1], -1)


def _ready(layer: nn.Linear, rows: int) -> Tensor:
    """The layer's rearranged weights; made again if the weights changed since."""
    state = (layer.weight.data_ptr(), layer.weight._version)
    known = _rearranged.get(layer)
    if known is None or known[0] != state:
        known = _rearranged[layer] = (state, torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows))
    return known[1]


def make_skinny(model: nn.Module) -> None:
    """Let the plain float32 linear layers of a model on a CPU use `SkinnyLinear`'s forward, if memory allows."""
    layers = [m for m in model.modules() if type(m) is nn.Linear and _fits(m.weight)]
    free = available_memory(torch.device("cpu"))
    if free is None or sum(layer.weight.nbytes for layer in layers) > SHARE * free or not _offered():
        return
    for layer in layers:
        layer.__class__ = SkinnyLinear


def _fits(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


def _offered() -> bool:
    """Whether this build of PyTorch has the two operations; they are not part of its public interface."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


@contextmanager
def plain_linear() -> Iterator[None]:
    """Within it `SkinnyLinear` is `nn.Linear`, so that a comparison runs the network as transformers has it."""
    global _off
    _off = True
    try:
        yield
    finally:
        _off = False
