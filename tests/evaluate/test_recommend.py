"""Recommendations on outcomes made by hand."""

import math
from dataclasses import replace

import pytest
from made_outcomes import contender, scored

from unmask.errors import ConfigError
from unmask.evaluate.outcomes import Contender
from unmask.evaluate.recommend import flags, recommend, recommend_section

HALF = [1.0] * 1000 + [0.0] * 1000


def lost(items):
    return [0.0] * items + HALF[items:]


@pytest.fixture
def swept():
    """Thresholds: 0.5 loses 10 points, 0.7 half a point, 0.9 nothing; the smaller the faster."""
    return [
        scored(contender("ar"), HALF, rate=50),
        scored(contender("threshold", threshold=0.5), lost(200), rate=200),
        scored(contender("threshold", threshold=0.7), lost(10), rate=150),
        scored(contender("threshold", threshold=0.9), HALF, rate=100),
        scored(contender("threshold", threshold=0.7, batch_size=32), HALF, rate=900),
        scored(contender("threshold", max_new_tokens=8), HALF, rate=900),
        scored(contender("ar", "base"), HALF, rate=900),
    ]


def test_the_fastest_setting_within_a_quality_floor(swept):
    found = recommend(swept, floor_points=1.0)
    assert found.chosen.flags == "--mode threshold --threshold 0.7"
    assert found.chosen.speed == pytest.approx(150) and found.chosen.times_ar == pytest.approx(3)
    assert found.chosen.loss.value == pytest.approx(-0.5) and "3.00 x mode ar" in found.reason
    assert recommend(swept, floor_points=0.3).chosen.flags == "--mode threshold --threshold 0.9"
    assert recommend(swept, floor_points=20).chosen.flags == "--mode threshold --threshold 0.5"


def test_other_batch_sizes_lengths_and_models_are_not_weighed(swept):
    names = {each.contender.name for each in recommend(swept, floor_points=1.0).candidates}
    assert names == {"model-ar", *(f"model-threshold-threshold={x}" for x in (0.5, 0.7, 0.9))}


def test_the_best_score_for_a_speed_floor(swept):
    assert recommend(swept, floor_speed=90).chosen.flags == "--mode threshold --threshold 0.9"
    assert recommend(swept, floor_speed=120).chosen.flags == "--mode threshold --threshold 0.7"
    assert recommend(swept, floor_speed=180).chosen.flags == "--mode threshold --threshold 0.5"
    nothing = recommend(swept, floor_speed=500)
    assert nothing.chosen is None
    assert nothing.reason == (
        "no setting reaches 500 tokens per second; the fastest is --mode threshold --threshold 0.5 with 200.0"
    )


def test_equal_scores_go_to_the_faster(swept):
    assert recommend(swept, floor_speed=40).chosen.contender.mode == "threshold"


def test_it_says_when_nothing_qualifies(swept):
    nothing = recommend(swept, floor_points=0.1)  # an interval over 2000 items is wider than that
    assert nothing.chosen is None
    assert (
        "no setting's interval stays within 0.1 points; the closest is --mode threshold --threshold 0.9"
        in nothing.reason
    )
    assert nothing.reason.endswith("stay with --mode ar, or run more items")
    alone = recommend([scored(contender("ar"), HALF)], floor_points=1.0)
    assert alone.chosen is None and "no setting but mode ar was run" in alone.reason


def test_a_setting_that_is_slower_than_ar_is_not_recommended():
    found = recommend(
        [scored(contender("ar"), HALF, rate=50), scored(contender("verified"), HALF, rate=40)], floor_points=1
    )
    assert found.chosen is None and "not faster than mode ar (0.80 x)" in found.reason


def test_speeds_are_compared_on_common_tasks_only(swept):
    swept = swept[:4]
    extra = [scored(contender("ar"), HALF, "ifeval", rate=5), scored(contender("verified"), HALF, rate=60)]
    found = {each.contender.name: each for each in recommend([*swept, *extra], floor_points=1.0).candidates}
    assert found["model-ar"].speed == pytest.approx(50) and found["model-ar"].score.items == 2000


def test_speeds_and_scores_are_compared_on_common_items_only():
    """A sweep over the first 1000 items, which are easy and slow, beside modes over all 2000."""
    ar = scored(contender("ar"), [1.0] * 1000 + [0.0] * 1000, rate=50)
    ar = replace(ar, items=[replace(i, tokens=40 if i.number < 1000 else 20) for i in ar.items], wall=1200.0)
    main = scored(contender("verified"), [1.0] * 1000 + [0.0] * 1000, rate=60)
    sweep = scored(contender("threshold", threshold=0.5), [0.0] * 50 + [1.0] * 950, rate=70)  # loses 5 points
    found = {each.contender.name: each for each in recommend([ar, main, sweep], floor_speed=55).candidates}
    assert [each.score.items for each in found.values()] == [1000] * 3
    assert [each.score.value for each in found.values()] == pytest.approx([100, 100, 95])
    assert found["model-ar"].speed == pytest.approx(50)  # 40,000 of its 60,000 tokens, and two thirds of its time
    assert found["model-verified"].times_ar == pytest.approx(60 / 50)
    assert recommend([ar, main, sweep], floor_speed=55).chosen.contender.mode == "verified"


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"floor_points": 1.0, "floor_speed": 2.0},
        {"floor_points": 0.0},
        {"floor_speed": -1.0},
        {"floor_speed": math.inf},
        {"floor_points": math.nan},
    ],
)
def test_one_floor_above_0(swept, how):
    with pytest.raises(ConfigError, match="floor"):
        recommend(swept, **how)


def test_mode_ar_is_needed(swept):
    with pytest.raises(ConfigError, match="mode ar, which was not run"):
        recommend(swept[1:], floor_points=1.0)


def test_flags_are_those_of_the_command():
    how = {"threshold": 0.8, "block_size": 16, "sub_block_cache": False, "max_new_tokens": 64, "rule": "threshold"}
    made = Contender("x", "m", "threshold", decoding=how, swept={"sub_block_size": 4, "batch_size": 2})
    expected = (
        "--mode threshold --rule threshold --threshold 0.8 --block-size 16 --sub-block-size 4 --no-sub-block-cache"
    )
    assert flags(made) == expected


def test_a_section_with_all_that_was_weighed_fastest_first(swept):
    section = recommend_section(recommend(swept, floor_points=1.0), swept)
    assert [row[0] for row in section.rows] == [
        "threshold, threshold 0.5",
        "threshold, threshold 0.7 (chosen)",
        "threshold, threshold 0.9",
        "ar",
    ]
    assert section.figures["recommended_tokens_per_second"] == pytest.approx(150)
