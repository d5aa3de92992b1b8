"""Where rows come from: JSONL files, files and directories that `datasets` reads, data sets of the Hugging Face hub."""

import codecs
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.errors import ConfigError, DataError, MissingExtraError
from unmask.recipe import Source

HUB = "hub:"
BUILDERS = {".parquet": "parquet", ".arrow": "arrow", ".json": "json", ".csv": "csv"}
"""File endings that `datasets` reads; any other file is JSONL."""


def as_source(given: str | Source) -> Source:
    return Source(path=given) if isinstance(given, str) else given


def name_of(source: Source) -> str:
    """A source as counts and errors call it: its path, with configuration and split where they are given."""
    return ":".join(part for part in (source.path, source.config, source.split) if part)


class UnavailableError(DataError):
    """A hub data set that cannot be had here: no network, no such name, no `datasets`."""


class Records:
    """The records of a source that pass its filter, with their line (JSONL) or row number, from 1.

    counts: records dropped by the filter or as malformed. digest: sha256 of a JSONL file, else of the records that were
    read; complete when the iteration is.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.counts = source, Counter[str]()
        self._hash = hashlib.sha256()

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        taken = 0
        for number, record in self._read():
            try:
                why = _refused(record, self.source)
            except DataError as error:
                self.fault(error, number)
                continue
            if why is not None:
                self.counts[f"dropped: {why}"] += 1
                continue
            yield number, record
            taken += 1
            if taken == self.source.limit:
                return

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def fault(self, error: DataError, number: int) -> None:
        """A record that cannot be used: counted where the source says so, else an error with its file and line."""
        if self.source.malformed == "error":
            raise DataError(error.problem, file=name_of(self.source), line=number, field=error.field) from None
        where = f"{error.field} " if error.field else ""
        self.counts[f"dropped: malformed, {where}{re.sub(r'[0-9]+', 'N', error.problem)}"] += 1

    def _read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        path = self.source.path
        if not path.startswith(HUB) and not os.path.isdir(path) and Path(path).suffix not in BUILDERS:
            if self.source.config or self.source.split:
                raise ConfigError(f"{path} is a JSONL file; leave out config and split")
            for number, line in _lines(path, self._hash):
                try:
                    record = _record(line)
                except DataError as error:
                    self.fault(error, number)
                else:
                    yield number, record
            return
        for number, record in enumerate(_dataset(self.source), start=1):
            self._hash.update(json.dumps(record, sort_keys=True, default=str).encode())
            yield number, record


def _refused(record: dict[str, Any], source: Source) -> str | None:
    """Why a record does not pass the filter; None where it does. DataError for a column that it does not have."""
    for column, wanted in (source.filter or {}).items():
        if column not in record:
            raise DataError(f"has no column '{column}', only {sorted(record)}", field="filter")
        allowed = wanted if isinstance(wanted, list) else [wanted]
        if record[column] not in allowed:
            return f"{column} is not {' or '.join(map(str, allowed))}"
    return None


def _dataset(source: Source) -> Any:
    """A data set as `datasets` gives it, one split. DataError in one line where it cannot be had."""
    try:
        import datasets
    except ImportError:
        missing = MissingExtraError("datasets", "train")
        raise (UnavailableError(str(missing)) if source.path.startswith(HUB) else missing) from None
    datasets.disable_progress_bars()
    path, where = source.path.removeprefix(HUB), Path(source.path)
    try:
        if source.path.startswith(HUB):
            found = datasets.load_dataset(path, source.config, split=source.split)
        elif where.is_dir() and ((where / "state.json").is_file() or (where / "dataset_dict.json").is_file()):
            found = datasets.load_from_disk(path)
        elif where.is_dir():
            found = datasets.load_dataset(path, source.config, split=source.split)
        elif not where.is_file():
            raise DataError("there is no such file", file=path)
        else:
            found = datasets.load_dataset(BUILDERS[where.suffix], data_files=path, split=source.split)
    except DataError:
        raise
    except Exception as error:  # datasets, the hub's client and each file format raise their own
        why = (" ".join(str(error).split()) or type(error).__name__)[:300]
        kind = UnavailableError if source.path.startswith(HUB) else DataError
        raise kind(f"cannot be read as a data set ({why})", file=name_of(source)) from None
    return _split(found, source)


def _split(found: Any, source: Source) -> Any:
    """One split of what was loaded."""
    if not isinstance(found, dict):
        return found
    wanted = source.split or ("train" if "train" in found else next(iter(found)) if len(found) == 1 else None)
    if wanted not in found:
        raise DataError(f"has the splits {', '.join(found)}; name one as split", file=name_of(source))
    return found[wanted]


def read_jsonl(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each non-empty line. DataError with file and line for one that is not an object."""
    for number, line in _lines(path):
        try:
            record = _record(line)
        except DataError as error:
            raise DataError(error.problem, file=path, line=number) from None
        yield number, record


def _record(line: bytes) -> dict[str, Any]:
    """The object that a line holds; DataError without a place."""
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise DataError(f"is not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
        raise DataError(f"cannot be read ({why})") from None
    if not isinstance(record, dict):
        raise DataError(f"is a JSON {type(record).__name__}, not an object")
    return record


def _lines(path: str, hashed: Any = None) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of each line that is not empty, one at a time, without a byte order mark. hashed: takes in the
    whole file, however many lines are read."""
    try:
        if hashed is not None:
            with open(path, "rb") as file:
                while piece := file.read(1 << 20):
                    hashed.update(piece)
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield number, line.rstrip(b"\r\n")
    except FileNotFoundError:
        raise DataError("there is no such file", file=path) from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read ({getattr(error, 'strerror', None) or error})", file=path) from None
