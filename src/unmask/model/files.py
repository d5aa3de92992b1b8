"""The files of a checkpoint directory: what they hold, whether they are whole and safe, and how they are replaced.

Only JSON and safetensors are ever read. Pickled weights are refused and no Python file of a directory is run.
"""

import contextlib
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from unmask.errors import CheckpointError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class Weights:
    """What the safetensors headers of a directory say: its files, number of values, and the type of most of them."""

    files: list[Path]
    values: int
    dtype: torch.dtype


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError names the file when it is missing or not one object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}; give a directory that holds a saved model") from None
    except (OSError, ValueError) as e:
        raise CheckpointError(f"{path} cannot be read: {e}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return found


def replace_text(path: Path, text: str) -> None:
    """Write a file, making its directory, so that whoever reads it finds the old text or the new one.

    CheckpointError where it cannot be written; nothing is left behind then.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as e:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {e.strerror}") from None


def inspect_weights(directory: Path) -> Weights:
    """Read every safetensors header; CheckpointError for a missing shard, a damaged file, or pickled weights only."""
    files = _weight_files(directory)
    counts: dict[str, int] = {}
    for file in files:
        for entry in read_header(file):
            counts[entry.dtype] = counts.get(entry.dtype, 0) + prod(entry.shape)
    floats = {kind: n for kind, n in counts.items() if kind in DTYPES}
    if not floats:
        raise CheckpointError(f"{directory} holds no floating-point weights ({', '.join(sorted(counts)) or 'empty'})")
    return Weights(files, sum(counts.values()), DTYPES[max(floats, key=lambda kind: floats[kind])])


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    if index.is_file():
        files = [directory / name for name in sorted(set(read_json(index).get("weight_map", {}).values()))]
        for file in files:
            if not file.is_file():
                raise CheckpointError(f"{directory} is incomplete: {file.name} is missing; fetch it again")
        return files
    pickles = sorted(p.name for pattern in PICKLES for p in directory.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{directory} has its weights in {pickles[0]}, a pickle that can run code when it is loaded; "
            "convert it to model.safetensors first"
        )
    raise CheckpointError(f"{directory} has no model.safetensors; give a directory that holds a saved model")


@dataclass(frozen=True)
class Entry:
    """A tensor of a safetensors file: its name, type and shape, and the bytes [start, stop) of the file it lies in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(file: Path) -> list[Entry]:
    """What a file holds, read by hand so that a file cut short is noticed; CheckpointError for a damaged one."""
    try:
        with file.open("rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            begin = f.tell()
            body = file.stat().st_size - begin
            entries = [
                Entry(name, e["dtype"], tuple(e["shape"]), *(begin + offset for offset in e["data_offsets"]))
                for name, e in header.items()
                if name != "__metadata__"
            ]
    except (OSError, ValueError, OverflowError, MemoryError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"{file} is damaged ({e}); fetch it again") from None
    end = max((entry.stop for entry in entries), default=begin) - begin
    if end != body:
        raise CheckpointError(f"{file} is damaged: it names {end} bytes of weights and has {body}; fetch it again")
    return entries


def available_memory(device: torch.device) -> int | None:
    """Bytes free for a model on `device`; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


@contextlib.contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """A new directory to write into, which takes the place of `directory` only when the block ends without error.

    Written beside it, flushed to the disk, then renamed: a process that is killed leaves the old content or the new.
    A failed write (a full disk) raises CheckpointError and leaves the old content in place.
    """
    fresh = directory.parent / f".{directory.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        recover(directory)
        fresh.mkdir()
        yield fresh
        _flush(fresh)
        _swap(fresh, directory)
    except (OSError, SafetensorError) as e:
        why = os.strerror(e.errno) if isinstance(e, OSError) and e.errno else str(e)
        raise CheckpointError(f"cannot save to {directory}: {why}; what was there before is untouched") from e
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def recover(directory: Path) -> None:
    """Bring back the old content if a process was killed between the two renames of a replacement.

    Readers and writers call it; a writer that is between them at this very moment takes that into account. Where
    nothing may be renamed (a read-only disk), what is missing stays missing.
    """
    old = _old(directory)
    if old.is_dir() and not directory.exists():
        with contextlib.suppress(OSError):
            os.replace(old, directory)


def _old(directory: Path) -> Path:
    return directory.parent / f".{directory.name}.old"


def _flush(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _swap(fresh: Path, directory: Path) -> None:
    """Rename `fresh` to `directory`. A directory cannot replace a full one in one call, so the old one steps aside; a
    reader that finds it gone may bring it back meanwhile, and then it steps aside again."""
    old = _old(directory)
    for last in (False, False, True):
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            os.replace(directory, old)
        try:
            os.replace(fresh, directory)
            break
        except OSError as e:
            if last or e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    shutil.rmtree(old, ignore_errors=True)
