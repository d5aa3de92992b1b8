"""Which thresholds of mode threshold a model may use on its own: what `unmask evaluate --gate` found, beside the model.

The record lies in the model's own directory, where that is one of the user's and may be written, else in unmask's cache
folder under the fingerprint of the weights. It names that fingerprint, and counts for no other weights.
"""

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from unmask.auto import Admissible
from unmask.errors import CheckpointError
from unmask.model.files import read_json, replace_text
from unmask.model.sources import DEMO, home

NAME = "admissible.json"
STRETCH, STRETCHES = 2**16, 64


def fingerprint(directory: Path) -> str:
    """sha256 over name, size and 64 stretches of 64 KiB, evenly spread, of every safetensors file of a directory.

    Tells one training run from another however large the model is, without reading it all.
    """
    found = hashlib.sha256()
    for file in sorted(directory.glob("*.safetensors")):
        size = file.stat().st_size
        found.update(f"{file.name}\n{size}\n".encode())
        with file.open("rb") as weights:
            for n in range(STRETCHES):
                weights.seek(max(0, size - STRETCH) * n // (STRETCHES - 1))
                found.update(weights.read(STRETCH))
    return found.hexdigest()


def write_admissible(record: Admissible, model: str, directory: Path) -> Path:
    """Store the record of a model; returns its file. model: the reference as given; directory: where it was found.

    CheckpointError where it cannot be written.
    """
    print_ = fingerprint(directory)
    file = directory / NAME if _users_own(model, directory) else home() / "admissible" / _file_name(print_)
    replace_text(file, json.dumps(asdict(record) | {"fingerprint": print_}, indent=2, default=str) + "\n")
    return file


def read_admissible(model: str, directory: Path) -> Admissible | None:
    """The record of a model, its own or the cached one; None where there is none, or only one of other weights.

    CheckpointError for a damaged file.
    """
    own, places = directory / NAME, [directory / NAME]
    with contextlib.suppress(CheckpointError):  # there is no home directory
        places.insert(1 if _users_own(model, directory) else 0, home() / "admissible")
    if not own.is_file() and not any(place.is_dir() for place in places):
        return None
    print_ = fingerprint(directory)
    for place in places:
        file = place if place == own else place / _file_name(print_)
        if file.is_file() and (record := _record(file)).fingerprint == print_:
            return record
    return None


def _users_own(model: str, directory: Path) -> bool:
    """Whether the reference is the directory itself, not part of an installation, and may be written to."""
    named = Path(model).expanduser()
    return named.is_dir() and named.resolve() == directory.resolve() != DEMO.resolve() and os.access(directory, os.W_OK)


def _file_name(print_: str) -> str:
    return f"{print_[:32]}.json"


def _record(file: Path) -> Admissible:
    entries = read_json(file)
    try:
        return Admissible(
            thresholds=tuple(float(each) for each in entries["thresholds"]),
            refused=tuple(float(each) for each in entries["refused"]),
            undecided=tuple(float(each) for each in entries["undecided"]),
            points=float(entries["points"]),
            items=int(entries["items"]),
            tasks=tuple(map(str, entries["tasks"])),
            made_with=dict(entries["made_with"]),
            fingerprint=str(entries["fingerprint"]),
        )
    except (KeyError, TypeError, ValueError) as e:
        raise CheckpointError(
            f"{file} is damaged ({type(e).__name__}: {e}); remove it, or run unmask evaluate --gate again"
        ) from None
