"""The state of a training run on disk: float32 weights that learn, AdamW's moments, and where the run stands.

Only safetensors and JSON, so resuming never unpickles anything. A state is a directory that appears whole by a rename.
It holds whole tensors, however many processes shared them, so that a run may go on in another number of processes.

A state is good once the loss of the step after it has passed, and only then do older ones go. One whose next step
failed is set aside under another name, so that the run resumes from the good one before it.
"""

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask.errors import CheckpointError
from unmask.model import zero
from unmask.model.adapters import read_tensors
from unmask.model.files import read_json, replacing
from unmask.model.learner import Learner, load_trainable, unfit

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
STATE, DOUBTED = "state", "doubted"
OLDER = "remove it and resume from an older state"


def save_state(
    output: Path,
    parameters: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    about: dict[str, Any],
    *,
    saved_as: torch.dtype = torch.float32,
    write: bool = True,
) -> None:
    """Write `output/state-<step>`.

    parameters: what learns, by name, as the optimizer holds it (in several processes maybe a part of each). saved_as:
    the type that the model will be written in. `about` must hold the number of steps done. A state of that step that is
    there already is this one. Every process of a run must call this, and one of them writes. Raises CheckpointError
    for weights that are not finite in that type; nothing is written then.
    """
    weights = _weights(parameters, optimizer)
    moments = _moments(parameters, optimizer)
    if broken := unfit(weights, saved_as):
        raise CheckpointError(
            f"after step {about['step']} {broken}; {last_good(states(output), output)}; lower learning_rate and "
            "--resume, or weight_decay and start another --output"
        )
    directory = output / f"{STATE}-{about['step']:07d}"
    if not write or directory in states(output):
        return
    with replacing(directory) as fresh:
        save_file(weights, fresh / "weights.safetensors")
        save_file(moments, fresh / "optimizer.safetensors")
        (fresh / "state.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def last_good(found: list[Path], output: Path) -> str:
    """In words; found: the good ones."""
    return f"the last good state is {found[-1]}" if found else f"no state was saved yet in {output}"


def prune(output: Path, keep: int) -> None:
    """The last state is good: remove all but the last `keep`, and what was set aside."""
    for older in [*states(output)[:-keep], *_numbered(output, DOUBTED)]:
        shutil.rmtree(older, ignore_errors=True)


def set_aside(state: Path) -> str:
    """Give a state whose next step failed another name, under which nobody resumes from it; returns that name."""
    aside = state.with_name(state.name.replace(STATE, DOUBTED, 1))
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):
        os.replace(state, aside)
    return aside.name


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be split over processes as one on the CPU; then every process must call this."""
    full = tensor.detach()
    if is_split(full):
        split: Any = full
        full = split.full_tensor()
    return full.cpu().contiguous()


def is_split(tensor: Tensor) -> bool:
    """Whether a process holds a part of this tensor only (a DTensor, as FSDP2 makes them, or ZeRO stage 3)."""
    return hasattr(tensor, "full_tensor") or zero.is_divided(tensor)


def _like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor split and placed as a parameter is."""
    tensor = tensor.to(parameter.device)
    if not is_split(parameter):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    split: Any = parameter
    return distribute_tensor(tensor, split.device_mesh, split.placements)


def _weights(parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    if zero.drives(optimizer):
        return zero.whole_weights(parameters)
    return {name: whole(p) for name, p in parameters.items()}


def _moments(parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    if zero.drives(optimizer):
        return zero.whole_moments(parameters, optimizer)
    return {
        f"{name}/{moment}": whole(optimizer.state[p][moment])
        for name, p in parameters.items()
        if p in optimizer.state
        for moment in MOMENTS
    }


def states(output: Path) -> list[Path]:
    """Complete states, oldest first. Unfinished ones have hidden temporary names; what else is called so is none."""
    return _numbered(output, STATE)


def step_of(state: Path) -> int:
    return int(state.name.rpartition("-")[2])


def _numbered(output: Path, kind: str) -> list[Path]:
    found = [path for path in output.glob(f"{kind}-*") if re.fullmatch(rf"{kind}-[0-9]+", path.name)]
    return sorted((path for path in found if (path / "state.json").is_file()), key=step_of)


def load_weights(directory: Path, learner: Learner) -> dict[str, Any]:
    """Restore the weights of a state, before they are split over processes; returns what was said about it."""
    about = read_json(directory / "state.json")
    if about.get("step") != step_of(directory):
        raise CheckpointError(f"{directory}/state.json is damaged: it names no step {step_of(directory)}; {OLDER}")
    load_trainable(learner, read_tensors(directory / "weights.safetensors"), directory)
    return about


def load_moments(directory: Path, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Restore AdamW's moments, after the weights were split over processes."""
    moments = read_tensors(directory / "optimizer.safetensors")
    wanted = [f"{name}/{moment}" for name in parameters for moment in MOMENTS]
    if lacking := [key for key in wanted if key not in moments]:
        raise CheckpointError(f"{directory} lacks '{lacking[0]}'; {OLDER}")
    if zero.drives(optimizer):
        zero.put_moments(parameters, optimizer, moments)
        return
    for name, parameter in parameters.items():
        found = {moment: moments[f"{name}/{moment}"] for moment in MOMENTS}
        optimizer.state[parameter] = {
            moment: tensor if moment == "step" else _like(tensor, parameter) for moment, tensor in found.items()
        }
