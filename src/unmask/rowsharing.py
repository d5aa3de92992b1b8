"""The rows of a run: encoded once by its first process, mapped by all of them.

They lie in `<output>/rows` and appear whole by a rename. When all processes of a run on one machine have mapped them,
their names are removed, so that nothing is left however the run ends, and the disk is free when the last process has
ended. Over a network that does not work, so the rows of a run on several machines stay until it ends.
"""

import os
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from unmask.data import Rows, load_rows, open_rows, packing_of
from unmask.data.stored import lengths
from unmask.errors import CheckpointError, ToldError
from unmask.model.files import replacing
from unmask.model.learner import Learner
from unmask.recipe import Adapt
from unmask.rundir import writing

DIRECTORY = "rows"
LONG = timedelta(days=30)
"""How long the others wait for the first process; they end at once when it does."""
SETTLES = 60.0
"""Seconds in which a file that one machine wrote must be seen by the others."""


def shared_rows(recipe: Adapt, learner: Learner, accelerator: Any) -> tuple[Rows, Rows]:
    """The rows of `data`, and those of `validation_data`, which may be none; every process of a run calls this.

    Raises what `load_rows` raises in the first process, and ToldError in the others.
    """
    output, wanted = Path(recipe.output), {"data": recipe.data}
    if recipe.validation_data:
        wanted["validation_data"] = recipe.validation_data
    with alone(accelerator) as first:
        if first:
            _encode(output, wanted, recipe, learner)
    found = {name: _opened(output / DIRECTORY / name) for name in wanted}
    accelerator.wait_for_everyone()
    if accelerator.num_processes == int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        forget(recipe, accelerator)
    return found["data"], found.get("validation_data", Rows())


def forget(recipe: Adapt, accelerator: Any) -> None:
    """Remove the rows from the disk. What a process has mapped it keeps."""
    if accelerator.is_main_process:
        shutil.rmtree(Path(recipe.output) / DIRECTORY, ignore_errors=True)


@contextmanager
def alone(accelerator: Any) -> Iterator[bool]:
    """True in the first process of a run; the others leave the block when it has, however long that takes.

    They end with ToldError when it fails, and with the error of a lost process when it is killed: they wait in a group
    of their own, over gloo, which notices at once that a connection is closed and has, unlike the group of the
    gradients, no hurry.
    """
    if accelerator.num_processes == 1:
        yield True
        return
    import torch.distributed as processes

    group, done = processes.new_group(backend="gloo", timeout=LONG), [True]
    try:
        yield accelerator.is_main_process
    except BaseException:
        with suppress(RuntimeError):  # one that was lost meanwhile cannot be told
            processes.broadcast_object_list([False], src=0, group=group)
        raise
    processes.broadcast_object_list(done, src=0, group=group)
    processes.destroy_process_group(group)
    if not done[0]:
        raise ToldError("the first process of the run has failed; its own line says why")


def _encode(output: Path, wanted: dict[str, Any], recipe: Adapt, learner: Learner) -> None:
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    with replacing(output / DIRECTORY) as fresh:
        for name, sources in wanted.items():
            (fresh / name).mkdir()
            spec, hold = learner.spec, recipe.validation_rows if name == "data" else 0.0
            found = read_rows(
                sources, recipe, learner.tokenizer, spec.stop_ids, spec.mask_id, hold=hold, directory=fresh / name
            )
            _compare_with_positions(found, learner, recipe.max_length)


def read_rows(
    sources: Any,
    recipe: Adapt,
    tokenizer: Any,
    stop_ids: tuple[int, ...],
    mask_id: int,
    *,
    hold: float = 0.0,
    directory: Path | None = None,
) -> Rows:
    """`load_rows` as the recipe says."""
    return load_rows(
        sources,
        tokenizer,
        max_length=recipe.max_length,
        truncation=recipe.truncation,
        stop_ids=stop_ids,
        seed=recipe.seed,
        packing=packing_of(recipe, mask_id),
        mask_id=mask_id if recipe.objective == "diffusion" else None,
        hold=hold,
        directory=directory,
    )


def _compare_with_positions(found: Rows, learner: Learner, max_length: int) -> None:
    """Warn of rows at positions that the base has never seen."""
    positions = getattr(learner.model.config.get_text_config(), "max_position_embeddings", None)
    longest = int(lengths(found.rows).max())
    if positions and longest > positions:
        warnings.warn(
            f"max_length is {max_length}: rows have up to {longest} tokens, but the base knows {positions} positions; "
            f"max_length {positions} keeps them within",
            stacklevel=2,
        )


def _opened(directory: Path) -> Rows:
    """Rows that another process, maybe of another machine, has just written."""
    until = time.monotonic() + SETTLES
    while True:
        try:
            return open_rows(directory)
        except FileNotFoundError:
            if time.monotonic() > until:
                raise CheckpointError(
                    f"{directory} was written by the first process and is not seen here; output must be a directory "
                    "that all machines of a run see"
                ) from None
            time.sleep(1)
        except OSError as error:
            raise CheckpointError(f"cannot read {directory}: {error.strerror}") from None
