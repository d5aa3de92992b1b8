"""A model at work: jobs in, one record per job out, in the order in which they end."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from unmask.api import Model
from unmask.config import Decoding
from unmask.data import encode
from unmask.errors import CapacityError, DataError
from unmask.events import Answer, Finished, Request
from unmask.model.checkpoint import Checkpoint
from unmask.synthesize.jobs import Job, row_of
from unmask.text import UNFINISHED

Record = dict[str, Any]
Judge = Callable[[Checkpoint, Job, Answer], Record]
"""What becomes of a job's answer."""


def work(model: Model, jobs: Sequence[Job], decoding: Decoding, judge: Judge) -> Iterator[Record]:
    """Do the jobs with continuous batching, in their order. CapacityError where memory does not even hold one."""
    requests = (Request(job.ids, dataclasses.replace(decoding, seed=job.seed)) for job in jobs)
    for event in model.run(requests):
        if not isinstance(event, Finished):
            continue
        job, error = jobs[event.index], event.answer.error
        if isinstance(error, CapacityError):
            raise error
        about = {"number": job.number, "tokens": event.answer.completion_tokens}
        yield about | ({"dropped": str(error)} if error is not None else judge(model.checkpoint, job, event.answer))


def answered(checkpoint: Checkpoint, job: Job, answer: Answer) -> Record:
    """The row of an answer; a reason to drop it where `unmask adapt` could not learn it as it was written."""
    ended = answer.finish_reason == "stop"
    text = (answer.text or "") if ended else (answer.text or "").rstrip(UNFINISHED)
    if not text.strip():
        return {"dropped": "the answer is empty"}
    row = row_of(job.given, text, ended)
    try:
        encode(row, checkpoint.tokenizer, checkpoint.stop_ids)
    except DataError as error:
        return {"dropped": error.problem}
    return {"row": row}
