"""What the machine can do at best: read memory, and multiply matrices."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

BUSY = 0.4
"""Load per core from which on figures are doubtful."""
LARGEST, TRIES, SLOW = 2048, 7, 0.1
"""Rows of the largest product, tries of each, and seconds beyond which no larger one is tried."""


@dataclass(frozen=True)
class Limits:
    """bandwidth: bytes per second of reading a buffer of the weights' size; peak_fp32, peak_bf16: operations per
    second of a large matrix product. Each the best of several tries with all threads."""

    bandwidth: float
    peak_fp32: float
    peak_bf16: float

    def of_forward(self, nbytes: float, operations: float) -> float:
        """Seconds that a forward takes at least: the larger of reading its bytes and doing its operations."""
        return max(nbytes / self.bandwidth, operations / max(self.peak_fp32, self.peak_bf16))


def measure_limits(nbytes: int) -> Limits:
    """Limits of this machine, for a buffer of `nbytes`."""
    return Limits(_bandwidth(nbytes), peak(torch.float32), peak(torch.bfloat16))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _bandwidth(nbytes: int) -> float:
    buffer = torch.ones(nbytes // 4)
    return buffer.nbytes / min(seconds(buffer.sum) for _ in range(TRIES))


def peak(dtype: torch.dtype) -> float:
    """Operations per second; sizes grow while a product is quick, since without units for a type it is very slow."""
    n, best = 128, 0.0
    while True:
        product = partial(torch.mm, torch.ones(n, n, dtype=dtype), torch.ones(n, n, dtype=dtype))
        taken = seconds(product)
        if taken < SLOW:
            taken = min(taken, *(seconds(product) for _ in range(TRIES)))
        best = max(best, 2 * n**3 / taken)
        if n >= LARGEST or taken > SLOW:
            return best
        n *= 2


def busy() -> str | None:
    """A line of warning where other programs want this machine's cores; None where it is quiet, or where that is not
    known. A machine that was busy a minute ago may be quiet now."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
    cores = os.cpu_count() or 1
    if load < BUSY * cores:
        return None
    return f"note: load {load:.1f} on {cores} cores in the last minute; beside other programs figures are too low"


def processor() -> str:
    """The processor's name; Python leaves it empty on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
