"""The directory of a training run: resolved recipe, what became of the rows, one log line per step.

The model and the training states are written by `model.learner` and `model.trainstate`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.data import Rows
from unmask.errors import CheckpointError
from unmask.model.files import read_json
from unmask.model.trainstate import states
from unmask.recipe import Adapt

MAY_CHANGE = (
    "steps",
    "save_every",
    "keep",
    "threads",
    "learning_rate",
    "clip",
    "explosion",
    "process_timeout",
    "tensorboard",
    "wandb",
)
"""Recipe keys that a resumed run may change."""


def check_run(output: Path, recipe: Adapt, *, resume: bool) -> None:
    """Refuse to overwrite a run, or to resume one of another recipe."""
    if not resume and states(output):
        raise CheckpointError(
            f"{output} holds a run that got to {states(output)[-1].name}; give --resume to continue it, "
            "or another --output"
        )
    if resume:
        _same(output / "recipe.json", json.loads(json.dumps(asdict(recipe))), MAY_CHANGE, "the same recipe")


def open_run(output: Path, recipe: Adapt, rows: Rows, *, resume: bool, write: bool = True) -> None:
    """Refuse to resume a run of other rows; then write what was resolved.

    write: False in all processes of a run but one.
    """
    sources = {name: dict(counts) for name, counts in rows.sources.items()}
    about = {"counts": dict(rows.counts), "sources": sources, "sha256": rows.digests}
    if resume:
        _same(output / "rows.json", about, (), "the same data")
    if not write:
        return
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        replace_text(output / "recipe.json", json.dumps(asdict(recipe), indent=2) + "\n")
        replace_text(output / "rows.json", json.dumps(about, indent=2) + "\n")


def _same(saved: Path, now: dict[str, Any], may_change: tuple[str, ...], what: str) -> None:
    before = read_json(saved) if saved.is_file() else now
    changed = [key for key in now if key not in may_change and before.get(key) != now[key]]
    if changed:
        key = changed[0]
        raise CheckpointError(
            f"{key} is {now[key]!r}, the run in {saved.parent} was made with {before.get(key)!r}; "
            f"resume with {what}, or start another --output"
        )


def cut_log(output: Path, done: int) -> None:
    """Drop the log lines of steps that are done again."""
    log = output / "log.jsonl"
    with writing(output):
        kept = log.read_text(encoding="utf-8").splitlines()[:done] if log.is_file() else []
        replace_text(log, "".join(line + "\n" for line in kept))


def add_to_log(output: Path, record: dict[str, Any]) -> None:
    with writing(output), (output / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_log(output: Path) -> list[dict[str, Any]]:
    """The records of the log, one per step; a last line that was cut by a kill is left out."""
    log = output / "log.jsonl"
    lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.is_file() else []
    return [json.loads(line) for line in lines]


def replace_text(file: Path, text: str) -> None:
    """A process that is killed here leaves the old text or the new one."""
    fresh = file.with_name(f".{file.name}.tmp")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, file)


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turn a failed write (a full disk) into one line."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {output}: {error.strerror}; the last saved state is untouched"
        ) from None
