"""Sweeps on outcomes made by hand: tables of every kind of setting, the honest speed table, areas on common items."""

import itertools
from dataclasses import replace

import pytest
from made_outcomes import contender, scored

from unmask.config import BlockSpec
from unmask.errors import ConfigError
from unmask.evaluate.contenders import contenders
from unmask.evaluate.report import write
from unmask.evaluate.settings import Evaluate
from unmask.evaluate.sweeps import area_section, sweep_sections

HALF = [1.0] * 50 + [0.0] * 50


def asked(*sweep, **how):
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=1, context="block")
    return contenders("demo", spec, Evaluate(tasks="gsm8k", sweep=sweep, **how), {}, 8)


def test_a_setting_named_twice_in_one_sweep_is_refused():
    assert [each.swept for each in asked("threshold=0.5,0.9")][2:] == [{"threshold": 0.5}, {"threshold": 0.9}]
    with pytest.raises(ConfigError, match="sweep is 'threshold=0.5 threshold=0.9'; allowed: each NAME once"):
        asked("threshold=0.5 threshold=0.9")


def test_limits_are_of_all_tasks_or_of_one():
    mixed = Evaluate(tasks="gsm8k,ifeval,q=1.jsonl", limit="1000,ifeval=100,q=1.jsonl=7")
    assert [mixed.limit_of(name) for name in ("gsm8k", "ifeval", "q=1.jsonl")] == [1000, 100, 7]
    assert Evaluate(tasks="gsm8k,ifeval", limit="ifeval=3").limit_of("gsm8k") is None
    assert Evaluate(tasks="gsm8k").limit_of("gsm8k") is None


def section(outcomes, title):
    return next(each for each in sweep_sections(outcomes) if each.title.startswith(title))


@pytest.mark.parametrize(
    ("name", "values", "columns"),
    [
        ("rule", ("factor:1", "threshold"), ("factor:1", "threshold")),
        ("schedule", ("reference", "fused"), ("fused", "reference")),
        ("sub_block_cache", (True, False), ("off", "on")),
        ("threshold", (0.9, 0.5), ("0.5", "0.9", "1.0")),
        ("max_new_tokens", (128, 20), ("20", "128")),
    ],
)
def test_settings_of_every_kind_become_a_table_and_plots(name, values, columns, tmp_path):
    swept = [scored(contender("threshold", **{name: value}), HALF) for value in values]
    report = write([scored(contender("ar"), HALF), *swept], {}, {}, {}, tmp_path)
    [made] = [each for each in report.sections if each.columns[1:] == columns]
    assert (
        len(made.plots) == 2 and (tmp_path / "report.html").read_text().count("Score by " + name.replace("_", " ")) >= 1
    )


@pytest.mark.parametrize(("task", "there"), [("gsm8k", True), ("reasoning-gym", False)])
def test_the_papers_rows_stand_beside_their_own_task_alone(task, there):
    points = [scored(contender("threshold", threshold=value), HALF, task) for value in (0.5, 0.7)]
    table = section([scored(contender("ar"), HALF, task), *points], "Threshold")
    assert any("(paper)" in row[0] for row in table.rows) is there is ("1.0" in table.columns)


def test_an_honest_speed_table():
    """Case O7-07: by length, threshold, cache and batch size; speed, parallelism and score side by side, also where the
    mode is slower than mode ar at the same length and batch size."""
    outcomes = [scored(contender("ar"), HALF, rate=77)]
    for length, batch in itertools.product((20, 128, 512), (1, 8)):
        alike = {"max_new_tokens": length, "batch_size": batch}
        outcomes.append(scored(contender("ar", **alike), HALF, rate=50 * batch))
        for threshold, cache in itertools.product((0.7, 0.9, 1.0), (False, True)):
            rate = 50 * batch * (0.8 if length == 20 else 2.0) * (0.9 if cache else 1.0)
            who = contender("threshold", threshold=threshold, sub_block_cache=cache, **alike)
            outcomes.append(scored(who, [0.0] * 10 + HALF[10:], tpf=2 if threshold < 1 else 1, rate=rate))
    table = section(outcomes, "batch_size, max_new_tokens, sub_block_cache, threshold varied")
    assert table.columns == ("threshold", "0.7", "0.9", "1.0")
    rows = {row[0]: row[1:] for row in table.rows}
    lengths = [int(row[0].split("max new tokens ")[1].split(",")[0]) for row in table.rows if "batch size 1," in row[0]]
    assert lengths == sorted(lengths) and set(lengths) == {20, 128, 512}
    for length, batch, cache in itertools.product((20, 128, 512), (1, 8), (False, True)):
        line = f"threshold, batch size {batch}, max new tokens {length}, sub block cache {'on' if cache else 'off'}: "
        times = (0.8 if length == 20 else 2.0) * (0.9 if cache else 1.0)
        assert rows[line + "times ar"] == pytest.approx([times] * 3)  # below 1 at 20 tokens
        assert rows[line + "tok/s"] == pytest.approx([50 * batch * times] * 3)
        assert rows[line + "tok/forward"] == (2.0, 2.0, 1.0)
        assert all(cell.startswith("40.0 [") for cell in rows[line + "gsm8k, score %"])
        assert all(cell.startswith("−10.0 [") for cell in rows[line + "to ar, points"])
    assert "sub block cache on: times ar | 0.72 | 0.72 | 0.72 |" in table.text()


def test_points_of_the_curve_are_over_the_items_that_all_have():
    """A sweep over the first 50 items, all of which mode ar has right; over all 100 it has half."""
    full = [scored(contender("ar"), HALF), scored(contender("threshold"), HALF, tpf=2)]
    swept = scored(contender("threshold", threshold=0.5), [1.0] * 50, tpf=4)
    made = area_section([*full, swept])
    for row in made.rows:
        assert row[1] == "100.0" and row[2] == "2.00: 100.0, 4.00: 100.0" and row[4] == 50
    assert made.figures == pytest.approx({"all_threshold_area": 4.0, "gsm8k_threshold_area": 4.0})


def test_the_area_is_in_units_of_mode_ars_own_tokens_per_forward():
    """20 tokens in 21 forwards are one unit."""
    ar = scored(contender("ar"), HALF)
    ar = replace(ar, items=[replace(item, forwards=21) for item in ar.items])
    made = area_section([ar, scored(contender("threshold"), HALF, tpf=2)])
    assert made.figures["gsm8k_threshold_area"] == pytest.approx(2 * 21 / 20)
    assert made.rows[0][2] == "2.10: 50.0" and made.plots[0].series["threshold"][0][:2] == (1.0, 50.0)
