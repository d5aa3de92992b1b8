"""A row at work: it takes what the network proposed, and tells what that settles."""

import time
from collections import Counter
from collections.abc import Iterator

from unmask.core.propose import Proposals
from unmask.errors import ModelError, UnmaskError
from unmask.events import Answer, Committed, Event, Provisional, Request
from unmask.modes import MODES
from unmask.row import Row, Step
from unmask.text import Stream


class Live:
    """A row at work: its program, the step it waits for, what was told of it, and what it has cost so far."""

    def __init__(self, index: int, slot: int, request: Request, row: Row, stream: Stream | None) -> None:
        self.index, self.slot, self.request, self.row, self.stream = index, slot, request, row, stream
        self.program = MODES[row.settings.mode](row)
        self.began = time.perf_counter()
        self.kinds: Counter[str] = Counter()
        self.positions = 0
        self.seen = 0
        self.told: list[int] = []
        self.step: Step | None = next(self.program)

    def advance(self, found: Proposals) -> Iterator[Event]:
        """Send the proposals to the program; yields what they settle. `step` is None once the answer is complete."""
        assert self.step is not None
        if self.step.kind != "prefill" or not self.kinds["prefill"]:  # its pieces count as one
            self.kinds[self.step.kind] += 1
        self.positions += len(self.step.feed.tokens)
        if not found.finite.all():
            raise ModelError(
                "the network returned NaN or infinite logits for this request; try dtype fp32, and "
                "check the checkpoint's weights"
            )
        try:
            self.step = self.program.send(found)
        except StopIteration:
            self.step = None
        if self.request.provisional:
            yield self._picture()
        yield from self._settle()

    def _picture(self) -> Provisional:
        """The block being written as it stands after this forward, settled slots with the tokens that were written."""
        row, block, forwards = self.row, self.row.block, self.kinds.total()
        if block is None:
            return Provisional(self.index, row.length, [], [], [], 0, forwards)
        settled = min(row.length - block.start, len(block.tokens))
        return Provisional(
            self.index,
            block.start,
            row.tail(block.start)[:settled] + block.tokens[settled:].tolist(),
            [False] * settled + block.masked[settled:].tolist(),
            block.confidence.tolist(),
            settled,
            forwards,
        )

    def _settle(self) -> Iterator[Event]:
        """The new tokens as an event; closes the row where they complete a stop string."""
        fresh = self.row.written[self.seen :]
        self.seen += len(fresh)
        if fresh and self.row.finish == "stop":
            fresh = fresh[:-1]
        text = None
        if self.stream is not None:
            text = self._push(self.stream, fresh)
            fresh = self.row.written[len(self.told) : self.stream.released]
        logprobs = None if self.row.settings.logprobs is None else self.row.logprobs[len(self.told) :][: len(fresh)]
        self.told += fresh
        if fresh or text:
            yield Committed(self.index, fresh, text, logprobs)

    def _push(self, stream: Stream, tokens: list[int]) -> str:
        """The text that these tokens settle, all of it where the answer is complete."""
        text = ""
        for token in tokens:
            text += stream.push(token)
            if stream.stopped:
                self.step = None
                break
        return text if self.step is not None else text + stream.finish()

    def answer(self, batch_began: float, error: UnmaskError | None = None) -> Answer:
        """The answer as far as it was told."""
        reason = "stop" if self.stream is not None and self.stream.stopped else self.row.finish or "error"
        now = time.perf_counter()
        return Answer(
            text=None if self.stream is None else self.stream.text,
            token_ids=self.told,
            finish_reason="error" if error else reason,
            prompt_tokens=len(self.row.prompt),
            completion_tokens=len(self.told),
            forwards=self.kinds.total(),
            seconds=now - self.began,
            mode=self.row.settings.mode,
            batch_seconds=now - batch_began,
            forwards_by_kind=dict(self.kinds),
            positions_computed=self.positions,
            error=error,
            logprobs=None if self.row.settings.logprobs is None else self.row.logprobs[: len(self.told)],
            checks=self.row.checks,
            cached_tokens=self.row.reused,
        )
