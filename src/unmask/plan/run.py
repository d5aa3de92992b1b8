"""A recipe's plan. Where its data or its base's tokenizer are not at hand, what the recipe alone determines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import torch

from unmask.data import Order, Row, Rows
from unmask.data.sources import UnavailableError
from unmask.errors import CheckpointError
from unmask.model.hf import generation_settings, load_tokenizer, read_config
from unmask.model.masktoken import choose_mask_id, declared_stops
from unmask.model.sources import locate
from unmask.noising import noised
from unmask.plan.cost import Fed, Memory, fed, learning, memory, operations
from unmask.plan.devices import EFFICIENCY, USUAL, Devices, gpus, this_machine
from unmask.plan.network import network_of
from unmask.recipe import Adapt, warn_of_idle
from unmask.rowsharing import read_rows
from unmask.validation import divided

LOOKED_AT, SAMPLE, EPOCHS = 1000, 64, 100
"""Steps whose rows are looked up, draws of noise that are made to see what they put into the network, and epochs of
unequal length that are looked up."""


@dataclass(frozen=True)
class Amount:
    """Per step."""

    mean: float
    largest: float


@dataclass(frozen=True)
class Estimate:
    """devices: as `--gpus` names them; seconds: the whole run; bytes_each: memory of each device, weights, gradients
    and moments divided over all; fits: None where the memory of a device is not known."""

    devices: str
    seconds: float
    bytes_each: float
    fits: bool | None


@dataclass(frozen=True)
class Plan:
    """What a recipe takes. unread: why rows were not read; then tokens and labels are the most that there can be.

    sources: a count of each reason by source. validated: rows for validation, whose forwards are not in the operations.
    labels: answer tokens per step. epochs: None where rows were not read.
    tokens: of the whole run. positions: fed per step, all streams. learning: values that learn. memory: of one device
    that holds everything. rows_bytes: of the encoded rows on the disk, in a file that all processes of a machine
    share. efficiency: share of the peak that the times expect.
    """

    unread: str | None
    sources: dict[str, dict[str, int]]
    rows: int | None
    validated: int
    rows_bytes: int | None
    steps: int
    epochs: float | None
    tokens_per_step: Amount
    labels_per_step: Amount
    tokens: float
    positions_per_step: float
    parameters: int
    learning: int
    memory: Memory
    operations: float
    efficiency: float
    estimates: list[Estimate]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"memory": asdict(self.memory) | {"total": self.memory.total}}


def plan(recipe: Adapt, on: list[str] | None = None, *, measure: bool = True) -> Plan:
    """Look at a recipe without training. on: devices to estimate for, as `8xH100`; measure: also this machine.

    Rows are read where the base's tokenizer and the data are at hand; hub data that are not are said in `unread`, any
    other fault of the data raises as it would in training.
    """
    warn_of_idle(recipe)
    network = network_of(recipe.base)
    devices = [gpus(text) for text in on or USUAL]
    if measure:
        devices.insert(0, this_machine(recipe.dtype))
    rows, held, mask_id, unread = _rows(recipe)
    looked = rows.rows or [_longest(recipe)]
    step, forward, tokens, labels = _fed(recipe, looked, mask_id, known=unread is None)
    needed, work = memory(network, recipe, forward), operations(network, recipe, step) * recipe.steps
    return Plan(
        unread,
        {name: dict(counts) for name, counts in rows.sources.items()},
        len(rows.rows) or None,
        held,
        rows.bytes or None,
        recipe.steps,
        _epochs(recipe, looked) if unread is None else None,
        tokens,
        labels,
        tokens.mean * recipe.steps,
        step.positions,
        network.parameters,
        learning(network, recipe),
        needed,
        work,
        EFFICIENCY,
        [_estimate(each, needed, work) for each in devices],
    )


def _rows(recipe: Adapt) -> tuple[Rows, int, int, str | None]:
    """The rows, the number of those for validation, the mask id, and why there are none."""
    try:
        path = locate(recipe.base)
        config, _ = read_config(path)
        tokenizer = load_tokenizer(path, config)
        if tokenizer is None:
            return Rows(), 0, 0, f"{recipe.base} has no tokenizer"
        stops = tuple(sorted(declared_stops(config, tokenizer, generation_settings(path))))
        mask_id, _ = choose_mask_id(config, tokenizer, recipe.mask_id)
        rows = read_rows(recipe.data, recipe, tokenizer, stops, mask_id, hold=recipe.validation_rows)
        extra = recipe.validation_data
        others = read_rows(extra, recipe, tokenizer, stops, mask_id) if extra else Rows()
    except (CheckpointError, UnavailableError) as error:
        return Rows(), 0, 0, str(error)
    rows, held = divided(rows, others)
    return rows, len(held), mask_id, None


def _longest(recipe: Adapt) -> Row:
    """The most that a row can hold; what the paper's packing always fills."""
    every = torch.ones(recipe.max_length, dtype=torch.bool)
    return Row(torch.zeros(recipe.max_length, dtype=torch.long), every)


def _fed(recipe: Adapt, rows: Sequence[Row], mask_id: int, *, known: bool) -> tuple[Fed, Fed, Amount, Amount]:
    """What a mean step and the largest forward put into the network, and tokens and labels per step."""
    causal = recipe.context == "causal" or recipe.objective == "next-token"
    sampled = rows[:: -(-len(rows) // max(4, SAMPLE // recipe.draws))]
    put = [
        fed(noisy, recipe.block_size, causal)
        for number, row in enumerate(sampled)
        for noisy in noised(recipe, row, mask_id, recipe.steps, 0, number)
    ]
    per_token = sum(put, Fed()).times(1 / sum(len(row.ids) for row in sampled))
    if not known:
        size = recipe.batch_tokens or recipe.batch_rows * recipe.max_length
        whole, labels = size * recipe.accumulation, size * recipe.accumulation
        return per_token.times(whole), per_token.times(size), Amount(whole, whole), Amount(labels, labels)
    order = Order(rows, recipe)
    windows = [order.at(step)[1] for step in range(1, min(recipe.steps, LOOKED_AT) + 1)]
    tokens = [sum(order.lengths[n] for part in window for n in part) for window in windows]
    labelled = [sum(int(rows[n].labelled[1:].sum()) for part in window for n in part) for window in windows]
    largest = max(sum(order.lengths[n] for n in part) for window in windows for part in window)
    return (
        per_token.times(mean(tokens)),
        per_token.times(largest),
        Amount(mean(tokens), max(tokens)),
        Amount(mean(labelled), max(labelled)),
    )


def _epochs(recipe: Adapt, rows: Sequence[Row]) -> float:
    """Times that all rows are seen; the share of a last, unfinished epoch by its steps."""
    order, looked = Order(rows, recipe), EPOCHS if recipe.batch_tokens else 1  # without, all are equally long
    step = 0
    for epoch in range(looked):
        end = order.end(epoch)
        if end >= recipe.steps:
            return epoch + (recipe.steps - step) / (end - step)
        step = end
    return recipe.steps / (step / looked)


def _estimate(devices: Devices, needed: Memory, work: float) -> Estimate:
    each = needed.divided(devices.count)
    return Estimate(
        f"{devices.count}x{devices.name}" if devices.memory else devices.name,
        devices.seconds(work),
        each,
        each <= devices.memory if devices.memory else None,
    )
