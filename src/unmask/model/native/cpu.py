"""The network of `shape` on a CPU: weights in panels, and one call of the kernel per forward."""

import ctypes
import threading
from collections.abc import Iterable
from ctypes import POINTER, Structure, c_float, c_int32, c_void_p
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unmask.model.adapters import Adapter
from unmask.model.native.build import CHUNK, KEYS, QUERIES, library
from unmask.model.native.flat import Flat
from unmask.model.native.panels import KINDS, Panels, interleaved, packed, rough
from unmask.model.native.shape import (
    EMBEDDING,
    NORM,
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

MOST_PARTS = 2**24
"""Values that chunks of keys may contribute before they are merged as they come."""


@dataclass(frozen=True)
class Layer:
    """One layer's norms (Float, the last two optional) and matrices."""

    norms: tuple[Tensor | None, ...]
    qkv: Panels
    o: Panels
    gate_up: Panels
    down: Panels

    @property
    def matrices(self) -> tuple[Panels, ...]:
        return self.qkv, self.o, self.gate_up, self.down


@dataclass(frozen=True)
class Parts:
    """Everything a forward reads. embedding: Float or BFloat16 [vocab, hidden], None where it is the head; mask: Float
    [hidden]."""

    shape: Shape
    kind: str
    layers: list[Layer]
    norm: Tensor
    head: Panels
    embedding: Tensor | None
    mask: Tensor | None
    frequencies: Tensor
    scaling: float


class CpuCache:
    """Keys [layer, row, kv_head, …] in panels of 8 positions and values [layer, row, kv_head, position, head_dim], in
    float32, with the rotation of every position. Starts as zeros."""

    def __init__(self, parts: Parts, rows: int, capacity: int) -> None:
        shape, self.rows = parts.shape, rows
        self.capacity = -(-capacity // CHUNK) * CHUNK
        self.head_dim = shape.head_dim
        size = (shape.layers, rows, shape.kv_heads, self.capacity * shape.head_dim)
        self.key, self.value = torch.zeros(size), torch.zeros(size)
        self.cosine, self.sine = rotation(parts.frequencies, parts.scaling, self.capacity)

    def clear(self, row: int) -> None:
        self.key[:, row].zero_()
        self.value[:, row].zero_()

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy a row's first positions to another row, whole panels of them."""
        n = min(self.capacity, -(-positions // KEYS) * KEYS) * self.head_dim
        self.key[:, target, :, :n] = self.key[:, source, :, :n]
        self.value[:, target, :, :n] = self.value[:, source, :, :n]


class CpuNetwork:
    """The kernel with the weights it reads; `forward` for a flat list of tokens."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.lib, shape = parts, library(), parts.shape
        self.panel = self.lib.unmask_panel()
        self._layers = (_Layer * shape.layers)(
            *(
                _Layer(*map(_address, layer.norms), *map(_linear, layer.matrices), window)
                for layer, window in zip(parts.layers, shape.windows, strict=True)
            )
        )
        sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.ff, shape.vocab)
        halves = parts.embedding is not None and parts.embedding.dtype == torch.bfloat16
        self._network = _Network(
            *(KINDS[parts.kind], *sizes, halves, shape.eps, self._layers, _address(parts.norm), _linear(parts.head)),
            *map(_address, (parts.embedding, parts.mask)),
        )
        self._rank = max((matrix.rank for layer in parts.layers for matrix in layer.matrices), default=0)
        self._scratch: dict[str, Tensor] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All weights; the rough network shares some with the network it was made from."""
        parts = self.parts
        tensors = [t for layer in parts.layers for t in layer.norms]
        tensors += [t for panels in self._matrices() for t in panels.tensors]
        return [t for t in (*tensors, parts.norm, parts.embedding, parts.mask) if t is not None]

    def _matrices(self) -> Iterable[Panels]:
        yield self.parts.head
        for layer in self.parts.layers:
            yield from layer.matrices

    def forward(self, cache: CpuCache, flat: Flat) -> Tensor:
        """Logits Float [read, vocab] of the tokens that `flat` reads; their keys and values are written in place.

        Threads may call it at once: they wait for one another, since a forward takes all cores and the scratch memory.
        """
        reach = max(max(flat.end), max(flat.position) + 1)
        assert reach <= cache.capacity, f"position {reach} is beyond the cache's {cache.capacity}"
        with self._lock:
            return self._forward(cache, flat)

    def _forward(self, cache: CpuCache, flat: Flat) -> Tensor:
        shape, n = self.parts.shape, len(flat.token)
        assert self.parts.mask is not None or min(flat.token) >= 0, "a masked slot without a vector for it"
        columns = [flat.token, flat.row, flat.position, flat.end, flat.read, self._blocks(flat)]
        adapted = flat.draft if self._rank and any(flat.draft) else None
        given = [torch.tensor(column, dtype=torch.int32) for column in columns]
        given.append(torch.tensor(adapted or [], dtype=torch.int32))
        blocks, chunks = len(columns[-1]) - 1, -(-max(flat.end) // CHUNK)
        logits = torch.empty(len(flat.read), shape.vocab)
        step = _Step(
            *(n, len(flat.read), blocks, chunks, cache.rows, cache.capacity),
            *map(_address, given[:4]),
            None if adapted is None else _address(given[6]),
            *map(_address, given[4:6]),
            *map(_address, (cache.cosine, cache.sine, cache.key, cache.value)),
            *self._buffers(n),
            self._parts(n, blocks, chunks),
            _address(logits),
        )
        self.lib.unmask_forward(ctypes.byref(self._network), ctypes.byref(step), torch.get_num_threads())
        return logits

    def _blocks(self, flat: Flat) -> list[int]:
        """Where blocks of neighbours start that look at the same keys together, and the end of the last."""
        most, starts = max(1, QUERIES * self.parts.shape.kv_heads // self.parts.shape.heads), [0]
        for i in range(1, len(flat.row)):
            if flat.row[i] != flat.row[i - 1] or i - starts[-1] == most:
                starts.append(i)
        return [*starts, len(flat.row)]

    def _buffers(self, n: int) -> list[int | None]:
        """Scratch memory of a forward over n tokens: x, a, qkv, wide, scale, low, rounded."""
        shape = self.parts.shape
        widest = max(shape.hidden, shape.heads * shape.head_dim, shape.ff)
        fused = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        padded = -(-shape.ff // self.panel) * self.panel
        sizes = {"x": shape.hidden, "a": widest, "qkv": fused, "wide": 2 * padded, "scale": 1, "low": self._rank}
        floats = [self._buffer(name, n * size, torch.float32) for name, size in sizes.items()]
        return [*floats, self._buffer("rounded", n * widest if self.parts.kind == "int8" else 0, torch.int16)]

    def _parts(self, n: int, blocks: int, chunks: int) -> int | None:
        """Room for what each chunk of keys contributes, where chunks are shared out: to threads that lack work."""
        shape = self.parts.shape
        size = chunks * n * shape.heads * (shape.head_dim + KEYS)
        if blocks * shape.kv_heads >= 8 * torch.get_num_threads() or size > MOST_PARTS:
            return None
        return self._buffer("parts", size, torch.float32)

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> int | None:
        held = self._scratch.get(name)
        if held is None or held.numel() < size:
            held = self._scratch[name] = torch.empty(size, dtype=dtype)
        return _address(held)


def parts_of(
    config: Any,
    tensors: Tensors,
    kind: str,
    mask: Tensor | None,
    adapter: Adapter | None,
    *,
    everywhere: bool = False,
) -> Parts:
    """A network's weights as the kernel wants them. kind: fp32, bf16 or int8; everywhere: merge the adapter.

    bf16 and int8 say how matrices are stored. Sums are taken in float32 (int8: in whole numbers, of activations that
    are rounded to 14 bits per token); norms, activations, keys, values and logits are float32.
    """
    panel, shape = library().unmask_panel(), shape_of(config, tensors)
    head = packed(head_weight(config, tensors), kind, panel)  # the largest first, while nothing else is held

    def made(weight: Weight) -> Panels:
        return packed(merged(weight) if everywhere else weight, kind, panel)

    layers = [
        Layer(
            tuple(map(_vector, (weights.norm_in, weights.norm_mid, weights.norm_q, weights.norm_k))),
            made(weights.qkv),
            made(weights.o),
            made(interleaved(weights.gate, weights.up, panel)),
            made(weights.down),
        )
        for weights in layer_weights(config, tensors, adapter)
    ]
    embedding = None
    if not is_tied(config):
        rows = tensors[EMBEDDING].detach()
        embedding = rows.clone() if rows.dtype == torch.bfloat16 else _vector(rows)
    norm = _vector(tensors[NORM])
    assert norm is not None
    return Parts(shape, kind, layers, norm, head, embedding, _vector(mask), *frequencies(config))


def rough_parts(parts: Parts) -> Parts:
    """The draft network in int8, its low-rank updates merged: for drafts that are checked."""
    again = partial(rough, panel=library().unmask_panel())
    head = again(parts.head)
    layers = [Layer(layer.norms, *map(again, layer.matrices)) for layer in parts.layers]
    return replace(parts, kind="int8", layers=layers, head=head)


def _vector(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.detach().float().contiguous().clone()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _linear(panels: Panels) -> "_Linear":
    pointers = map(_address, (panels.weight, panels.scale, panels.bias, panels.down, panels.up))
    return _Linear(*pointers, panels.inputs, panels.out, panels.rank)


class _Linear(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("weight", "scale", "bias", "down", "up")),
        *((name, c_int32) for name in ("inputs", "out", "rank")),
    ]


class _Layer(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("norm_in", "norm_mid", "norm_q", "norm_k")),
        *((name, _Linear) for name in ("qkv", "o", "gate_up", "down")),
        ("window", c_int32),
    ]


class _Network(Structure):
    _fields_ = [
        *(
            (name, c_int32)
            for name in ("type", "layers", "hidden", "heads", "kv_heads", "head_dim", "ff", "vocab", "halves")
        ),
        ("eps", c_float),
        ("layer", POINTER(_Layer)),
        ("norm", c_void_p),
        ("head", _Linear),
        ("embedding", c_void_p),
        ("mask", c_void_p),
    ]


class _Step(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("tokens", "reads", "blocks", "chunks", "rows", "capacity")),
        *((name, c_void_p) for name in ("token", "row", "position", "end", "adapted", "read", "block")),
        *((name, c_void_p) for name in ("cosine", "sine", "key", "value")),
        *((name, c_void_p) for name in ("x", "a", "qkv", "wide", "scale", "low", "rounded", "parts", "logits")),
    ]
