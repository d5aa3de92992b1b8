"""Matrices as the kernel reads them: panels of outputs, input after input (the forms are described in kernel.c)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from unmask.model.native.shape import Weight

PIECE = 64
"""Panels that are packed or unpacked at a time."""
KINDS = {"fp32": 0, "bf16": 1, "int8": 2}
"""How weights are stored, and the kernel's number for it."""


@dataclass(frozen=True)
class Panels:
    """A linear layer in panels. weight: in the form of `kind`; scale: Float [out] of int8; bias: Float [out].

    down, up: a low-rank update in panels of float32, of `rank` outputs and inputs; None where there is none.
    """

    kind: str
    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None
    down: Tensor | None
    up: Tensor | None
    inputs: int
    out: int
    rank: int

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in (self.weight, self.scale, self.bias, self.down, self.up) if t is not None]

    def pieces(self, *, updated: bool = False) -> Iterator[Tensor]:
        """Float32 [PIECE panels of outputs, in] one after the other, with the low-rank update where `updated`."""
        down = None if self.down is None or not updated else _unpack("fp32", self.down)[: self.rank]
        for first in range(0, len(self.weight), PIECE):
            matrix = _unpack(self.kind, self.weight[first : first + PIECE])
            start = first * (len(matrix) // len(self.weight[first : first + PIECE]))
            stop = min(start + len(matrix), self.out)
            matrix = matrix[: stop - start]
            if self.scale is not None:
                matrix = matrix * self.scale[start:stop, None]
            if down is not None and self.up is not None:
                matrix = matrix + _unpack("fp32", self.up[first : first + PIECE])[: stop - start] @ down
            yield matrix

    def dense(self, *, updated: bool = False) -> Tensor:
        """Float32 [out, in], with the low-rank update where `updated`."""
        return torch.cat(list(self.pieces(updated=updated)))


def packed(weight: Weight, kind: str, panel: int) -> Panels:
    """A layer in panels of `panel` outputs."""
    out, inputs = weight.matrix.shape
    pieces = (piece.float() for piece in weight.matrix.split(PIECE * panel))
    down, up = (None if part is None else _pack("fp32", part.float(), panel) for part in (weight.down, weight.up))
    bias = None if weight.bias is None else weight.bias.float().contiguous()
    rank = 0 if weight.down is None else len(weight.down)
    return Panels(kind, *_pack_pieces(pieces, kind, panel, out), bias, down, up, inputs, out, rank)


def rough(panels: Panels, panel: int) -> Panels:
    """The same layer in int8, its low-rank update merged."""
    held = _pack_pieces(panels.pieces(updated=True), "int8", panel, panels.out)
    return Panels("int8", *held, panels.bias, None, None, panels.inputs, panels.out, 0)


def _pack_pieces(pieces: Iterable[Tensor], kind: str, panel: int, out: int) -> tuple[Tensor, Tensor | None]:
    """(weight, scale) of rows that come in pieces of whole panels, so that little is held twice at a time."""
    held, scale, at = None, torch.empty(out) if kind == "int8" else None, 0
    for piece in pieces:
        if scale is not None:
            own = scale[at : at + len(piece)]
            own.copy_(torch.maximum(piece.amax(1), -piece.amin(1)) / 127).clamp_min_(torch.finfo(torch.float32).tiny)
            piece = (piece / own[:, None]).round_()
        part = _pack(kind, piece, panel)
        if held is None:
            held = part.new_empty(-(-out // panel), *part.shape[1:])
        held[at // panel : at // panel + len(part)] = part
        at += len(piece)
    assert held is not None
    return held, scale


def interleaved(gate: Weight, up: Weight, panel: int) -> Weight:
    """One layer with a panel of gates, a panel of ups, and so on, each filled up with zeros."""

    def woven(first: Tensor, second: Tensor) -> Tensor:
        padding = [0, 0] * (first.dim() - 1) + [0, -len(first) % panel]
        each = [functional.pad(part, padding).view(-1, panel, *part.shape[1:]) for part in (first, second)]
        return torch.stack(each, 1).flatten(0, 2)

    matrix, bias, down, low = woven(gate.matrix, up.matrix), None, None, None
    if gate.bias is not None or up.bias is not None:
        bias = woven(*(w.matrix.new_zeros(len(w.matrix)) if w.bias is None else w.bias for w in (gate, up)))
    downs, ups = zip(*(w.update for w in (gate, up)), strict=True)
    if any(map(len, downs)):
        down, none = torch.cat(downs), ([0, len(downs[1])], [len(downs[0]), 0])
        low = woven(*(functional.pad(part, padding) for part, padding in zip(ups, none, strict=True)))
    return Weight(matrix, bias, down, low)


def _pack(kind: str, matrix: Tensor, panel: int) -> Tensor:
    """[out, in] to panels: fp32 [panel, in, output]; bf16 so in pairs of halves; int8 [panel, in / 2, output, 2]."""
    out, inputs = matrix.shape
    panels = functional.pad(matrix, (0, 0, 0, -out % panel)).view(-1, panel, inputs)
    if kind == "int8":
        return panels.to(torch.int8).view(-1, panel, inputs // 2, 2).transpose(1, 2).contiguous()
    if kind == "fp32":
        return panels.transpose(1, 2).contiguous()
    low, high = panels.bfloat16().view(torch.int16).int().chunk(2, dim=1)
    return (low & 0xFFFF | high << 16).transpose(1, 2).contiguous()


def _unpack(kind: str, panels: Tensor) -> Tensor:
    """The inverse of `_pack`, as float32 and with the outputs that filled the last panel up."""
    if kind == "int8":
        return panels.transpose(1, 2).flatten(2).flatten(0, 1).float()
    if kind == "fp32":
        return panels.transpose(1, 2).flatten(0, 1)
    words = panels.transpose(1, 2)
    halves = torch.cat([words << 16, words & -0x10000], dim=1)
    return halves.contiguous().view(torch.float32).flatten(0, 1)
