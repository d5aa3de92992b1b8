"""The program that measures modes on prompts of several kinds."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "held_out.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def row(kind, number, way, tokens, forwards, seconds, checks=0, cut=False):
    shared = {"kind": kind, "number": number, "way": way, "cut": cut}
    return shared | {"tokens": tokens, "forwards": forwards, "checks": checks, "batch_seconds": seconds}


def test_the_table_says_what_the_answers_say(script):
    rows = [
        row("math", 0, "ar", [1, 2, 3, 4], 4, 2.0),
        row("math", 1, "ar", [1, 1, 1, 1, 1, 1], 6, 0.0, cut=True),
        row("math", 0, "verified,drafts=plain", [1, 2, 3, 4], 3, 1.0, checks=1),
        row("math", 1, "verified,drafts=plain", [1, 1, 1, 1, 1, 1], 5, 0.0, checks=2, cut=True),
        row("math", 0, "threshold,threshold=0.9", [1, 2, 9, 4], 2, 1.0),
        row("math", 1, "threshold,threshold=0.9", [1, 1], 2, 0.0),
    ]
    lines = [line.split(" | ") for line in script["table"](rows)]
    ar, verified, threshold = lines[2:]
    assert ar[1:] == ["ar", "2", "1.00", "", "1.00", "100%", "5", "50.0%", "5", "50% |"]
    assert verified[3:8] == ["1.25", "3.33", "2.00", "100%", "5"]
    assert threshold[3:] == ["1.50", "", "1.20", "0%", "2", "0.0%", "3", "0% |"]


def test_ways_are_modes_with_settings(script):
    found = script["decoding_of"]("threshold,threshold=0.9,schedule=fused,sub_block_cache=false")
    assert found == {"mode": "threshold", "threshold": 0.9, "schedule": "fused", "sub_block_cache": False}


def test_a_run_is_gone_on_with_and_answers_of_rows_are_left_out(tmp_path, monkeypatch, capsys):
    prompts, out = tmp_path / "talk.jsonl", tmp_path / "out"
    rows = [{"prompt": "Say\u2028hi.", "kind": "math"}]  # a separator of lines in Unicode, not in JSONL
    turns = [{"role": "user", "content": "What is 2 and 2?"}, {"role": "assistant", "content": "4"}]
    prompts.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in [*rows, {"messages": turns}]))
    script = runpy.run_path(str(SCRIPT))
    assert script["prompts_of"]([prompts], None) == {"math": ["Say\u2028hi."], "talk": [turns[:1]]}
    arguments = ["--prompts", prompts, "--out", out, "--max-new-tokens", 4, "--way", "ar", "--way", "threshold"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    script["main"]()
    written = (out / "answers.jsonl").read_text()
    assert len(written.splitlines()) == 4 and capsys.readouterr().out.endswith((out / "table.md").read_text() + "")
    script["main"]()
    assert (out / "answers.jsonl").read_text() == written
