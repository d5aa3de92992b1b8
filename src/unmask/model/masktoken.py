"""Which token id stands for a masked slot when a plain model is adapted.

An id that the base has but never uses costs nothing. Padded vocabularies (Qwen) have rows beyond the tokenizer; other
families have reserved names. Only where neither exists is a row added, and no row is ever taken away.
"""

from typing import Any

import torch
from torch import nn

from unmask.errors import ConfigError

OFFICIAL_MASK = "|<MASK>|"
RESERVED = ("<empty_output>", "<|reserved_special_token_0|>", "<unused0>")
UNUSED_NAMES = (OFFICIAL_MASK, "<|mask|>", "<mask>", "[MASK]", *RESERVED)


def choose_mask_id(config: Any, tokenizer: Any | None, wanted: int | None = None) -> tuple[int, bool]:
    """(mask id, whether the embedding needs a new row for it).

    In this order: what the user wants, a name that means mask or that the family reserves, the first row of a padded
    vocabulary that no token uses, a new row. Raises ConfigError for a wanted id that is no row or is an end token, and
    for a model without tokenizer, which cannot say what is unused.
    """
    rows = config.get_text_config().vocab_size
    if wanted is not None:
        if not 0 <= wanted < rows:
            raise ConfigError(f"mask id {wanted} is not a row of the embedding; allowed: 0 to {rows - 1}")
        if wanted in declared_stops(config, tokenizer):
            raise ConfigError(f"mask id {wanted} is an end token; use an id that text never contains")
        return wanted, False
    if tokenizer is None:
        raise ConfigError("the model has no tokenizer to tell which token id is unused; give --mask-id N")
    vocabulary = tokenizer.get_vocab()
    for name in UNUSED_NAMES:
        if vocabulary.get(name, rows) < rows:
            return vocabulary[name], False
    first_free = max(vocabulary.values()) + 1
    return (first_free, False) if first_free < rows else (rows, True)


def prepare_mask(model: Any, tokenizer: Any | None, wanted: int | None = None) -> int:
    """Choose the mask id and, where it needs one, append a row to the embedding (and head): the mean of all rows."""
    mask_id, new_row = choose_mask_id(model.config, tokenizer, wanted)
    if new_row:
        model.resize_token_embeddings(mask_id + 1, mean_resizing=False)
        _fill_with_mean(model.get_input_embeddings(), mask_id)
        _fill_with_mean(model.get_output_embeddings(), mask_id)
    return mask_id


@torch.no_grad()
def _fill_with_mean(layer: nn.Module, row: int) -> None:
    weight: Any = layer.weight
    weight[row] = weight[:row].float().mean(0).to(weight.dtype)


def declared_stops(config: Any, tokenizer: Any | None, generation_config: Any | None = None) -> tuple[int, ...]:
    """All end tokens that any file of a checkpoint declares: one may name more than another, and each ends a turn."""
    found: set[int] = set()
    for source in (generation_config, config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return tuple(sorted(found))
