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

    def drafting(self, positions: int, drafters: int) -> float:
        """The time of a draft for each of `drafters` rows that share it; all other rows wait for it too."""
        return between(self.draft, positions * drafters) / drafters


def between(curve: Curve, x: int) -> float:
    """The value at x on straight lines through the points; beyond the last, in proportion to it."""
    place = bisect_left(curve, (x,))
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

    @property
    def source(self) -> str:
        """Where it is from: draft, text, rest (of a draft that an earlier check was paid for), or none."""
        if not self.tokens:
            return "none"
        return "draft" if self.drafted else "text" if self.kinds[0].startswith("text") else "rest"

    def first(self, n: int) -> "Guess":
        return Guess(self.tokens[:n], self.kinds[:n], self.drafted)

    def rest(self, kept: int, token: int) -> "Guess":
        """What is left of a draft behind `token`, which stands where its number `kept` was: its slots were guessed
        without seeing each other. Where that one was wrong, those behind it are believed less."""
        right = kept < len(self.tokens) and self.tokens[kept] == token
        kinds = self.kinds[kept + 1 :]
        return Guess(self.tokens[kept + 1 :], kinds if right else [kind.replace("draft", "rest") for kind in kinds])


def drafted(tokens: Sequence[int], confidence: Sequence[float]) -> Guess:
    """A draft, each token's kind by its confidence in eighths."""
    return Guess(tokens, [f"draft {min(7, int(c * 8))}" for c in confidence], drafted=True)


def looked_up(length: int, tokens: Sequence[int]) -> Guess:
    """What followed a run of `length` tokens before; kinds by that length, and by the place behind it."""
    return Guess(tokens, [f"text {length} {min(place, 2)}" for place in range(len(tokens))])


SLOW = 0.9
"""How much of what was counted, of kinds, of the rate and of the gain, is left after one more."""
BEFORE = 10.0
"""Tokens that a row is taken to have written as autoregression does, before its first."""
PATIENCE = 8, 64
"""After a draft that did not pay, the next is tried so many tokens later at first, and at most."""
HOPE = 0.5
"""A draft is tried again, since the text may have changed, only where it would pay with so many more tokens than drafts
give on the whole."""
TRIES = 8.0
"""What a kind is believed to do before it was tried counts as much as so many tries."""


class Pace:
    """One row's choices, and what it has learnt from them.

    All times are in steps of autoregression in the same company, so that they mean the same when rows come and go.
    rows: of the batch; drafters: of those, how many share a draft.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs, self.rows, self.drafters = costs, 1, 1
        self.seen: dict[str, tuple[float, float]] = {}
        self.gain, self.width = costs.gain, costs.gain + 1
        self.tokens = self.time = BEFORE
        self.wait, self.since = PATIENCE[0] // 2, PATIENCE[0]

    @property
    def rate(self) -> float:
        """Tokens per step lately, at least autoregression's one."""
        return max(1.0, self.tokens / self.time)

    def checking(self, n: int) -> float:
        """Steps that a check of n guesses takes."""
        return self.costs.check(n + 1, self.rows) / self.costs.check(1, self.rows)

    def drafting(self, slots: int) -> float:
        """Steps that a draft takes."""
        return self.costs.drafting(slots, self.drafters) / self.costs.check(1, self.rows)

    def chance(self, kind: str) -> float:
        """How likely a guess of this kind is accepted where those before it were."""
        hits, tries = self.seen.get(kind) or _prior(kind)
        return hits / tries

    def worth(self, guess: Guess) -> tuple[float, int]:
        """(value, n): the best number of its tokens to check, and what that is worth in tokens over what else the time
        would give."""
        rate, reach, sure = self.rate, 1.0, 1.0
        value, best = 1 - rate, 0
        for n, kind in enumerate(guess.kinds, start=1):
            sure *= self.chance(kind)
            reach += sure
            if (found := reach - rate * self.checking(n)) > value:
                value, best = found, n
        return value, best

    def best(self, *guesses: Guess) -> tuple[float, Guess]:
        """The value of the guess that is worth most, and as much of it as is worth a check."""
        found = [(*self.worth(guess), guess) for guess in guesses]
        value, n, guess = max(found, key=lambda each: each[0])
        return value, guess.first(n)

    def drafts(self, slots: int, other: float) -> bool:
        """Whether a draft over so many slots (the known one and the guesses) promises more than `other` is worth."""
        if slots < 2:
            return False
        taken = self.drafting(slots) + self.checking(min(slots - 1, round(self.width)))
        needed, hoped = other - 1 + self.rate * taken, self.costs.gain + HOPE if self.since >= self.wait else 0.0
        return min(max(self.gain, hoped), slots - 1) > needed

    def learn(self, guess: Guess, slots: int, kept: int) -> None:
        """Take in that `kept` tokens of a checked guess were accepted; slots: of the draft before it, 0 without one."""
        for kind, right in zip(guess.kinds[: kept + 1], [True] * kept + [False], strict=False):
            hits, tries = self.seen.get(kind) or _prior(kind)
            self.seen[kind] = SLOW * hits + right, SLOW * tries + 1
        taken = self.checking(len(guess.tokens))
        if slots:
            taken += self.drafting(slots)
            self.gain = SLOW * self.gain + (1 - SLOW) * kept
            self.width = SLOW * self.width + (1 - SLOW) * len(guess.tokens)
            paid = kept + 1 > taken * self.rate
            self.wait = PATIENCE[0] // 2 if paid else min(2 * self.wait, PATIENCE[1])
            self.since = 0
        else:
            self.since += kept + 1
        self.tokens, self.time = SLOW * self.tokens + kept + 1, SLOW * self.time + taken


def _prior(kind: str) -> tuple[float, float]:
    """(accepted, tries) of a kind that was never tried. Measured on the demo's drafts: a draft's confidence is how
    often it is right, behind a wrong token three in five of that; text that repeats itself goes on repeating."""
    name, number, *_ = kind.split()
    if name == "text":
        return TRIES * (0.45 + 0.06 * int(number)), TRIES
    confidence = (int(number) + 0.5) / 8
    return TRIES * confidence * (1.0 if name == "draft" else 0.6), TRIES
