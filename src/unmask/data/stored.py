"""Encoded rows in flat files: written one behind the other as they are made, read back through a memory map.

A token takes 5 bytes: its id as int32 and its label as one byte; a row 16: where it begins, and the source and line it
is from. A reader's memory is what it touches, and processes of
one machine that read the same files share it. `numbers` says which stored rows there are and in which order, so that a
row that comes several times is stored once.
"""

import mmap
import os
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import CheckpointError

TYPES = {
    **{"ids": np.int32, "labelled": np.bool_, "starts": np.int64, "numbers": np.int64},
    **{"sources": np.int32, "lines": np.uint32},
}
"""The files by name, and what they hold; row n has the tokens from starts[n] to starts[n + 1]."""
BUFFER = 1 << 20
"""Bytes of a file that are held back before they are written."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Row:
    """ids: Long [token]; labelled: Bool [token]."""

    ids: Tensor
    labelled: Tensor


class Stored(Sequence[Row]):
    """The rows of flat arrays: ids Int32 [token], labelled Bool [token], starts Int64 [row + 1]. A row is a copy.

    sources: Int32 [row], the number of its source; lines: UInt32 [row], its line or row number there.
    """

    def __init__(self, ids: Array, labelled: Array, starts: Array, sources: Array, lines: Array) -> None:
        self.ids, self.labelled, self.starts, self.sources, self.lines = ids, labelled, starts, sources, lines

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, n: int) -> Row: ...
    @overload
    def __getitem__(self, n: slice) -> Sequence[Row]: ...
    def __getitem__(self, n: int | slice) -> Row | Sequence[Row]:
        if isinstance(n, slice):
            return Chosen(self, np.arange(len(self))[n])
        n = range(len(self))[n]
        part = slice(int(self.starts[n]), int(self.starts[n + 1]))
        return Row(torch.from_numpy(self.ids[part].astype(np.int64)), torch.from_numpy(self.labelled[part].copy()))


class Chosen(Sequence[Row]):
    """Rows of a sequence by their numbers, Int64 [row], in that order; a row may come several times."""

    def __init__(self, rows: Sequence[Row], numbers: Array) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, n: int) -> Row: ...
    @overload
    def __getitem__(self, n: slice) -> Sequence[Row]: ...
    def __getitem__(self, n: int | slice) -> Row | Sequence[Row]:
        if isinstance(n, slice):
            return Chosen(self.rows, self.numbers[n])
        return self.rows[int(self.numbers[n])]


def lengths(rows: Sequence[Any]) -> Array:
    """Int64 [row]: tokens of each; of stored rows none is looked at."""
    if isinstance(rows, Stored):
        return np.diff(rows.starts)
    if isinstance(rows, Chosen):
        found: Array = lengths(rows.rows)[rows.numbers]
        return found
    return np.array([len(row.ids) for row in rows], dtype=np.int64)


class Writer:
    """Writes rows as they come, within `with`; CheckpointError where the disk is full.

    directory: where the files are; nameless ones vanish with the process, however it ends. None: nameless ones, in the
    system's directory for temporary files.
    """

    def __init__(self, directory: Path | None = None, *, nameless: bool = False) -> None:
        self.place, self.rows, self._tokens, self._held = directory, 0, 0, {name: bytearray() for name in TYPES}
        try:
            if nameless or directory is None:
                files: dict[str, Any] = {name: tempfile.TemporaryFile(buffering=0, dir=directory) for name in TYPES}
            else:
                files = {name: (directory / name).open("w+b", buffering=0) for name in TYPES}
        except OSError as error:
            raise self._failed(error) from None
        self._files: dict[str, FileIO] = files
        self._put("starts", array("q", [0]))

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add(self, ids: Sequence[int], labelled: Sequence[bool], source: int, line: int) -> None:
        self.rows, self._tokens = self.rows + 1, self._tokens + len(ids)
        self._put("ids", array("i", ids))
        self._put("labelled", bytes(labelled))
        self._put("starts", array("q", [self._tokens]))
        self._put("sources", array("i", [source]))
        self._put("lines", array("I", [line]))

    def choose(self, numbers: Array) -> None:
        """Stored rows that come next, Int64 [row], by number from 0."""
        self._put("numbers", numbers)

    def stored(self) -> Stored:
        """The rows so far."""
        return self._read()[0]

    def finish(self) -> Chosen:
        """The rows that were chosen."""
        return Chosen(*self._read())

    def _read(self) -> tuple[Stored, Array]:
        for name in TYPES:
            self._write(name)
        return _mapped(self._files)

    def _put(self, name: str, values: Any) -> None:
        self._held[name] += memoryview(values).cast("B")
        if len(self._held[name]) >= BUFFER:
            self._write(name)

    def _write(self, name: str) -> None:
        held, self._held[name] = memoryview(self._held[name]), bytearray()
        try:
            while held:
                held = held[self._files[name].write(held) :]
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> CheckpointError:
        place = self.place or tempfile.gettempdir()
        advice = "free some" if self.place else "free some, or set TMPDIR to another disk"
        return CheckpointError(
            f"cannot write encoded rows to {place}: {error.strerror}; they take 5 bytes a token there: {advice}"
        )


def read(directory: Path) -> Chosen:
    """The rows in a directory that a `Writer` wrote."""
    files: dict[str, Any] = {name: (directory / name).open("rb", buffering=0) for name in TYPES}
    try:
        return Chosen(*_mapped(files))
    finally:
        for file in files.values():
            file.close()


def size(rows: Chosen) -> int:
    """Bytes of the files of stored rows."""
    stored = rows.rows
    assert isinstance(stored, Stored)
    parts = (stored.ids, stored.labelled, stored.starts, stored.sources, stored.lines, rows.numbers)
    return sum(part.nbytes for part in parts)


def place(rows: Sequence[Row], n: int) -> tuple[int, int]:
    """The number of the source of a stored row, and its line there."""
    if isinstance(rows, Chosen):
        return place(rows.rows, int(rows.numbers[n]))
    assert isinstance(rows, Stored)
    return int(rows.sources[n]), int(rows.lines[n])


def _mapped(files: dict[str, FileIO]) -> tuple[Stored, Array]:
    found = {name: _array(file, TYPES[name]) for name, file in files.items()}
    numbers = found.pop("numbers")
    return Stored(**found), numbers


def _array(file: FileIO, dtype: Any) -> Array:
    if not os.fstat(file.fileno()).st_size:  # nothing cannot be mapped
        return np.zeros(0, dtype)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)
