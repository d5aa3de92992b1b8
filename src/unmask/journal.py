"""Files that survive a kill: a journal that grows by a line as each job ends, and files that are replaced at once."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from unmask.errors import CheckpointError

RESUME = "answers that are done are kept, --resume continues"


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


@contextlib.contextmanager
def replacement(file: Path, advice: str = RESUME) -> Iterator[IO[bytes]]:
    """What is written takes the place of `file` at the end, so that a killed process leaves the old or the new."""
    fresh = file.with_name(f".{file.name}.tmp")
    with writing(file, advice):
        file.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(fresh, file)


@contextlib.contextmanager
def writing(file: Path, advice: str = RESUME) -> Iterator[None]:
    """Turn a failed write (a full disk) into one line, which ends with `advice`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot write {file}: {error.strerror}; {advice}") from None


def changed(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting, by its dotted name, in which a run that was begun differs from now: name, before, now."""
    old, new = flat(before), flat(json.loads(json.dumps(now)))
    key = next((key for key in new | old if old.get(key) != new.get(key)), None)
    return None if key is None else (key, old.get(key), new.get(key))


def flat(entries: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested entries by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in entries.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {before + key: value}
    return found
