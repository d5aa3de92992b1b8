"""The benchmark on a tiny model: every section, figure and file; what it measures is not what is tested."""

import json
import re

import pytest
from tiny import MASK, byte_tokenizer, tiny_model

import unmask
from unmask import cli, limits
from unmask.bench import clock, footprint, run
from unmask.bench.answers import answered, compared, equal_texts, prompts_of, rate, ratio
from unmask.bench.run import faster_peer
from unmask.bench.sections import modes_figures
from unmask.bench.settings import WORKLOADS, Bench
from unmask.config import BlockSpec
from unmask.errors import ConfigError, RequestError, UnmaskError
from unmask.limits import Limits
from unmask.model.checkpoint import save_full


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "causal"
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal")
    save_full(tiny_model(max_position_embeddings=2048), byte_tokenizer(), spec, folder)
    return folder


def test_every_section_and_figure(causal, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(run, "LONG", 4)
    monkeypatch.setattr(footprint, "first_token", lambda ref, dtype: 1.0)
    monkeypatch.setattr(footprint, "memory", lambda ref, dtype: {"peak": 3.0, "minimum": 2.0})
    words = ["bench", "--model", str(causal), "--out", str(tmp_path / "out"), "--rounds", "1", "--batch", "1,16"]
    words += ["--max-new-tokens", "4", "--context", "16,64", "--positions", "1,8,32", "--prefix", "16"]
    words += ["--thresholds", "0.5,0.9"]
    assert cli.main(words) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    figures = report["figures"]
    expected = {f"forward_{n}_vs_{what}" for n in (1, 8, 32) for what in ("transformers", "limit")}
    expected |= {f"{mode}_vs_ar_batch{n}" for mode in ("ar", "threshold", "verified") for n in (1, 16)}
    expected |= {f"{mode}_vs_ar_{name}" for mode in ("threshold", "verified") for name in WORKLOADS}
    expected |= {f"{mode}_tokens_per_forward_{name}" for mode in ("threshold", "verified") for name in WORKLOADS}
    expected |= {f"verified_tokens_per_pair_{name}" for name in WORKLOADS}
    expected |= {"verified_plain_vs_ar_batch1", "verified_vs_ar_unguessable", "check_6_cost", "draft_6_cost"}
    expected |= {f"acceptance_{name}_slot1" for name in WORKLOADS}
    expected |= {"ar_vs_transformers_batch1", "ar_batch16_vs_batch1", "memory_vs_minimum", "first_token_seconds"}
    expected |= {f"{mode}_forward_cost_batch{n}" for mode in ("threshold", "verified") for n in (1, 16)}
    expected |= {f"threshold_{t}_{s}_vs_ar_batch1" for t in (0.5, 0.9) for s in ("reference", "fused")}
    expected |= {f"memory_vs_minimum_{kind}" for kind in ("fp32", "bf16", "int8")}
    expected |= {"int8_vs_bf16", "int8_loss", "bf16_loss", "fp32_loss"}
    expected |= {"bandwidth", "peak_fp32", "context_ms_per_1000", "verified_native_vs_universal"}
    assert expected <= set(figures) and all(
        value > 0 for name, value in figures.items() if "context" not in name and "acceptance" not in name
    )
    assert figures["memory_vs_minimum"] == 1.5 and figures["ar_vs_ar_batch16"] == 1.0
    assert {"processor", "threads", "torch"} <= set(report["machine"])
    assert report["settings"]["batch"] == "1,16" and report["finished"] is True
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 9 and page.count("<table") == 11 and "http://www.w3.org" in page
    assert "src=" not in page and "<link" not in page and "<script" not in page
    assert "| positions | unmask ms |" in (tmp_path / "out" / "report.md").read_text()
    assert "wrote" in capsys.readouterr().out
    measured = unmask.load(causal).measured
    assert measured.rates["verified"].keys() == measured.rates["threshold 0.5"].keys() == {1, 16}
    assert measured.costs.clean[0][0] == 1 and measured.costs.draft[0][0] == 2


@pytest.mark.parametrize(
    "words, said",
    [
        (["--batch", "1,zero"], "batch is '1,zero'; allowed: whole numbers above 0"),
        (["--workload", "maths"], "workload is 'maths'; allowed: math, code, chat, essay"),
        (["--modes", ""], "modes is ''; allowed: ar, threshold, verified"),
        (["--against", "llama.cpp"], "llama.cpp, which needs the same model as a file: --gguf FILE"),
        (["--thresholds", "0.5,2"], "thresholds is '0.5,2'; allowed: numbers above 0 and up to 1, with commas"),
        (["--thresholds", "x"], "thresholds is 'x'; allowed: numbers above 0"),
        (["--rounds", "0"], "--rounds is 0; allowed: at least 1"),
    ],
)
def test_bad_settings_are_one_line(words, said, tmp_path, capsys):
    assert cli.main(["bench", "--out", str(tmp_path), *words]) == 2
    assert said in capsys.readouterr().err


def test_lists_are_sorted_and_each_named_once():
    assert Bench(batch="16, 1,4,4").numbers("batch") == [1, 4, 16]
    assert Bench(modes="verified,ar,verified").names("modes") == ["verified", "ar"]
    with pytest.raises(ConfigError):
        Bench(context="-1")


def test_every_workload_has_prompts():
    assert {name: len(prompts_of(name)) for name in WORKLOADS} == dict.fromkeys(WORKLOADS, 8)


def test_rates_and_ratios_are_of_totals():
    rows = [
        {"mode": "ar", "batch": 1, "tokens": 10, "seconds": 1.0, "forwards": 10},
        {"mode": "ar", "batch": 1, "tokens": 20, "seconds": 4.0, "forwards": 10},
        {"mode": "ar", "batch": 4, "tokens": 99, "seconds": 1.0, "forwards": 10},
    ]
    assert rate(rows, mode="ar", batch=1) == 6.0
    assert ratio(rows, "tokens", "forwards", batch=1) == 1.5
    assert rate(rows, mode="verified") is None and ratio(rows, "tokens", "forwards", mode="verified") is None


def test_the_cost_of_a_forward_is_its_time_for_each_row_over_that_of_mode_ar():
    """ar: 10 tokens/s, 1 token a forward, so 0.1 s each. threshold: 15 tokens/s, 3 tokens a forward, so 0.2 s."""
    rows = [
        {"mode": "ar", "batch": 1, "tokens": 10, "seconds": 1.0, "forwards": 10},
        {"mode": "threshold", "batch": 1, "tokens": 30, "seconds": 2.0, "forwards": 10},
        {"mode": "threshold", "batch": 4, "tokens": 30, "seconds": 2.0, "forwards": 10},
    ]
    assert compared(rows, mode="threshold", batch=1) == (15.0, 1.5, 3.0, 2.0)
    assert compared(rows, mode="threshold", batch=4) == (15.0, None, 3.0, None)


def test_ar_wins_from_the_first_batch_size_at_which_the_mode_is_slower():
    rows = [
        {"mode": mode, "workload": "math", "batch": batch, "tokens": rate, "seconds": 1.0, "forwards": 10, "checks": 0}
        for mode, rates in {"ar": (10, 30, 80), "threshold": (15, 29, 40)}.items()
        for batch, rate in zip((1, 4, 16), rates, strict=True)
    ]
    figures = modes_figures(rows, ["ar", "threshold"], [1, 4, 16])
    assert figures["ar_wins_over_threshold_from_batch"] == 4 and "ar_wins_over_ar_from_batch" not in figures
    assert figures["threshold_vs_ar_batch16"] == 0.5 and figures["ar_batch16_vs_batch1"] == 8


def test_texts_are_compared_with_the_same_answers_under_other_settings():
    ar = {"mode": "ar", "batch": 1, "texts": [[1], [2]]}
    plain = {"mode": "threshold", "batch": 1, "threshold": 0.5, "schedule": "plain", "texts": [[1], [3]]}
    fused = {**plain, "schedule": "fused", "texts": [[4], [3]]}
    rows = [ar, plain, fused]
    assert equal_texts(fused, rows, schedule="plain") == 0.5 and equal_texts(fused, rows, mode="ar") == 0.0
    assert equal_texts(plain, rows, mode="ar") == 0.5 and equal_texts({**fused, "batch": 4}, rows, mode="ar") is None


def test_the_limit_of_a_forward_is_the_larger_of_its_two():
    limits = Limits(bandwidth=10.0, peak_fp32=100.0, peak_bf16=50.0)
    assert limits.of_forward(20, 100) == 2.0
    assert limits.of_forward(20, 1000) == 10.0


def test_candidates_take_turns_after_each_has_run_once(monkeypatch):
    order, now = [], iter(range(100))
    monkeypatch.setattr(limits.time, "perf_counter", lambda: next(now))
    times = clock.in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3 and times == {"a": 1, "b": 1}


def test_memory_and_start_are_those_of_real_processes(causal):
    held = footprint.memory(str(causal), "fp32")
    assert 0 < held["minimum"] < 2e6 and held["peak"] < 200e6
    assert 0.2 < footprint.first_token(str(causal), None) < 60


def test_a_command_that_fails_has_no_start(tmp_path):
    with pytest.raises(UnmaskError, match=r"first token could not be timed: .*no-such"):
        footprint.first_token(str(tmp_path / "no-such"), None)
    with pytest.raises(UnmaskError, match="a measuring process failed"):
        footprint.memory(str(tmp_path / "no-such"), None)


def test_a_model_without_words_is_refused_before_anything_is_measured(tmp_path, capsys):
    save_full(tiny_model(), None, BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK), tmp_path / "mute")
    assert cli.main(["bench", "--model", str(tmp_path / "mute"), "--out", str(tmp_path / "out")]) == 2
    assert "has no tokenizer" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prefix", "5000"], "prefix 5000 and positions 1,8,32,128 reach 5128; .* has 2048"),
        (["--positions", "9000"], "reach 9512"),
        (["--max-new-tokens", "1500"], "max_new_tokens is 1500; allowed: up to 1024"),
        (["--against", "llama.cpp", "--gguf", "no-such.gguf"], "llama.cpp"),
    ],
)
def test_what_cannot_be_measured_is_said_first(causal, tmp_path, words, said, capsys):
    assert cli.main(["bench", "--model", str(causal), "--out", str(tmp_path / "out"), *words]) == 2
    assert re.search(said, capsys.readouterr().err) and not (tmp_path / "out").exists()


def test_a_plain_model_has_no_other_mode(tmp_path, capsys):
    tiny_model().save_pretrained(tmp_path / "plain")
    byte_tokenizer().save_pretrained(tmp_path / "plain")
    words = ["bench", "--model", str(tmp_path / "plain"), "--out", str(tmp_path / "out"), "--modes", "verified"]
    assert cli.main(words) == 2 and "of which" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_to_is_known_first(causal, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["bench", "--model", str(causal), "--out", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: cannot write ") and "file/report.json" in said and "--resume" not in said


def test_a_prompt_without_an_answer_ends_the_measurement(causal):
    with pytest.raises(RequestError, match="cannot be answered: .*2048"):
        answered(unmask.load(causal), [[1] * 3000], max_new_tokens=4)


def test_transformers_runs_in_the_type_that_is_faster_here(causal):
    assert faster_peer(str(causal), "fp32").kind == "float32"
    assert faster_peer(str(causal), "bf16").kind in ("bfloat16", "float32")


def test_memory_counts_from_where_it_is_restarted():
    import torch

    before = footprint.peak(restart=True)
    held = torch.ones(50_000_000)
    grown = footprint.peak() - before
    assert 0.8 * held.nbytes < grown < 1.5 * held.nbytes
