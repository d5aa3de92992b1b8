"""From sources to encoded rows, with a count of everything that was dropped or changed, by reason and source."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.noise import seeded
from unmask.data.encode import Document, Parts, parts_of, tokenised
from unmask.data.holdout import held_out
from unmask.data.packing import Packing, chatml_parts, packed
from unmask.data.shapes import as_row
from unmask.data.sources import Records, as_source, name_of
from unmask.data.stored import Array, Chosen, Row, Writer, place, read, size
from unmask.errors import ConfigError, DataError
from unmask.recipe import Source

TOGETHER, LETTERS = 512, 4_000_000
"""Rows, and letters of text, that are tokenised at once."""
ABOUT = "about.json"


@dataclass
class Rows:
    """Encoded rows, and what became of the records: a count of each reason over all sources and by source. `digests`
    has a sha256 of each source. held: rows held out for validation. bytes: of the files that hold the rows."""

    rows: Sequence[Row] = field(default_factory=list)
    held: Sequence[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sources: dict[str, Counter[str]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    bytes: int = 0

    def named(self, numbers: Iterable[int]) -> str:
        """Where rows are from, as a user can look them up: `a.jsonl lines 5, 1; b.jsonl line 3`. A row that the paper's
        packing made is named by the line that it begins in."""
        lines: dict[int, list[int]] = {}
        for n in numbers:
            source, line = place(self.rows, n)
            lines.setdefault(source, []).append(line)
        names = list(self.sources)
        return "; ".join(
            f"{names[source]} line{'s'[: len(found) > 1]} {', '.join(map(str, found))}"
            for source, found in lines.items()
        )


def load_rows(
    sources: Sequence[str | Source],
    tokenizer: Any,
    *,
    max_length: int,
    truncation: str,
    stop_ids: tuple[int, ...],
    seed: int = 0,
    packing: Packing | None = None,
    mask_id: int | None = None,
    hold: float = 0.0,
    directory: Path | None = None,
) -> Rows:
    """Read and encode sources. A malformed row is an error with file and line; one without a label is dropped.

    truncation: "keep" cuts a long row (its cut end is not learned as an end), "drop" leaves it out. seed: decides which
    rows a fractional weight takes, and which are held out. packing: the paper's packing, which neither cuts nor drops
    documents. mask_id: no row may hold it. hold: rows held out for validation, below 1 a share of the rows (of the
    documents that are packed), else a number. directory: an empty one that keeps the encoded rows, for `open_rows`;
    None: files without names, which go with the rows. Raises DataError, also where no row is left, ConfigError for a
    base that cannot be trained on text and for a `hold` that leaves nothing, CheckpointError where the disk is full.
    """
    _check_base(tokenizer, stop_ids)
    result, taken = Rows(), list[Array]()
    with Writer(directory, nameless=packing is not None) as writer:
        for number, given in enumerate(sources):
            source, counts = as_source(given), Counter[str]()
            name = _name(source, number, result.sources)
            result.sources[name] = counts
            records, first = Records(source), writer.rows
            documents = _documents(records, tokenizer, stop_ids, counts, packing is not None)
            for line, document in _unmasked(documents, mask_id, source):
                kept = document if packing is not None else _fitted(document, counts, max_length, truncation)
                if kept is not None:
                    writer.add(*kept, number, line)
            counts.update(records.counts)
            counts["kept"] += writer.rows - first
            result.digests[name] = records.digest
            taken.append(first + _weighted(writer.rows - first, source.weight, counts, seeded("weight", seed, number)))
            result.counts += counts
        learned, held = np.concatenate(taken), np.zeros(0, np.int64)
        if hold and len(learned):
            learned, held = (learned[part] for part in held_out(Chosen(writer.stored(), learned), hold, seed))
            result.counts["held out for validation"] = len(held)
        writer.choose(learned)
        writer.choose(held)
        found, count = writer.finish(), len(learned)
    if packing is not None and count:
        found, count = _packed(found, count, packing, directory, result.counts)
    if not count:
        raise _nothing_left(result, max_length)
    if len(held) and count == len(found):
        raise ConfigError(
            f"validation_rows is {hold:g}; {len(held)} documents fill no row of {max_length} tokens: hold out more"
        )
    result.rows, result.held, result.bytes = found[:count], found[count:], size(found)
    if directory is not None:
        about = {"counts": result.counts, "sources": result.sources, "digests": result.digests, "learned": count}
        (directory / ABOUT).write_text(json.dumps(about), encoding="utf-8")
    return result


def _check_base(tokenizer: Any, stop_ids: tuple[int, ...]) -> None:
    if tokenizer is None or not stop_ids:
        lacking = "tokenizer, so text cannot become tokens" if tokenizer is None else "end token, so answers cannot end"
        raise ConfigError(f"the base has no {lacking}; add it to the base's directory")


def _name(source: Source, number: int, taken: Iterable[str]) -> str:
    """The name of a source, and its number where another one before it has that name."""
    name = name_of(source)
    return f"{name} ({number + 1})" if name in taken else name


def open_rows(directory: Path) -> Rows:
    """The rows that `load_rows` kept in a directory. Raises OSError where there are none."""
    about, found = json.loads((directory / ABOUT).read_text(encoding="utf-8")), read(directory)
    sources = {name: Counter(counts) for name, counts in about["sources"].items()}
    count = about["learned"]
    return Rows(found[:count], found[count:], Counter(about["counts"]), sources, about["digests"], size(found))


def _documents(
    records: Records, tokenizer: Any, stop_ids: tuple[int, ...], counts: Counter[str], chatml: bool
) -> Iterator[tuple[int, Document]]:
    """The encoded records of a source with their lines, tokenised many at a time."""
    waiting, lines, letters = list[Parts](), list[int](), 0
    for number, record in records:
        try:
            row, form = as_row(record, records.source.columns)
            waiting.append(chatml_parts(row, tokenizer) if chatml else parts_of(row, tokenizer, stop_ids))
        except DataError as error:
            records.fault(error, number)
            continue
        if form:
            counts[f"read as {form}"] += 1
        lines.append(number)
        letters += sum(len(part.before or "") + len(part.words) for part in waiting[-1].parts)
        if len(waiting) == TOGETHER or letters > LETTERS:
            yield from zip(lines, tokenised(waiting, tokenizer), strict=True)
            waiting, lines, letters = [], [], 0
    yield from zip(lines, tokenised(waiting, tokenizer), strict=True)


def _packed(
    documents: Chosen, count: int, packing: Packing, directory: Path | None, counts: Counter[str]
) -> tuple[Chosen, int]:
    """The rows that the paper makes of documents, those of the first `count` in front, and how many these are."""
    with Writer(directory) as writer:
        for part in (documents[:count], documents[count:]):
            for rows, rest in packed(part, packing):
                for number, row in rows:
                    writer.add(*row, *place(part, number))
                counts["tokens dropped: the rest of a group"] += rest
            counts.setdefault("packed rows", writer.rows)
        writer.choose(np.arange(writer.rows))
        return writer.finish(), counts["packed rows"]


def _unmasked(
    documents: Iterator[tuple[int, Document]], mask_id: int | None, source: Source
) -> Iterator[tuple[int, Document]]:
    """Documents with their lines; DataError for one that holds the mask: it could not be told from a masked slot."""
    for line, document in documents:
        if mask_id in document[0]:
            problem = f"holds the token {mask_id}, which is the mask; give a mask_id that no text becomes"
            raise DataError(problem, file=name_of(source), line=line)
        yield line, document


def _nothing_left(result: Rows, max_length: int) -> DataError:
    """With what would leave a row, where it can be told from what became of the records."""
    counts, advice = result.counts, ""
    listed = "; ".join(f"{n} {reason}" for reason, n in counts.items()) or "it is empty"
    if "packed rows" in counts:
        advice = f"lower max_length below {max_length} or "
    elif counts["dropped: left out by weight"]:
        advice = "raise weight or "
    elif any("max_length" in reason for reason in counts):
        advice = f"raise max_length above {max_length} or "
    return DataError(
        f"no row with an answer is left of {', '.join(result.sources)} ({listed}); {advice}give other data"
    )


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
