"""Scores with their uncertainty: intervals, paired differences, percentiles, the area under accuracy and parallelism.

All intervals are two-sided at 95%. A bootstrap draws items with replacement `RESAMPLES` times from a fixed seed
(Efron 1979, percentile method), so that the same outcomes give the same interval again.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
SEED = 0
Z = 1.959963984540054
"""Standard normal quantile of 0.975."""
PENALTY = 3.0
"""alpha of the accuracy–parallelism area: how fast parallelism loses its worth where accuracy is lost."""


class Estimate(NamedTuple):
    """A mean over `items` items and its 95% interval, all in the unit of the values."""

    value: float
    low: float
    high: float
    items: int

    def scaled(self, factor: float) -> "Estimate":
        """The same in another unit (100: from shares to percent or points); a negative factor turns it round."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.value * factor, low, high, self.items)


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


def score(values: Sequence[float]) -> Estimate:
    """Mean of scores from 0 to 1: Wilson's interval where every one is 0 or 1 (Wilson 1927), else the bootstrap's with
    two imagined items, as in `macro_score`."""
    if not values:
        return NOTHING
    if all(value in (0, 1) for value in values):
        return wilson(int(sum(values)), len(values))
    return macro_score([values])


def wilson(right: int, items: int) -> Estimate:
    """Share of `right` among `items` with Wilson's score interval, which stays within 0 and 1 and never has width 0."""
    share, scale = right / items, 1 + Z**2 / items
    middle = (share + Z**2 / (2 * items)) / scale
    half = Z / scale * math.sqrt(share * (1 - share) / items + Z**2 / (4 * items**2))
    return Estimate(
        share, max(0.0, middle - half) if right else 0.0, min(1.0, middle + half) if right < items else 1.0, items
    )


def difference(changes: Sequence[float]) -> Estimate:
    """Mean of paired differences in [-1, 1], one an item, with the bootstrap's interval over the items.

    Two imagined items are drawn along with the real ones, one wholly won and one wholly lost: without them a handful of
    items without any change would have an interval of width 0. For 0/1 scores this comes to the adjusted interval of
    Bonett and Price (2012).
    """
    return pooled([changes]) if len(changes) else NOTHING


def pooled(groups: Sequence[Sequence[float]], *, macro: bool = False) -> Estimate:
    """Mean of paired differences of several tasks: over all items, or of the tasks' means with equal weight (`macro`).

    Items are drawn within their task (macro) or from all of them.
    """
    filled = [list(group) for group in groups if len(group)]
    items = sum(map(len, filled))
    if not items:
        return NOTHING
    drawn = filled if macro else [[change for group in filled for change in group]]
    value = float(np.mean([np.mean(group) for group in drawn]))
    return _estimate(value, _mean_of_means(drawn, (1.0, -1.0)), items)


def macro_score(groups: Sequence[Sequence[float]]) -> Estimate:
    """Mean of the tasks' mean scores, from 0 to 1, each with equal weight; items are drawn within their task.

    Two imagined items are drawn along in each, one with 0 and one with 1: without them scores that are all the same
    would have an interval of width 0.
    """
    filled = [group for group in groups if len(group)]
    if not filled:
        return NOTHING
    value = float(np.mean([np.mean(group) for group in filled]))
    return _estimate(value, _mean_of_means(filled, (0.0, 1.0)), sum(map(len, filled)))


def _mean_of_means(groups: Sequence[Sequence[float]], imagined: tuple[float, float]) -> np.ndarray:
    """Mean over the groups of the means of `RESAMPLES` draws from each and its imagined items, float64 [RESAMPLES]."""
    return np.mean([_means([*group, *imagined], seed) for seed, group in enumerate(groups, SEED)], axis=0)


def _means(values: Sequence[float], seed: int = SEED) -> np.ndarray:
    """Means of `RESAMPLES` draws of as many values, float64 [RESAMPLES]."""
    distinct, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    return _drawn(distinct, counts / len(values), len(values), seed)


def _drawn(distinct: np.ndarray, shares: np.ndarray, items: int, seed: int = SEED) -> np.ndarray:
    """Means of draws of `items` values. How often each distinct value comes up in a draw is multinomial, which is
    cheaper than drawing item by item. Groups that are averaged need a seed each, or all would err to the same side."""
    return np.random.default_rng(seed).multinomial(items, shares, size=RESAMPLES) @ distinct / items


def _estimate(value: float, means: np.ndarray, items: int) -> Estimate:
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(value, min(float(low), value), max(float(high), value), items)


def items_needed(changes: Sequence[float], margin: float) -> int | None:
    """About how many items like these would put the lower end of `difference` at or above -margin; None where none do.

    None where the mean itself is at or below -margin. The normal form of the interval gives the start, from which the
    number rises in steps of 2% until the bootstrap agrees.
    """
    mean, square = float(np.mean(changes)), float(np.mean(np.square(changes)))
    if mean <= -margin:
        return None
    distinct, counts = np.unique(np.asarray([*changes, 1.0, -1.0], dtype=float), return_counts=True)
    imagined = np.isin(distinct, (-1.0, 1.0))
    shares = (counts - imagined) / len(changes)

    def low(items: int) -> float:
        return float(np.percentile(_drawn(distinct, (shares * items + imagined) / (items + 2), items + 2), 2.5))

    spread = Z * math.sqrt(max(square - mean**2, 0.0))
    items = math.ceil(max((spread / (margin + mean)) ** 2, 1.0))
    while items < 10**7 and low(items) < -margin:
        items = math.ceil(items * 1.02) + 1
    return items


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of the values lie, linear between neighbours; None without values."""
    return float(np.percentile(values, 100 * share)) if len(values) else None


def area(anchor: float, points: Sequence[tuple[float, float]]) -> float | None:
    """Area under accuracy and parallelism, in units of AR decoding: AR alone has 1, lossless TPF 3 has 3.

    anchor: the score of mode ar. points: (tokens per forward over those of mode ar, score) of the other settings; mode
    ar's own number need not be 1, since the prompt takes forwards too. After AUP of d3LLM (arXiv 2601.07568), with
    mode ar of the same model as its reference:

        area = 1 + sum over i of (t_i - t_{i-1}) (w_i + w_{i-1}) / 2,   w = r min(exp(-3 (1 - r)), 1)

    with r = score / anchor,
    over the settings by rising t, from (t, r) = (1, 1) on. Settings with no more tokens per forward than mode ar add
    nothing; of two with the same t the better one counts. None where the anchor is 0.
    """
    if not anchor > 0:
        return None
    best: dict[float, float] = {}
    for tokens, value in points:
        if tokens > 1:
            best[tokens] = max(best.get(tokens, 0.0), value / anchor)
    total, before, height = 1.0, 1.0, 1.0
    for tokens in sorted(best):
        weighted = best[tokens] * min(math.exp(-PENALTY * (1 - best[tokens])), 1.0)
        total += (tokens - before) * (weighted + height) / 2
        before, height = tokens, weighted
    return total
