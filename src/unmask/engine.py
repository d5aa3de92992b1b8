"""The engine: requests in, events out.

It keeps up to `batch_size` rows alive, each a program of `decode.MODES`, gathers what they ask of the network into
common forwards, and admits the next request as soon as a row of the cache is free.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from unmask.config import BlockSpec, Decoding, resolve
from unmask.core.propose import Proposals, propose
from unmask.decode import MODES, Row, Step, check_prompt
from unmask.errors import RequestError, UnmaskError
from unmask.events import Answer, Committed, Event, Finished, Provisional, Request
from unmask.model.backbone import Backbone, Cache
from unmask.text import Stream


class Live:
    """A row at work: its program, the step it waits for, and what it has cost so far."""

    def __init__(self, index: int, slot: int, request: Request, row: Row, stream: Stream | None) -> None:
        self.index, self.slot, self.request, self.row, self.stream = index, slot, request, row, stream
        self.program = MODES[row.settings.mode](row)
        self.began = time.perf_counter()
        self.kinds: Counter[str] = Counter()
        self.positions = 0
        self.told = 0
        self.step: Step | None = next(self.program)

    def advance(self, found: Proposals) -> Iterator[Event]:
        """Send the proposals to the program; yields what they settle. `step` is None once the answer is complete."""
        assert self.step is not None
        self.kinds[self.step.kind] += 1
        self.positions += len(self.step.feed.tokens)
        if not found.finite.all():
            raise RequestError(
                "the network returned NaN or infinite logits for this request; try dtype fp32, and "
                "check the checkpoint's weights",
                field="prompt_ids",
            )
        try:
            self.step = self.program.send(found)
        except StopIteration:
            self.step = None
        block = self.row.block
        if self.request.provisional and block is not None:
            yield Provisional(
                self.index, block.start, block.tokens.tolist(), block.masked.tolist(), block.confidence.tolist()
            )
        yield from self._settle()

    def _settle(self) -> Iterator[Event]:
        """The new tokens as an event; closes the row where they complete a stop string."""
        fresh, text = self.row.written[self.told :], ""
        self.told += len(fresh)
        if fresh and self.row.finish == "stop":
            fresh = fresh[:-1]
        shown = []
        for token in fresh:
            shown.append(token)
            if self.stream is not None:
                text += self.stream.push(token)
                if self.stream.stopped:
                    self.step = None
                    break
        if self.step is None and self.stream is not None:
            text += self.stream.finish()
        if shown or text:
            yield Committed(self.index, shown, text if self.stream is not None else None)

    def answer(self, batch_began: float, error: UnmaskError | None = None) -> Answer:
        """The answer as far as it is settled."""
        tokens, reason = self.row.written, self.row.finish or "error"
        if reason == "stop":
            tokens = tokens[:-1]
        if self.stream is not None and self.stream.stopped:
            tokens, reason = tokens[: self.stream.kept], "stop"
        now = time.perf_counter()
        return Answer(
            text=None if self.stream is None else self.stream.text,
            token_ids=list(tokens),
            finish_reason="error" if error else reason,
            prompt_tokens=len(self.row.prompt),
            completion_tokens=len(tokens),
            forwards=self.kinds.total(),
            seconds=now - self.began,
            mode=self.row.settings.mode,
            batch_seconds=now - batch_began,
            forwards_by_kind=dict(self.kinds),
            positions_computed=self.positions,
            error=error,
        )


class Engine:
    """Decodes requests with `backbone` under the checkpoint's `spec`; one engine runs in one thread.

    `generate` and `run` serve a collection; a server calls `submit`, `step` and `cancel` itself and passes a
    `capacity` (positions per row of the cache), since the cache can grow only while no row is alive.
    """

    def __init__(
        self, backbone: Backbone, spec: BlockSpec, tokenizer: Any = None, *, batch_size: int = 8, capacity: int = 0
    ) -> None:
        self.backbone, self.spec, self.tokenizer, self.batch_size = backbone, spec, tokenizer, batch_size
        self.rows, self.capacity = batch_size, capacity
        self.cache: Cache | None = None
        self.live: list[Live] = []
        self.waiting: deque[tuple[int, Request, Row]] = deque()
        self.count = 0
        self.began = time.perf_counter()

    def submit(self, request: Request) -> int:
        """Queue a request; returns its index. RequestError when it cannot be served as asked."""
        index, self.count = self.count, self.count + 1
        row = self._row(request)
        if not self.live and not self.waiting:
            self.began = time.perf_counter()
        self.waiting.append((index, request, row))
        return index

    def cancel(self, index: int) -> None:
        """Drop a request, waiting or live; it gets no further events. Unknown indices are ignored."""
        self.live = [live for live in self.live if live.index != index]
        self.waiting = deque(item for item in self.waiting if item[0] != index)

    def step(self) -> list[Event]:
        """Admit what fits, then take every live row one forward further, or two where a draft is then committed.

        Rows that want the same kind of forward share it, and a row that drafted joins the clean forward of the same
        step, so rows that draft and check stay in phase whenever they came.
        """
        self._admit()
        events: list[Event] = []
        for kind in ("prefill", "draft", "clean"):
            group = [live for live in self.live if _group(live.step) == kind]
            if group:
                events.extend(self._forward(sorted(group, key=lambda live: live.slot)))
                self.live = [live for live in self.live if live.step is not None]
        return events

    def run(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Serve requests; each gets the index of its place. One that cannot be served finishes with its error.

        Requests are taken from the iterable as rows become free. Whoever stops listening cancels what is left.
        """
        base, source, more = self.count, iter(requests), True
        if isinstance(requests, Sequence):
            self.rows = max(1, min(self.batch_size, len(requests)))
            self.capacity = max([self.capacity, *(self._need(len(r.prompt_ids), r.decoding) for r in requests)])
        try:
            while more or self.live or self.waiting:
                while more and len(self.live) + len(self.waiting) < self.rows:
                    request = next(source, None)
                    more = request is not None
                    if request is not None:
                        yield from self._enter(request, base)
                for event in self.step():
                    yield replace(event, index=event.index - base)
        finally:
            self.rows = self.batch_size
            for index in range(base, self.count):
                self.cancel(index)

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        """All answers, in the order of the requests; `batch_seconds` is that of the whole call."""
        began = time.perf_counter()
        answers = {event.index: event.answer for event in self.run(requests) if isinstance(event, Finished)}
        total = time.perf_counter() - began
        return [replace(answers[index], batch_seconds=total) for index in range(len(requests))]

    def _enter(self, request: Request, base: int) -> Iterator[Event]:
        try:
            self.submit(request)
        except UnmaskError as error:
            answer = Answer(
                None if self.tokenizer is None else "",
                [],
                "error",
                len(request.prompt_ids),
                0,
                0,
                0.0,
                request.decoding.mode,
                0.0,
                {},
                error=error,
            )
            yield Finished(self.count - 1 - base, answer)

    def _row(self, request: Request) -> Row:
        settings = resolve(request.decoding, self.spec)
        prompt = list(request.prompt_ids)
        if not prompt:
            bos = getattr(self.tokenizer, "bos_token_id", None)
            if bos is None:
                raise RequestError(
                    "the prompt is empty and the model has no beginning-of-text token; give a prompt",
                    field="prompt_ids",
                    value=[],
                )
            prompt = [bos]
        if any(settings.stop) and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, which this checkpoint lacks; use stop_ids", field="stop")
        check_prompt(prompt, settings.max_new_tokens, self.backbone.vocab_size, self.backbone.max_positions)
        random = torch.Generator()
        if settings.seed is None:
            random.seed()
        else:
            random.manual_seed(settings.seed % 2**63)
        return Row(prompt, settings, self.spec, random)

    def _need(self, prompt: int, settings: Decoding) -> int:
        """Positions that a row may touch: prompt and answer, and what the last block has beyond them."""
        return min(prompt + settings.max_new_tokens, self.backbone.max_positions) + self.spec.block_size

    def _admit(self) -> None:
        """Start waiting requests, first come first served, while a row of the cache is free and long enough."""
        while self.waiting and len(self.live) < self.rows:
            index, request, row = self.waiting[0]
            need = self._need(len(row.prompt), row.settings)
            if not self.live and (self.cache is None or self.cache.rows != self.rows or self.cache.capacity < need):
                self.capacity = -(-max(self.capacity, need) // 64) * 64
                self.cache = None
                self.cache = self.backbone.new_cache(self.rows, self.capacity)
            if self.cache is None or self.cache.capacity < need:
                return
            self.waiting.popleft()
            free = set(range(self.cache.rows)) - {live.slot for live in self.live}
            stream = None if self.tokenizer is None else Stream(self.tokenizer, row.settings.stop)
            self.live.append(Live(index, min(free), request, row, stream))

    def _forward(self, group: list[Live]) -> Iterator[Event]:
        """One forward for the rows of `group`; each gets its proposals, and fails alone if they mean nothing."""
        assert self.cache is not None
        steps = [live.step for live in group if live.step is not None]
        logits = self.backbone.forward(self.cache, [live.slot for live in group], [step.feed for step in steps])
        found, at = _propose(logits, steps, self.spec.mask_id), 0
        for live, step in zip(group, steps, strict=True):
            part, at = found.part(at, at + len(step.feed.read)), at + len(step.feed.read)
            error = None
            try:
                yield from live.advance(part)
            except RequestError as problem:
                live.step, error = None, problem
            if live.step is None:
                yield Finished(live.index, live.answer(self.began, error))


def _group(step: Step | None) -> str | None:
    """Which forward a step can share: prompts are long, and drafts may need the draft adapters."""
    if step is None:
        return None
    if step.kind == "prefill":
        return "prefill"
    return "draft" if step.feed.draft else "clean"


def _propose(logits: torch.Tensor, steps: list[Step], mask_id: int) -> Proposals:
    """One proposal for all slots of a forward, each with the settings of its own row."""
    reads = [len(step.feed.read) for step in steps]
    return propose(
        logits,
        mask_id,
        temperature=torch.tensor([step.temperature for step, n in zip(steps, reads, strict=True) for _ in range(n)]),
        top_p=torch.tensor([step.top_p for step, n in zip(steps, reads, strict=True) for _ in range(n)]),
        uniform=torch.cat(
            [torch.zeros(n) if step.uniform is None else step.uniform for step, n in zip(steps, reads, strict=True)]
        ),
        confidence=any(step.confidence for step in steps),
        entropy=any(step.entropy for step in steps),
    )
