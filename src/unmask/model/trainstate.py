"""The state of a training run on disk: float32 weights that learn, AdamW's moments, and where the run stands.

Only safetensors and JSON, so resuming never unpickles anything. A state is a directory that appears whole by a rename;
older ones are removed afterwards. It holds whole tensors, however many processes shared them, so that a run may go on
in another number of processes.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask.errors import CheckpointError
from unmask.model import zero
from unmask.model.adapters import read_tensors
from unmask.model.files import read_json, replacing
from unmask.model.learner import Learner, load_trainable

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_state(
    output: Path,
    parameters: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    about: dict[str, Any],
    *,
    keep: int = 1,
    write: bool = True,
) -> None:
    """Write `output/state-<step>`; when it is complete, states older than the last `keep` go.

    parameters: what learns, by name, as the optimizer holds it (in several processes maybe a part of each).
    `about` must hold the number of steps done. A state of that step that is there already is this one. What a killed
    save left behind is removed. Every process of a run must call this, and one of them writes.
    """
    weights = _weights(parameters, optimizer)
    moments = _moments(parameters, optimizer)
    directory = output / f"state-{about['step']:07d}"
    if not write or directory in states(output):
        return
    for left in output.glob(".*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    with replacing(directory) as fresh:
        save_file(weights, fresh / "weights.safetensors")
        save_file(moments, fresh / "optimizer.safetensors")
        (fresh / "state.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    for older in states(output)[:-keep]:
        shutil.rmtree(older, ignore_errors=True)


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
    """Complete states, oldest first. Unfinished ones have hidden temporary names."""
    return sorted(path for path in output.glob("state-*") if (path / "state.json").is_file())


def load_weights(directory: Path, learner: Learner) -> dict[str, Any]:
    """Restore the weights of a state, before they are split over processes; returns what was said about it."""
    about = read_json(directory / "state.json")
    load_trainable(learner, read_tensors(directory / "weights.safetensors"), directory)
    return about


def load_moments(directory: Path, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Restore AdamW's moments, after the weights were split over processes."""
    moments = read_tensors(directory / "optimizer.safetensors")
    wanted = [f"{name}/{moment}" for name in parameters for moment in MOMENTS]
    if lacking := [key for key in wanted if key not in moments]:
        raise CheckpointError(f"{directory} lacks '{lacking[0]}'; remove it and resume from an older state")
    if zero.drives(optimizer):
        zero.put_moments(parameters, optimizer, moments)
        return
    for name, parameter in parameters.items():
        found = {moment: moments[f"{name}/{moment}"] for moment in MOMENTS}
        optimizer.state[parameter] = {
            moment: tensor if moment == "step" else _like(tensor, parameter) for moment, tensor in found.items()
        }
