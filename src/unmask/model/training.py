"""The training forward over a clean stream and noisy blocks, on an unmodified Hugging Face model.

Two forms, chosen by what the fine-tune acts on. `joint`: clean and noisy tokens in one forward. `split` (adapter scope
"draft"): the clean stream runs first, adapters off and without a gradient, and the noisy forward reads its keys and
values; the base is never moved.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.masks import Streams, training_mask
from unmask.core.streams import StreamBatch
from unmask.model.universal import decoder, embed, layer_windows


class Tape:
    """Stands in for a cache: keeps what the clean forward computed and shows it to the noisy one."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        if layer not in self.kept:
            self.kept[layer] = (key, value)
            return key, value
        clean_key, clean_value = self.kept[layer]
        return torch.cat([clean_key, key], dim=2), torch.cat([clean_value, value], dim=2)

    def get_seq_length(self, layer: int = 0) -> int:
        """What transformers asks when it is not told positions; we always tell it."""
        return 0


def joint(model: nn.Module, batch: StreamBatch, *, mask_id: int, mask_vector: Tensor | None, causal: bool) -> Tensor:
    """Hidden states [row, clean + noisy, hidden] of one forward over both streams."""
    embedded = embed(model, batch.ids, batch.masked, mask_id, mask_vector)
    return decoder(model, embedded, batch.streams.position, _masks(model, batch.streams, batch.streams, causal), None)


def split(
    model: nn.Module,
    batch: StreamBatch,
    *,
    mask_id: int,
    mask_vector: Tensor | None,
    adapters_off: Callable[[], AbstractContextManager[Any]],
) -> Tensor:
    """Hidden states [row, clean + noisy, hidden]; the clean part carries no gradient."""
    cut, tape = batch.clean, Tape()
    clean, noisy = batch.streams[:, :cut], batch.streams[:, cut:]
    with torch.no_grad(), adapters_off():
        seen = decoder(
            model,
            embed(model, batch.ids[:, :cut], batch.masked[:, :cut], mask_id, mask_vector),
            clean.position,
            _masks(model, clean, clean, True),
            tape,
        )
    embedded = embed(model, batch.ids[:, cut:], batch.masked[:, cut:], mask_id, mask_vector)
    guessed = decoder(model, embedded, noisy.position, _masks(model, noisy, batch.streams, True), tape)
    return torch.cat([seen, guessed], dim=1)


def _masks(model: nn.Module, query: Streams, key: Streams, causal: bool) -> dict[str, Tensor]:
    windows: dict[str, int | None] = layer_windows(model.config)
    return {kind: training_mask(query, key, causal, window) for kind, window in windows.items()}
