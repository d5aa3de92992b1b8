"""Mode verified: what is drafted is checked by the very forward that autoregression would make, so the text is its own.

A check computes exactly what autoregression would compute for the accepted tokens, and leaves their keys and values
behind; those of refused tokens are overwritten before anything sees them. Above temperature 0 each token is drawn with
the row's number for its place, in a check as in mode ar: a guess is kept where it is that very draw. So seeds give mode
ar's text, and a guess x, which does not depend on those numbers, is kept with probability p(x), and otherwise replaced
by a draw from p without x: the rule of speculative sampling for a draft that is not random.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace

import torch

from unmask.core.lookup import Lookup
from unmask.core.pace import Costs, Guess, Pace, drafted, looked_up
from unmask.core.propose import Proposals
from unmask.core.verify import accepted
from unmask.row import Block, Kind, Program, Row, Step, feed_prompt

FARTHEST = 16
"""Tokens of a guess from the text, at most."""


def verified(row: Row) -> Program:
    """Draft and check: as far as it pays, or, with drafts `plain` and where costs are not known, block by block."""
    if row.costs is None or row.settings.drafts == "plain":
        return pairs(row)
    return paced(row, row.costs)


def pairs(row: Row) -> Program:
    """Draft a block in one forward, check it with one causal forward, keep what autoregression would have written."""
    size = row.settings.block_size
    found = yield from feed_prompt(row, len(row.prompt), row.causal)
    done = row.write(found.tokens.tolist(), found)
    while not done:
        useful = min(size, row.room)
        row.block = block = Block.open(row.length - 1, row.tail(row.length - 1), size, row.blocks.mask_id)
        if useful > 1:
            block.fill((yield draft(row, block, useful, row.watched)))
        guess = block.tokens[1:useful].tolist()
        found = yield check(row, guess)
        done = settle(row, "draft", guess, found)[1]


def paced(row: Row, costs: Costs) -> Program:
    """The same, but in each step as much of the best guess as it pays to check: of a draft, if it pays to make one; of
    what followed the last tokens before; of what the last draft left behind the first wrong token; or of none."""
    pace, text, left = Pace(costs), Lookup(row.prompt if row.settings.prompt_lookup else ()), Guess()
    found = yield from feed_prompt(row, len(row.prompt), row.causal)
    done = row.write(found.tokens.tolist(), found)
    while not done:
        if row.settings.prompt_lookup:
            text.extend(row.written[len(text.tokens) - len(row.prompt) :])
        pace.rows, pace.drafters, row.block = row.company, row.drafters, None
        slots = min(row.settings.block_size, row.room)
        free = left.first(row.room - 1), looked_up(*text.guess(min(FARTHEST, row.room - 1)))
        value, guess = pace.best(*free)
        drafting = pace.drafts(slots, value)
        if drafting:
            left = yield from _drafted(row, slots)
            guess = pace.best(left, *free)[1]
        n = len(guess.tokens)
        if n and not guess.drafted:
            row.block = _shown(row, guess)
        found = yield check(row, list(guess.tokens), "check" if n else "ar")
        kept, done = settle(row, guess.source, guess.tokens, found)
        pace.learn(guess, slots if drafting else 0, kept)
        left = left.rest(kept, int(found.tokens[kept]))


def settle(row: Row, source: str, guess: Sequence[int], found: Proposals) -> tuple[int, bool]:
    """Write what a check settles; returns how many guesses it kept, and whether the answer is complete. What is noted
    of the check counts written tokens only: one may have ended the answer."""
    kept, before = accepted(guess, found.tokens.tolist()), len(row.written)
    done = row.write(found.tokens[: kept + 1].tolist(), found)
    row.checks.append((source, len(guess), min(kept, len(row.written) - before)))
    return kept, done


def _drafted(row: Row, slots: int) -> Generator[Step, Proposals, Guess]:
    """The guesses of a draft over so many slots, of which the first is known."""
    row.block = block = Block.open(row.length - 1, row.tail(row.length - 1), slots, row.blocks.mask_id)
    found = yield draft(row, block, slots, True)
    block.fill(found)
    assert found.confidence is not None
    return drafted(found.tokens.tolist(), found.confidence.tolist())


def _shown(row: Row, guess: Guess) -> Block:
    """A guess that was not drafted, as a picture shows it."""
    block = Block.open(row.length - 1, row.tail(row.length - 1), len(guess.tokens) + 1, row.blocks.mask_id)
    block.tokens[1:], block.masked[1:] = torch.tensor(guess.tokens), False
    return block


def draft(row: Row, block: Block, useful: int, confidence: bool) -> Step:
    """All slots of a block at once; what the network holds for the likeliest is proposed at any temperature."""
    adapters = row.blocks.adapter_scope == "draft"
    feed = replace(block.feed(0, len(block.tokens), list(range(useful - 1)), adapters), checked=adapters)
    return Step("draft", feed, confidence=confidence, chained=True)


def check(row: Row, guess: list[int], kind: Kind = "check") -> Step:
    """The last token and the guessed ones, causal; without a guess it is the step of mode ar."""
    return row.causal(kind, [*row.tail(row.length - 1), *guess], row.length - 1, range(len(guess) + 1))
