"""What the bench says of mode verified's guesses, on rows made by hand; and which runs it keeps for mode auto."""

from collections import Counter

import pytest

from unmask.bench.answers import PLAIN
from unmask.bench.guesses import gain_of, guesses_section, rates_of
from unmask.bench.run import _representative
from unmask.bench.settings import Bench


def row(mode="verified", workload="math", batch=1, **changes):
    made = {
        "mode": mode,
        "workload": workload,
        "batch": batch,
        "tokens": 10,
        "seconds": 2.0,
        "forwards": 5,
        "checks": 4,
    }
    return made | {"guesses": [], "spent": Counter(), "texts": []} | changes


PLAIN_ROWS = [row(PLAIN, guesses=[("draft", 5, 2), ("draft", 5, 0), ("draft", 5, 5), ("draft", 2, 2), ("draft", 0, 0)])]


def test_the_gain_is_of_whole_drafts():
    assert gain_of(PLAIN_ROWS, 9.0) == pytest.approx(7 / 3)
    assert gain_of([row(PLAIN, guesses=[("draft", 0, 0)])], 9.0) == 9.0 == gain_of([row()], 9.0)


def test_rates_are_over_all_workloads_by_mode_and_batch():
    rows = [
        row("ar", tokens=10, seconds=1.0),
        row("ar", "code", tokens=30, seconds=1.0),
        row("ar", batch=4, seconds=0.5),
    ]
    thresholds = [
        row("threshold", threshold=0.5, schedule="reference", seconds=4.0),
        row("threshold", threshold=0.5, schedule="fused", seconds=1.0),
        row("ar"),
    ]
    assert rates_of(rows, thresholds) == {"ar": {1: 20.0, 4: 20.0}, "threshold 0.5": {1: 2.5}}


def test_acceptance_by_slot_counts_slots_that_were_reached():
    section = guesses_section([*PLAIN_ROWS, row("ar", tokens=10), row()], [])
    assert section.figures["acceptance_math_slot1"] == pytest.approx(3 / 4)
    assert section.figures["acceptance_math_slot2"] == pytest.approx(3 / 3)
    assert section.figures["acceptance_math_slot3"] == pytest.approx(1 / 2)
    assert section.figures["acceptance_math_slot5"] == 1.0


def test_where_time_goes_adds_up_to_the_time():
    spent = Counter({"draft": 0.5, "check": 1.0, "propose": 0.25})
    section = guesses_section([row(spent=spent), row("ar")], [])
    bars = next(plot for plot in section.plots if plot.title.startswith("where the time")).series["verified"]
    assert dict(bars) == pytest.approx({"draft": 50.0, "check": 100.0, "propose": 25.0, "other": 25.0})


def test_sources_of_guesses_and_the_unguessable():
    checks = [("draft", 5, 2), ("draft", 3, 1), ("text", 4, 4), ("none", 0, 0)]
    hot = [row("ar", "chat", tokens=10, seconds=1.0), row("verified", "chat", tokens=10, seconds=1.25)]
    section = guesses_section([row(tokens=11, guesses=checks), row("ar")], hot)
    assert section.rows == [
        ("math", "a draft", 2, 4.0, 1.5, pytest.approx(5 / 11)),
        ("math", "earlier text", 1, 4.0, 4.0, pytest.approx(5 / 11)),
        ("math", "nothing", 1, 0.0, 0.0, pytest.approx(1 / 11)),
    ]
    assert section.figures["verified_vs_ar_unguessable"] == pytest.approx(0.8) and "0.80 times mode ar" in section.about


@pytest.mark.parametrize(
    "changes, kept",
    [
        ({}, True),
        ({"quick": True}, False),
        ({"workload": "math,code"}, False),
        ({"max_new_tokens": 8}, False),
        ({"batch": "4"}, True),
    ],
)
def test_only_runs_that_say_enough_are_kept(changes, kept):
    assert _representative(Bench(**changes), ["ar", "threshold", "verified"]) is kept
    assert not _representative(Bench(**changes), ["ar", "threshold"])
