"""items.jsonl: everything that an evaluation measured, item by item, from which its report can be made again.

A line {"outcome": {contender, task, kind, metric, wall, cut, items: how many}} comes before the lines of its items.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from unmask.errors import DataError
from unmask.evaluate.outcomes import Contender, Item, Outcome
from unmask.journal import replacement

NAME = "items.jsonl"


def write_items(outcomes: Sequence[Outcome], file: Path) -> None:
    """Write `file`, replacing it all at once; CheckpointError where that is impossible."""
    with replacement(file) as to:
        for outcome in outcomes:
            about: dict[str, Any] = {"contender": _plain(outcome.contender), "task": outcome.task}
            about |= {"kind": outcome.kind, "metric": outcome.metric, "wall": outcome.wall, "cut": outcome.cut}
            to.write(_line({"outcome": about | {"items": len(outcome.items)}}))
            for item in outcome.items:
                to.write(_line(_plain(item)))


def read_items(file: Path) -> list[Outcome]:
    """The outcomes in `file`; DataError names the line that is wrong or missing."""
    try:
        with file.open(encoding="utf-8") as source:
            return list(_outcomes(_rows(source, file), file))
    except FileNotFoundError:
        raise DataError(
            "there is no such file; give the directory that unmask evaluate --out wrote", file=file
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", file=file) from None


def digest(item: Item) -> str:
    """sha256 of what an item asks: its prompt and target."""
    return hashlib.sha256(json.dumps([item.prompt, item.target]).encode()).hexdigest()


def _plain(record: Contender | Item) -> dict[str, Any]:
    return {f.name: dict(v) if hasattr(v := getattr(record, f.name), "items") else v for f in fields(record)}


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _rows(source: Any, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(source, 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise DataError("not JSON; the file is damaged or was cut short", file=file, line=number) from None
        if not isinstance(row, dict):
            raise DataError("not a JSON object", file=file, line=number)
        yield number, row


def _outcomes(rows: Iterator[tuple[int, dict[str, Any]]], file: Path) -> Iterator[Outcome]:
    for number, row in rows:
        try:
            about = dict(row["outcome"])
            count = about.pop("items")
            contender, items = Contender(**about.pop("contender")), []
            for _ in range(count):
                number, row = next(rows)
                items.append(Item(**row))
            yield Outcome(contender=contender, items=items, **about)
        except StopIteration:
            raise DataError("items are missing at the end; the file was cut short", file=file, line=number) from None
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not a record of unmask evaluate ({error})", file=file, line=number) from None
