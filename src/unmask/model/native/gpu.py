"""The network of `shape` in PyTorch's own operators, for GPUs.

Every forward has all rows of the cache and a fixed width, so that its shapes are few: on a GPU each shape is recorded
once as a CUDA graph and replayed. Rows that have nothing to do, and queries beyond a row's own, write to a spare slot
and are read by nobody. On a CPU it runs as it is, which is how the tests hold it to the kernel.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.core.masks import decoding_mask
from unmask.model.adapters import Adapter
from unmask.model.backbone import Feed, pack
from unmask.model.native.shape import (
    EMBEDDING,
    NORM,
    LayerWeights,
    Shape,
    Tensors,
    Weight,
    frequencies,
    head_weight,
    is_tied,
    layer_weights,
    merged,
    rotation,
    shape_of,
)

RECORDED = 64
"""Queries of a row up to which a shape is recorded; a prompt is long enough to run as it is."""
SEEN = 256
"""The positions in view are rounded up to a multiple of this, and widths to a power of two: fewer shapes."""


class GpuCache:
    """Keys and values [layer, row, kv_head, position, head_dim], one spare position last; zeros at first."""

    def __init__(self, backbone: "GpuBackbone", rows: int, capacity: int) -> None:
        shape, self.rows = backbone.shape, rows
        self.capacity = -(-capacity // SEEN) * SEEN
        size = (shape.layers, rows, shape.kv_heads, self.capacity + 1, shape.head_dim)
        self.key = torch.zeros(size, dtype=backbone.dtype, device=backbone.device)
        self.value = torch.zeros_like(self.key)
        cosine, sine = rotation(*backbone.frequencies, self.capacity)
        self.cosine, self.sine = cosine.to(backbone.device), sine.to(backbone.device)
        self.graphs: dict[tuple[int, int, int], Recorded] = {}
        self.pool: Any = torch.cuda.graph_pool_handle() if backbone.device.type == "cuda" else None

    def clear(self, row: int) -> None:
        self.key[:, row].zero_()
        self.value[:, row].zero_()

    def copy(self, source: int, target: int, positions: int) -> None:
        self.key[:, target, :, :positions] = self.key[:, source, :, :positions]
        self.value[:, target, :, :positions] = self.value[:, source, :, :positions]


@dataclass(frozen=True)
class Inputs:
    """What one forward takes, all of fixed shape: tokens, slots, positions, ends, masked, draft [row, query]; read
    [read], indices into row-major (row, query)."""

    tokens: Tensor
    slots: Tensor
    positions: Tensor
    ends: Tensor
    masked: Tensor
    draft: Tensor
    read: Tensor

    def copy_(self, other: "Inputs") -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name).copy_(getattr(other, name))


@dataclass(frozen=True)
class Recorded:
    """A CUDA graph with the tensors it reads and writes."""

    graph: Any
    inputs: Inputs
    logits: Tensor


class GpuBackbone:
    """Decodes with the weights that `config` and `tensors` describe, on the device and in the number type given.

    adapter: low-rank updates that act on drafted tokens, or (`everywhere`) on all, for which they are merged.
    """

    name, ragged, gates = "native", False, True

    def __init__(
        self,
        config: Any,
        tensors: Tensors,
        *,
        dtype: torch.dtype,
        device: torch.device,
        mask: Tensor | None = None,
        adapter: Adapter | None = None,
        everywhere: bool = False,
    ) -> None:
        self.shape: Shape = shape_of(config, tensors)
        self.dtype, self.device, self.frequencies = dtype, device, frequencies(config)
        self.adapts = adapter is not None and not everywhere
        placed = self._placed
        self.layers = [
            LayerWeights(
                *(None if norm is None else placed(norm) for norm in (w.norm_in, w.norm_mid, w.norm_q, w.norm_k)),  # type: ignore[arg-type]
                *(self._weight(part, everywhere) for part in (w.qkv, w.o, w.gate, w.up, w.down)),
            )
            for w in layer_weights(config, tensors, adapter)
        ]
        self.embedding, self.norm = placed(tensors[EMBEDDING]), placed(tensors[NORM])
        self.head = self.embedding if is_tied(config) else placed(head_weight(config, tensors).matrix)
        self.mask = None if mask is None else placed(mask)
        self.vocab_size, self.max_positions = self.shape.vocab, self.shape.positions
        self.position_bytes = self.shape.position_values * dtype.itemsize

    def new_cache(self, rows: int, capacity: int) -> GpuCache:
        return GpuCache(self, rows, capacity)

    def prepare(self) -> None:
        """Drafts have no network of their own."""

    def apart(self, feed: Feed) -> bool:
        return False

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype)

    def _weight(self, weight: Weight, everywhere: bool) -> Weight:
        made = merged(weight) if everywhere else weight
        parts = (made.matrix, made.bias, made.down, made.up)
        return Weight(*(None if part is None else self._placed(part) for part in parts))  # type: ignore[arg-type]

    @property
    def nbytes(self) -> int:
        each = [self.embedding, self.norm, *([] if self.head is self.embedding else [self.head])]
        for layer in self.layers:
            for part in vars(layer).values():
                each += [t for t in (vars(part).values() if isinstance(part, Weight) else [part]) if t is not None]
        return sum(t.nbytes for t in each)

    @torch.inference_mode()
    def forward(self, cache: GpuCache, rows: list[int], feeds: list[Feed]) -> Tensor:
        """Logits [read, vocab] of the feeds' reads, in their order (see `Backbone`)."""
        inputs, reads = self._inputs(cache, rows, feeds)
        seen = min(-(-max(max(feed.ends) for feed in feeds) // SEEN) * SEEN, cache.capacity)
        if self.device.type != "cuda" or inputs.tokens.shape[1] > RECORDED:
            return self._run(cache, inputs, seen)[:reads]
        with torch.cuda.device(self.device):
            return self._replay(cache, inputs, seen)[:reads].clone()

    def _replay(self, cache: GpuCache, inputs: Inputs, seen: int) -> Tensor:
        """The logits of a forward from its recorded shape, which is recorded at its first use."""
        key = (inputs.tokens.shape[1], seen, len(inputs.read))
        if key not in cache.graphs:
            cache.graphs[key] = self._record(cache, inputs, seen)
        recorded = cache.graphs[key]
        recorded.inputs.copy_(inputs)
        recorded.graph.replay()
        return recorded.logits

    def _inputs(self, cache: GpuCache, rows: list[int], feeds: list[Feed]) -> tuple[Inputs, int]:
        """The feeds at their rows, the other rows idle; widths and the number of reads rounded up."""
        width = _rounded(max(len(feed.tokens) for feed in feeds))
        idle = Feed([0] * width, 0, [1] * width, [False] * width, [])
        packed = pack([*feeds, idle], spare=cache.capacity)
        count = packed["tokens"].shape[1]
        at = torch.tensor(rows)
        draft = torch.tensor(
            [[int(feed.draft and feed.settled <= i < len(feed.tokens)) for i in range(count)] for feed in feeds]
        )
        fill = {"tokens": 0, "slots": cache.capacity, "positions": 0, "ends": 1, "masked": 0}
        made = {}
        for name, value in fill.items():
            made[name] = torch.full((cache.rows, count), value)
            made[name][at] = packed[name][:-1].long()
        made["draft"] = torch.zeros(cache.rows, count, dtype=torch.long)
        made["draft"][at] = draft
        made["read"] = torch.zeros(_rounded(len(packed["read"])), dtype=torch.long)
        row, query = packed["read"] // count, packed["read"] % count
        made["read"][: len(row)] = at[row] * count + query
        made["masked"], made["draft"] = made["masked"].bool(), made["draft"].bool()
        return Inputs(**{name: tensor.to(self.device) for name, tensor in made.items()}), len(row)

    def _record(self, cache: GpuCache, inputs: Inputs, seen: int) -> Recorded:
        """Record one shape; three plain runs before it let the libraries choose their kernels."""
        own = Inputs(**{name: tensor.clone() for name, tensor in vars(inputs).items()})
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run(cache, own, seen)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=cache.pool):
            logits = self._run(cache, own, seen)
        return Recorded(graph, own, logits)

    def _run(self, cache: GpuCache, inputs: Inputs, seen: int) -> Tensor:
        """The forward itself; nothing in it depends on values, so that it can be recorded."""
        shape = self.shape
        x = self.embedding[inputs.tokens]
        if self.mask is not None:
            x = torch.where(inputs.masked[..., None], self.mask, x)
        rotations = cache.cosine[inputs.positions][:, None], cache.sine[inputs.positions][:, None]
        masks = {
            window: decoding_mask(inputs.ends, inputs.positions, seen, window or None) for window in set(shape.windows)
        }
        draft = inputs.draft[..., None] if self.adapts else None
        for index, layer in enumerate(self.layers):
            attended = self._attend(cache, inputs, index, rotations, masks[shape.windows[index]], draft, x)
            x = x + _apply(layer.o, attended, draft)
            a = self._normalised(x, layer.norm_mid)
            x = x + _apply(
                layer.down, functional.silu(_apply(layer.gate, a, draft)) * _apply(layer.up, a, draft), draft
            )
        last = self._normalised(x.flatten(0, 1)[inputs.read], self.norm)
        return functional.linear(last, self.head).float()

    def _attend(
        self,
        cache: GpuCache,
        inputs: Inputs,
        index: int,
        rotations: tuple[Tensor, Tensor],
        mask: Tensor,
        draft: Tensor | None,
        x: Tensor,
    ) -> Tensor:
        """Attention of one layer [row, query, heads * head_dim]; writes keys and values in place before it looks."""
        shape, layer = self.shape, self.layers[index]
        rows, width = inputs.tokens.shape
        fused = _apply(layer.qkv, self._normalised(x, layer.norm_in), draft)
        heads = fused.view(rows, width, shape.heads + 2 * shape.kv_heads, shape.head_dim).transpose(1, 2)
        q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if layer.norm_q is not None and layer.norm_k is not None:
            q, k = self._normalised(q, layer.norm_q), self._normalised(k, layer.norm_k)
        q, k = _rotated(q, *rotations), _rotated(k, *rotations)
        every = torch.arange(rows, device=self.device)[:, None]
        for buffer, new in ((cache.key[index], k), (cache.value[index], v)):
            buffer[every, :, inputs.slots] = new.transpose(1, 2)
        keys, values = cache.key[index][:, :, : mask.shape[-1]], cache.value[index][:, :, : mask.shape[-1]]
        out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(rows, width, -1)

    def _normalised(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), x.shape[-1:], None, self.shape.eps).to(x.dtype) * weight


def _apply(weight: Weight, x: Tensor, draft: Tensor | None) -> Tensor:
    """A linear layer, with its low-rank update where `draft` [row, query, 1] is true."""
    y = functional.linear(x, weight.matrix, weight.bias)
    if draft is None or weight.down is None or weight.up is None:
        return y
    return y + functional.linear(functional.linear(x, weight.down) * draft, weight.up)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of x [row, head, query, head_dim], halves apart, in float32."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return turned.to(x.dtype)


def _rounded(n: int) -> int:
    """The next power of two."""
    return 1 << max(n - 1, 0).bit_length()
