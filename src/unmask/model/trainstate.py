"""The state of a training run on disk: float32 weights that learn, AdamW's moments, and where the run stands.

Only safetensors and JSON, so resuming never unpickles anything. A state is a directory that appears whole by a rename;
the one before it is removed afterwards.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unmask.errors import CheckpointError
from unmask.model.adapters import read_tensors
from unmask.model.files import read_json, replacing
from unmask.model.learner import Learner, load_trainable

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_state(output: Path, learner: Learner, optimizer: torch.optim.AdamW, about: dict[str, Any]) -> Path:
    """Write `output/state-<step>`; older states go when it is complete. `about` must hold the number of steps done.

    A state of that step that is there already is this one. What a killed save left behind is removed.
    """
    directory = output / f"state-{about['step']:07d}"
    if directory in states(output):
        return directory
    for left in output.glob(".*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    parameters = learner.trainable()
    with replacing(directory) as fresh:
        save_file(
            {name: p.detach().cpu().contiguous() for name, p in parameters.items()}, fresh / "weights.safetensors"
        )
        save_file(_moments(parameters, optimizer), fresh / "optimizer.safetensors")
        (fresh / "state.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    for older in states(output):
        if older != directory:
            shutil.rmtree(older, ignore_errors=True)
    return directory


def _moments(parameters: dict[str, nn.Parameter], optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    return {
        f"{name}/{moment}": optimizer.state[p][moment].detach().cpu().contiguous()
        for name, p in parameters.items()
        if p in optimizer.state
        for moment in MOMENTS
    }


def states(output: Path) -> list[Path]:
    """Complete states, oldest first. Unfinished ones have hidden temporary names."""
    return sorted(path for path in output.glob("state-*") if (path / "state.json").is_file())


def load_state(output: Path, learner: Learner, optimizer: torch.optim.AdamW) -> dict[str, Any] | None:
    """Restore the newest complete state and return what was said about it; None where there is none."""
    found = states(output)
    if not found:
        return None
    directory = found[-1]
    about = read_json(directory / "state.json")
    load_trainable(learner, read_tensors(directory / "weights.safetensors"), directory)
    moments = read_tensors(directory / "optimizer.safetensors")
    for name, parameter in learner.trainable().items():
        try:
            optimizer.state[parameter] = {
                moment: moments[f"{name}/{moment}"].to(parameter.device if moment != "step" else "cpu")
                for moment in MOMENTS
            }
        except KeyError as error:
            raise CheckpointError(f"{directory} lacks {error}; remove it and resume from an older state") from None
    return about
