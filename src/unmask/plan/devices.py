"""What machines can do: some GPUs by their makers' figures, and this machine by a short measurement."""

import re
import time
from dataclasses import dataclass

import torch

from unmask.errors import ConfigError
from unmask.limits import peak

EFFICIENCY = 0.4
"""Share of the peak of a matrix product that training is expected to reach."""
GPUS = {
    "A100-40GB": (312e12, 40e9),
    "A100": (312e12, 80e9),
    "H100": (989e12, 80e9),
    "H200": (989e12, 141e9),
    "B200": (2250e12, 180e9),
    "L40S": (362e12, 48e9),
    "RTX4090": (165e12, 24e9),
    "MI300X": (1307e12, 192e9),
}
"""bf16 operations per second (dense) and bytes of memory, from the makers' data sheets."""
USUAL = ("1xRTX4090", "8xA100", "8xH100", "64xA100")


@dataclass(frozen=True)
class Devices:
    """Some devices of a kind; memory 0 where it is not known."""

    name: str
    count: int
    peak: float
    memory: float

    def seconds(self, operations: float) -> float:
        """Expected time of so many operations, divided over the devices without loss."""
        return operations / (self.count * self.peak * EFFICIENCY)


def gpus(text: str) -> Devices:
    """`8xH100` → eight of them; ConfigError for a name that is not in the table."""
    found = re.fullmatch(r"(?:([1-9][0-9]{0,5})x)?(.+)", text)
    names = {name.lower(): name for name in GPUS}
    name = names.get(found[2].lower()) if found else None
    if found is None or name is None:
        raise ConfigError(f"--gpus is '{text}'; allowed: Nx and one of {', '.join(GPUS)}")
    return Devices(name, int(found[1] or 1), *GPUS[name])


def this_machine(dtype: str) -> Devices:
    """This machine's GPUs, else its CPU: the best of a few matrix products in the recipe's number type."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        return Devices(about.name, torch.cuda.device_count(), _peak_of_gpu(kind), float(about.total_memory))
    return Devices(f"this machine's CPU in {dtype}", 1, peak(kind), 0.0)


def _peak_of_gpu(kind: torch.dtype, size: int = 8192) -> float:
    left = torch.ones(size, size, dtype=kind, device="cuda")
    best = 0.0
    for _ in range(6):
        torch.cuda.synchronize()
        started = time.perf_counter()
        torch.mm(left, left)
        torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best
