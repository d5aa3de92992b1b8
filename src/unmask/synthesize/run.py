"""The run: make prompts or take those given, answer each once, write the rows in the order of the prompts.

Every finished job is on disk at once, so that a run that is killed loses only the answers at work; resumed, it writes
the same file as if it had never stopped.
"""

import functools
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.api import opened
from unmask.config import Decoding
from unmask.errors import ConfigError, DataError
from unmask.journal import Journal, replacement
from unmask.lock import locked
from unmask.model.checkpoint import Checkpoint
from unmask.spread import Work, need_ray, workers
from unmask.synthesize.jobs import Job, Jobs, Prompt
from unmask.synthesize.make import Judge as MadeJudge
from unmask.synthesize.make import header_of, jobs_to_make
from unmask.synthesize.overlap import Overlap, excluded_texts
from unmask.synthesize.place import Place
from unmask.synthesize.provenance import made_with
from unmask.synthesize.settings import Synthesis
from unmask.synthesize.worker import Judge, answered, work


@dataclass(frozen=True)
class Progress:
    """A job has ended. doing: making or answering; done: of `total` jobs, those of earlier runs included;
    tokens: written by this run so far, of prompts and answers; seconds: since this run began to work."""

    doing: str
    done: int
    total: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """The end of a run. counts: of the whole file (see `docs/synthesize.md`); tokens, seconds: of this run alone."""

    counts: dict[str, Any]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Made:
    value: str
    where: str


def synthesize(
    prompts: Sequence[Prompt], out: Path, settings: Synthesis, loading: dict[str, Any], *, resume: bool = False
) -> Iterator[Progress | Summary]:
    """Write OUT and the file about it; yields a `Progress` per job and a `Summary` at the end.

    prompts: empty where `settings.make` makes them. loading: the arguments of `api.load`.
    Raises DataError for a malformed prompt and where no row is left, ConfigError for a model that cannot do this,
    CheckpointError for files that are in the way or cannot be written, all but the last before any work.
    """
    place = Place(out)
    with locked(out):
        yield from _synthesize(place, prompts, settings, loading, resume)


def _synthesize(
    place: Place, prompts: Sequence[Prompt], settings: Synthesis, loading: dict[str, Any], resume: bool
) -> Iterator[Progress | Summary]:
    place.check(resume)
    if settings.workers > 1:
        need_ray()
    prompts = prompts[: settings.limit]
    excluded = Overlap(text for file in settings.exclude for text in excluded_texts(file)) if settings.exclude else None
    checkpoint = _checkpoint(loading)
    jobs = Jobs(checkpoint, settings.max_new_tokens, settings.seed, excluded)
    header = header_of(checkpoint) if settings.make else None
    jobs.add_all(enumerate(prompts))
    if header is None:
        _some(jobs)
    origin = made_with(checkpoint, loading, settings, prompts)
    before = place.begin(origin)
    if before["complete"] and place.out.is_file():
        place.clear()
        yield Summary(before["counts"], 0, 0.0)
        return
    run = _Run(place)
    fewest = min(
        loading["batch_size"], settings.make or len(jobs.jobs)
    )  # room for more rows than there are is not kept
    with workers(checkpoint, loading | {"batch_size": fewest}, settings.workers) as spread:
        run.began = time.perf_counter()
        if header is not None:
            with Journal(place.prompts) as journal:
                to_make = jobs_to_make(header, settings)
                yield from run.do(
                    "making", spread, to_make, settings.prompts(header.stop_ids), MadeJudge(settings), journal
                )
                _take_made(jobs, journal)
            _some(jobs)
        with Journal(place.answers) as journal:
            yield from run.do("answering", spread, jobs.jobs, settings.answers(), answered, journal)
            counts = _write(place.out, jobs, journal, settings.make or len(prompts))
    place.describe(origin, counts, complete=True)
    place.clear()
    yield Summary(counts, run.tokens, time.perf_counter() - run.began)


class _Run:
    """What this process has done so far."""

    def __init__(self, place: Place) -> None:
        self.place, self.tokens, self.began = place, 0, time.perf_counter()

    def do(
        self, doing: str, spread: Work, jobs: Sequence[Job], decoding: Decoding, judge: Judge, journal: Journal
    ) -> Iterator[Progress]:
        """Do the jobs that the journal does not have, the longest prompts first: they set the size of the buffers, and
        rows that are prefilled together have similar lengths."""
        left = sorted((job for job in jobs if job.number not in journal), key=lambda job: -len(job.ids))
        done = len(jobs) - len(left)
        for record in spread(functools.partial(work, decoding=decoding, judge=judge), left):
            journal.add(record)
            self.tokens += record["tokens"]
            done += 1
            yield Progress(doing, done, len(jobs), self.tokens, time.perf_counter() - self.began)


def _checkpoint(loading: dict[str, Any]) -> Checkpoint:
    """The checkpoint without its weights; ConfigError for one whose answers would be no training text."""
    checkpoint = opened(loading["ref"], **{name: loading[name] for name in ("dtype", "device", "mask_id")})
    lacking = "tokenizer" if checkpoint.tokenizer is None else "" if checkpoint.stop_ids else "end token"
    if lacking:
        raise ConfigError(f"{checkpoint.ref} has no {lacking}, so its answers would be no training text")
    return checkpoint


def _take_made(jobs: Jobs, journal: Journal) -> None:
    """The made prompts that were kept, by number; the others are counted."""
    made = []
    for record in journal:
        if "prompt" in record:
            made.append((record["number"], Made(record["prompt"], f"made prompt {record['number'] + 1}")))
        else:
            jobs.dropped[record["dropped"]] += 1
    jobs.add_all(made)


def _some(jobs: Jobs) -> None:
    if not jobs.jobs:
        raise DataError(f"no prompt is left to answer ({listed(jobs.dropped)}); give others")


def listed(dropped: dict[str, int]) -> str:
    return "; ".join(f"{n} dropped: {reason}" for reason, n in dropped.items())


def _write(out: Path, jobs: Jobs, journal: Journal, prompts: int) -> dict[str, Any]:
    """Write the rows in the order of their prompts; returns the counts."""
    counts: Counter[str] = Counter()
    dropped = Counter(jobs.dropped)
    texts: set[str] = set()
    if not any("row" in record for record in journal):
        dropped.update(record["dropped"] for record in journal)
        raise DataError(f"no row is left of {prompts} prompts ({listed(dropped)}), so {out} is not written")
    with replacement(out) as file:
        for record in journal:
            row = record.get("row")
            if row is None:
                dropped[record["dropped"]] += 1
                continue
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            text = row["completion"] if "completion" in row else row["messages"][-1]["content"]
            counts.update(rows=1, tokens=record["tokens"], cut=int("ended" in row), repeated=int(text in texts))
            texts.add(text)
    named = {name: counts[name] for name in ("rows", "tokens", "cut", "repeated")}
    return {"prompts": prompts} | named | {"dropped": dict(sorted(dropped.items()))}
