"""One run in several processes: who feeds which rows, sums over all of them, and what happens when one is lost.

`accelerate` starts the processes and keeps their gradients alike (DDP, FSDP2). A step has the same rows and
the same noise whatever their number: they are divided here, and every sum is a sum over all processes.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import ConfigError, MissingExtraError, UnmaskError
from unmask.recipe import Adapt

TRACKERS = ("tensorboard", "wandb")


def first() -> bool:
    """Whether this process is the one that prints; launchers number processes in the variable RANK."""
    return int(os.environ.get("RANK", "0")) == 0


def join(recipe: Adapt) -> Any:
    """The accelerate `Accelerator` of this process, joined with the others there are. The recipe alone sets the dtype.

    Raises MissingExtraError without accelerate, or without a tracker that the recipe names.
    """
    if find_spec("accelerate") is None:
        raise MissingExtraError("accelerate", "train")
    from accelerate import Accelerator, InitProcessGroupKwargs

    trackers = [name for name in TRACKERS if getattr(recipe, name)]
    for name in trackers:
        if find_spec(name) is None:
            raise MissingExtraError(name, "track")
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no",
        log_with=trackers or None,
        project_dir=recipe.output,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=recipe.process_timeout))],
    )
    if str(accelerator.distributed_type).endswith("DEEPSPEED"):
        raise ConfigError(
            "DeepSpeed keeps weights in a form of its own that a run cannot be resumed from here; launch with "
            "recipes/accelerate/fsdp2.yaml, which divides the same things over the processes"
        )
    if accelerator.num_processes != int(os.environ.get("WORLD_SIZE", "1")):
        raise ConfigError(
            f"the launcher started {os.environ['WORLD_SIZE']} processes, but accelerate joined "
            f"{accelerator.num_processes}; launch as docs/scale.md shows"
        )
    if trackers:
        accelerator.init_trackers("unmask")
    return accelerator


def share(window: list[list[int]], index: int, count: int) -> list[list[int]]:
    """The part of a step's forwards (row numbers of each) that process `index` of `count` computes.

    Every process has equally many, some maybe without a row. Whole forwards are dealt out where there are enough of
    them; else each is divided.
    """
    if len(window) < count:
        return [part[index::count] for part in window]
    mine = window[index::count]
    return mine + [[]] * (-(-len(window) // count) - len(mine))


def summed(accelerator: Any, tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes; each must call this."""
    if accelerator.num_processes == 1:
        return tensor
    total: Tensor = accelerator.reduce(tensor.to(accelerator.device), reduction="sum")
    return total


def anywhere(accelerator: Any, said: object) -> bool:
    """Whether any process says so; each must call this."""
    if accelerator.num_processes == 1:
        return bool(said)
    return bool(summed(accelerator, torch.tensor(int(bool(said)))))


def exchanging(accelerator: Any, network: Any, last: bool) -> AbstractContextManager[Any]:
    """Around each forward and backward of a step: gradients are exchanged in the last one only."""
    quiet: AbstractContextManager[Any] = nullcontext() if last else accelerator.no_sync(network)
    return quiet


@contextmanager
def together(accelerator: Any, output: Path) -> Iterator[None]:
    """Turn the failure of an exchange into one line: another process has ended, or did not answer in time."""
    try:
        yield
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not _in_exchange(error):
            raise
        raise UnmaskError(
            f"process {accelerator.process_index} of {accelerator.num_processes} lost another one, which ended or did "
            f"not answer within process_timeout; start all again with --resume, the saved state is in {output}"
        ) from error


def _in_exchange(error: RuntimeError) -> bool:
    named = any(word in str(error).lower() for word in ("gloo", "nccl", "connection", "broken pipe"))
    return named or isinstance(error, torch.distributed.DistError)
