"""From sources to encoded rows, with a count of everything that was dropped or changed, by reason and source."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unmask.core.noise import seeded
from unmask.data.encode import encode, flat
from unmask.data.packing import Document, Packing, chatml_pieces, packed
from unmask.data.shapes import as_row
from unmask.data.sources import Records, as_source, name_of
from unmask.errors import ConfigError, DataError
from unmask.recipe import Source


@dataclass(frozen=True)
class Row:
    """ids: Long [token]; labelled: Bool [token]."""

    ids: Tensor
    labelled: Tensor


@dataclass
class Rows:
    """Encoded rows, and what became of the records: a count of each reason over all sources and by source. `digests`
    has a sha256 of each source."""

    rows: list[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sources: dict[str, Counter[str]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


def load_rows(
    sources: Sequence[str | Source],
    tokenizer: Any,
    *,
    max_length: int,
    truncation: str,
    stop_ids: tuple[int, ...],
    seed: int = 0,
    packing: Packing | None = None,
) -> Rows:
    """Read and encode sources. A malformed row is an error with file and line; one without a label is dropped.

    truncation: "keep" cuts a long row (its cut end is not learned as an end), "drop" leaves it out. seed: decides which
    rows a fractional weight takes. packing: the paper's packing, which neither cuts nor drops documents.
    Raises DataError, also where no row is left, and ConfigError for a base that cannot be trained on text.
    """
    if tokenizer is None or not stop_ids:
        lacking = "tokenizer, so text cannot become tokens" if tokenizer is None else "end token, so answers cannot end"
        raise ConfigError(f"the base has no {lacking}; add it to the base's directory")
    result, documents = Rows(), list[Document]()
    for number, given in enumerate(sources):
        source, counts = as_source(given), Counter[str]()
        name = name_of(source)
        if name in result.sources:
            name += f" ({number + 1})"
        result.sources[name] = counts
        found, result.digests[name] = _documents(source, tokenizer, stop_ids, counts, packing is not None)
        if packing is None:
            found = [kept for document in found if (kept := _fitted(document, counts, max_length, truncation))]
        counts["kept"] += len(found)
        documents += _weighted(found, source.weight, counts, seeded("weight", seed, number))
        result.counts += counts
    if packing is not None:
        documents, rest = packed(documents, packing)
        result.counts["packed rows"] += len(documents)
        result.counts["tokens dropped: the rest of a group"] += rest
    made = {
        id(document): Row(*map(torch.tensor, document)) for document in documents
    }  # one Row, however often it comes
    result.rows = [made[id(document)] for document in documents]
    if not result.rows:
        listed = "; ".join(f"{n} {reason}" for reason, n in result.counts.items()) or "it is empty"
        wanted = f"raise max_length above {max_length}" if packing is None else f"lower max_length below {max_length}"
        raise DataError(
            f"no row with an answer is left of {', '.join(result.sources)} ({listed}); {wanted} or give other data"
        )
    return result


def _documents(
    source: Source, tokenizer: Any, stop_ids: tuple[int, ...], counts: Counter[str], chatml: bool
) -> tuple[list[Document], str]:
    """The encoded records of a source, and its digest."""
    records, found = Records(source), list[Document]()
    for number, record in records:
        try:
            row, form = as_row(record, source.columns)
            if form:
                counts[f"read as {form}"] += 1
            found.append(flat(chatml_pieces(row, tokenizer)) if chatml else encode(row, tokenizer, stop_ids))
        except DataError as error:
            if source.malformed == "drop":
                where = f"{error.field} " if error.field else ""
                counts[f"dropped: malformed, {where}{re.sub(r'[0-9]+', 'N', error.problem)}"] += 1
                continue
            raise DataError(error.problem, file=name_of(source), line=number, field=error.field) from None
    counts.update(records.counts)
    return found, records.digest


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


def _weighted(
    documents: list[Document], weight: float, counts: Counter[str], generator: torch.Generator
) -> list[Document]:
    """Each document floor(weight) times, and once more a share of them that is drawn; the same in every epoch."""
    times, share = int(weight), weight - int(weight)
    drawn = torch.randperm(len(documents), generator=generator)[: round(share * len(documents))].sort().values
    made = documents * times + [documents[n] for n in drawn.tolist()]
    if len(made) > len(documents):
        counts["added: again, by weight"] += len(made) - len(documents)
    elif len(made) < len(documents):
        counts["dropped: left out by weight"] += len(documents) - len(made)
    return made
