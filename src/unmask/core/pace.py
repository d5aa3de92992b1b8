"""How far to draft: what a forward costs here, against what a draft is likely to give.

A step of mode verified may check nothing (autoregression's own step), check a guess that costs no forward of its own,
or draft first. What is best depends on the machine (how much longer a forward takes over more positions, at how many
rows) and on the text (what was accepted lately). Only the speed depends on any of it: a check lets nothing else pass
than what autoregression writes.

Everything here is arithmetic on counts; the same row with the same costs and neighbours decides the same.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

Curve = Sequence[tuple[int, float]]
"""(positions, seconds), ascending: the time of a forward by the number of positions in it."""


@dataclass(frozen=True)
class Costs:
    """What forwards cost, in any unit of time, by the positions of all rows in them.

    clean: of a forward that checks; draft: of one that drafts. gain: tokens accepted of a draft before, the mean.
    """

    clean: Curve
    draft: Curve
    gain: float = 1.2

    def check(self, positions: int, rows: int) -> float:
        """A row's share of a check, where each of `rows` rows has so many positions in it."""
        return between(self.clean, positions * rows) / rows

    def drafting(self, positions: int, rows: int) -> float:
        """The same of a draft."""
        return between(self.draft, positions * rows) / rows


def between(curve: Curve, x: int) -> float:
    """The value at x on straight lines through the points; beyond the last, in proportion to it."""
    place = bisect_left([at for at, _ in curve], x)
    if place == len(curve):
        return curve[-1][1] * x / curve[-1][0]
    if place == 0:
        return curve[0][1]
    (x0, y0), (x1, y1) = curve[place - 1], curve[place]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True)
class Guess:
    """Tokens that may come next. kinds: per token what kind of guess it is; those of one kind share their luck.

    drafted: a forward was spent on it.
    """

    tokens: Sequence[int] = ()
    kinds: Sequence[str] = ()
    drafted: bool = False

    def first(self, n: int) -> "Guess":
        return Guess(self.tokens[:n], self.kinds[:n], self.drafted)

    def rest(self, kept: int) -> "Guess":
        """What is left of a draft for the positions behind the token that stood in the place of number `kept`: its
        slots were guessed without seeing each other."""
        left = self.tokens[kept + 1 :]
        return Guess(left, [kind.replace("draft", "rest") for kind in self.kinds[kept + 1 :]])


def drafted(tokens: Sequence[int], confidence: Sequence[float]) -> Guess:
    """A draft, each token's kind by its confidence in eighths."""
    return Guess(tokens, [f"draft {min(7, int(c * 8))}" for c in confidence], drafted=True)


def looked_up(length: int, tokens: Sequence[int]) -> Guess:
    """What followed a run of `length` tokens before; kinds by that length, and by the place behind it."""
    return Guess(tokens, [f"text {length} {min(place, 2)}" for place in range(len(tokens))])


SLOW = 0.9
"""How much of what was counted for rate and gain is left after one more step."""
BEFORE = 10.0
"""Tokens that a row is taken to have written as autoregression does, before its first."""
PATIENCE = 8, 64
"""After a draft that did not pay, the next is tried so many tokens later at first, and at most."""
HOPE = 0.5
"""A draft is tried again only where it would pay with so many more tokens than lately."""
TRIES = 8.0
"""What a kind is believed to do before it was tried counts as much as so many tries."""


class Pace:
    """One row's choices, and what it has learnt from them."""

    def __init__(self, costs: Costs) -> None:
        self.costs, self.rows = costs, 1
        self.seen: dict[str, list[float]] = {}
        self.gain, self.width = costs.gain, costs.gain + 1
        self.tokens, self.time = BEFORE, BEFORE * costs.check(1, 1)
        self.wait, self.since = PATIENCE[0], PATIENCE[0]

    @property
    def rate(self) -> float:
        """Tokens per unit of time lately, at least autoregression's."""
        return max(1 / self.costs.check(1, self.rows), self.tokens / self.time)

    def chance(self, kind: str) -> float:
        """How likely a guess of this kind is accepted where those before it were."""
        hits, tries = self.seen.get(kind, _prior(kind))
        return hits / tries

    def worth(self, guess: Guess) -> tuple[float, int]:
        """(value, n): the best number of its tokens to check, and what that is worth in tokens over what else the time
        would give."""
        rate, reach, sure = self.rate, 1.0, 1.0
        best = 1 - rate * self.costs.check(1, self.rows), 0
        for n, kind in enumerate(guess.kinds, start=1):
            sure *= self.chance(kind)
            reach += sure
            best = max(best, (reach - rate * self.costs.check(n + 1, self.rows), n), key=lambda found: found[0])
        return best

    def drafts(self, slots: int, other: float) -> bool:
        """Whether a draft over so many slots (the known one and the guesses) promises more than `other` is worth."""
        if slots < 2:
            return False
        taken = self.costs.drafting(slots, self.rows)
        taken += self.costs.check(min(slots, round(self.width) + 1), self.rows)
        promise = 1 + min(self.gain, slots - 1) - self.rate * taken
        return promise > other or (self.since >= self.wait and promise + HOPE > other)

    def learn(self, guess: Guess, slots: int, kept: int) -> None:
        """Take in that `kept` tokens of a checked guess were accepted; slots: of the draft before it, 0 without one."""
        for kind, right in zip(guess.kinds[: kept + 1], [True] * kept + [False], strict=False):
            hits, tries = self.seen.get(kind, _prior(kind))
            self.seen[kind] = [hits + right, tries + 1]
        taken = self.costs.check(len(guess.tokens) + 1, self.rows)
        taken += self.costs.drafting(slots, self.rows) if slots else 0.0
        if slots:
            self.gain = SLOW * self.gain + (1 - SLOW) * kept
            self.width = SLOW * self.width + (1 - SLOW) * len(guess.tokens)
            paid = kept + 1 > taken * self.rate
            self.wait = PATIENCE[0] if paid else min(2 * self.wait, PATIENCE[1])
        self.since = 0 if slots else self.since + kept + 1
        self.tokens, self.time = SLOW * self.tokens + kept + 1, SLOW * self.time + taken


def _prior(kind: str) -> list[float]:
    """[accepted, tries] of a kind that was never tried. Measured on the demo's drafts: a draft's confidence is how
    often it is right, behind a wrong token three in five of that; text that repeats itself goes on repeating."""
    name, number, *_ = kind.split()
    if name == "text":
        return [TRIES * (0.45 + 0.06 * int(number)), TRIES]
    confidence = (int(number) + 0.5) / 8
    return [TRIES * confidence * (1.0 if name == "draft" else 0.6), TRIES]
