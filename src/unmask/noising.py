"""A row of training text with the noise of one step: decided by (seed, epoch, row) and the recipe alone."""

from typing import Any

import torch

from unmask.core.noise import seeded
from unmask.core.reference import reference_rows
from unmask.core.streams import NoisyRow, draw_noise, noisy_row, plain_row
from unmask.data import Row
from unmask.recipe import Adapt


def noised(recipe: Adapt, row: Row, mask_id: int, step: int, epoch: int, number: int) -> list[NoisyRow]:
    """Row `number` of the data as it is fed in `step`: one row that holds all views, or, in the published layout, one
    per view."""
    if recipe.objective == "next-token":
        return [plain_row(row.ids, row.labelled)]
    generator, size = seeded("noise", recipe.seed, epoch, number), block_size_at(recipe, step)
    causal = recipe.context == "causal"
    full, late = recipe.full_share, recipe.noise == "late"
    draws = [
        draw_noise(len(row.ids), size, generator, shift=causal, full_share=full, late=late) for _ in range(recipe.draws)
    ]
    layout: dict[str, Any] = {
        "block_size": size,
        "mask_id": mask_id,
        "causal": causal,
        "complementary": recipe.complementary,
    }
    if recipe.layout == "reference":
        return reference_rows(row.ids, row.labelled, draws, **layout)
    weighed = recipe.ar_weight > 0 or recipe.distill > 0
    whole = recipe.layout == "shared"
    return [noisy_row(row.ids, row.labelled, draws, **layout, next_token=weighed, every_block=whole)]


def without_labels(row: Row) -> Row:
    """What a process without a row of its own feeds: no slot is masked, no loss comes of it, every weight is used."""
    return Row(row.ids, torch.zeros_like(row.labelled))


def block_size_at(recipe: Adapt, step: int) -> int:
    """The block size of a step: each of a curriculum's sizes has an equal share of the steps."""
    sizes = recipe.block_sizes or (recipe.block_size,)
    return sizes[min((step - 1) * len(sizes) // recipe.steps, len(sizes) - 1)]
