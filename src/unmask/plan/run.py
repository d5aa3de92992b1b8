"""A recipe's plan. Where its data or its base's tokenizer are not at hand, what the recipe alone determines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import torch

from unmask.data import Order, Row, Rows, load_rows, packing_of
from unmask.data.sources import UnavailableError
from unmask.errors import CheckpointError
from unmask.model.hf import generation_settings, load_tokenizer, read_config
from unmask.model.masktoken import choose_mask_id, declared_stops
from unmask.model.sources import locate
from unmask.noising import noised
from unmask.plan.cost import Fed, Memory, fed, learning, memory, operations
from unmask.plan.devices import EFFICIENCY, USUAL, Devices, gpus, this_machine
from unmask.plan.network import network_of
from unmask.recipe import Adapt

LOOKED_AT, SAMPLE = 1000, 64
"""Steps whose rows are looked up, and rows that are noised to see what they put into the network."""


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

    sources: a count of each reason by source. labels: answer tokens per step. epochs: None where rows were not read.
    tokens: of the whole run. positions: fed per step, all streams. learning: values that learn. memory: of one device
    that holds everything. rows_bytes: of the encoded rows on the disk, in a file that all processes of a machine
    share. efficiency: share of the peak that the times expect.
    """

    unread: str | None
    sources: dict[str, dict[str, int]]
    rows: int | None
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
    network = network_of(recipe.base)
    devices = [gpus(text) for text in on or USUAL]
    if measure:
        devices.insert(0, this_machine(recipe.dtype))
    rows, mask_id, unread = _rows(recipe)
    looked = rows.rows or [_longest(recipe)]
    step, forward, tokens, labels = _fed(recipe, looked, mask_id, known=unread is None)
    needed, work = memory(network, recipe, forward), operations(network, recipe, step) * recipe.steps
    return Plan(
        unread,
        {name: dict(counts) for name, counts in rows.sources.items()},
        len(rows.rows) or None,
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


def _rows(recipe: Adapt) -> tuple[Rows, int, str | None]:
    """The rows, the mask id, and why there are none."""
    try:
        path = locate(recipe.base)
        config, _ = read_config(path)
        tokenizer = load_tokenizer(path, config)
        if tokenizer is None:
            return Rows(), 0, f"{recipe.base} has no tokenizer"
        stops = tuple(sorted(declared_stops(config, tokenizer, generation_settings(path))))
        mask_id, _ = choose_mask_id(config, tokenizer, recipe.mask_id)
        rows = load_rows(
            recipe.data,
            tokenizer,
            max_length=recipe.max_length,
            truncation=recipe.truncation,
            stop_ids=stops,
            seed=recipe.seed,
            packing=packing_of(recipe, mask_id),
        )
    except (CheckpointError, UnavailableError) as error:
        return Rows(), 0, str(error)
    return rows, mask_id, None


def _longest(recipe: Adapt) -> Row:
    """The most that a row can hold; what the paper's packing always fills."""
    every = torch.ones(recipe.max_length, dtype=torch.bool)
    return Row(torch.zeros(recipe.max_length, dtype=torch.long), every)


def _fed(recipe: Adapt, rows: Sequence[Row], mask_id: int, *, known: bool) -> tuple[Fed, Fed, Amount, Amount]:
    """What a mean step and the largest forward put into the network, and tokens and labels per step."""
    causal = recipe.context == "causal" or recipe.objective == "next-token"
    sampled = rows[:: -(-len(rows) // SAMPLE)]
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
    order, step = Order(rows, recipe), 0
    epoch = 0
    while order.end(epoch) < recipe.steps:
        step, epoch = order.end(epoch), epoch + 1
    return epoch + (recipe.steps - step) / (order.end(epoch) - step)


def _estimate(devices: Devices, needed: Memory, work: float) -> Estimate:
    each = needed.divided(devices.count)
    return Estimate(
        f"{devices.count}x{devices.name}" if devices.memory else devices.name,
        devices.seconds(work),
        each,
        each <= devices.memory if devices.memory else None,
    )
