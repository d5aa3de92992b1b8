"""The gate on outcomes made by hand: what passes, what fails, what has too few items; what is stored and respected."""

import json
import math
import os
import warnings
from dataclasses import replace

import pytest
from made_outcomes import contender, scored
from tiny import MASK, byte_tokenizer, tiny_model

import unmask
from unmask.auto import Admissible, choose
from unmask.config import BlockSpec, Decoding
from unmask.errors import CheckpointError, ConfigError
from unmask.evaluate import gate as gates
from unmask.evaluate.gate import admissible, gate, gate_section, held, store
from unmask.model import admissible as files
from unmask.model.admissible import fingerprint, read_admissible, write_admissible
from unmask.model.checkpoint import save_full

AR, THRESHOLD, VERIFIED = contender("ar"), contender("threshold"), contender("verified")
BLOCK = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="block")
CAUSAL = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal")


def right(items, lost=0, won=0):
    """Scores beside mode ar's `half`: the first half right, the other wrong, but for those lost and won."""
    half = items // 2
    return [0.0] * lost + [1.0] * (half - lost + won) + [0.0] * (half - won)


def ran(items=2000, task="gsm8k", **changes):
    """Mode ar and others by name with (lost, won)."""
    others = {"threshold": THRESHOLD, "verified": VERIFIED}
    made = [scored(AR, right(items), task)]
    return made + [scored(others[name], right(items, *change), task) for name, change in changes.items()]


def record(thresholds=(), refused=(), undecided=()):
    return Admissible(tuple(thresholds), tuple(refused), tuple(undecided), 1.0, 500)


def test_equal_answers_pass_with_enough_items_and_not_with_few():
    enough, few = gate(ran(threshold=(0, 0)), 1.0), gate(ran(100, threshold=(0, 0)), 1.0)
    assert [(v.scope, v.state) for v in enough] == [("all", "passed"), ("gsm8k", "passed")]
    assert held(enough) and not held(few)
    assert few[0].state == "too few items" and few[0].difference.items == 100
    assert 290 <= few[0].needed <= 310  # the rule of three: 3 / n is 1%
    assert held(gate(ran(few[0].needed, threshold=(0, 0)), 1.0))
    assert "about" in few[0].line("threshold") and "would decide (100 were run)" in few[0].line("threshold")


def test_few_items_are_enough_for_verified_where_none_differs():
    """Its text is mode ar's by construction; one item that differs is a matter of items again."""
    assert held(gate(ran(20, verified=(0, 0)), 1.0))
    assert gate(ran(20, verified=(1, 1)), 1.0)[0].state == "too few items"


def test_a_loss_beyond_the_margin_fails_however_many_items():
    found = gate(ran(threshold=(60, 0)), 1.0)  # three points
    assert found[0].state == "failed" and found[0].needed is None and found[0].proved_worse
    assert found[0].difference.value == pytest.approx(-3.0)
    assert held(gate(ran(threshold=(60, 0)), 5.0))


def test_a_small_loss_whose_interval_reaches_beyond_is_undecided():
    found = gate(ran(threshold=(30, 20)), 1.0)[0]  # half a point, 2.5% changed
    assert found.state == "too few items" and found.needed > 2000
    more = gate(ran(8 * 2000, threshold=(8 * 30, 8 * 20)), 1.0)[0]
    assert more.state == "passed"


def test_every_mode_must_pass():
    assert not held(gate(ran(threshold=(200, 0), verified=(0, 0)), 1.0))
    assert held(gate(ran(threshold=(0, 5), verified=(0, 0)), 1.0))
    assert not held([])


def test_a_task_that_is_proved_worse_fails_although_all_together_pass():
    outcomes = ran(8000, threshold=(0, 40)) + ran(200, task="ifeval", threshold=(30, 0))
    found = {v.scope: v for v in gate(outcomes, 1.0)}
    assert found["all"].passed and found["gsm8k"].passed and found["ifeval"].proved_worse
    assert found["all"].difference.items == 8200
    assert not held(list(found.values()))


def test_a_task_with_few_items_does_not_fail_what_all_together_pass():
    outcomes = ran(8000, threshold=(0, 0)) + ran(20, task="ifeval", threshold=(0, 0))
    assert {v.scope: v.state for v in gate(outcomes, 1.0)}["ifeval"] == "too few items"
    assert held(gate(outcomes, 1.0))


def test_a_task_scored_by_likelihood_does_not_decide():
    """Masked estimates are another way of scoring, which no threshold changes."""
    worse = [
        replace(scored(who, right(1000, lost), "mmlu"), kind="likelihood") for who, lost in ((AR, 0), (THRESHOLD, 300))
    ]
    verdicts = gate([*ran(threshold=(0, 0)), *worse], 1.0)
    assert [(v.scope, v.state, v.decides) for v in verdicts][2] == ("mmlu", "failed", False)
    assert held(verdicts) and admissible(verdicts, {}).thresholds == (0.9,)
    assert verdicts[0].difference.items == 2000


def test_base_and_plain_fine_tune_are_not_gated_and_ar_is_needed():
    base = scored(contender("ar", "base"), right(100))
    assert gate([base, *ran(100)], 1.0) == []
    with pytest.raises(ConfigError, match="mode ar, which was not run"):
        gate([base, scored(THRESHOLD, right(100))], 1.0)


@pytest.mark.parametrize("points", [0.0, -1.0, math.nan, math.inf])
def test_a_margin_is_a_number_above_0(points):
    with pytest.raises(ConfigError, match=f"gate is {points}; allowed: above 0"):
        gate(ran(), points)


def test_a_section_without_verdicts_names_the_margin_that_was_asked_for():
    assert gate_section([], [], 1.5).title == "Gate: at most 1.5 points below mode ar"


def test_answers_of_swept_lengths_say_nothing_of_thresholds():
    outcomes = ran(threshold=(200, 0))
    for mode in ("ar", "threshold"):
        outcomes.append(scored(contender(mode, max_new_tokens=8), right(4000)))
    assert admissible(gate(outcomes, 1.0), {}).refused == (0.9,) and not admissible(gate(outcomes, 1.0), {}).thresholds


def test_only_common_items_count():
    outcomes = [scored(AR, right(2000)), scored(VERIFIED, right(2000)[:1500])]
    assert gate(outcomes, 1.0)[0].difference.items == 1500


def test_a_sweep_does_not_decide_the_gate_but_what_is_admissible():
    outcomes = ran(threshold=(0, 0))
    for threshold, lost in {0.5: 200, 0.7: 60, 0.8: 5, 1.0: 0}.items():
        outcomes.append(scored(contender("threshold", threshold=threshold), right(2000, lost)))
    outcomes.append(scored(contender("threshold", block_size=4), right(2000, 300)))
    verdicts = gate(outcomes, 1.0)
    assert held(verdicts)
    found = admissible(verdicts, {"seed": 0})
    assert found.thresholds == (0.8, 0.9, 1.0) and found.refused == (0.5, 0.7) and found.lowest == 0.8
    assert found.points == 1.0 and found.items == 2000 and found.tasks == ("gsm8k",) and found.made_with == {"seed": 0}
    section = gate_section(verdicts, outcomes, 1.0)
    assert "Gate held: yes." in section.about and section.figures == {"gate_held": 1.0}
    row = next(row for row in section.rows if row[0] == "threshold, threshold 0.5")
    assert row[1] == "all" and row[2].startswith("−10.0 [−11.") and row[3:] == ("failed", 2000, None)


def test_of_the_same_threshold_the_run_with_more_items_counts():
    outcomes = [*ran(2000, threshold=(0, 0)), scored(contender("threshold", threshold=0.9), right(2000)[:50])]
    found = admissible(gate(outcomes, 1.0), {})
    assert found.thresholds == (0.9,) and found.undecided == ()


def test_without_mode_threshold_nothing_is_said_of_thresholds(tmp_path):
    assert admissible(gate(ran(verified=(0, 0)), 1.0), {}) is None
    assert store(gate(ran(verified=(0, 0)), 1.0), str(tmp_path), tmp_path, {}) is None


@pytest.mark.parametrize(
    ("thresholds", "refused", "lowest"),
    [
        ((0.7, 0.9), (0.5,), 0.7),
        ((0.7, 1.0), (0.9,), 1.0),
        ((0.7,), (0.9,), None),
        ((), (0.9,), None),
        ((0.9,), (), 0.9),
    ],
)
def test_nothing_below_a_refused_threshold_is_admissible(thresholds, refused, lowest):
    assert record(thresholds, refused).lowest == lowest


def test_auto_raises_a_threshold_to_the_lowest_admissible():
    found = choose(Decoding(threshold=0.5), BLOCK, admissible=record((0.8, 0.9), (0.5,)))
    assert found.decoding == Decoding(mode="threshold", threshold=0.8)
    assert found.warning.startswith("threshold 0.5 is raised to 0.8, ")
    found = choose(Decoding(rule="threshold:0.5"), BLOCK, admissible=record((0.8,)))
    assert found.decoding == Decoding(mode="threshold", threshold=0.8)


def test_auto_takes_ar_where_no_threshold_is_admissible():
    found = choose(Decoding(), BLOCK, admissible=record((), (0.9,)))
    assert found.decoding == Decoding(mode="ar")
    assert found.warning.startswith("mode auto takes ar: no threshold kept within 1 points")


def test_too_few_items_are_not_told_as_a_loss():
    found = choose(Decoding(), BLOCK, admissible=record(refused=(0.5,), undecided=(0.4, 0.8, 0.9)))
    assert found.warning == (
        "mode auto takes ar: 500 items were too few to tell whether threshold 0.8 or 0.9 keeps within 1 points of mode "
        "ar; --mode threshold overrides"
    )


@pytest.mark.parametrize(
    ("wanted", "spec", "gated", "mode"),
    [
        (Decoding(threshold=0.9), BLOCK, record((0.8,)), "threshold"),
        (Decoding(threshold=0.5), BLOCK, None, "threshold"),
        (Decoding(mode="threshold", threshold=0.5), BLOCK, record((0.8,)), "threshold"),
        (Decoding(mode="threshold", threshold=0.5), BLOCK, record(), "threshold"),
        (Decoding(rule="factor:1"), BLOCK, record((0.8,)), "threshold"),
        (Decoding(threshold=0.5), CAUSAL, record(), "verified"),
        (Decoding(threshold=0.5), None, record(), "ar"),
    ],
)
def test_all_else_stays_as_it_is(wanted, spec, gated, mode):
    found = choose(wanted, spec, admissible=gated)
    assert found.decoding == replace(wanted, mode=mode) and found.warning == ""


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    save_full(tiny_model(), byte_tokenizer(), BLOCK, tmp_path / "model")
    return tmp_path / "model"


def gated(lost=0):
    return gate([*ran(threshold=(lost, 0))], 1.0)


def test_the_record_lies_with_a_model_of_the_users_and_auto_respects_it(saved):
    model = unmask.load(saved)
    assert model.decoding(threshold=0.5).threshold == 0.5  # nothing was gated yet
    assert store(gated(), str(saved), saved, {"torch": "2"}) == saved / "admissible.json"
    assert json.loads((saved / "admissible.json").read_text())["thresholds"] == [0.9]
    model = unmask.load(saved)
    assert model.admissible.thresholds == (0.9,) and model.admissible.made_with == {"torch": "2"}
    with pytest.warns(UserWarning, match="threshold 0.5 is raised to 0.9"):
        assert model.decoding(threshold=0.5).threshold == 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.request("Hi", threshold=0.5).decoding.threshold == 0.9  # told once
        assert model.decoding(mode="threshold", threshold=0.5).threshold == 0.5
        assert model.resolved(Decoding(threshold=0.5)).threshold == 0.9


def test_few_items_do_not_undo_an_earlier_record_and_more_do(saved):
    said = []
    store(gated(), str(saved), saved, {})  # 0.9 passed over 2000 items
    before = (saved / "admissible.json").read_text()
    few = gate([*ran(100, threshold=(0, 0)), scored(contender("threshold", threshold=0.5), right(100, 40))], 1.0)
    assert admissible(few, {}).undecided == (0.9,) and admissible(few, {}).refused == (0.5,)
    assert store(few, str(saved), saved, {}, said.append) is None and (saved / "admissible.json").read_text() == before
    assert said == [
        "the earlier record of thresholds for mode auto, of 2000 items, is kept: this run has 100, too few to take its "
        "place"
    ]
    other = gate([scored(AR, right(100)), scored(contender("threshold", threshold=0.8), right(100))], 1.0)
    assert store(other, str(saved), saved, {}, said.append) is None and len(said) == 2
    failed = gate([scored(AR, right(5)), scored(contender("threshold", threshold=0.9), right(5, 1))], 1.0)
    assert admissible(failed, {}).refused == (0.9,), "decided, but by five items"
    assert store(failed, str(saved), saved, {}, said.append) is None and len(said) == 3
    store(gated(lost=200), str(saved), saved, {})  # as many items, and a clear answer
    assert read_admissible(str(saved), saved).refused == (0.9,)
    store(gate(ran(3000, threshold=(36, 20)), 1.0), str(saved), saved, {})  # undecided, but of more items
    assert read_admissible(str(saved), saved).undecided == (0.9,)
    (saved / "admissible.json").write_text("{}")
    assert store(few, str(saved), saved, {}) == saved / "admissible.json"  # a damaged one is replaced


def test_auto_answers_in_mode_ar_where_nothing_passed(saved):
    store(gated(lost=200), str(saved), saved, {})
    model = unmask.load(saved)
    with pytest.warns(UserWarning, match="mode auto takes ar"):
        answers = model.generate(["Hi", "Ho"], max_new_tokens=4)
    assert [answer.mode for answer in answers] == ["ar", "ar"]
    assert model.generate(["Hi"], mode="threshold", max_new_tokens=4)[0].mode == "threshold"


def test_a_record_of_other_weights_does_not_count(saved):
    store(gated(), str(saved), saved, {})
    assert read_admissible(str(saved), saved) is not None
    record_file = (saved / "admissible.json").read_text()
    save_full(tiny_model(seed=1), byte_tokenizer(), BLOCK, saved)
    assert not (saved / "admissible.json").exists()  # saving replaces the directory
    (saved / "admissible.json").write_text(record_file)
    assert read_admissible(str(saved), saved) is None


def test_a_model_that_is_not_the_users_own_has_its_record_in_the_cache(saved, tmp_path, monkeypatch):
    where = tmp_path / "home" / "admissible" / f"{fingerprint(saved)[:32]}.json"
    assert store(gated(), "owner/name", saved, {}) == where  # a hub model
    assert read_admissible("owner/name", saved).thresholds == (0.9,)
    where.unlink()
    monkeypatch.setattr(files, "DEMO", saved)  # the model inside the installation
    assert store(gated(), str(saved), saved, {}) == where
    where.unlink()
    monkeypatch.undo()
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "access", lambda path, kind: kind != os.W_OK)
    assert store(gated(), str(saved), saved, {}) == where


def test_the_fingerprint_sees_a_change_anywhere(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(10**6))
    before = fingerprint(tmp_path)
    assert before == fingerprint(tmp_path)
    for at in (0, 500_000, 10**6 - 1):
        changed = bytearray(10**6)
        changed[at] = 1
        (tmp_path / "model.safetensors").write_bytes(changed)
        assert fingerprint(tmp_path) != before


def test_a_damaged_record_is_one_line(saved):
    (saved / "admissible.json").write_text('{"thresholds": [0.9]}')
    with pytest.raises(
        CheckpointError, match=r"admissible.json is damaged .*; remove it, or run unmask evaluate --gate"
    ):
        unmask.load(saved).decoding()


def test_a_record_that_cannot_be_written_is_one_line(saved, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "admissible").touch()
    with pytest.raises(CheckpointError, match="cannot write"):
        write_admissible(record((0.9,)), "owner/name", saved)


def test_the_exit_code_is_neither_a_fault_nor_wrong_input():
    assert gates.NOT_HELD == 3
