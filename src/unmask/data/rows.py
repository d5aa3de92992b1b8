"""From sources to encoded rows, with a count of everything that was dropped or changed, by reason and source."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.noise import seeded
from unmask.data.encode import Document, Parts, parts_of, tokenised
from unmask.data.packing import Packing, chatml_parts, packed
from unmask.data.shapes import as_row
from unmask.data.sources import Records, as_source, name_of
from unmask.data.stored import Array, Chosen, Row, Writer, read, size
from unmask.errors import ConfigError, DataError
from unmask.recipe import Source

TOGETHER, LETTERS = 512, 4_000_000
"""Rows, and letters of text, that are tokenised at once."""
ABOUT = "about.json"


@dataclass
class Rows:
    """Encoded rows, and what became of the records: a count of each reason over all sources and by source. `digests`
    has a sha256 of each source. bytes: of the files that hold the rows."""

    rows: Sequence[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sources: dict[str, Counter[str]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    bytes: int = 0


def load_rows(
    sources: Sequence[str | Source],
    tokenizer: Any,
    *,
    max_length: int,
    truncation: str,
    stop_ids: tuple[int, ...],
    seed: int = 0,
    packing: Packing | None = None,
    directory: Path | None = None,
) -> Rows:
    """Read and encode sources. A malformed row is an error with file and line; one without a label is dropped.

    truncation: "keep" cuts a long row (its cut end is not learned as an end), "drop" leaves it out. seed: decides which
    rows a fractional weight takes. packing: the paper's packing, which neither cuts nor drops documents. directory:
    an empty one that keeps the encoded rows, for `open_rows`; None: files without names, which go with the rows.
    Raises DataError, also where no row is left, ConfigError for a base that cannot be trained on text, and
    CheckpointError where the disk is full.
    """
    if tokenizer is None or not stop_ids:
        lacking = "tokenizer, so text cannot become tokens" if tokenizer is None else "end token, so answers cannot end"
        raise ConfigError(f"the base has no {lacking}; add it to the base's directory")
    result = Rows()
    with Writer(directory, nameless=packing is not None) as writer:
        for number, given in enumerate(sources):
            source, counts = as_source(given), Counter[str]()
            name = name_of(source)
            if name in result.sources:
                name += f" ({number + 1})"
            result.sources[name] = counts
            records, first = Records(source), writer.rows
            for document in _documents(records, tokenizer, stop_ids, counts, packing is not None):
                kept = document if packing is not None else _fitted(document, counts, max_length, truncation)
                if kept is not None:
                    writer.add(*kept)
            counts.update(records.counts)
            counts["kept"] += writer.rows - first
            result.digests[name] = records.digest
            writer.choose(first + _weighted(writer.rows - first, source.weight, counts, seeded("weight", seed, number)))
            result.counts += counts
        found = writer.finish()
    if packing is not None:
        found = _packed(found, packing, directory, result.counts)
    if not len(found):
        listed = "; ".join(f"{n} {reason}" for reason, n in result.counts.items()) or "it is empty"
        wanted = f"raise max_length above {max_length}" if packing is None else f"lower max_length below {max_length}"
        raise DataError(
            f"no row with an answer is left of {', '.join(result.sources)} ({listed}); {wanted} or give other data"
        )
    result.rows, result.bytes = found, size(found)
    if directory is not None:
        about = {"counts": result.counts, "sources": result.sources, "digests": result.digests}
        (directory / ABOUT).write_text(json.dumps(about), encoding="utf-8")
    return result


def open_rows(directory: Path) -> Rows:
    """The rows that `load_rows` kept in a directory. Raises OSError where there are none."""
    about, found = json.loads((directory / ABOUT).read_text(encoding="utf-8")), read(directory)
    sources = {name: Counter(counts) for name, counts in about["sources"].items()}
    return Rows(found, Counter(about["counts"]), sources, about["digests"], size(found))


def _documents(
    records: Records, tokenizer: Any, stop_ids: tuple[int, ...], counts: Counter[str], chatml: bool
) -> Iterator[Document]:
    """The encoded records of a source, tokenised many at a time."""
    waiting, letters = list[Parts](), 0
    for number, record in records:
        try:
            row, form = as_row(record, records.source.columns)
            if form:
                counts[f"read as {form}"] += 1
            waiting.append(chatml_parts(row, tokenizer) if chatml else parts_of(row, tokenizer, stop_ids))
        except DataError as error:
            if records.source.malformed == "drop":
                where = f"{error.field} " if error.field else ""
                counts[f"dropped: malformed, {where}{re.sub(r'[0-9]+', 'N', error.problem)}"] += 1
                continue
            raise DataError(error.problem, file=name_of(records.source), line=number, field=error.field) from None
        letters += sum(len(part.before or "") + len(part.words) for part in waiting[-1].parts)
        if len(waiting) == TOGETHER or letters > LETTERS:
            yield from tokenised(waiting, tokenizer)
            waiting, letters = [], 0
    yield from tokenised(waiting, tokenizer)


def _packed(documents: Chosen, packing: Packing, directory: Path | None, counts: Counter[str]) -> Chosen:
    """The rows that the paper makes of documents."""
    with Writer(directory) as writer:
        for rows, rest in packed(documents, packing):
            for row in rows:
                writer.add(*row)
            counts["tokens dropped: the rest of a group"] += rest
        counts["packed rows"] += writer.rows
        writer.choose(np.arange(writer.rows))
        return writer.finish()


def _fitted(document: Document, counts: Counter[str], max_length: int, truncation: str) -> Document | None:
    """A document of at most `max_length` tokens with something to learn; None where it is dropped."""
    ids, labelled = document
    if len(ids) > max_length:
        if truncation == "drop":
            counts[f"dropped: longer than max_length {max_length}"] += 1
            return None
        ids, labelled = ids[:max_length], labelled[:max_length]
        if not any(labelled[1:]):
            counts[f"dropped: the answer begins after max_length {max_length}"] += 1
            return None
        counts[f"cut at max_length {max_length}"] += 1
    if not any(labelled[1:]):
        counts["dropped: nothing to learn"] += 1
        return None
    return ids, labelled


def _weighted(count: int, weight: float, counts: Counter[str], generator: torch.Generator) -> Array:
    """Numbers of `count` rows: each floor(weight) times, and once more a share of them that is drawn; the same in every
    epoch."""
    times, share = int(weight), weight - int(weight)
    drawn = torch.randperm(count, generator=generator)[: round(share * count)].sort().values
    made = np.concatenate([np.tile(np.arange(count), times), drawn.numpy()])
    if len(made) > count:
        counts["added: again, by weight"] += len(made) - count
    elif len(made) < count:
        counts["dropped: left out by weight"] += count - len(made)
    return made
