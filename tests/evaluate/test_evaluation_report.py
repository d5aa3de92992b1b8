"""The report of an evaluation on made outcomes: its figures against plain arithmetic, its files, its page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_outcomes import SKIPPED, contender, everything, scored

from unmask.errors import CheckpointError, DataError
from unmask.evaluate import paper
from unmask.evaluate.outcomes import Contender, Item, Outcome
from unmask.evaluate.records import read_items, write_items
from unmask.evaluate.report import build, rebuilt, write
from unmask.evaluate.samples import SAMPLES, disagreement, marked
from unmask.evaluate.tables import prefixes

MADE_WITH = {"versions": {"torch": "2"}, "weights": {"demo": "ab"}, "seeds": {"bootstrap": 0}, "machine": {"cores": 2}}


@pytest.fixture(scope="module")
def outcomes():
    return everything()


@pytest.fixture(scope="module")
def out(outcomes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation") / "out"
    write(outcomes, SKIPPED, {"model": "demo", "limit": 150}, MADE_WITH, folder)
    return folder


@pytest.fixture(scope="module")
def content(out):
    return json.loads((out / "report.json").read_text())


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def test_every_task_and_mode_has_the_figures_of_the_contract(content, outcomes):
    figures = content["figures"]
    for task in ("gsm8k", "humaneval", "ifeval"):
        for mode in ("ar", "threshold", "verified"):
            assert {f"{task}_{mode}_{what}" for what in ("score", "tokens_per_forward", "tokens_per_second")} <= set(
                figures
            )
    assert "mmlu_ar_score" in figures and "mmlu_ar_tokens_per_second" not in figures
    assert all(isinstance(value, float | int) for value in figures.values())


def test_figures_are_what_plain_arithmetic_gives(content, outcomes):
    figures = content["figures"]
    by = {(o.contender.name, o.task): o for o in outcomes}
    ours, ar, base = (by[name, "gsm8k"] for name in ("model-threshold", "model-ar", "base-ar"))
    assert figures["gsm8k_threshold_score"] == pytest.approx(mean(i.score for i in ours.items))
    assert figures["base_gsm8k_ar_score"] == pytest.approx(mean(i.score for i in base.items))
    assert figures["gsm8k_threshold_vs_ar"] == pytest.approx(
        100 * mean(a.score - b.score for a, b in zip(ours.items, ar.items, strict=True))
    )
    assert figures["gsm8k_threshold_vs_base"] == pytest.approx(100 * (ours.score - base.score))
    assert figures["gsm8k_threshold_cut"] == pytest.approx(mean(i.finish_reason == "length" for i in ours.items))
    assert figures["gsm8k_threshold_repeated"] == pytest.approx(mean(i.repeated for i in ours.items))
    assert figures["gsm8k_threshold_length"] == pytest.approx(mean(i.tokens for i in ours.items))
    assert figures["gsm8k_threshold_forwards"] == pytest.approx(mean(i.forwards for i in ours.items))
    assert figures["gsm8k_threshold_errors"] == 0
    tokens = sum(i.tokens for i in ours.items)
    assert figures["gsm8k_threshold_tokens_per_forward"] == pytest.approx(tokens / sum(i.forwards for i in ours.items))
    assert figures["gsm8k_threshold_tokens_per_second"] == pytest.approx(tokens / ours.wall)
    every = [by["model-threshold", task] for task in ("gsm8k", "humaneval", "ifeval")]
    assert figures["all_threshold_score"] == pytest.approx(mean(i.score for o in every for i in o.items))
    assert figures["all_threshold_mean"] == pytest.approx(mean(o.score for o in every))
    assert figures["all_threshold_times_ar"] == pytest.approx(84 / 48, rel=0.01)
    assert figures["sweep_threshold_0.5_gsm8k_threshold_score"] < figures["sweep_threshold_1.0_gsm8k_threshold_score"]
    assert 1 < figures["gsm8k_threshold_area"] < 4.8 and figures["humaneval_verified_area"] == pytest.approx(
        1.98, abs=0.03
    )


def test_report_json_says_how_it_was_made(content):
    assert content["settings"] == {"model": "demo", "limit": 150} and content["machine"] == {"cores": 2}
    assert content["made_with"]["weights"] == {"demo": "ab"} and content["skipped"] == SKIPPED
    assert content["finished"] is True


def test_everything_can_be_computed_again_from_the_items(out, content, outcomes):
    assert read_items(out / "items.jsonl") == outcomes
    again = rebuilt(out)
    assert again.figures == content["figures"] and again.machine == {"cores": 2}
    assert json.loads(json.dumps([s.rows for s in again.sections])) == [s["rows"] for s in content["sections"]]


def test_items_of_every_kind_come_back_as_they_were(tmp_path):
    who = Contender(
        "ä b", "demo", "threshold", "plain", {"threshold": 0.5, "stop": "\n"}, 4, {"sub_block_cache": False}
    )
    item = Item(7, 'a "quoted"\n\u2028line', "", "<b>", 0.25, {"f1": 0.1}, 3, 2, 0.5, "error", 0.125, 0.25, "why")
    made = [Outcome(who, "t", "generation", "f1", [item], 1.5, cut=2), Outcome(who, "u", "likelihood", "acc", [], 0.0)]
    write_items(made, tmp_path / "new" / "items.jsonl")
    assert read_items(tmp_path / "new" / "items.jsonl") == made


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda text: text[:-5], r"line 4: not JSON"),
        (lambda text: "\n".join(text.split("\n")[:3]) + "\n", r"line 3: items are missing at the end"),
        (lambda text: text.replace('"prompt"', '"asked"', 1), r"line 2: not a record of unmask evaluate"),
        (lambda text: "[1]\n", r"line 1: not a JSON object"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, damage, error):
    file = tmp_path / "items.jsonl"
    write_items([scored(contender("ar"), [1.0, 0.0, 1.0])], file)
    file.write_text(damage(file.read_text()))
    with pytest.raises(DataError, match=error):
        read_items(file)


def test_a_directory_without_a_report_is_one_line(tmp_path):
    with pytest.raises(DataError, match="no report of unmask evaluate"):
        rebuilt(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot write"):
        write([scored(contender("ar"), [1.0])], {}, {}, {}, tmp_path / "file")


class Page(HTMLParser):
    """Counts elements and checks that they are closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.count, self.addresses = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        self.addresses += [value for name, value in attrs if name in ("src", "href", "data")]
        if tag not in ("meta", "br", "path", "use", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        if tag in ("path", "use", "rect"):
            return
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(out):
    return (out / "report.html").read_text()


def test_the_page_is_one_file_that_needs_no_network(page):
    parsed = Page()
    parsed.feed(page)
    assert (
        parsed.open == [] and parsed.count["script"] == 1 and "link" not in parsed.count and "img" not in parsed.count
    )
    assert all(address.startswith("#") for address in parsed.addresses)
    assert not re.search(r"url\((?!#)|@import|fetch\(", page)
    assert parsed.count["svg"] == page.count('role="img" aria-label=') == 14
    assert "prefers-color-scheme:dark" in page and "width=device-width" in page


def test_sections_of_the_paper_are_there_with_its_numbers(content, out):
    titles = [section["title"] for section in content["sections"]]
    for shape in ("Table 1", "Table 3", "Table 4", "Figure 1", "Figure 4", "Figure 5", "Figure 6"):
        assert sum(f"({shape})" in title or f"{shape})" in title for title in titles) == 1, shape
    sections = {section["title"]: section for section in content["sections"]}
    table = sections["Sub-block size (Table 3)"]
    assert table["columns"] == ["sub block size", "2", "4", "8", "16", "32"]
    assert ["GSM8K, score %, 1.5B (paper)", "62.8", "61.8", "62", "61.3", "60.2"] in table["rows"]
    table = sections["Threshold (Figure 4)"]
    assert ["GSM8K, tokens/s, 7B, A100 (paper)", None, None, None, "101.7", "39.1"] in table["rows"]
    rows = {row[0]: row for row in sections["Scores by task (the paper's Table 1)"]["rows"]}
    assert rows["Fast-dLLM v2 1.5B (paper)"][1:5] == ["62.0", "43.9", "47.0", "55.1"]
    assert list(SKIPPED.items()) == [tuple(row) for row in sections["Skipped"]["rows"]]
    assert "| mbpp_plus | its tests are fetched" in (out / "report.md").read_text()


def test_the_papers_table_1_has_its_own_means():
    means = {name: mean(values) for name, values in paper.TABLE1.items()}
    assert means["Fast-dLLM v2 1.5B"] == pytest.approx(45.0, abs=0.06)
    assert means["Fast-dLLM v2 7B"] == pytest.approx(60.3, abs=0.06)
    assert means["Qwen2.5-7B-Nemo-FT"] == pytest.approx(59.6, abs=0.06)


@pytest.mark.parametrize(
    ("task", "column"),
    [
        ("gsm8k_cot", "GSM8K"),
        ("humaneval+", "HumanEval+"),
        ("humaneval_plus", "HumanEval+"),
        ("humaneval_instruct", "HumanEval"),
        ("minerva_math500", None),
        ("minerva_math_algebra", "MATH"),
        ("gpqa_main_n_shot", "GPQA"),
        ("my_gsm8k", None),
        ("mathematics", None),
    ],
)
def test_tasks_by_the_papers_columns(task, column):
    assert paper.column(task) == column


def test_answers_side_by_side_come_with_their_differences(page, outcomes):
    start = page.index('<details data-task="gsm8k">')
    part = page[start : page.index('<details data-task="humaneval">')]
    assert part.count('class="item"') == SAMPLES
    numbers = [int(number) for number in re.findall(r"item (\d+)</div>", part)]
    by = {o.contender.name: o.items for o in outcomes if o.task == "gsm8k" and not o.contender.swept}
    rows = [disagreement([by[f"model-{mode}"][n] for mode in ("ar", "threshold", "verified")]) for n in numbers]
    assert rows == sorted(rows, reverse=True) and rows[0] == 2
    assert "<mark>" in part and "&lt;b&gt;" in part and "<b>4</b>" not in page
    assert "<i>the same text as mode ar</i>" in part
    assert 'data-task="mmlu"' not in page  # likelihood has no answers to read


def test_marks_are_by_words_and_text_is_escaped():
    assert marked("a <b> c d", "a <i> c d") == "a <mark>&lt;i&gt;</mark> c d"
    assert marked("one two three", "one three") == "one <del>two </del>three"
    assert marked("one", "one two") == "one<mark> two</mark>"
    assert marked("same", "same") == "same"


def test_errors_are_counted_and_leave_speed_alone():
    good = scored(contender("ar"), [1.0, 1.0])
    failed = Item(2, "q", "", "t", 0.0, finish_reason="error")
    found = build(
        [Outcome(good.contender, "t", "generation", "m", [*good.items, failed], good.wall)], {}, {}, {}
    ).figures
    assert found["t_ar_errors"] == 1 and found["t_ar_forwards"] == 20 and found["t_ar_latency_p50"] == 0.4
    assert found["t_ar_score"] == pytest.approx(2 / 3)


def test_what_went_wrong_is_told_with_its_reason():
    good = scored(contender("ar"), [1.0, 1.0])
    failed = [Item(n, "q", "", "t", 0.0, finish_reason="error", error=why) for n, why in ((2, "no room"), (3, "x"))]
    report = build([replace(good, items=[*good.items, *failed], cut=5)], {}, {}, {})
    table = next(section for section in report.sections if section.title == "Task gsm8k")
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["errors"], row["prompts cut"], row["items"]) == ("2: no room", 5, 4)
    assert (report.figures["gsm8k_ar_errors"], report.figures["gsm8k_ar_prompts_cut"]) == (2, 5)


def test_a_likelihood_comes_with_its_standard_error():
    items = [Item(n, "q", "A", "A", 1.0, standard_error=error) for n, error in enumerate((0.1, 0.3, None))]
    report = build([Outcome(contender("threshold"), "mmlu", "likelihood", "acc", items, 1.0, cut=1)], {}, {}, {})
    table = next(section for section in report.sections if section.title == "Task mmlu")
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["standard error"] == pytest.approx(0.2) and row["prompts cut"] == 1 and row["errors"] is None
    assert report.figures["mmlu_threshold_standard_error"] == pytest.approx(0.2)
    assert "mmlu_threshold_tokens_per_second" not in report.figures


def test_reports_of_little_are_reports(tmp_path):
    assert build([], {"t": "no data"}, {}, {}).sections[0].rows == [("t", "no data")]
    only = Outcome(contender("ar"), "mmlu", "likelihood", "acc", [Item(0, "q", "A", "A", 1.0)], 1.0)
    assert build([only], {}, {}, {}).figures["mmlu_ar_score"] == 1.0
    lone = write([scored(contender("threshold"), [1.0])], {}, {}, {}, tmp_path, finished=False)
    assert "gsm8k_threshold_vs_ar" not in lone.figures and "unfinished" in (tmp_path / "report.md").read_text()


def test_contenders_that_share_a_mode_have_their_own_prefix():
    first, second = contender("threshold"), Contender("at 0.7/x", "m", "threshold", decoding={"threshold": 0.7})
    found = prefixes([scored(first, [1.0]), scored(second, [1.0])])
    assert found == {"model-threshold": "", "at 0.7/x": "at_0.7_x_"}
