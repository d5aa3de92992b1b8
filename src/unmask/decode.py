"""Decoding as the paper tells it, for one row.

A mode is a generator: it yields a `Step` (what to feed the network, what to propose from the logits it reads), is sent
the `Proposals`, and writes tokens into its `Row`. It knows nothing of batches: the engine puts the steps of many rows,
in whatever mode and place they are, into common forwards. So a row in a batch does what it does alone.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from unmask.config import BlockSpec
from unmask.core.propose import Proposals
from unmask.core.rules import NEEDS_ENTROPY, RULES
from unmask.core.verify import accepted
from unmask.errors import RequestError
from unmask.model.backbone import Feed
from unmask.resolve import Resolved

Kind = Literal["prefill", "denoise", "refresh", "sub", "commit", "fused", "ar", "draft", "check"]
PIECE = 2048
"""A longer prompt is fed in pieces, whole blocks of at most so many tokens (one block where that is larger): each sees
all before it, so the numbers are the same and the memory of a forward stays bounded. They count as one prefill."""


@dataclass(frozen=True)
class Step:
    """What a row asks of the next forward.

    temperature, top_p, uniform (Float[read] or None when greedy) say how tokens are drawn from the logits that `feed`
    reads; confidence and entropy say whether those are wanted.
    """

    kind: Kind
    feed: Feed
    temperature: float = 0.0
    top_p: float = 1.0
    uniform: Tensor | None = None
    confidence: bool = False
    entropy: bool = False


Program = Generator[Step, Proposals, None]


@dataclass
class Row:
    """One sequence: what was asked for, and what is written so far.

    spec: None for a plain model, whose only mode is ar
    watched: whether someone looks at the block being written, and so at confidence that nothing else needs
    written: the answer's tokens, the end token included
    finish: why the answer is complete, None while it is not
    block: the block being written, for pictures
    """

    prompt: list[int]
    settings: Resolved
    spec: BlockSpec | None
    random: torch.Generator = field(default_factory=torch.Generator)
    watched: bool = False
    written: list[int] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None
    block: "Block | None" = None

    def __post_init__(self) -> None:
        name, parameter = self.settings.rule_parameter()
        self.rule, default = RULES[name]
        self.parameter = default if parameter is None else parameter
        self.needs_entropy = name in NEEDS_ENTROPY

    @property
    def length(self) -> int:
        """How many positions of the sequence are settled."""
        return len(self.prompt) + len(self.written)

    @property
    def blocks(self) -> BlockSpec:
        """The contract, for modes that write blocks: `resolve` lets no plain model into them."""
        assert self.spec is not None
        return self.spec

    def tail(self, start: int) -> list[int]:
        """The settled tokens from position `start` on."""
        return self.prompt[start:] + self.written[max(0, start - len(self.prompt)) :]

    def write(self, tokens: Iterable[int]) -> bool:
        """Append settled tokens up to the first end token or the limit; True when the answer is complete.

        Only tokens with nothing masked before them are ever passed in, so an end token can be believed.
        """
        for token in tokens:
            if self.finish is None:
                self.written.append(token)
                if token in self.settings.stop_ids:
                    self.finish = "stop"
                elif len(self.written) >= self.settings.max_new_tokens:
                    self.finish = "length"
        return self.finish is not None

    def step(self, kind: Kind, feed: Feed, *, confidence: bool = False) -> Step:
        """A step with this row's way of sampling and its next random numbers."""
        warm = self.settings.temperature > 0 and len(feed.read) > 0
        uniform = torch.rand(len(feed.read), generator=self.random) if warm else None
        return Step(
            kind,
            feed,
            self.settings.temperature,
            self.settings.top_p,
            uniform,
            confidence,
            confidence and self.needs_entropy,
        )

    def causal(self, kind: Kind, tokens: list[int], start: int, read: Iterable[int] = (-1,)) -> Step:
        """Clean tokens that see themselves and what is left of them."""
        n = len(tokens)
        ends = list(range(start + 1, start + n + 1))
        return self.step(kind, Feed(tokens, start, ends, [False] * n, [r % n for r in read]))

    def clean(self, kind: Kind, tokens: list[int], start: int, read: Iterable[int] = (-1,)) -> Step:
        """Clean tokens that see what the checkpoint's context lets committed tokens see."""
        n = len(tokens)
        return self.step(kind, Feed(tokens, start, self.ends(n, start), [False] * n, [r % n for r in read]))

    def ends(self, n: int, start: int) -> list[int]:
        """Where the sight of n committed tokens ends: behind each of them, or behind its block."""
        size = 1 if self.blocks.context == "causal" else self.settings.block_size
        return [(position // size + 1) * size for position in range(start, start + n)]


@dataclass
class Block:
    """The block being written: slots start, start + 1, …; a slot is decided once and then never changes.

    tokens Long[D], masked Bool[D], confidence Float[D] (of decided slots, 1 for given ones); cached: whether the draft
    keys and values of all its slots have been written.
    """

    start: int
    tokens: Tensor
    masked: Tensor
    confidence: Tensor
    cached: bool = False

    @classmethod
    def open(cls, start: int, known: list[int], size: int, mask_id: int) -> "Block":
        """A block whose first slots are known and whose other slots are masked."""
        assert 0 < len(known) <= size
        tokens = torch.full((size,), mask_id)
        tokens[: len(known)] = torch.tensor(known)
        masked = torch.arange(size) >= len(known)
        return cls(start, tokens, masked, (~masked).float())

    def settled(self) -> int:
        """The number of slots before the first masked one."""
        return int(torch.cat([self.masked.int(), torch.ones(1, dtype=torch.int)]).argmax())

    def feed(self, first: int, stop: int, read: list[int], draft: bool) -> Feed:
        """Slots first … stop - 1, each of which sees the whole block; `read` are slots whose logits are wanted."""
        end = self.start + len(self.tokens)
        return Feed(
            self.tokens[first:stop].tolist(),
            self.start + first,
            [end] * (stop - first),
            self.masked[first:stop].tolist(),
            [slot - first for slot in read],
            draft,
        )

    def accept(self, slots: Tensor, found: Proposals, accept: Tensor) -> None:
        """Decide the accepted ones of `slots` (all masked), or the most confident where none was accepted."""
        assert found.confidence is not None
        if not accept.any():
            accept = torch.arange(len(slots)) == found.confidence.argmax()
        taken = slots[accept]
        assert self.masked[taken].all()
        self.tokens[taken], self.confidence[taken] = found.tokens[accept], found.confidence[accept].float()
        self.masked[taken] = False

    def fill(self, found: Proposals) -> None:
        """Take the proposals for the slots after the first at once, as a draft that is still to be checked."""
        stop = 1 + len(found.tokens)
        self.tokens[1:stop], self.masked[1:stop] = found.tokens, False
        if found.confidence is not None:
            self.confidence[1:stop] = found.confidence.float()


def autoregressive(row: Row) -> Program:
    """One token per forward; block size 1 of the others."""
    found = yield from feed_prompt(row, len(row.prompt), row.causal)
    while not row.write(found.tokens.tolist()):
        found = yield row.causal("ar", row.written[-1:], row.length - 1)


def threshold(row: Row) -> Program:
    """Fast-dLLM v2, algorithm of section 3.3: denoise a block sub-block by sub-block, commit it, go on.

    The commit's last logit gives the next block's first token (the seam). The name is that of the paper's rule; the
    row's own rule decides. Above temperature 0 the seam is drawn like every other token, so that all tokens follow one
    law (the official code takes its argmax, even while it samples the rest of the block).

    With the schedule `fused` the commit is also the next block's first denoising step: it feeds that block's slots too,
    all of them still masked, so that a block takes one forward less and its first proposals have not seen the seam.
    """
    size, part, fused = row.settings.block_size, row.settings.sub_block_size, row.settings.schedule == "fused"
    start, seam = yield from prefill(row, size)
    found: Proposals | None = None
    while not row.write(seam):
        row.block = block = Block.open(start, row.tail(start), size, row.blocks.mask_id)
        if fused and found is not None and begin(row, block, found, part):
            return
        for first in range(0, size, part):
            yield from denoise(row, block, first, first + part)
            if row.finish is not None:
                return
        found = yield commit_and_open(row, block) if fused else row.clean("commit", block.tokens.tolist(), start)
        seam, start = found.tokens[:1].tolist(), start + size


def commit_and_open(row: Row, block: Block) -> Step:
    """The commit of a block together with the slots of the next; reads its last token and those slots but the last."""
    size, draft = len(block.tokens), row.blocks.adapter_scope == "draft"
    feed = Feed(
        block.tokens.tolist() + [row.blocks.mask_id] * size,
        block.start,
        row.ends(size, block.start) + [block.start + 2 * size] * size,
        [False] * size + [True] * size,
        list(range(size - 1, 2 * size - 1)),
        draft,
        settled=size if draft else 0,
    )
    return row.step("fused", feed, confidence=True)


def begin(row: Row, block: Block, found: Proposals, stop: int) -> bool:
    """Decide what the commit before has proposed for slots 1 … stop - 1; its seam, slot 0, is known. True when the
    answer is complete."""
    block.cached = row.settings.sub_block_cache
    part = found.part(1, stop)
    assert part.confidence is not None
    accept = row.rule(part.confidence, part.entropy, row.parameter)
    if accept.any():
        block.accept(torch.arange(1, stop), part, accept)
    return row.write(block.tokens[row.length - block.start : block.settled()].tolist())


def prefill(row: Row, size: int) -> Generator[Step, Proposals, tuple[int, list[int]]]:
    """Commit the prompt; returns where the first block starts and the seam token, if there is one already.

    Context `causal`: the whole prompt, and the first block starts with the seam. Context `block`: whole blocks of the
    prompt only; what is left over opens the first block. (The official code skips a prompt of exactly one block and so
    never sees it; that fault is not kept.)
    """
    whole = len(row.prompt) if row.blocks.context == "causal" else len(row.prompt) // size * size
    if whole == 0:
        return 0, []
    found = yield from feed_prompt(row, whole, row.clean, size)
    return whole, found.tokens.tolist()


def feed_prompt(
    row: Row, whole: int, step: Callable[..., Step], size: int = 1
) -> Generator[Step, Proposals, Proposals]:
    """Feed the prompt's first `whole` tokens, in pieces of whole blocks of `size`; returns the last one's proposals.

    step: `row.causal` or `row.clean`. Nothing is read of a prompt whose rest opens the first block.
    """
    width = max(PIECE // size, 1) * size
    for start in range(0, whole, width):
        stop = min(start + width, whole)
        read = (-1,) if stop == len(row.prompt) else ()
        found = yield step("prefill", row.prompt[start:stop], start, read=read)
    return found


def denoise(row: Row, block: Block, first: int, stop: int) -> Program:
    """Decide the slots first … stop - 1 of the block, the surest first, until none is masked or the answer is complete.

    A slot is proposed by the logit of the slot before it (token shift). With the sub-block cache only these slots are
    fed, against the draft keys and values of the others, once their first slot is decided (its predecessor's logit is
    then not needed); until then, and once per block at least, the whole block is fed and refreshes them.
    """
    cache, draft = row.settings.sub_block_cache, row.blocks.adapter_scope == "draft"
    while block.masked[first:stop].any():
        slots = first + torch.nonzero(block.masked[first:stop]).flatten()
        read = (slots - 1).tolist()
        if cache and block.cached and not block.masked[first]:
            found = yield row.step("sub", block.feed(first, stop, read, draft), confidence=True)
        else:
            whole = block.feed(0, len(block.tokens), read, draft)
            found = yield row.step("refresh" if cache else "denoise", whole, confidence=True)
            block.cached = True
        assert found.confidence is not None
        block.accept(slots, found, row.rule(found.confidence, found.entropy, row.parameter))
        if row.write(block.tokens[row.length - block.start : block.settled()].tolist()):
            return


def verified(row: Row) -> Program:
    """Draft a block in one forward, check it with one causal forward, keep what autoregression would have written.

    The check computes exactly what autoregression would compute for the accepted tokens, and leaves their keys and
    values behind; those of refused tokens are overwritten before anything sees them.
    """
    size, draft = row.settings.block_size, row.blocks.adapter_scope == "draft"
    found, kept = (yield from feed_prompt(row, len(row.prompt), row.causal)), 0
    while not row.write(found.tokens[: kept + 1].tolist()):
        start = row.length - 1
        useful = min(size, row.settings.max_new_tokens - len(row.written))
        row.block = block = Block.open(start, row.tail(start), size, row.blocks.mask_id)
        if useful > 1:
            feed = replace(block.feed(0, size, list(range(useful - 1)), draft), checked=draft)
            block.fill((yield row.step("draft", feed, confidence=row.watched)))
        guess = block.tokens[:useful].tolist()
        found = yield row.causal("check", guess, start, read=range(useful))
        kept = accepted(guess[1:], found.tokens.tolist())


MODES: dict[str, Callable[[Row], Program]] = {"ar": autoregressive, "threshold": threshold, "verified": verified}


def check_prompt(prompt: list[int], limit: int, vocab_size: int, max_positions: int) -> None:
    """RequestError for a prompt that the network cannot take, before the network sees it."""
    wrong = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise RequestError(
            f"prompt token {wrong} is outside the vocabulary; allowed: 0 to {vocab_size - 1}",
            field="prompt_ids",
            value=wrong,
            limit=vocab_size - 1,
        )
    if len(prompt) >= max_positions:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens but the model takes {max_positions} with the answer; shorten it",
            field="prompt_ids",
            value=len(prompt),
            limit=max_positions,
        )
    if len(prompt) + limit > max_positions:
        raise RequestError(
            f"prompt ({len(prompt)} tokens) plus max_new_tokens ({limit}) is more than the model's {max_positions} "
            f"positions; use max_new_tokens of at most {max_positions - len(prompt)}",
            field="max_new_tokens",
            value=limit,
            limit=max_positions - len(prompt),
        )
