"""One row: what it asks of the network, what it has written, and the block that it is writing.

A program is a generator that yields a `Step` (what to feed the network, what to propose from the logits it reads), is
sent the `Proposals`, and writes tokens into its `Row`. It knows nothing of batches: the engine puts the steps of many
rows, in whatever mode and place they are, into common forwards. So a row in a batch does what it does alone.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from unmask.config import BlockSpec
from unmask.core.pace import Costs
from unmask.core.propose import Logprobs, Proposals
from unmask.core.rules import NEEDS_ENTROPY, RULES
from unmask.errors import RequestError
from unmask.guide import Guide
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
    reads; confidence, entropy and likeliest (how many, or None) say what else of their laws is wanted. allowed:
    Bool[n, vocab], what the first n of those places may take; None for anything. chained: each of those places may
    look at what is proposed for the one before it.
    """

    kind: Kind
    feed: Feed
    temperature: float = 0.0
    top_p: float = 1.0
    uniform: Tensor | None = None
    confidence: bool = False
    entropy: bool = False
    likeliest: int | None = None
    allowed: Tensor | None = None
    chained: bool = False


Program = Generator[Step, Proposals, None]


@dataclass
class Row:
    """One sequence: what was asked for, and what is written so far.

    spec: None for a plain model, whose only mode is ar
    watched: whether someone looks at the block being written, and so at confidence that nothing else needs
    costs: what forwards cost here, where that is known
    guide: what the answer may be, where the request limits it
    company: how many rows the batch has, this one included; drafters: how many of them drafted lately; no text depends
        on either
    written: the answer's tokens, the end token included
    logprobs: of each written token, where asked for
    finish: why the answer is complete, None while it is not
    block: the block being written, for pictures
    reused: how many positions of the prompt the cache already held
    piece: the prompt is fed in pieces of at most so many tokens
    checks: per check of mode verified where its guess came from, its length, and how much of it was kept
    """

    prompt: list[int]
    settings: Resolved
    spec: BlockSpec | None
    random: torch.Generator = field(default_factory=torch.Generator)
    watched: bool = False
    costs: Costs | None = None
    guide: Guide | None = None
    company: int = 1
    drafters: int = 1
    written: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None
    block: "Block | None" = None
    checks: list[tuple[str, int, int]] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    reused: int = 0
    piece: int = PIECE

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
    def room(self) -> int:
        """How many tokens the limit still allows."""
        return self.settings.max_new_tokens - len(self.written)

    @property
    def blocks(self) -> BlockSpec:
        """The contract, for modes that write blocks: `resolve` lets no plain model into them."""
        assert self.spec is not None
        return self.spec

    def tail(self, start: int) -> list[int]:
        """The settled tokens from position `start` on."""
        return self.prompt[start:] + self.written[max(0, start - len(self.prompt)) :]

    def write(self, tokens: Iterable[int], found: Proposals | None = None) -> bool:
        """Append settled tokens up to the first end token or the limit; True when the answer is complete.

        Only tokens with nothing masked before them are ever passed in, so an end token can be believed. found: the
        proposals that the tokens are the first of, for their laws.
        """
        for place, token in enumerate(tokens):
            if self.finish is None:
                self.written.append(token)
                if found is not None and self.settings.logprobs is not None:
                    self.logprobs.append(found.logprobs_of(place, self.settings.logprobs))
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
        """Clean tokens that see themselves and what is left of them. Each place of the answer is drawn with a number of
        its own, so that a token does not depend on what it was computed with."""
        n = len(tokens)
        feed = Feed(tokens, start, list(range(start + 1, start + n + 1)), [False] * n, [r % n for r in read])
        chosen, uniform = self.settings, None
        if chosen.temperature > 0 and feed.read:
            uniform = torch.tensor([self.number(start + r + 1 - len(self.prompt)) for r in feed.read])
        step = Step(kind, feed, chosen.temperature, chosen.top_p, uniform, likeliest=chosen.logprobs)
        if self.guide is None or not feed.read:
            return step
        return replace(step, allowed=self.guide.along(self.written, tokens[self.length - start :]))

    def number(self, place: int) -> float:
        """The random number of a place of the answer."""
        while len(self.numbers) <= place:
            self.numbers.append(float(torch.rand(1, generator=self.random)))
        return self.numbers[place]

    def clean(self, kind: Kind, tokens: list[int], start: int, read: Iterable[int] = (-1,)) -> Step:
        """Clean tokens that see what the checkpoint's context lets committed tokens see."""
        n = len(tokens)
        return self.step(kind, Feed(tokens, start, self.ends(n, start), [False] * n, [r % n for r in read]))

    @property
    def sight(self) -> int:
        """Committed tokens see the whole of their block of so many positions; 1: themselves and what is left."""
        causal = self.settings.mode == "ar" or self.blocks.context == "causal"
        return 1 if causal else self.settings.block_size

    def ends(self, n: int, start: int) -> list[int]:
        """Where the sight of n committed tokens ends: behind each of them, or behind its block."""
        size = self.sight
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


def feed_prompt(
    row: Row, whole: int, step: Callable[..., Step], size: int = 1
) -> Generator[Step, Proposals, Proposals]:
    """Feed the prompt's first `whole` tokens but those that the cache holds, in pieces of whole blocks of `size`;
    returns the last one's proposals.

    step: `row.causal` or `row.clean`. Nothing is read of a prompt whose rest opens the first block.
    """
    width = max(row.piece // size, 1) * size
    for start in range(row.reused, whole, width):
        stop = min(start + width, whole)
        read = (-1,) if stop == len(row.prompt) else ()
        found = yield step("prefill", row.prompt[start:stop], start, read=read)
    return found


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
