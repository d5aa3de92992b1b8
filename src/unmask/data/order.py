"""The order of rows: which rows share a forward and which forwards a step, decided by (seed, epoch) alone."""

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil
from typing import Any

import torch

from unmask.core.noise import seeded
from unmask.data.stored import lengths
from unmask.recipe import Adapt

POOL = 16
"""Forwards' worth of shuffled rows that are sorted by length, so that neighbours have similar lengths."""


def consecutive(rows: Sequence[Any], recipe: Adapt) -> list[list[int]]:
    """Row numbers of each forward over rows as they come, by the recipe's batch_rows or batch_tokens."""
    numbers = list(range(len(rows)))
    if recipe.batch_tokens is None:
        return _by_rows(numbers, recipe.batch_rows)
    return _by_tokens(numbers, recipe.batch_tokens, lengths(rows).tolist())


def grouped(lengths: list[int], size: int, tokens: int | None, *, seed: int, epoch: int) -> list[list[int]]:
    """Row numbers of each batch of one epoch: shuffled, then grouped so that neighbours have similar lengths.

    Depends on (seed, epoch) alone. With `tokens` a batch has, in place of `size` rows, as many as hold up to that many
    tokens, and at least one. The last batch of an epoch may be smaller.
    """
    if tokens is not None:
        size = max(1, tokens * len(lengths) // max(1, sum(lengths)))
    generator = seeded("order", seed, epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pool = size * POOL
    pools = (sorted(order[at : at + pool], key=lengths.__getitem__) for at in range(0, len(order), pool))
    cut: list[list[int]] = []
    for part in pools:
        cut += _by_rows(part, size) if tokens is None else _by_tokens(part, tokens, lengths)
    return [cut[n] for n in torch.randperm(len(cut), generator=generator).tolist()]


def _by_rows(part: list[int], size: int) -> list[list[int]]:
    return [part[at : at + size] for at in range(0, len(part), size)]


def _by_tokens(part: list[int], tokens: int, long: list[int]) -> list[list[int]]:
    """Consecutive rows as long as they hold no more than `tokens` together."""
    found: list[list[int]] = []
    held = tokens + 1
    for n in part:
        if held + long[n] > tokens:
            found.append([])
            held = 0
        found[-1].append(n)
        held += long[n]
    return found


class Order:
    """Step → epoch and the row numbers of its forwards. An epoch's last step may be smaller; no row is left out."""

    def __init__(self, rows: Sequence[Any], recipe: Adapt) -> None:
        self.lengths: list[int] = lengths(rows).tolist()
        self.batch_rows, self.batch_tokens = recipe.batch_rows, recipe.batch_tokens
        self.accumulation, self.seed = recipe.accumulation, recipe.seed
        self._epoch, self._batches = -1, list[list[int]]()
        self._ends: list[int] = []

    def at(self, step: int) -> tuple[int, list[list[int]]]:
        """Epoch and row numbers of each forward of `step`, counted from 1."""
        if self.batch_tokens is None:
            epoch = (step - 1) // self.end(0)
        else:
            while not self._ends or self._ends[-1] < step:
                self.end(len(self._ends))
            epoch = bisect_left(self._ends, step)
        place = step - 1 - (self.end(epoch - 1) if epoch else 0)
        return epoch, self._made(epoch)[place * self.accumulation : (place + 1) * self.accumulation]

    def end(self, epoch: int) -> int:
        """Steps up to the end of an epoch. With batch_tokens epochs differ, so all before it are looked at once."""
        if self.batch_tokens is None:
            return (epoch + 1) * ceil(ceil(len(self.lengths) / self.batch_rows) / self.accumulation)
        while len(self._ends) <= epoch:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + ceil(len(self._made(len(self._ends))) / self.accumulation))
        return self._ends[epoch]

    def _made(self, epoch: int) -> list[list[int]]:
        if self._epoch != epoch:
            self._batches = grouped(self.lengths, self.batch_rows, self.batch_tokens, seed=self.seed, epoch=epoch)
            self._epoch = epoch
        return self._batches
