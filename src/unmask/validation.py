"""The loss on rows that are held out, under noise that is the same each time.

A validation draws its masks from (seed, row) alone, so that its numbers differ by what the model has learned and by
nothing else. The network is fed exactly as in training, so a masked token is nowhere to be seen by the slot that
predicts it; there is no gradient and no dropout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.core.blocks import filler
from unmask.core.noise import seeded
from unmask.core.streams import Draw, NoisyRow, collate, noisy_row
from unmask.data import Row, Rows, consecutive
from unmask.noising import noised, without_labels
from unmask.processes import anywhere, share, summed
from unmask.recipe import Adapt

LEVELS = (0.25, 0.5, 0.75, 1.0)
"""Shares of masked slots at which the loss is also measured, so that runs with other noise can be compared."""
Noise = Callable[[Adapt, Row, int, int], list[NoisyRow]]
"""Recipe, row, mask id and row number to what is fed."""


@dataclass(frozen=True)
class Validation:
    """loss: mean over masked labels (nats) under the recipe's noise; levels: the same at fixed shares of masked slots;
    best_loss, best_step: the lowest loss of the run so far."""

    loss: float
    levels: dict[str, float]
    best_loss: float
    best_step: int


def due(recipe: Adapt, step: int) -> bool:
    """Whether a step is followed by a validation."""
    return step > 0 and (step == recipe.steps or step % recipe.validate_every == 0)


def divided(found: Rows, others: Rows) -> tuple[Rows, Sequence[Row]]:
    """What to learn from, and the rows for validation; of the rows of `data` and those of `validation_data`."""
    sources = found.sources | {f"validation_data: {name}": counts for name, counts in others.sources.items()}
    return replace(found, sources=sources, digests=found.digests | others.digests), found.held or others.rows


def validate(
    recipe: Adapt,
    network: Any,
    accelerator: Any,
    rows: Sequence[Row],
    mask_id: int,
    step: int,
    before: Sequence[Validation],
    interrupted: Sequence[int] = (),
) -> Validation | None:
    """Measure; every process calls this, each computes its share. before: the run's validations so far. interrupted:
    once something is in it, None is returned, before the next forward."""
    shares = LEVELS if recipe.objective == "diffusion" else ()  # a next-token fine-tune has no masks
    noises: list[Noise] = [_as_trained, *(_at(level) for level in shares)]
    measured = []
    for noise in noises:
        total = _measure(recipe, network, accelerator, rows, mask_id, noise, interrupted)
        if total is None:
            return None
        measured.append(total)
    sums = summed(accelerator, torch.stack(measured).to(accelerator.device))
    loss, *others = (sums[:, 0] / sums[:, 1].clamp(min=1)).tolist()
    levels = {f"{level:g}": value for level, value in zip(shares, others, strict=True)}
    if not before or loss < before[-1].best_loss:
        return Validation(loss, levels, loss, step)
    return Validation(loss, levels, before[-1].best_loss, before[-1].best_step)


@torch.no_grad()
def _measure(
    recipe: Adapt,
    network: Any,
    accelerator: Any,
    rows: Sequence[Row],
    mask_id: int,
    noise: Noise,
    interrupted: Sequence[int],
) -> Tensor | None:
    """Double [2]: summed loss and number of masked labels over this process's share of the rows; None if stopped."""
    window = consecutive(rows, recipe)
    total = torch.zeros(2, dtype=torch.float64)
    for part in share(window, accelerator.process_index, accelerator.num_processes):
        if anywhere(accelerator, interrupted):
            return None
        chosen = [(n, rows[n]) for n in part] or [(0, without_labels(rows[0]))]
        batch = collate([noisy for n, row in chosen for noisy in noise(recipe, row, mask_id, n)])
        loss = network(batch.to(accelerator.device))[0]
        total += torch.tensor([float(loss), float(len(batch.target))], dtype=torch.float64)
    return total


def _as_trained(recipe: Adapt, row: Row, mask_id: int, number: int) -> list[NoisyRow]:
    """The noise of training at the run's end, of an epoch that there never is."""
    return noised(recipe, row, mask_id, recipe.steps, -1, number)


def _at(level: float) -> Noise:
    def noise(recipe: Adapt, row: Row, mask_id: int, number: int) -> list[NoisyRow]:
        generator, size, length = seeded("validation", recipe.seed, number, str(level)), recipe.block_size, len(row.ids)
        causal = recipe.context == "causal"
        origin = int(torch.randint(size, (1,), generator=generator)) - size if causal else 0
        hit = torch.rand(length + filler(length, size, origin), generator=generator) < level
        draws = [Draw(origin, hit)]
        layout: dict[str, Any] = {"block_size": size, "mask_id": mask_id, "causal": causal}
        weighed = recipe.ar_weight > 0 or recipe.distill > 0
        return [noisy_row(row.ids, row.labelled, draws, **layout, complementary=False, next_token=weighed)]

    return noise
