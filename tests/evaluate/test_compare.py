"""Two reports side by side: paired over common items, refused where they did not ask the same."""

import json
from dataclasses import replace

import pytest
from made_outcomes import contender, scored

from unmask.errors import CheckpointError, DataError
from unmask.evaluate.compare import _settings, compare
from unmask.evaluate.report import write

AR, THRESHOLD = contender("ar"), contender("threshold")
BEFORE, AFTER = [1.0] * 30 + [0.0] * 70, [1.0] * 45 + [0.0] * 55


def reports(tmp_path, first, second, settings=({}, {})):
    for name, outcomes, asked in zip("ab", (first, second), settings, strict=True):
        write(outcomes, {}, asked, {"versions": {"torch": name}, "machine": {"cores": 2}}, tmp_path / name)
    return tmp_path / "a", tmp_path / "b"


def test_the_paired_difference_of_every_common_contender(tmp_path):
    first = [scored(AR, BEFORE), scored(THRESHOLD, BEFORE, tpf=2, rate=40)]
    second = [scored(AR, BEFORE), scored(THRESHOLD, AFTER, tpf=4, rate=80)]
    report = compare(*reports(tmp_path, first, second, ({"seed": 1}, {"seed": 2})), tmp_path / "out")
    rows = {row[0]: row for row in report.sections[1].rows}
    assert rows["threshold"][1].startswith("30.0 [") and rows["threshold"][2].startswith("45.0 [")
    assert rows["threshold"][3].startswith("+15.0 [") and rows["threshold"][4:] == (2.0, 4.0, 40.0, 80.0, 100)
    assert rows["ar"][3].startswith("+0.0 [")
    figures = json.loads((tmp_path / "out" / "report.json").read_text())["figures"]
    assert figures["gsm8k_threshold_difference"] == pytest.approx(15) == figures["all_threshold_difference"]
    assert figures["gsm8k_threshold_difference_low"] > 5
    settings = next(s for s in report.sections if s.title == "Settings that differ")
    assert settings.rows == [("settings: seed", "1", "2"), ("made_with: versions.torch", "a", "b")]


def test_a_setting_that_two_parts_hold_is_told_once():
    sides = [{"settings": {"dtype": d}, "made_with": {"model": {"dtype": d, "sha256": d}}} for d in ("int8", "fp32")]
    rows = _settings(*sides).rows
    assert rows == [("settings: dtype", "int8", "fp32"), ("made_with: model.sha256", "int8", "fp32")]


def test_only_common_items_are_compared_and_the_rest_is_named(tmp_path):
    first = [scored(AR, BEFORE), scored(AR, BEFORE, "ifeval")]
    second = [scored(AR, BEFORE[:40]), scored(THRESHOLD, BEFORE[:40])]
    report = compare(*reports(tmp_path, first, second))
    assert report.sections[1].rows[0][-1] == 40
    left = next(s for s in report.sections if s.title == "Not compared")
    assert left.rows == [
        ("gsm8k, model-ar", "A", 60),
        ("ifeval, model-ar", "A", 100),
        ("gsm8k, model-threshold", "B", 40),
    ]


def test_contenders_without_a_name_in_common_belong_together_by_role_and_mode(tmp_path):
    other = replace(AR, name="another model's ar")
    report = compare(*reports(tmp_path, [scored(AR, BEFORE)], [scored(other, AFTER)]))
    assert report.figures["gsm8k_ar_difference"] == pytest.approx(15)


def asked_otherwise(outcome, **changes):
    return replace(outcome, items=[*outcome.items[:3], replace(outcome.items[3], **changes), *outcome.items[4:]])


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (scored(AR, BEFORE, "ifeval"), "no task in common: .*a has gsm8k; .*b has ifeval"),
        (scored(THRESHOLD, BEFORE), "no contender in common: .*a has model-ar; .*b has model-threshold"),
        (
            asked_otherwise(scored(AR, BEFORE), prompt="Q"),
            r"task gsm8k, model-ar, item 3: prompt or target differ \(sha256",
        ),
        (asked_otherwise(scored(AR, BEFORE), target="T"), "item 3: prompt or target differ"),
        (replace(scored(AR, BEFORE), metric="f1"), "scores generation by exact_match, .* generation by f1"),
    ],
)
def test_what_did_not_ask_the_same_is_refused_in_one_line(tmp_path, second, error):
    with pytest.raises(DataError, match=error) as refused:
        compare(*reports(tmp_path, [scored(AR, BEFORE)], [second]))
    assert "\n" not in str(refused.value)


def test_no_item_in_common_is_refused(tmp_path):
    whole = scored(AR, BEFORE)
    first, second = replace(whole, items=whole.items[:50]), replace(whole, items=whole.items[50:])
    with pytest.raises(DataError, match="no item in common"):
        compare(*reports(tmp_path, [first], [second]))


def test_a_directory_that_is_no_report_is_refused(tmp_path):
    a, _ = reports(tmp_path, [scored(AR, BEFORE)], [scored(AR, BEFORE)])
    with pytest.raises(DataError, match="nowhere: no report of unmask evaluate"):
        compare(a, tmp_path / "nowhere")


def test_a_comparison_overwrites_no_run_and_nothing_else(tmp_path):
    a, b = reports(tmp_path, [scored(AR, BEFORE)], [scored(AR, AFTER)])
    before = {file: file.read_bytes() for each in (a, b) for file in each.iterdir()}
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "about.json").write_text("{}")
    other = tmp_path / "other"
    other.mkdir()
    (other / "report.json").write_text('{"settings": {"model": "demo"}}')  # a benchmark's
    for out in (a, b, tmp_path / "begun", other, tmp_path / "b" / ".." / "a"):
        with pytest.raises(CheckpointError, match="holds something else than a comparison; give a new directory"):
            compare(a, b, out)
    assert before == {file: file.read_bytes() for each in (a, b) for file in each.iterdir()}
    for _ in range(2):  # one comparison takes the place of another
        compare(a, b, tmp_path / "out")


def test_a_comparison_names_the_machines(tmp_path):
    a, b = reports(tmp_path, [scored(AR, BEFORE)], [scored(AR, AFTER)])
    compare(a, b, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert content["machine"] == {"A": {"cores": 2}, "B": {"cores": 2}}
    assert content["settings"] == {"A": str(a), "B": str(b)}
    assert "A.cores 2, B.cores 2" in (tmp_path / "out" / "report.md").read_text()


def test_a_report_beside_itself_differs_in_nothing(tmp_path):
    a, _ = reports(tmp_path, [scored(AR, BEFORE)], [scored(AR, BEFORE)])
    report = compare(a, a)
    assert report.figures["gsm8k_ar_difference"] == 0
    assert report.sections[-1].about.startswith("None: ")
