"""The directory of a training run: resolved recipe, what became of the rows, one log line per step.

The model and the training states are written by `model.learner` and `model.trainstate`.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from unmask.data import Rows
from unmask.errors import CheckpointError
from unmask.model.files import read_json
from unmask.model.trainstate import states
from unmask.recipe import Adapt, Source

MAY_CHANGE = (
    "base",
    "output",
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
"""Recipe keys that a resumed run may change. Base and data are compared by what is in them, not by their names."""
SOURCES = ("data", "validation_data")
PLAIN = {f.name: None if f.default is MISSING else f.default for f in fields(Source)}
"""What the keys of a source are where it is only a path."""
BESIDE = {"unmask", "wandb"}
"""What trackers may have written into an output before the run does."""


def check_run(output: Path, recipe: Adapt, base: str, *, resume: bool) -> None:
    """Refuse to overwrite a run or what is none, and to resume where there is none, or one of another recipe or base.

    base: what identifies it (`base_digest`).
    """
    begun = _is_run(output)
    if output.is_dir() and not begun and (inside := {path.name for path in output.iterdir()} - BESIDE):
        raise CheckpointError(f"{output} is no run and not empty (it holds {min(inside)}); give another --output")
    if resume and not begun:
        raise CheckpointError(f"{output} holds no run to resume; leave --resume out to start one, or give its --output")
    if not resume and states(output):
        raise CheckpointError(
            f"{output} holds a run that got to {states(output)[-1].name}; give --resume to continue it, "
            "or another --output"
        )
    if resume:
        _same(output / "recipe.json", _resolved(recipe, base), "the same recipe")


def _is_run(output: Path) -> bool:
    """Whether a run was begun here; one that was killed while its rows were encoded has left no more than these."""
    if (output / "recipe.json").is_file():
        return set(read_json(output / "recipe.json")) >= {"base", "data", "output", "block_size"}
    return (output / "rows" / "data").is_dir() or any(output.glob(".rows.*.tmp"))


def _resolved(recipe: Adapt, base: str) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads(json.dumps(asdict(recipe)))
    return entries | {"base_sha256": base}


def clean(output: Path) -> None:
    """Remove what a killed process was writing."""
    for left in output.glob(".*.tmp"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def open_run(output: Path, recipe: Adapt, base: str, rows: Rows, *, resume: bool) -> None:
    """Refuse to resume a run of other rows; then write what was resolved. The first process calls this."""
    sources = {name: dict(counts) for name, counts in rows.sources.items()}
    about = {"counts": dict(rows.counts), "sources": sources, "sha256": rows.digests}
    if resume:
        _same(output / "rows.json", about, "the same data")
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        replace_text(output / "recipe.json", json.dumps(_resolved(recipe, base), indent=2) + "\n")
        replace_text(output / "rows.json", json.dumps(about, indent=2) + "\n")


def _same(saved: Path, now: dict[str, Any], what: str) -> None:
    before = read_json(saved) if saved.is_file() else now
    for key in now:
        if key in MAY_CHANGE or (key == "base_sha256" and key not in before):  # runs of earlier versions name none
            continue
        if _nameless(key, before.get(key)) != _nameless(key, now[key]):
            raise CheckpointError(
                f"{key} is {now[key]!r}, the run in {saved.parent} was made with {before.get(key)!r}; "
                f"resume with {what}, or start another --output"
            )


def _nameless(key: str, value: Any) -> Any:
    """A value without the paths of its sources, which may have moved; their order stays."""
    if key in SOURCES and value:
        sources = [{} if isinstance(source, str) else source for source in value]
        return [{name: v for name, v in source.items() if name != "path" and v != PLAIN[name]} for source in sources]
    return list(value.values()) if key in ("sources", "sha256") and value else value


def cut_log(output: Path, done: int) -> None:
    """Drop the log lines of steps that are done again."""
    with writing(output):
        kept = [json.dumps(record) + "\n" for record in read_log(output) if record["step"] <= done]
        replace_text(output / "log.jsonl", "".join(kept))


def add_to_log(output: Path, record: dict[str, Any]) -> None:
    with writing(output), (output / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_log(output: Path) -> list[dict[str, Any]]:
    """The records of the log, one per step; a last line that was cut by a kill is left out.

    Raises CheckpointError for any other line that is none.
    """
    log = output / "log.jsonl"
    lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.is_file() else []
    return [_record(line, f"{log}, line {number}") for number, line in enumerate(lines, start=1)]


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        whole = isinstance(record["step"], int) and isinstance(record["loss"], float) and "labels" in record
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise CheckpointError(f"{where}: is damaged; take this line out, the state of the run is not in the log")
    return record


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
