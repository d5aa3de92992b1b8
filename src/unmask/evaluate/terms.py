"""What a likelihood is the sum of, for one pair.

As in `decode`, a mode is a generator that knows nothing of batches: it yields an `Ask` (what to feed the network, and
which tokens it is asked about), is sent what the network says of them, and returns the `Score`.

Mode ar is the chain rule. Mode threshold has no chain rule of its own, since a block is written in an order that the
network chooses; its number is the mean over orders of the chain rule along each, which bounds from below the
log-likelihood of writing one slot at a time in a random order:

    per part of a block, of n slots x:   mean over orders of  sum over i of  log p(x_i | what was written before it)
                                       = sum over k = 1 … n of the mean over sets K of k masked slots of
                                         (1 / k) sum over i in K of log p(x_i | all but K)

Everything else is as decoding has it: the grid of blocks, the clean prefix, the adapters, a block's first token from
the commit before, its parts (sub-blocks) from left to right, later slots and those beyond the text masked.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import mean, stdev

import torch

from unmask import row as rows
from unmask.core.noise import seeded
from unmask.model.backbone import Feed
from unmask.row import Block, Row, Step

READS = 256
"""Positions of which one row reads logits in one forward: a whole vocabulary of numbers each."""


@dataclass(frozen=True)
class Score:
    """How likely a continuation is.

    log_probability: in nats, of all its tokens. standard_error: of that number as an estimate, in nats; 0 where it is
    exact, None where a single draw tells nothing of it. greedy: whether greedy decoding writes exactly these tokens;
    None in mode threshold, where only decoding tells. tokens: how many were scored. forwards: calls of the network in
    which the pair had a query. cut: tokens of the context that were left out on the left, for want of positions.
    """

    log_probability: float
    standard_error: float | None
    greedy: bool | None
    tokens: int
    forwards: int
    cut: int = 0


@dataclass(frozen=True)
class Ask:
    """A feed, and per position that it reads the token whose probability is asked for."""

    feed: Feed
    targets: list[int]


@dataclass(frozen=True)
class Said:
    """Per target its log-probability in nats, and whether it is the most probable token."""

    log_p: list[float]
    best: list[bool]


Program = Generator[Ask, Said, Score]


@dataclass
class Lane:
    """One row of the cache, with the tokens whose committed keys and values it holds."""

    slot: int
    held: list[int] = field(default_factory=list)


def chain(row: Row, first: int, lane: Lane) -> Program:
    """Log-likelihood of row.prompt[first:] by the chain rule, causally, adapters of drafts off. first: at least 1."""
    if first == len(row.prompt):
        return Score(0.0, 0.0, True, 0, 0)
    stop = len(row.prompt) - 1
    found = yield from committed(row, lane, stop, range(first - 1, stop), row.causal, 1)
    return Score(math.fsum(found.log_p), 0.0, all(found.best), len(found.log_p), 0)


def masked(row: Row, first: int, lane: Lane, samples: int, seed: int) -> Program:
    """The mean over orders of the chain rule of row.prompt[first:], block by block (see above). first: at least 1.

    samples: how many estimates are drawn per part, each from one random set of every size k; where there are so few
    sets that all of them cost no more, all are taken and the part is exact. The draws depend on the seed, the context
    and the continuation's length, never on its tokens: answers of one length to one question are compared under the
    same masks.

    The blocks come from the last to the first, because a draft overwrites the committed keys and values of its block.
    """
    size, part, tokens = row.settings.block_size, row.settings.sub_block_size, row.prompt
    if first == len(tokens):
        return Score(0.0, 0.0, None, 0, 0)
    causal = row.blocks.context == "causal"
    starts = range(first if causal else first // size * size, len(tokens), size)
    seams = [start - 1 for start in starts if start >= first]
    found = yield from committed(row, lane, starts[-1], seams, row.clean, 1 if causal else size)
    total, variance = list(found.log_p), [0.0]
    context = ",".join(map(str, tokens[:first]))
    for start in reversed(starts):
        for begin in range(start, start + size, part):
            slots = range(max(begin, first, start + 1), min(begin + part, len(tokens)))
            if slots:
                draws, exact = passes(len(slots), samples, seeded("likelihood", seed, context, slots[0], len(slots)))
                values = yield from _values(row, lane, start, slots, begin + part, draws)
                total.append(mean(values))
                variance.append(0.0 if exact else stdev(values) ** 2 / samples if samples > 1 else math.nan)
    error = math.sqrt(math.fsum(variance))
    return Score(math.fsum(total), None if math.isnan(error) else error, None, len(tokens) - first, 0)


Pass = dict[tuple[int, ...], float]
"""Weights of sets of masked slots, by their places among the open ones."""


def passes(n: int, samples: int, generator: torch.Generator) -> tuple[list[Pass], bool]:
    """`samples` times a random set of each size among n masked slots; or all sets there are, and True.

    A pass weighs the sum of log p over each of its sets; the sum of those is one estimate. The sizes are drawn apart:
    sets that lie in one another, as one order meets them, go wrong together.
    """
    if 2**n - 1 <= samples * n:
        sets = [each for k in range(1, n + 1) for each in combinations(range(n), k)]
        return [{each: 1 / (len(each) * math.comb(n, len(each))) for each in sets}], True

    def drawn(k: int) -> tuple[int, ...]:
        return tuple(sorted(torch.randperm(n, generator=generator)[:k].tolist()))

    return [{drawn(k): 1 / k for k in range(1, n + 1)} for _ in range(samples)], False


def _values(
    row: Row, lane: Lane, start: int, slots: range, stop: int, draws: list[Pass]
) -> Generator[Ask, Said, list[float]]:
    """Each pass's estimate for `slots` of the block at `start`; the slots from `stop` on are masked in all of them."""
    del lane.held[start:]
    known: dict[tuple[int, ...], float] = {}
    for places in dict.fromkeys(places for draw in draws for places in draw):
        hidden = [slots[place] for place in places]
        feed = draft(row, start, [*hidden, *range(stop, start + row.settings.block_size)], hidden)
        said = yield Ask(feed, [row.prompt[slot] for slot in hidden])
        known[places] = math.fsum(said.log_p)
    return [math.fsum(weight * known[places] for places, weight in draw.items()) for draw in draws]


def draft(row: Row, start: int, hidden: Sequence[int], wanted: Sequence[int]) -> Feed:
    """The block at `start` as decoding feeds it: the slots `hidden` and those beyond the text are masked, and the
    logits that propose `wanted` are read. A masked slot's token does not even reach the network."""
    size, mask_id = row.settings.block_size, row.blocks.mask_id
    masked = [slot in hidden or slot >= len(row.prompt) for slot in range(start, start + size)]
    tokens = [mask_id if gone else row.prompt[start + at] for at, gone in enumerate(masked)]
    block = Block(start, torch.tensor(tokens), torch.tensor(masked), torch.zeros(size))
    return block.feed(0, size, [slot - 1 - start for slot in wanted], row.blocks.adapter_scope == "draft")


def committed(
    row: Row, lane: Lane, stop: int, reads: Sequence[int], step: Callable[..., Step], unit: int
) -> Generator[Ask, Said, Said]:
    """Commit the row's tokens up to `stop`; what is said at the positions `reads` of the tokens behind them.

    What the lane still holds of them is not fed again. step: `row.causal` or `row.clean`; unit: positions that are
    committed together. Pieces are bounded as a prompt's are, and by `READS`.
    """
    tokens, found = row.prompt, Said([], [])
    start = min(_shared(lane.held, tokens[:stop]), *reads[:1], stop) // unit * unit
    del lane.held[start:]
    while start < stop:
        end = min(start + max(rows.PIECE // unit, 1) * unit, stop)
        inside = [at for at in reads if start <= at < end]
        if len(inside) > READS:
            inside = inside[:READS]
            end = inside[-1] + 1
        feed = step("prefill", tokens[start:end], start, read=[at - start for at in inside]).feed
        said = yield Ask(feed, [tokens[at + 1] for at in inside])
        found.log_p.extend(said.log_p)
        found.best.extend(said.best)
        lane.held += tokens[start:end]
        start = end
    return found


def _shared(held: list[int], tokens: list[int]) -> int:
    """How many tokens both begin with."""
    return next((i for i, (a, b) in enumerate(zip(held, tokens, strict=False)) if a != b), min(len(held), len(tokens)))
