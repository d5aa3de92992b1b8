"""Pairs in, scores out: the pairs of several lanes (rows of the cache) take common forwards."""

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask import row
from unmask.core.propose import propose
from unmask.errors import RequestError
from unmask.evaluate.terms import READS, Ask, Lane, Program, Said, Score
from unmask.model.backbone import Backbone


@dataclass(frozen=True)
class Text:
    """A pair as one sequence; tokens[first:] are scored. cut: tokens left out on the left."""

    tokens: list[int]
    first: int
    cut: int


class Work:
    """A lane at work on the pairs of a group, one after the other."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.left: deque[int] = deque()
        self.index, self.forwards = 0, 0
        self.program: Program | None = None
        self.ask: Ask | None = None


class Lanes:
    """Takes the pairs through common forwards."""

    def __init__(self, backbone: Backbone, mask_id: int | None, rows: int, capacity: int) -> None:
        self.backbone, self.mask_id = backbone, mask_id
        self.cache = backbone.new_cache(rows, capacity)
        self.works = [Work(Lane(slot)) for slot in range(rows)]

    def scores(self, texts: list[Text], program: Callable[[Text, Lane], Program]) -> Iterator[tuple[int, Score]]:
        groups = deque(_groups(texts))
        while True:
            for work in self.works:
                yield from self._begin(work, groups, texts, program)
            busy = [work for work in self.works if work.ask is not None]
            if not busy:
                return
            for together in _together(busy, self.backbone):
                for work, said in zip(together, self._forward(together), strict=True):
                    yield from self._send(work, said, texts)

    def _begin(
        self,
        work: Work,
        groups: deque[list[int]],
        texts: list[Text],
        program: Callable[[Text, Lane], Program],
    ) -> Iterator[tuple[int, Score]]:
        """Give an idle lane its next pair; one that needs no forward is done at once."""
        while work.ask is None and (work.left or groups):
            if not work.left:
                work.left.extend(groups.popleft())
            work.index, work.forwards = work.left.popleft(), 0
            text = texts[work.index]
            if self.mask_id in text.tokens[text.first :]:
                yield work.index, Score(-math.inf, 0.0, False, len(text.tokens) - text.first, 0, text.cut)
                continue
            work.program = program(text, work.lane)
            yield from self._send(work, None, texts)

    def _send(self, work: Work, said: Said | None, texts: list[Text]) -> Iterator[tuple[int, Score]]:
        assert work.program is not None
        work.forwards += said is not None
        try:
            work.ask = next(work.program) if said is None else work.program.send(said)
        except StopIteration as done:
            work.ask = None
            found: Score = done.value
            yield work.index, dataclasses.replace(found, forwards=work.forwards, cut=texts[work.index].cut)

    def _forward(self, works: list[Work]) -> list[Said]:
        asks = [work.ask for work in works if work.ask is not None]
        logits = self.backbone.forward(self.cache, [work.lane.slot for work in works], [ask.feed for ask in asks])
        log_p, best = said_of(logits, [token for ask in asks for token in ask.targets], self.mask_id)
        found, at = [], 0
        for ask in asks:
            to = at + len(ask.targets)
            found.append(Said(log_p[at:to], best[at:to]))
            at = to
        return found


@torch.inference_mode()
def said_of(logits: Tensor, targets: list[int], mask_id: int | None) -> tuple[list[float], list[bool]]:
    """Per row of logits [read, vocab] the log-probability of its target, and whether that is the most probable token.

    The law is the one that decoding draws from: the mask id has no part in it. RequestError for NaN.
    """
    if not targets:
        return [], []
    wanted = torch.tensor(targets)
    none = torch.zeros(len(targets))
    found = propose(logits, mask_id, none, none + 1, none, confidence=False)
    if not found.finite.all():
        raise RequestError(
            "the network returned NaN or infinite logits; try dtype fp32, and check the checkpoint's weights",
            field="pairs",
        )
    allowed = logits.float()
    if mask_id is not None and mask_id < logits.shape[1]:
        allowed = allowed.index_fill(1, torch.tensor([mask_id], device=logits.device), -torch.inf)
    at = wanted.to(logits.device).unsqueeze(-1)
    log_p = (allowed.gather(1, at) - allowed.logsumexp(dim=1, keepdim=True)).squeeze(-1)
    return log_p.tolist(), (found.tokens == wanted).tolist()


def _groups(texts: Sequence[Text]) -> Iterable[list[int]]:
    """Places of neighbours that share a context longer than what they add: one lane feeds it once for all of them."""
    groups: list[list[int]] = []
    for index, text in enumerate(texts):
        before = texts[index - 1] if index else None
        context = text.tokens[: text.first]
        if before and before.tokens[: before.first] == context and 2 * len(context) > len(text.tokens):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _together(works: list[Work], backbone: Backbone) -> list[list[Work]]:
    """Lanes that share a forward: drafts apart where another network computes them, bounded in positions and reads,
    and, where a backbone pads, in steps of similar width."""
    parts: list[list[Work]] = []
    for draft in (False, True):
        key, total, reads = len(parts), 0, 0
        for work in sorted(works, key=_width):
            assert work.ask is not None
            if (work.ask.feed.draft and not backbone.gates) != draft:
                continue
            width, more = _width(work), len(work.ask.targets)
            padded = 0 if backbone.ragged or len(parts) == key else (len(parts[-1]) + 1) * width
            fits = total + width <= 2 * row.PIECE and reads + more <= 2 * READS and padded <= 2 * (total + width)
            if len(parts) == key or not fits:
                parts, total, reads = [*parts, []], 0, 0
            parts[-1].append(work)
            total, reads = total + width, reads + more
    return [sorted(part, key=lambda work: work.lane.slot) for part in parts]


def _width(work: Work) -> int:
    return 0 if work.ask is None else len(work.ask.feed.tokens)
