"""How fast a model is on this machine: what `unmask bench` measured, in unmask's cache folder.

A record holds for the weights, the machine, the number of threads and the number type that it was measured with.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from unmask.auto import Measured
from unmask.core.pace import Costs, Curve
from unmask.errors import CheckpointError
from unmask.limits import processor
from unmask.model.admissible import fingerprint
from unmask.model.files import replace_text
from unmask.model.sources import Say, home, say_on_stderr

CPU: dict[str, tuple[Curve, Curve]] = {
    "fp32": (
        ((1, 1.0), (2, 1.15), (6, 1.35), (7, 1.7), (12, 2.0), (16, 2.6), (32, 4.2), (96, 11.0)),
        ((2, 0.5), (4, 0.53), (6, 0.67), (8, 0.9), (16, 1.6), (32, 3.0), (96, 9.2)),
    ),
    "bf16": (
        ((1, 1.0), (2, 1.1), (6, 2.0), (7, 2.4), (12, 3.0), (16, 4.5), (32, 7.5), (96, 18.0)),
        ((2, 0.83), (4, 1.0), (6, 1.25), (8, 1.65), (16, 2.9), (32, 5.5), (96, 16.0)),
    ),
    "int8": (
        ((1, 1.0), (2, 1.15), (6, 1.6), (7, 1.9), (12, 3.3), (16, 4.1), (32, 7.5), (96, 22.0)),
        ((2, 1.65), (4, 1.95), (6, 2.4), (8, 3.1), (16, 5.4), (32, 10.3), (96, 31.0)),
    ),
}
"""Assumed of CPUs where nothing was measured, by the kind that weights are held in: checks and drafts, in forwards over
one position. Measured of the demo model on two cores with AVX2."""
GPU: tuple[Curve, Curve] = ((1, 1.0), (128, 2.3)), ((2, 1.0), (128, 2.3))
"""Of GPUs, where few positions cost hardly more than one. A guess."""


def assumed(backbone: Any) -> Costs:
    """Costs where nothing was measured."""
    return Costs(*(CPU[getattr(backbone, "kind", "fp32")] if backbone.device.type == "cpu" else GPU))


def write_measured(measured: Measured, backbone: Any, directory: Path) -> Path:
    """Store what was measured with `backbone` of the model in `directory`; returns the file. Rates of modes and batch
    sizes that were measured before and not now are kept.

    CheckpointError where it cannot be written.
    """
    before = read_measured(backbone, directory, lambda line: None)
    rates: dict[str, dict[int, float]] = {mode: dict(by) for mode, by in (before.rates if before else {}).items()}
    for mode, by in measured.rates.items():
        rates.setdefault(mode, {}).update(by)
    file = _file(backbone, directory)
    entries = asdict(replace(measured, rates=rates)) | {"made_on": _place(backbone)}
    replace_text(file, json.dumps(entries, indent=1) + "\n")
    return file


def read_measured(backbone: Any, directory: Path, say: Say = say_on_stderr) -> Measured | None:
    """What was measured of this model, machine, thread count and number type; None where nothing was.

    It is a hint that nothing depends on: one that cannot be read is said and left alone.
    """
    file: Path | None = None
    try:
        if not (home() / "speed").is_dir():
            return None
        file = _file(backbone, directory)
        entries = json.loads(file.read_text(encoding="utf-8"))
        return _measured(entries) if entries["made_on"] == _place(backbone) else None
    except (FileNotFoundError, CheckpointError):  # nothing was measured; there is no home directory
        return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as e:
        say(f"note: {file or home() / 'speed'} cannot be used ({type(e).__name__}: {e}); unmask bench makes it anew")
        return None


def _measured(entries: Mapping[str, Any]) -> Measured:
    costs = entries["costs"]
    clean, draft = (tuple((int(n), _time(t)) for n, t in costs[name]) for name in ("clean", "draft"))
    if not clean or not draft:
        raise ValueError("no forward was measured")
    rates = {mode: {int(n): _time(rate) for n, rate in by.items()} for mode, by in entries["rates"].items()}
    return Measured(Costs(clean, draft, gain=max(0.0, float(costs["gain"]))), rates, str(entries["when"]))


def _time(value: Any) -> float:
    found = float(value)
    if not (math.isfinite(found) and found > 0):
        raise ValueError(f"{found} is no time or rate")
    return found


def _file(backbone: Any, directory: Path) -> Path:
    kind = getattr(backbone, "kind", str(getattr(backbone, "dtype", "own")).removeprefix("torch."))
    name = f"{fingerprint(directory)[:32]}-{backbone.name}-{kind}-{backbone.device.type}-{torch.get_num_threads()}.json"
    return home() / "speed" / name


def _place(backbone: Any) -> str:
    """The machine in words: a record does not travel with a home directory that several machines share."""
    if backbone.device.type != "cpu":
        return torch.cuda.get_device_name(backbone.device)
    return f"{processor()}, {os.cpu_count()} cores"
