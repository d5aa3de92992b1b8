"""The demo on a tiny model: every promised figure, and equality where it is promised."""

import json
import re
from pathlib import Path

import pytest
from training import chat, recipe, save_base, save_rows

from unmask import demo
from unmask.adapt import adapt
from unmask.cli import main as cli

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    base = save_base(folder / "base")
    rows = save_rows(folder / "rows.jsonl", [chat("why", "because of that")] * 4)
    settings = recipe(base, rows, folder / "run", method="low-rank", context="causal", adapter_scope="draft", steps=1)
    assert len(list(adapt(settings))) == 1
    return folder / "run" / "model"


@pytest.fixture(scope="module")
def report(adapter, tmp_path_factory):
    said, file = [], tmp_path_factory.mktemp("report") / "new" / "demo.json"
    assert demo.main(file, limit=6, thresholds=(0.9, 0.5), model=str(adapter), say=said.append) == 0
    return json.loads(file.read_text()), "\n".join(said)


def test_figures_are_the_documented_ones(report):
    documented = set(re.findall(r"`([a-z0-9_{}]+)`", (ROOT / "docs/demo.md").read_text().split("## Figures")[1]))
    modes, kinds = ("ar", "verified", "threshold", "threshold_0.5"), ("chat", "math", "code")
    expected = {
        name.replace("{mode}", mode).replace("{kind}", kind)
        for name in documented - {"{mode}", "ar", "verified", "threshold", "threshold_{x}", "generate"}
        for mode in modes
        for kind in kinds
    }
    assert set(report[0]["figures"]) == expected


def test_verified_text_is_ar_text_and_ar_text_is_that_of_transformers(report):
    figures = report[0]["figures"]
    assert figures["verified_texts_equal_to_ar"] == figures["prompts"] == 24
    assert figures["ar_texts_equal_to_transformers"] == figures["transformers_prompts"] == 3
    assert figures["ar_vs_ar"] == 1.0


def test_the_figures_are_those_of_the_answers(report):
    figures, answers = report[0]["figures"], report[0]["answers"]
    tokens = sum(a["verified"]["completion_tokens"] for a in answers)
    assert figures["verified_tokens_per_forward"] == tokens / sum(a["verified"]["forwards"] for a in answers)
    assert figures["verified_tokens_per_second"] == tokens / sum(a["verified"]["seconds"] for a in answers)
    assert all(len(a["ar"]["token_ids"]) == a["ar"]["completion_tokens"] <= 6 for a in answers)


def test_every_answer_and_mode_is_printed(report):
    said = report[1]
    assert all(a["prompt"] in said for a in report[0]["answers"])
    assert re.search(r"^verified +\d+ +\d+ +[\d.]+ +[\d.]+ +[\d.]+x +24/24 ", said, re.MULTILINE)


def test_repeated_4grams_counts_second_occurrences_within_a_text():
    assert demo.repeated_4grams([[1, 2, 3, 4, 1, 2, 3, 4]]) == pytest.approx(1 / 5)
    assert demo.repeated_4grams([[1, 2, 3, 4], [1, 2, 3, 4]]) == 0.0
    assert demo.repeated_4grams([[1, 2]]) == 0.0


def test_bad_flags_are_told_before_anything_is_loaded(capsys):
    assert cli(["demo", "--threshold", "1.7"]) == 2
    assert cli(["demo", "--max-new-tokens", "0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: threshold is 1.7; allowed: from 0 to 1") and "at least 1" in lines[1]
