"""Static key/value buffers. The hierarchy of caches is a matter of who may see what: everything left of the seam is the
block cache, the current block's own stretch is the DualCache, and a commit rewrites that stretch from clean tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """Where one forward writes and how far it looks.

    rows: Long [row]; everyone: whether these are all rows in order; slots: Long [row, query]; width: positions in view
    """

    rows: Tensor
    everyone: bool
    slots: Tensor
    width: int


class StaticCache:
    """Keys and values of every layer in buffers [row, kv_head, position, head_dim], addressed by logical position.

    A network's attention layers call `update`, as they would on a transformers cache; `plan` says what the forward at
    hand does. One spare position behind the last takes the writes of padding queries. Buffers start as zeros and a row
    is cleared for its next owner: a masked key has weight 0, and 0 times a NaN or an infinity left behind is NaN.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        self.plan: Plan | None = None
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write key and value [row, kv_head, query, head_dim] and return all that this forward may see."""
        assert self.plan is not None, "a forward without a plan"
        if layer not in self.layers:
            self.layers[layer] = (self._buffer(key), self._buffer(value))
        buffers = self.layers[layer]
        for buffer, new in zip(buffers, (key, value), strict=True):
            self._write(buffer, new, self.plan)
        return self._read(buffers[0], self.plan), self._read(buffers[1], self.plan)

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Forget what a row holds."""
        for buffers in self.layers.values():
            for buffer in buffers:
                buffer[row].zero_()

    @torch.inference_mode()
    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy a row's first positions to another row."""
        for buffers in self.layers.values():
            for buffer in buffers:
                buffer[target, :, :positions] = buffer[source, :, :positions]

    def _buffer(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.rows, like.shape[1], self.capacity + 1, like.shape[3])

    def _write(self, buffer: Tensor, new: Tensor, plan: Plan) -> None:
        buffer[plan.rows[:, None], :, plan.slots] = new.transpose(1, 2)

    def _read(self, buffer: Tensor, plan: Plan) -> Tensor:
        return (buffer if plan.everyone else buffer[plan.rows])[:, :, : plan.width]

    def get_seq_length(self, layer: int = 0) -> int:
        """What transformers asks when it is not told positions; we always tell it."""
        return 0
