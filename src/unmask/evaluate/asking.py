"""What is asked of a model, as jobs that may travel to other processes, and the records that come back."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.api import Model
from unmask.config import Decoding
from unmask.errors import CapacityError
from unmask.evaluate.likelihood import score, score_rolling
from unmask.evaluate.terms import Score
from unmask.events import Answer, Finished, Request
from unmask.text import repeated_4grams

Record = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """An answer to write. number: its place among a task's requests."""

    number: int
    ids: list[int]
    decoding: Decoding

    @property
    def cost(self) -> int:
        return len(self.ids) + self.decoding.max_new_tokens


@dataclass(frozen=True)
class Scored:
    """A continuation whose likelihood is wanted, given a context; None: a whole text."""

    number: int
    context: list[int] | None
    continuation: list[int]

    @property
    def cost(self) -> int:
        return len(self.context or ()) + len(self.continuation)


def key_of(job: Asked | Scored) -> str:
    """A digest of all that a job asks but its number."""
    asked = {name: value for name, value in dataclasses.asdict(job).items() if name != "number"}
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def answer(model: Model, jobs: Sequence[Asked]) -> Iterator[Record]:
    """A record per answer, in the order in which they end. CapacityError where memory does not even hold one."""
    for event in model.run([Request(job.ids, job.decoding) for job in jobs]):
        if not isinstance(event, Finished):
            continue
        if isinstance(event.answer.error, CapacityError):
            raise event.answer.error
        yield {"number": jobs[event.index].number} | _of(event.answer)


def _of(found: Answer) -> Record:
    return {
        "text": found.text or "",
        "tokens": found.completion_tokens,
        "prompt_tokens": found.prompt_tokens,
        "forwards": found.forwards,
        "seconds": found.seconds,
        "finish_reason": found.finish_reason,
        "repeated": repeated_4grams([found.token_ids]),
        "error": None if found.error is None else str(found.error),
    }


def likelihood(
    model: Model, jobs: Sequence[Scored], *, mode: str, samples: int, seed: int, decoding: Mapping[str, Any]
) -> Iterator[Record]:
    """A record per continuation, or per whole text where no context is given, in the order in which they are ready.

    decoding: sizes of block and sub-block, where they are not the checkpoint's.
    """
    how: dict[str, Any] = {"mode": mode, "samples": samples, "seed": seed, "decoding": decoding}
    pairs = [job for job in jobs if job.context is not None]
    wholes = [job for job in jobs if job.context is None]
    for place, found in score(model, [(job.context or [], job.continuation) for job in pairs], **how):
        yield _scored(pairs[place], found)
    for place, found in score_rolling(model, [job.continuation for job in wholes], **how):
        yield _scored(wholes[place], found)


def _scored(job: Scored, found: Score) -> Record:
    return {
        "number": job.number,
        "log_probability": found.log_probability,
        "standard_error": found.standard_error,
        "greedy": found.greedy,
        "cut": found.cut,
    }
