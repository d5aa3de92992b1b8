"""The benchmark on a tiny model: every section, figure and file; what it measures is not what is tested."""

import json

import pytest
from tiny import MASK, byte_tokenizer, tiny_model

from unmask import cli
from unmask.bench import clock, footprint
from unmask.bench.answers import prompts_of, rate, ratio
from unmask.bench.limits import Limits
from unmask.bench.settings import WORKLOADS, Bench
from unmask.config import BlockSpec
from unmask.errors import ConfigError
from unmask.model.checkpoint import save_full


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "causal"
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal")
    save_full(tiny_model(max_position_embeddings=2048), byte_tokenizer(), spec, folder)
    return folder


def test_every_section_and_figure(causal, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(footprint, "first_token", lambda ref, dtype: 1.0)
    monkeypatch.setattr(footprint, "memory", lambda ref, dtype: {"peak": 3.0, "minimum": 2.0})
    words = ["bench", "--model", str(causal), "--out", str(tmp_path / "out"), "--rounds", "1", "--batch", "1,16"]
    words += ["--max-new-tokens", "4", "--context", "16,64", "--positions", "1,8,32", "--prefix", "16"]
    assert cli.main(words) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    figures = report["figures"]
    expected = {f"forward_{n}_vs_{what}" for n in (1, 8, 32) for what in ("transformers", "limit")}
    expected |= {f"{mode}_vs_ar_batch{n}" for mode in ("ar", "threshold", "verified") for n in (1, 16)}
    expected |= {f"{mode}_vs_ar_{name}" for mode in ("threshold", "verified") for name in WORKLOADS}
    expected |= {f"{mode}_tokens_per_forward_{name}" for mode in ("threshold", "verified") for name in WORKLOADS}
    expected |= {f"verified_tokens_per_pair_{name}" for name in WORKLOADS}
    expected |= {"ar_vs_transformers_batch1", "ar_batch16_vs_batch1", "memory_vs_minimum", "first_token_seconds"}
    expected |= {"int8_vs_bf16", "int8_loss", "bf16_loss", "fp32_loss"}
    expected |= {"bandwidth", "peak_fp32", "context_ms_per_1000", "verified_native_vs_universal"}
    assert expected <= set(figures) and all(value > 0 for name, value in figures.items() if "context" not in name)
    assert figures["memory_vs_minimum"] == 1.5 and figures["ar_vs_ar_batch16"] == 1.0
    assert {"processor", "threads", "torch"} <= set(report["machine"])
    assert report["settings"]["batch"] == "1,16"
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 3 and page.count("<table") == 8 and "http://www.w3.org" in page
    assert "src=" not in page and "<link" not in page and "<script" not in page
    assert "| positions | unmask ms |" in (tmp_path / "out" / "report.md").read_text()
    assert "wrote" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, said",
    [
        (["--batch", "1,zero"], "batch is '1,zero'; allowed: whole numbers above 0"),
        (["--workload", "maths"], "workload is 'maths'; allowed: math, code, chat, essay"),
        (["--modes", ""], "modes is ''; allowed: ar, threshold, verified"),
        (["--against", "llama.cpp"], "llama.cpp, which needs the same model as a file: --gguf FILE"),
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


def test_the_limit_of_a_forward_is_the_larger_of_its_two():
    limits = Limits(bandwidth=10.0, peak_fp32=100.0, peak_bf16=50.0)
    assert limits.of_forward(20, 100) == 2.0
    assert limits.of_forward(20, 1000) == 10.0


def test_candidates_take_turns_after_each_has_run_once(monkeypatch):
    order, now = [], iter(range(100))
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(now))
    times = clock.in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3 and times == {"a": 1, "b": 1}


def test_memory_counts_from_where_it_is_restarted():
    import torch

    before = footprint.peak(restart=True)
    held = torch.ones(50_000_000)
    grown = footprint.peak() - before
    assert 0.8 * held.nbytes < grown < 1.5 * held.nbytes
