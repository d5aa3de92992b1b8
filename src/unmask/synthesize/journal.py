"""The files of a run: a journal that grows by a line as each job ends, the rows in their order, and what made them.

OUT.jsonl.partial and OUT.jsonl.made hold one JSON object per finished job, in the order in which they finished. The
rows come to OUT.jsonl at the end, all at once; OUT.about.json says how they were made.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from unmask.errors import CheckpointError
from unmask.model.files import read_json


class Journal:
    """Records with a `number`, appended as they come. What a killed process left half-written is cut off."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.offsets: dict[int, int] = {}
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            self.handle = file.open("a+b")
            self._recover()

    def _recover(self) -> None:
        self.handle.seek(0)
        end = 0
        for line in self.handle:
            if not line.endswith(b"\n"):
                break
            try:
                self.offsets[json.loads(line)["number"]] = end
            except (ValueError, KeyError, TypeError):
                self.handle.close()
                raise CheckpointError(
                    f"{self.file} is damaged at byte {end}; remove it to start again, or cut it there to keep the rest"
                ) from None
            end += len(line)
        self.handle.truncate(end)

    def add(self, record: dict[str, Any]) -> None:
        """Append a record; once this returns, killing the process does not lose it."""
        with writing(self.file):
            at = self.handle.seek(0, os.SEEK_END)
            self.handle.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            self.handle.flush()
        self.offsets[record["number"]] = at

    def __contains__(self, number: int) -> bool:
        return number in self.offsets

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records by number."""
        for number in sorted(self.offsets):
            self.handle.seek(self.offsets[number])
            yield json.loads(self.handle.readline())

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # of a full disk, which was told when the record was added
            self.handle.close()


class Place:
    """Where a run writes: `out`, the file about it, and the journals of its two phases."""

    def __init__(self, out: Path) -> None:
        if not out.name or out.is_dir():
            raise CheckpointError(f"{out} is a directory; give a file that does not exist yet")
        self.out, self.about = out, out.with_name(out.name.removesuffix(".jsonl") + ".about.json")
        self.answers, self.prompts = (out.with_name(out.name + end) for end in (".partial", ".made"))

    def check(self, resume: bool) -> None:
        """Refuse to overwrite what is there, or to resume what is not."""
        there = [file for file in (self.out, self.about, self.answers, self.prompts) if file.exists()]
        if there and not resume:
            raise CheckpointError(f"{there[0]} exists; give --resume to continue that run, or another --out")
        if there and not self.about.is_file():
            raise CheckpointError(f"{self.out} was not written by synthesize: {self.about.name} is missing")

    def begin(self, about: dict[str, Any]) -> dict[str, Any]:
        """Write how the rows are made; where a run was begun, return its file, whose making must be the same."""
        now = json.loads(json.dumps(about))
        if self.about.is_file():
            before = read_json(self.about)
            old, new = _flat(before.get("made_with", {})), _flat(now)
            changed = [key for key in new | old if old.get(key) != new.get(key)]
            if changed:
                key = changed[0]
                raise CheckpointError(
                    f"{key} is {new.get(key)!r}, {self.out} was begun with {old.get(key)!r}; "
                    "resume with the same, or give another --out"
                )
            return before
        self.describe(now, {}, complete=False)
        return {"complete": False}

    def describe(self, made_with: dict[str, Any], counts: dict[str, Any], *, complete: bool) -> None:
        text = json.dumps(
            {"complete": complete, "counts": counts, "made_with": made_with}, indent=2, ensure_ascii=False
        )
        with replacement(self.about) as file:
            file.write(text.encode() + b"\n")

    def clear(self) -> None:
        """Remove the journals of a complete run."""
        with writing(self.out):
            for file in (self.answers, self.prompts):
                file.unlink(missing_ok=True)


def _flat(entries: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested entries by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in entries.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return flat


@contextlib.contextmanager
def replacement(file: Path) -> Iterator[IO[bytes]]:
    """What is written takes the place of `file` at the end, so that a killed process leaves the old or the new."""
    fresh = file.with_name(f".{file.name}.tmp")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(fresh, file)


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Turn a failed write (a full disk) into one line."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write {file}: {error.strerror}; answers that are done are kept, --resume continues"
        ) from None
