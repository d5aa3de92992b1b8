"""One run in several processes: who feeds which rows, sums over all of them, and what happens when one is lost.

`accelerate` starts the processes and keeps their gradients alike (DDP, FSDP2, DeepSpeed). A step has the same rows and
the same noise whatever their number: they are divided here, and every sum is a sum over all processes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import ConfigError, MissingExtraError, UnmaskError
from unmask.model.zero import load_whole
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
    there, plugin = torch.cuda.is_available(), _deepspeed(recipe)  # attention has no form for other accelerators
    timeout = timedelta(seconds=recipe.process_timeout)
    accelerator = Accelerator(
        cpu=not there and plugin is None,  # accelerate takes DeepSpeed on a CPU when it is told the backend instead
        mixed_precision="no",
        log_with=trackers or None,
        project_dir=recipe.output,
        deepspeed_plugin=plugin,
        kwargs_handlers=[InitProcessGroupKwargs(backend=None if there or not plugin else "gloo", timeout=timeout)],
    )
    if plugin:
        load_whole()
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and not _is(accelerator, "FSDP"):
        raise ConfigError(
            "the launcher names FSDP, which accelerate has for GPUs only, and there is none; launch with "
            "recipes/accelerate/ddp.yaml, or with deepspeed.yaml to divide weights and optimizer"
        )
    if accelerator.num_processes != int(os.environ.get("WORLD_SIZE", "1")):
        raise ConfigError(
            f"the launcher started {os.environ['WORLD_SIZE']} processes, but accelerate joined "
            f"{accelerator.num_processes}; launch as docs/scale.md shows"
        )
    if trackers:
        accelerator.init_trackers("unmask")
    return accelerator


def _deepspeed(recipe: Adapt) -> Any:
    """DeepSpeed's plugin as the launcher's configuration says, if it names DeepSpeed: the recipe's clipping, AdamW as
    PyTorch computes it, and every process reads whole weights before they are divided."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() != "true":
        return None
    if find_spec("deepspeed") is None:
        raise MissingExtraError("deepspeed", "deepspeed")
    from accelerate import DeepSpeedPlugin

    plugin = DeepSpeedPlugin(gradient_accumulation_steps=1, gradient_clipping=recipe.clip, zero3_init_flag=False)
    settings = plugin.deepspeed_config
    for name in ("fp16", "bf16"):
        if settings.get(name, {}).get("enabled"):
            raise ConfigError(
                f"{name} is enabled in DeepSpeed's configuration; leave it out, the recipe's dtype decides"
            )
    for name in ("optimizer", "scheduler"):
        if name in settings:
            raise ConfigError(f"DeepSpeed's configuration has a section '{name}'; leave it out, the recipe decides")
    if plugin.zero_stage == 0:
        raise ConfigError("DeepSpeed's zero_stage is 0, which divides nothing; use 1, 2 or 3, or ddp.yaml")
    if "nvme" in (plugin.offload_optimizer_device, plugin.offload_param_device):
        raise ConfigError("DeepSpeed is to offload to nvme, where states cannot be saved from; offload to cpu or none")
    settings |= {
        "train_micro_batch_size_per_gpu": 1,  # rows are dealt out here, and losses divided
        "gradient_accumulation_steps": 1,
        "gradient_clipping": recipe.clip,
        "zero_force_ds_cpu_optimizer": False,
    }
    return plugin


def _is(accelerator: Any, kind: str) -> bool:
    """kind: a name of accelerate's DistributedType."""
    return str(accelerator.distributed_type).endswith(f".{kind}")


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
    """Around each forward and backward of a step: gradients are exchanged in the last one only (ZeRO from stage 2 on
    must divide them after each)."""
    if _is(accelerator, "DEEPSPEED"):
        network.set_gradient_accumulation_boundary(last)
        return nullcontext()
    quiet: AbstractContextManager[Any] = nullcontext() if last else accelerator.no_sync(network)
    return quiet


def backward(accelerator: Any, network: Any, loss: Tensor) -> None:
    """Add the gradients of a loss. accelerate's own call would let DeepSpeed step at once."""
    if _is(accelerator, "DEEPSPEED"):
        network.backward(loss, scale_wrt_gas=False)
    else:
        accelerator.backward(loss)


def update(accelerator: Any, network: Any, optimizer: Any, clip: float, check: Callable[[float], None]) -> float:
    """Clip the gradients, move the weights, forget the gradients; returns the norm from before the clipping.

    `check` is called with the norm and may raise: the weights are then as they were. DeepSpeed measures, clips and
    steps in one call, which does nothing when the norm is not a number.
    """
    if _is(accelerator, "DEEPSPEED"):
        check(0.0)
        network.step()
        norm = float(network.get_global_grad_norm())
        check(norm)
        return norm
    found = accelerator.clip_grad_norm_(network.parameters(), clip)
    norm = float(found.full_tensor() if hasattr(found, "full_tensor") else found)
    check(norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm


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
