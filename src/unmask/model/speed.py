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
from unmask.core.pace import Costs
from unmask.errors import CheckpointError
from unmask.limits import processor
from unmask.model.admissible import fingerprint
from unmask.model.files import replace_text
from unmask.model.sources import Say, home, say_on_stderr

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
