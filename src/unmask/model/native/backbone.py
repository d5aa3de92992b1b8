"""The native backbone: the network of `shape` without transformers in the loop."""

from typing import Any

import torch
from torch import Tensor

from unmask.model.adapters import Adapter
from unmask.model.backbone import Feed
from unmask.model.native.build import WIDEST_GROUP, WIDEST_HEAD, NoKernel, library
from unmask.model.native.cpu import CpuCache, CpuNetwork, parts_of, rough_parts
from unmask.model.native.flat import flatten
from unmask.model.native.shape import Tensors, shape_of, why_not

KIND_OF = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp32"}
"""How weights of a type are held on a CPU, which has no arithmetic for halves: as the smallest kind that loses none."""
ROUGH = ("fp32", "bf16")
"""Kinds that draft in int8 where the draft is checked."""


class NativeBackbone:
    """Decodes with a copy of the weights that `config` and `tensors` describe.

    adapter: low-rank updates that act on feeds with `draft=True`, whatever else shares their forward, or (`everywhere`)
    on all, for which they are merged. Drafts that are checked are computed in int8, from a second copy of the weights
    that is made at the first of them.
    """

    name, ragged, gates = "native", True, True
    device = torch.device("cpu")

    def __init__(
        self,
        config: Any,
        tensors: Tensors,
        *,
        kind: str,
        mask: Tensor | None = None,
        adapter: Adapter | None = None,
        everywhere: bool = False,
    ) -> None:
        self.network = CpuNetwork(parts_of(config, tensors, kind, mask, adapter, everywhere=everywhere))
        self.rough_network: CpuNetwork | None = None
        self.kind, self.has_adapter = kind, adapter is not None and not everywhere
        shape = self.network.parts.shape
        self.vocab_size, self.max_positions = shape.vocab, shape.positions
        self.position_bytes = shape.position_values * 4

    def new_cache(self, rows: int, capacity: int) -> CpuCache:
        return CpuCache(self.network.parts, rows, capacity)

    def prepare(self) -> None:
        """Make what the first draft that is checked would otherwise wait for."""
        if self.has_adapter and self.kind in ROUGH and self.rough_network is None:
            self.rough_network = CpuNetwork(rough_parts(self.network.parts))

    def apart(self, feed: Feed) -> bool:
        """Whether a feed is computed by another network than the rest, and so in a forward of its own."""
        return self.has_adapter and self.kind in ROUGH and feed.draft and feed.checked

    @torch.inference_mode()
    def forward(self, cache: CpuCache, rows: list[int], feeds: list[Feed]) -> Tensor:
        """Run one forward (see `Backbone`); feeds of all kinds may share it, but for those that are `apart`."""
        return self._network(feeds[0]).forward(cache, flatten(rows, feeds))

    def _network(self, feed: Feed) -> CpuNetwork:
        if not self.apart(feed):
            return self.network
        self.prepare()
        assert self.rough_network is not None
        return self.rough_network


def why_not_native(config: Any, tensors: Tensors, adapter: Adapter | None, device: torch.device) -> str | None:
    """Why the native backbone cannot run a model on this machine; None where it can."""
    reason = why_not(config, tensors, adapter)
    if reason is not None:
        return reason
    if device.type != "cpu":
        return None
    shape = shape_of(config, tensors)
    if shape.heads > WIDEST_GROUP * shape.kv_heads or shape.head_dim > WIDEST_HEAD:
        return f"heads of {shape.head_dim} in groups of {shape.heads // shape.kv_heads} are too wide for the kernel"
    try:
        library()
    except NoKernel as e:
        return str(e)
    return None
