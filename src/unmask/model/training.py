"""The training forward over a clean stream and noisy blocks, on an unmodified Hugging Face model.

Two forms, chosen by what the fine-tune acts on. `joint`: clean and noisy tokens in one forward. `split` (adapter scope
"draft"): the clean stream runs first, adapters off and without a gradient, and the noisy forward reads its keys and
values; the base is never moved. Attention is computed by `attention`, on a GPU as flex attention.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.streams import StreamBatch
from unmask.model.attention import Tape, keeps_own_attention, masks
from unmask.model.universal import decoder, embed


def joint(model: nn.Module, batch: StreamBatch, *, mask_id: int, mask_vector: Tensor | None, causal: bool) -> Tensor:
    """Hidden states [1, token, hidden] of one forward over both streams."""
    embedded = embed(model, batch.ids, batch.masked, mask_id, mask_vector)
    seen = masks(model, batch.streams, batch.streams, causal)
    return decoder(model, embedded, batch.streams.position, seen, None)


def split(
    model: nn.Module,
    batch: StreamBatch,
    *,
    mask_id: int,
    mask_vector: Tensor | None,
    adapters_off: Callable[[], AbstractContextManager[Any]],
) -> Tensor:
    """Hidden states [1, token, hidden]; the clean part carries no gradient."""
    cut, tape = batch.clean, Tape()
    cache = tape if keeps_own_attention(model) else None
    clean, noisy = batch.streams[:, :cut], batch.streams[:, cut:]
    with torch.no_grad(), adapters_off():
        seen = decoder(
            model,
            embed(model, batch.ids[:, :cut], batch.masked[:, :cut], mask_id, mask_vector),
            clean.position,
            masks(model, clean, clean, True, tape),
            cache,
        )
    embedded = embed(model, batch.ids[:, cut:], batch.masked[:, cut:], mask_id, mask_vector)
    guessed = decoder(model, embedded, noisy.position, masks(model, noisy, batch.streams, True, tape), cache)
    return torch.cat([seen, guessed], dim=1)
