"""A draft network in int8, for CPUs: what a check verifies need not be exact.

Linear layers hold int8 weights, one scale per output channel; activations are rounded to 7 bits when they arrive, with
one scale for all rows of a forward. So a draft may depend on its neighbours in the batch. That costs no text, since
every drafted token is checked in full precision; it may cost or save a forward. It is not used where a draft is final.
"""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

SMALLEST = 20_000_000
"""Parameters below which a network gains nothing."""


class RoughLinear(nn.Module):
    """A linear layer with int8 weights, made from one with float weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-8).double()
        zero = torch.zeros(len(scale), dtype=torch.long)
        bias = None if linear.bias is None else linear.bias.detach().float()
        with warnings.catch_warnings():  # these types will go some day; `rough_copy` then leaves a network as it is
            warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
            quantised = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, reduce_range=True)
        return result


def rough_copy(model: Any) -> Any:
    """`model` with int8 linear layers and everything else shared; `model` itself where that would gain nothing."""
    parameters = list(model.parameters())
    fits = parameters[0].device.type == "cpu" and parameters[0].dtype == torch.float32
    if not fits or sum(p.numel() for p in parameters) < SMALLEST or not hasattr(torch, "quantize_per_channel"):
        return model
    shared: dict[int, Any] = {id(tensor): tensor for tensor in [*parameters, *model.buffers()]}
    made = copy.deepcopy(model, shared)
    for parent in list(made.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, RoughLinear(child))
    return made
