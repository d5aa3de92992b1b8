"""How fast a model is on this machine: what `unmask bench` measured, in unmask's cache folder.

A record holds for the weights, the machine, the number of threads and the number type that it was measured with.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from unmask.auto import Measured
from unmask.core.pace import Costs
from unmask.errors import CheckpointError
from unmask.limits import processor
from unmask.model.admissible import fingerprint
from unmask.model.files import read_json
from unmask.model.sources import home

SLOPES = {"fp32": (0.09, 0.7, 0.05), "bf16": (0.1, 1.0, 0.08), "int8": (0.17, 1.0, 0.18)}
"""Assumed of CPUs, by the kind that weights are held in, in forwards over one position: what each further position of a
check adds; what a draft takes at least, and what each of its positions adds."""
FLAT = (0.01, 1.0, 0.01)
"""Of a GPU, where few positions cost hardly more than one."""


def assumed(backbone: Any) -> Costs:
    """Costs where nothing was measured."""
    kind = getattr(backbone, "kind", "fp32")
    each, least, slope = FLAT if backbone.device.type != "cpu" else SLOPES[kind]
    points = (1, 128)
    return Costs(tuple((n, 1 + each * (n - 1)) for n in points), tuple((n, least + slope * n) for n in points))


def write_measured(measured: Measured, backbone: Any, directory: Path) -> Path:
    """Store what was measured with `backbone` of the model in `directory`; returns the file.

    CheckpointError where it cannot be written.
    """
    file, fresh = _file(backbone, directory), f".{os.getpid()}.tmp"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_name(file.name + fresh)
        made.write_text(json.dumps(asdict(measured) | {"made_on": _place(backbone)}, indent=1) + "\n", encoding="utf-8")
        made.replace(file)
    except OSError as e:
        raise CheckpointError(f"cannot write {file}: {e.strerror}") from None
    return file


def read_measured(backbone: Any, directory: Path) -> Measured | None:
    """What was measured of this model, machine, thread count and number type; None where nothing was.

    CheckpointError for a damaged file.
    """
    try:
        if not (home() / "speed").is_dir():
            return None
    except CheckpointError:  # there is no home directory
        return None
    file = _file(backbone, directory)
    if not file.is_file():
        return None
    entries = read_json(file)
    try:
        return _measured(entries) if entries["made_on"] == _place(backbone) else None
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CheckpointError(
            f"{file} is damaged ({type(e).__name__}: {e}); remove it, or run unmask bench again"
        ) from None


def _measured(entries: Mapping[str, Any]) -> Measured:
    costs = entries["costs"]
    clean, draft = (tuple((int(n), float(t)) for n, t in costs[name]) for name in ("clean", "draft"))
    if not clean or not draft or min(t for _, t in clean + draft) <= 0:
        raise ValueError("a forward that took no time")
    rates = {mode: {int(n): float(rate) for n, rate in by.items()} for mode, by in entries["rates"].items()}
    return Measured(Costs(clean, draft, gain=float(costs["gain"])), rates, str(entries["when"]))


def _file(backbone: Any, directory: Path) -> Path:
    kind = getattr(backbone, "kind", str(getattr(backbone, "dtype", "own")).removeprefix("torch."))
    name = f"{fingerprint(directory)[:32]}-{backbone.name}-{kind}-{backbone.device.type}-{torch.get_num_threads()}.json"
    return home() / "speed" / name


def _place(backbone: Any) -> str:
    """The machine in words: a record does not travel with a home directory that several machines share."""
    if backbone.device.type != "cpu":
        return torch.cuda.get_device_name(backbone.device)
    return f"{processor()}, {os.cpu_count()} cores"
