"""The engine: requests in, events out.

It keeps up to `batch_size` rows alive, each a program of `modes.MODES`, gathers what they ask of the network into
common forwards, and admits the next request as soon as a row of the cache is free.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from unmask.config import BlockSpec
from unmask.core.chain import Chain, chained
from unmask.core.pace import Costs
from unmask.core.propose import Proposals, propose
from unmask.errors import CapacityError, RequestError, UnmaskError
from unmask.events import Answer, Event, Finished, Request, refusal
from unmask.guide import guided
from unmask.live import Live
from unmask.model.backbone import Backbone, Cache
from unmask.model.files import available_memory
from unmask.prefix import Held
from unmask.resolve import resolve
from unmask.row import PIECE, Row, Step, check_prompt
from unmask.text import Stream


class Engine:
    """Decodes requests with `backbone` under the checkpoint's `spec`; one engine runs in one thread.

    spec: None for a plain model, which only mode ar decodes, with nothing banned, up to `stop_ids`. costs: of forwards
    here, for mode verified to choose by; without them it drafts and checks block by block. chain: lets the slots of a
    draft see one another. seconds: spent so far, by kind (rows of several kinds in one forward divide it by their
    positions) and on proposals. piece: a longer prompt is fed in pieces of about so many tokens. reuse: a prompt that
    begins like what a row of the cache still holds takes over its keys and values (`prefix`).
    `generate` and `run` serve a collection; a server calls `submit`, `step` and `cancel` itself and passes a
    `capacity` (positions per row of the cache), since the cache can grow only while no row is alive.
    """

    def __init__(
        self,
        backbone: Backbone,
        spec: BlockSpec | None,
        tokenizer: Any = None,
        *,
        batch_size: int = 8,
        capacity: int = 0,
        stop_ids: tuple[int, ...] = (),
        costs: Costs | None = None,
        chain: Chain | None = None,
        piece: int = PIECE,
        reuse: bool = False,
    ) -> None:
        self.costs, self.chain, self.drafting = costs, chain, 1.0
        self.seconds: dict[str, float] = defaultdict(float)
        self.backbone, self.spec, self.tokenizer, self.batch_size = backbone, spec, tokenizer, batch_size
        self.stop_ids, self.piece, self.reuse = stop_ids, piece, reuse
        self.rows, self.capacity = batch_size, capacity
        self.cache: Cache | None = None
        self.held = Held(0)
        self.live: list[Live] = []
        self.waiting: deque[tuple[int, Request, Row]] = deque()
        self.count = 0
        self.began = time.perf_counter()

    def submit(self, request: Request) -> int:
        """Queue a request; returns its index. RequestError when it cannot be served as asked.

        `batch_seconds` counts from the submission that ended the engine's last idle time.
        """
        row = self._row(request)
        if not self.live and not self.waiting:
            self.began = time.perf_counter()
        return self._queue(request, row)

    def cancel(self, index: int) -> None:
        """Drop a request, waiting or live; it gets no further events. Unknown indices are ignored."""
        self.live = [live for live in self.live if live.index != index]
        self.waiting = deque(item for item in self.waiting if item[0] != index)

    def step(self) -> list[Event]:
        """Admit what fits, then take every live row one forward further, or two where a draft is then committed.

        Rows that want the same kind of forward share it, and a row that drafted joins the clean forward of the same
        step, so rows that draft and check stay in phase whenever they came. A backbone that gates takes rows in any
        state into one forward, but for feeds that it computes apart and, unless it is ragged, for prompts.
        """
        self._admit()
        self._tell_rows()
        events: list[Event] = []
        for kind in ("prefill", "apart", "any", "checked draft", "draft", "clean"):
            group = [live for live in self.live if self._group(live.step) == kind]
            for part in _alike(group) if kind == "prefill" else _bounded(group, 2 * self.piece):
                events.extend(self._forward(sorted(part, key=lambda live: live.slot)))
            self.live = [live for live in self.live if live.step is not None]
        return events

    def _tell_rows(self) -> None:
        """Tell every row how many there are and how many drafted lately, all of them before any could."""
        begun = [live.step.kind for live in self.live if live.step is not None and live.step.kind != "prefill"]
        if begun:
            self.drafting += (begun.count("draft") / len(begun) - self.drafting) / 4
        elif not self.live:
            self.drafting = 1.0
        for live in self.live:
            live.row.company, live.row.drafters = len(self.live), max(1, round(self.drafting * len(self.live)))

    def run(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Serve requests; each gets the index of its place. One that cannot be served finishes with its error.

        Requests are taken from the iterable as rows become free. Whoever stops listening cancels what is left.
        """
        self.began = time.perf_counter()
        base, more = self.count, True
        source = ((request, self._accept(request)) for request in requests)
        if isinstance(requests, Sequence):
            pairs = list(source)
            self.rows = max(1, min(self.batch_size, len(pairs)))
            self.capacity = max([self.capacity, *(self._need(row) for _, row in pairs if isinstance(row, Row))])
            source = (pair for pair in pairs)
        try:
            while more or self.live or self.waiting:
                while more and len(self.live) + len(self.waiting) < self.rows:
                    pair = next(source, None)
                    more = pair is not None
                    if pair is not None:
                        yield from self._enter(*pair, base)
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

    def _accept(self, request: Request) -> Row | UnmaskError:
        try:
            return self._row(request)
        except UnmaskError as error:
            return error

    def _enter(self, request: Request, row: Row | UnmaskError, base: int) -> Iterator[Event]:
        """Queue an accepted request; a refused one is finished at once."""
        if isinstance(row, Row):
            self._queue(request, row)
            return
        text = None if self.tokenizer is None else ""
        self.count += 1
        answer = refusal(row, request.decoding.mode, prompt_tokens=len(request.prompt_ids), text=text)
        yield Finished(self.count - 1 - base, answer)

    def _queue(self, request: Request, row: Row) -> int:
        index, self.count = self.count, self.count + 1
        self.waiting.append((index, request, row))
        return index

    def _row(self, request: Request) -> Row:
        settings = resolve(request.decoding, self.spec, self.stop_ids)
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
        if settings.schedule == "fused" and settings.mode == "threshold" and not self._may_fuse():
            raise RequestError(
                f"schedule fused needs the native backbone where adapters act on drafts only, this is "
                f"{self.backbone.name}; use schedule reference",
                field="schedule",
                value="fused",
            )
        check_prompt(prompt, settings.max_new_tokens, self.backbone.vocab_size, self.backbone.max_positions)
        self._check_memory(len(prompt) + settings.max_new_tokens + settings.block_size)
        random = torch.Generator()
        if settings.seed is None:
            random.seed()
        else:
            random.manual_seed(settings.seed % 2**63)
        guide = guided(settings.json_schema, settings.stop_ids, self.tokenizer, self.backbone.vocab_size)
        return Row(prompt, settings, self.spec, random, request.provisional, self.costs, guide, piece=self.piece)

    def _check_memory(self, positions: int) -> None:
        """CapacityError where the buffers of a single row of so many positions exceed the memory that is free."""
        if self.cache is not None and self.cache.capacity >= positions:
            return
        needed, free = positions * self.backbone.position_bytes, available_memory(self.backbone.device)
        if free is not None and needed > free:
            raise CapacityError(
                f"keys and values of {positions} positions need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
                "lower max_new_tokens or shorten the prompt"
            )

    def _rows_that_fit(self) -> int:
        """So many rows of the batch, at least one, as the memory that is free holds buffers for."""
        free, each = available_memory(self.backbone.device), self.capacity * self.backbone.position_bytes
        return self.rows if free is None or not each else max(1, min(self.rows, int(0.9 * free / each)))

    def _may_fuse(self) -> bool:
        """Whether committed and drafted tokens can share a forward: not where two networks compute them."""
        return self.backbone.gates or self.spec is None or self.spec.adapter_scope == "all"

    def _need(self, row: Row) -> int:
        """Positions that a row may touch: prompt and answer, and what the last block has beyond them."""
        return len(row.prompt) + row.settings.max_new_tokens + row.settings.block_size

    def _admit(self) -> None:
        """Start waiting requests, first come first served, while a row of the cache is free and long enough."""
        while self.waiting and len(self.live) < self.rows:
            index, request, row = self.waiting[0]
            need = self._need(row)
            if not self.live and (self.cache is None or self.cache.rows != self.rows or self.cache.capacity < need):
                self.capacity = -(-max(self.capacity, need) // 64) * 64
                self.cache = None
                self.rows = self._rows_that_fit()
                self.cache, self.held = self.backbone.new_cache(self.rows, self.capacity), Held(self.rows)
            if self.cache is None or self.cache.capacity < need:
                return
            self.waiting.popleft()
            free = set(range(self.cache.rows)) - {live.slot for live in self.live}
            slot = self.held.place(self.cache, row, free) if self.reuse else min(free)
            if not row.reused:
                self.cache.clear(slot)
            stream = None if self.tokenizer is None else Stream(self.tokenizer, row.settings.stop)
            self.live.append(Live(index, slot, request, row, stream))

    def _group(self, step: Step | None) -> str | None:
        """Which forward a step can share: where feeds are padded, prompts are long, and drafts may need adapters."""
        if step is None:
            return None
        if step.kind == "prefill" and not self.backbone.ragged:
            return "prefill"
        if self.backbone.gates:
            return "apart" if self.backbone.apart(step.feed) else "any"
        if step.feed.draft:
            return "checked draft" if step.feed.checked else "draft"
        return "clean"

    def _forward(self, group: list[Live]) -> Iterator[Event]:
        """One forward for the rows of `group`; each gets its proposals, and fails alone if they mean nothing."""
        assert self.cache is not None
        steps = [live.step for live in group if live.step is not None]
        began = time.perf_counter()
        logits = self.backbone.forward(self.cache, [live.slot for live in group], [step.feed for step in steps])
        ended = time.perf_counter()
        found, at = proposals(logits, steps, None if self.spec is None else self.spec.mask_id, self.chain), 0
        self.seconds["propose"] += time.perf_counter() - ended
        widths = [len(step.feed.tokens) for step in steps]
        for step, width in zip(steps, widths, strict=True):
            self.seconds[step.kind] += (ended - began) * width / sum(widths)
        for live, step in zip(group, steps, strict=True):
            self.held.note(live.slot, live.row, step)
            part, at = found.part(at, at + len(step.feed.read)), at + len(step.feed.read)
            error = None
            try:
                yield from live.advance(part)
            except RequestError as problem:
                live.step, error = None, problem
                self.held.forget(live.slot)
            if live.step is None:
                yield Finished(live.index, live.answer(self.began, error))


def _alike(group: list[Live]) -> list[list[Live]]:
    """Prompts that share a forward, the shortest first: padding to the longest may at most double what is computed."""
    parts: list[list[Live]] = []
    total = 0
    for live in sorted(group, key=_width):
        width = _width(live)
        if parts and (len(parts[-1]) + 1) * width <= 2 * (total + width):
            parts[-1].append(live)
            total += width
        else:
            parts.append([live])
            total = width
    return parts


def _bounded(group: list[Live], most: int) -> list[list[Live]]:
    """Rows that share a forward, in their order: so many that it stays as bounded as the pieces of a prompt are.
    most: positions in one forward."""
    parts: list[list[Live]] = []
    total = 0
    for live in group:
        if not parts or total + _width(live) > most:
            parts, total = [*parts, []], 0
        parts[-1].append(live)
        total += _width(live)
    return parts


def _width(live: Live) -> int:
    return 0 if live.step is None else len(live.step.feed.tokens)


def proposals(logits: torch.Tensor, steps: list[Step], mask_id: int | None, chain: Chain | None = None) -> Proposals:
    """One proposal for all slots of a forward, each with the settings of its own row."""
    reads = [len(step.feed.read) for step in steps]
    found = propose(
        logits,
        mask_id,
        temperature=torch.tensor([step.temperature for step, n in zip(steps, reads, strict=True) for _ in range(n)]),
        top_p=torch.tensor([step.top_p for step, n in zip(steps, reads, strict=True) for _ in range(n)]),
        uniform=torch.cat(
            [torch.zeros(n) if step.uniform is None else step.uniform for step, n in zip(steps, reads, strict=True)]
        ),
        confidence=any(step.confidence for step in steps),
        entropy=any(step.entropy for step in steps),
        likeliest=max((step.likeliest for step in steps if step.likeliest is not None), default=None),
        allowed=[(end - n, step.allowed) for step, n, end in zip(steps, reads, accumulate(reads), strict=True)],
    )
    for step, n, end in zip(steps, reads, accumulate(reads), strict=True):
        if chain is not None and step.chained and n > 1:
            part = found.part(end - n, end)
            tokens, chance = chained(logits[end - n : end], chain, mask_id, part.confidence)
            part.tokens.copy_(tokens)
            if part.confidence is not None and chance is not None:
                part.confidence.copy_(chance)
    return found
