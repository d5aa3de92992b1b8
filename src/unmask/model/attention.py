"""Attention in training, inside an unmodified transformers model: only what some query may see is computed.

On a CPU the queries are taken in `segments`, each with the keys it sees; the query heads that share a key/value head
are laid one behind the other, so that keys are read once. On a GPU it is flex attention with one BlockMask for all
layers. A family that is not among the proved ones keeps its own attention, under the dense mask.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.core.masks import Streams, training_block_mask, training_mask
from unmask.core.segments import Segment, segments
from unmask.model.probe import PROVED
from unmask.model.universal import layer_windows

NAME = "unmask"
"""As transformers knows this attention."""


class Tape:
    """Keeps what the clean forward computed, by layer, and shows it to the noisy one, which comes second. It may also
    stand in for a transformers cache."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        if layer not in self.kept:
            self.kept[layer] = (key, value)
            return key, value
        clean_key, clean_value = self.kept[layer]
        return torch.cat([clean_key, key.to(clean_key.dtype)], dim=2), torch.cat([clean_value, value], dim=2)

    def get_seq_length(self, layer: int = 0) -> int:
        """What transformers asks when it is not told positions; we always tell it."""
        return 0


@dataclass(frozen=True)
class Sight:
    """What a forward's queries see: segments, or a flex BlockMask; and the clean forward's keys and values."""

    parts: "Parts"
    block_mask: Any
    tape: Tape | None


def use_our_attention(model: Any) -> None:
    """Let a model's layers take the attention that `masks` prepares for, if its family is a proved one."""
    if model.config.model_type not in PROVED:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # for calls that bring no mask of ours
    model.set_attn_implementation(NAME)


def keeps_own_attention(model: Any) -> bool:
    return bool(model.config._attn_implementation != NAME)


def masks(model: Any, query: Streams, key: Streams, causal: bool, tape: Tape | None = None) -> dict[str, Tensor]:
    """By layer type what the model's attention takes as its mask; query, key: Long [1, token]."""
    windows = layer_windows(model.config)
    if keeps_own_attention(model):
        return {name: training_mask(query, key, causal, window) for name, window in windows.items()}
    if _takes_flex(query.stream.device):
        blocks = {name: training_block_mask(query, key, causal, window) for name, window in windows.items()}
        return {name: _carrying(Sight([], block_mask, tape)) for name, block_mask in blocks.items()}
    found = {name: segments(query, key, causal, window) for name, window in windows.items()}
    return {name: _carrying(Sight([(s, _bias(s)) for s in part], None, tape)) for name, part in found.items()}


def _takes_flex(device: torch.device) -> bool:
    return device.type == "cuda"


def _bias(segment: Segment) -> Tensor:
    return torch.zeros(segment.mask.shape).masked_fill(~segment.mask, -math.inf)


def _carrying(sight: Sight) -> Tensor:
    """A four-dimensional tensor, which transformers hands through to the attention as it is."""
    carrier = torch.empty(1, 1, 1, 1)
    carrier.sight = sight  # type: ignore[attr-defined]
    return carrier


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention [1, query, head, head_dim] of query [1, head, query, head_dim] over key, value [1, kv_head, key, …]."""
    sight: Sight | None = getattr(attention_mask, "sight", None)
    if sight is None:
        return _plain(module, query, key, value, attention_mask, scaling=scaling, **others)
    if sight.tape is not None:
        key, value = sight.tape.update(key, value, module.layer_idx)
    key, value = key.to(query.dtype), value.to(query.dtype)
    if sight.block_mask is not None:
        out = _flex(query, key, value, block_mask=sight.block_mask, scale=scaling, enable_gqa=True)
    else:
        out = _Segments.apply(query, key, value, sight.parts, scaling)
    return out.transpose(1, 2).contiguous(), None


def _plain(*arguments: Any, **others: Any) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    found: tuple[Tensor, None] = sdpa_attention_forward(*arguments, **others)
    return found


def _flex(*tensors: Tensor, **how: Any) -> Tensor:
    out: Tensor = _compiled()(*tensors, **how)
    return out


@functools.cache
def _compiled() -> Any:
    """flex attention, compiled at its first use; uncompiled it computes the whole dense product."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


Parts = list[tuple[Segment, Tensor]]
"""Segments, each with its mask as what is added to the scores: 0 or -inf, Float [query, key]."""


class _Segments(torch.autograd.Function):
    """Attention segment by segment. Gradients of keys are added in place, where slices under autograd would make a
    tensor of all keys for each; and the backward kernel is called as such, since a backward pass within a backward pass
    would take a thread of its own."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: Parts, scaling: float | None) -> Tensor:
        group = query.shape[1] // key.shape[1]
        _, heads, width, size = query.shape
        out, sums = query.new_empty(1, width, heads, size).transpose(1, 2), []  # as the next layer reads it: no copy
        for segment, bias in parts:
            at, mask = slice(segment.start, segment.stop), _for_heads(bias, group, query)
            taken = _fold(query[:, :, at], group), _keys(key, segment), _keys(value, segment)
            folded, log_sum = _kernels()._scaled_dot_product_flash_attention_for_cpu(
                *taken, attn_mask=mask, scale=scaling
            )
            out[:, :, at] = _unfold(folded, group)
            sums.append(log_sum)
        ctx.save_for_backward(query, key, value, out, *sums)
        ctx.parts, ctx.scaling = parts, scaling
        return out

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, *sums = ctx.saved_tensors
        group = query.shape[1] // key.shape[1]
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for (segment, bias), log_sum in zip(ctx.parts, sums, strict=True):
            at, mask = slice(segment.start, segment.stop), _for_heads(bias, group, query)
            d_out, folded, result = (_fold(tensor[:, :, at], group) for tensor in (gradient, query, out))
            taken = d_out, folded, _keys(key, segment), _keys(value, segment), result, log_sum, 0.0, False
            d_folded, *others = _kernels()._scaled_dot_product_flash_attention_for_cpu_backward(
                *taken, attn_mask=mask, scale=ctx.scaling
            )
            d_query[:, :, at] = _unfold(d_folded, group)
            for total, part in zip((d_key, d_value), others, strict=True):
                done = 0
                for start, stop in segment.keys:
                    total[:, :, start:stop] += part[:, :, done : done + stop - start]
                    done += stop - start
        return d_query, d_key, d_value, None, None


def _kernels() -> Any:
    return torch.ops.aten


def _keys(tensor: Tensor, segment: Segment) -> Tensor:
    pieces = [tensor[:, :, start:stop] for start, stop in segment.keys]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)


def _fold(tensor: Tensor, group: int) -> Tensor:
    """[1, head, query, head_dim] to [1, kv_head, group * query, head_dim]: heads that share keys stand one behind the
    other, so that keys are read once."""
    return tensor.unflatten(1, (-1, group)).flatten(2, 3)


def _unfold(tensor: Tensor, group: int) -> Tensor:
    return tensor.unflatten(2, (group, -1)).flatten(1, 2)


def _for_heads(bias: Tensor, group: int, query: Tensor) -> Tensor:
    return bias.to(query.dtype).repeat(group, 1)[None, None]
