"""Intervals and areas against values that were worked out by hand or by another formula."""

import math
import random
from statistics import NormalDist, fmean, stdev

import pytest

from unmask.evaluate import statistics
from unmask.evaluate.statistics import (
    RESAMPLES,
    Z,
    area,
    difference,
    items_needed,
    macro_score,
    percentile,
    pooled,
    score,
    wilson,
)


def test_z_is_the_normal_quantile():
    assert pytest.approx(NormalDist().inv_cdf(0.975)) == Z


@pytest.mark.parametrize(
    ("right", "items", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_wilson_against_published_values(right, items, low, high):
    """The last is Newcombe's (1998) example."""
    found = wilson(right, items)
    assert found.value == right / items and found.items == items
    assert found.low == pytest.approx(low, abs=5e-5) and found.high == pytest.approx(high, abs=5e-5)


def test_wilson_covers_as_often_as_it_says():
    """Exactly, over every outcome of 40 items."""
    for chance in (0.1, 0.3, 0.5, 0.8):
        mass = [math.comb(40, k) * chance**k * (1 - chance) ** (40 - k) for k in range(41)]
        covered = sum(m for k, m in enumerate(mass) if wilson(k, 40).low <= chance <= wilson(k, 40).high)
        assert 0.92 <= covered <= 0.985


def test_scores_of_0_and_1_take_wilson_and_others_the_bootstrap():
    assert score([1, 0, 1.0, 1]) == wilson(3, 4)
    values = [random.Random(n).choice([0.0, 0.25, 0.5, 1.0]) for n in range(400)]
    found = score(values)
    half = Z * stdev(values) / math.sqrt(400)
    assert found.value == pytest.approx(fmean(values))
    assert found.low == pytest.approx(fmean(values) - half, abs=0.1 * half)
    assert found.high == pytest.approx(fmean(values) + half, abs=0.1 * half)
    assert score([]).items == 0 and math.isnan(score([]).value)


def test_a_bootstrap_is_the_same_every_time_and_has_the_stated_number_of_resamples():
    assert score([0.1, 0.7, 0.3]) == score([0.1, 0.7, 0.3])
    assert len(statistics._means([0.0, 0.5])) == RESAMPLES == 10_000


def test_paired_difference_against_bonett_and_price():
    """200 items, 10 lost, 4 won: their adjusted interval is (c - b) / (n + 2) and so on, in closed form."""
    found = difference([-1.0] * 10 + [1.0] * 4 + [0.0] * 186)
    middle, changed = (4 - 10) / 202, (10 + 4 + 2) / 202
    half = Z * math.sqrt((changed - middle**2) / 202)
    assert found.value == pytest.approx(-0.03) and found.items == 200
    assert found.low == pytest.approx(middle - half, abs=0.003)
    assert found.high == pytest.approx(middle + half, abs=0.003)


def test_no_change_at_all_still_leaves_doubt():
    few, many = difference([0.0] * 10), difference([0.0] * 1000)
    assert few.value == many.value == 0
    assert few.low < -0.1 and -0.005 < many.low < -0.001 and many.high == pytest.approx(-many.low, abs=0.001)


def test_the_interval_holds_its_own_value():
    found = difference([-1.0])
    assert found.low == found.value == -1


def test_paired_differences_cover_as_often_as_they_say():
    draw, covered = random.Random(7), 0
    for _ in range(200):
        found = difference(draw.choices([-1.0, 1.0, 0.0], [0.06, 0.03, 0.91], k=120))
        covered += found.low <= -0.03 <= found.high
    assert 0.92 <= covered / 200 <= 0.985


def test_pooled_over_items_and_over_tasks():
    groups = [[-1.0, 0.0, 0.0, 0.0], [1.0, 1.0], []]
    assert pooled(groups).value == pytest.approx(1 / 6) and pooled(groups).items == 6
    assert pooled(groups, macro=True).value == pytest.approx((-0.25 + 1) / 2)
    assert macro_score([[1, 0, 0, 0], [1, 1]]).value == pytest.approx(0.625)
    assert pooled([]).items == macro_score([[]]).items == 0


@pytest.mark.parametrize(("value", "items"), [(0.5, 5), (0.25, 40), (0.0, 20), (1.0, 20)])
def test_scores_that_are_all_the_same_still_leave_doubt(value, items):
    """At 0 and 1 about as much as Wilson's interval, whose width is 3.84 / (n + 3.84)."""
    one, three = macro_score([[value] * items]), macro_score([[value] * items] * 3)
    for found in (one, three, score([value] * items)):
        assert found.value == value and found.high - found.low > 0.01 and 0 <= found.low <= value <= found.high <= 1
    if value in (0, 1):
        assert one.high - one.low == pytest.approx(wilson(0, items).high, rel=0.25)


def test_tasks_err_independently():
    """The mean of four tasks alike is known twice as well as one of them."""
    task = [1.0] * 100 + [0.0] * 100
    one, four = macro_score([task]), macro_score([task] * 4)
    assert four.high - four.low == pytest.approx((one.high - one.low) / 2, rel=0.05)
    changes = [1.0] * 20 + [0.0] * 160 + [-1.0] * 20
    one, four = pooled([changes]), pooled([changes] * 4, macro=True)
    assert four.high - four.low == pytest.approx((one.high - one.low) / 2, rel=0.05)


def test_an_estimate_in_another_unit():
    assert wilson(0, 10).scaled(-100).high == 0 and wilson(0, 10).scaled(-100).low == pytest.approx(-27.75, abs=0.01)


def test_percentiles_are_linear_between_neighbours():
    assert percentile([4, 1, 3, 2], 0.5) == 2.5 and percentile([1, 2, 3, 4], 0.95) == pytest.approx(3.85)
    assert percentile([], 0.5) is None and percentile([7.0], 0.95) == 7.0


def test_as_many_items_as_are_needed_are_needed():
    """5% lost and 5% won: the interval's half is 1.96 sqrt(0.1 / n), so one point takes 3842 items or a few more."""
    changes = [-1.0, 1.0, *[0.0] * 18]
    needed = items_needed(changes, 0.01)
    assert 3842 <= needed <= 4000
    assert difference(changes * (needed // 20 + 1)).low >= -0.0101
    assert difference(changes * (needed // 40)).low < -0.0125
    assert items_needed([-1.0, 0.0, 0.0, 0.0], 0.25) is None  # the loss itself is the margin
    assert items_needed([0.0] * 5, 0.01) == pytest.approx(3 / 0.01, abs=10)  # the rule of three


def test_the_area_of_mode_ar_is_1_and_of_lossless_decoding_its_tokens_per_forward():
    assert area(50.0, []) == 1.0
    assert area(50.0, [(3.0, 50.0)]) == pytest.approx(3.0)
    assert area(0.5, [(2.0, 0.5), (3.0, 0.5)]) == pytest.approx(3.0)


def test_the_area_counts_parallelism_by_the_score_that_is_kept():
    weight = 0.5 * math.exp(-1.5)
    assert area(50.0, [(3.0, 25.0)]) == pytest.approx(1 + 2 * (1 + weight) / 2)
    assert area(50.0, [(5.0, 0.0), (3.0, 25.0)]) == pytest.approx(1 + (1 + weight) + weight)
    assert area(50.0, [(3.0, 60.0)]) == pytest.approx(1 + 2 * (1 + 1.2) / 2)  # better than ar counts as it is
    assert area(50.0, [(0.9, 80.0), (1.0, 80.0)]) == 1.0
    assert area(50.0, [(2.0, 10.0), (2.0, 50.0)]) == pytest.approx(2.0)
    assert area(0.0, [(2.0, 10.0)]) is None
