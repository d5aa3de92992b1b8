"""`unmask evaluate` from the command line: the cases O7, resuming, sweeps, gate and comparison, on a tiny model."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny import MASK, TURN_END, byte_tokenizer, tiny_model

import unmask
from unmask.cli import main
from unmask.config import BlockSpec
from unmask.model.checkpoint import load_checkpoint, save_full

pytest.importorskip("lm_eval")

from unmask.evaluate.asking import Asked  # noqa: E402
from unmask.evaluate.harness import UnmaskLM  # noqa: E402
from unmask.evaluate.items import items_of  # noqa: E402
from unmask.evaluate.outcomes import Contender, Outcome  # noqa: E402
from unmask.evaluate.records import read_items  # noqa: E402
from unmask.evaluate.run import APART, pooled  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of lm-eval's own imports


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("base") / "tiny"
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(TURN_END,), context="causal")
    save_full(tiny_model(), byte_tokenizer(), spec, directory)
    return directory


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "mine.jsonl"
    rows = [{"prompt": f"Say {n}", "target": "" if n % 2 else "x"} for n in range(7)]
    file.write_text("".join(json.dumps({**row, "target": row["target"] or "(?s).*"}) + "\n" for row in rows))
    return file


@pytest.fixture
def evaluate(base, questions, tmp_path, capsys):
    def call(*words: object, out: str = "out", tasks: object = None) -> tuple[int, str, str]:
        asked = ["--model", base, "--tasks", tasks or questions, "--scorer", "regex", "--max-new-tokens", 6]
        code = main([str(word) for word in ["evaluate", *asked, "--out", tmp_path / out, *words]])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def request(text: str, wanted: dict, task: str = "t", doc: int = 0) -> SimpleNamespace:
    return SimpleNamespace(args=(text, wanted), task_name=task, doc_id=doc, idx=0)


def harness(base, decoding=None, chat=False, **answers):
    """The model class with its jobs kept, and answers made up."""
    jobs: list[Asked] = []

    def ask(asked):
        jobs.extend(asked)
        return {job.number: {"text": f"answer {job.number}"} for job in asked}

    lm = UnmaskLM(
        load_checkpoint(base, lightly=True), {"mode": "ar", **(decoding or {})}, ask, positions=512, chat=chat
    )
    return lm, jobs


@pytest.mark.parametrize(
    ("until", "stop"),
    [("Question:", ("Question:",)), (["\n\n"], ("\n\n",)), ([], ()), (None, ()), (["", "</turn>"], ("</turn>",))],
)
def test_o7_01_a_stop_text_is_one_text_and_none_is_none(base, until, stop):
    lm, jobs = harness(base)
    lm.generate_until([request("hi", {"until": until})])
    assert jobs[0].decoding.stop == stop


def test_o7_02_each_request_keeps_its_own_settings_and_place(base):
    lm, jobs = harness(base)
    wanted = [{"until": ["a"], "max_gen_toks": 5}, {"until": ["b"], "max_gen_toks": 9}]
    asked = [request("x" * (7 - n), wanted[n % 2], task=f"t{n % 2}", doc=n) for n in range(6)]
    assert lm.generate_until(asked) == [f"answer {n}" for n in range(6)]
    assert [(job.decoding.stop, job.decoding.max_new_tokens) for job in jobs] == [(("a",), 5), (("b",), 9)] * 3
    assert lm.records["t1", 3, 0]["text"] == "answer 3"


def test_o7_04_limits_have_several_names_and_unknown_keys_are_told_once(base):
    lm, jobs = harness(base, {"max_new_tokens": 50})
    keys = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
    lm.generate_until([request("hi", {key: 5, "do_sample": False, "temperature": 0}) for key in keys])
    assert {(job.decoding.max_new_tokens, job.decoding.temperature) for job in jobs} == {(5, 0.0)}
    with pytest.warns(UserWarning, match="setting beam = 4 is not known") as told:
        lm.generate_until([request("hi", {"beam": 4}), request("hi", {"beam": 4})])
    assert len(told) == 1 and jobs[-1].decoding.max_new_tokens == 50  # lm-eval's 256, bounded by what was asked for


def test_a_task_that_samples_is_sampled_with_a_seed_of_each_request(base):
    lm, jobs = harness(base)
    lm.generate_until([request("hi", {"do_sample": True, "temperature": 0.7, "top_p": 0.9})] * 2)
    assert [(j.decoding.temperature, j.decoding.top_p, j.decoding.seed) for j in jobs] == [(0.7, 0.9, 0), (0.7, 0.9, 1)]


def test_o7_05_the_template_is_applied_once_and_no_token_is_put_before_it(base):
    model = unmask.load(base)
    lm, jobs = harness(base, chat=True)
    messages = [{"role": "user", "content": "hi"}]
    lm.generate_until([request(lm.apply_chat_template(messages), {})])
    assert jobs[0].ids == model.encode(messages)
    turns = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "why"}]
    lm.generate_until([request(lm.apply_chat_template(turns), {})])
    assert jobs[1].ids == model.encode(turns)
    raw, kept = harness(base)
    raw.generate_until([request("hi", {})])
    assert kept[0].ids == model.encode("hi", raw=True)


def test_a_prompt_that_is_too_long_loses_its_beginning(base):
    lm, jobs = harness(base)
    text = "".join(chr(97 + n % 26) for n in range(700))
    lm.generate_until([request(text, {"max_gen_toks": 112})])
    assert len(jobs[0].ids) == 400 and jobs[0].ids == lm.tokenizer.encode(text)[-400:]
    assert lm.records["t", 0, 0]["prompt"] == text[-400:]


def test_the_report_counts_as_answers_do(evaluate, base, questions, tmp_path):
    """O7-06: tokens, forwards and time are those of the same prompts answered by `generate`."""
    code, out, _ = evaluate("--modes", "ar,threshold")
    assert code == 0 and "In short" in out and "items.jsonl" in out
    found = {outcome.contender.mode: outcome for outcome in read_items(tmp_path / "out" / "items.jsonl")}
    prompts = [json.loads(line)["prompt"] for line in questions.read_text().splitlines()]
    model = unmask.load(base)
    for mode, outcome in found.items():
        alone = model.generate(prompts, mode=mode, max_new_tokens=6)
        assert [item.answer for item in outcome.items] == [answer.text for answer in alone]
        assert [item.tokens for item in outcome.items] == [answer.completion_tokens for answer in alone]
        assert [item.forwards for item in outcome.items] == [answer.forwards for answer in alone]
        assert [item.score for item in outcome.items] == [float(n % 2 or "x" in a.text) for n, a in enumerate(alone)]
        assert 0 < outcome.wall < 60 and {item.finish_reason for item in outcome.items} <= {"stop", "length"}
    figures = json.loads((tmp_path / "out" / "report.json").read_text())["figures"]
    assert figures["mine_ar_score"] == found["ar"].score and figures["all_ar_score"] == found["ar"].score


def test_stopped_and_resumed_is_the_report_of_an_unbroken_run(evaluate, tmp_path):
    assert evaluate("--modes", "ar,threshold")[0] == 0
    whole = tmp_path / "out"
    part = tmp_path / "part"
    assert evaluate("--modes", "ar,threshold", out="part")[0] == 0
    journals = sorted(part.rglob("answers/*/*.jsonl"))
    assert len(journals) == 2
    lines = journals[1].read_bytes().splitlines(keepends=True)
    journals[1].write_bytes(b"".join(lines[:3]) + lines[3][:10])  # as a kill leaves it
    journals[0].unlink()
    assert "holds a run; give --resume" in evaluate("--modes", "ar,threshold", out="part")[2]
    assert evaluate("--modes", "ar,threshold", "--resume", out="part")[0] == 0

    def told(directory):
        outcomes = read_items(directory / "items.jsonl")
        return [[(i.number, i.answer, i.score, i.tokens, i.forwards) for i in outcome.items] for outcome in outcomes]

    assert told(whole) == told(part)
    code, _, err = evaluate("--modes", "ar", "--resume", out="part")
    assert code == 2 and "settings.modes is 'ar'" in err
    assert "holds no run to resume" in evaluate("--resume", out="new")[2]


def untimed(directory: Path) -> tuple[dict[str, float], str]:
    """A report's figures but for times, and its text but for numbers."""
    figures = json.loads((directory / "report.json").read_text())["figures"]
    timed = re.compile("per_second|latency|times_ar")
    text = (directory / "report.md").read_text()
    return {k: v for k, v in figures.items() if not timed.search(k)}, re.sub(r"[\d.,]+|\s+", " ", text)


def test_killed_in_the_middle_and_started_again(base, questions, tmp_path):
    words = ["evaluate", "--model", base, "--tasks", questions, "--scorer", "regex", "--max-new-tokens", 40]
    words += ["--batch-size", 1, "--modes", "ar,threshold", "--out"]
    env = os.environ | {"PYTHONPATH": str(Path(unmask.__file__).parents[1])}

    def start(out):
        return subprocess.Popen([sys.executable, "-m", "unmask", *map(str, [*words, out])], env=env)

    killed = start(tmp_path / "killed")
    journals, deadline = tmp_path / "killed" / "answers", time.monotonic() + 120
    while not any(file.read_bytes().count(b"\n") > 1 for file in journals.rglob("*.jsonl")):
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    words.insert(1, "--resume")
    assert start(tmp_path / "killed").wait(timeout=180) == 0
    del words[1]
    assert start(tmp_path / "whole").wait(timeout=180) == 0
    one, two = (untimed(tmp_path / name) for name in ("killed", "whole"))
    assert one == two and one[0]["all_ar_score"] and one[1].count("|") > 50
    one, two = (read_items(tmp_path / name / "items.jsonl") for name in ("killed", "whole"))
    for a, b in zip(one, two, strict=True):
        assert [(i.answer, i.score, i.forwards) for i in a.items] == [(i.answer, i.score, i.forwards) for i in b.items]


def test_sweeps_base_and_plain_stand_beside_the_modes(evaluate, base, tmp_path):
    words = ("--base", base, "--plain", base, "--modes", "ar,threshold", "--sweep-limit", 4)
    code, out, err = evaluate(*words, "--sweep", "threshold=0.5,0.9", "--sweep", "sub_block_size=2,4 batch_size=1,2")
    assert code == 0, err
    outcomes = read_items(tmp_path / "out" / "items.jsonl")
    names = [outcome.contender.name for outcome in outcomes]
    assert names[:4] == ["ar", "threshold", "base", "plain"]
    assert {"threshold threshold=0.5", "threshold sub_block_size=2 batch_size=1", "ar batch_size=1"} <= set(names)
    by_name = {outcome.contender.name: outcome for outcome in outcomes}
    assert len(by_name["ar"].items) == 7 and len(by_name["threshold threshold=0.5"].items) == 4
    assert [i.answer for i in by_name["ar"].items] == [i.answer for i in by_name["base"].items]
    alone, batched = by_name["ar batch_size=1"], by_name["ar batch_size=2"]
    assert [i.answer for i in alone.items] == [i.answer for i in batched.items]


def test_the_gate_decides_the_exit_code_and_is_kept_with_the_model(evaluate, base, tmp_path):
    code, out, _ = evaluate("--modes", "ar,verified", "--gate", 90)
    assert code == 0 and "Gate" in (tmp_path / "out" / "report.md").read_text()  # seven equal answers prove this much
    code, out, _ = evaluate("--modes", "ar,threshold", "--gate", 1, out="strict")
    report = json.loads((tmp_path / "strict" / "report.json").read_text())
    assert code == 3 and report["figures"]["gate_held"] == 0.0
    assert {"too few items", "failed"} & {row[3] for row in gate_rows(report)}
    code, out, _ = evaluate("--modes", "ar,verified", "--gate", 1, out="same")
    report = json.loads((tmp_path / "same" / "report.json").read_text())
    assert code == 0 and report["figures"]["gate_held"] == 1.0 and report["figures"]["all_verified_vs_ar"] == 0.0


def gate_rows(report):
    return next(section["rows"] for section in report["sections"] if section["title"].startswith("Gate"))


def test_two_reports_are_compared(evaluate, tmp_path, capsys):
    assert evaluate("--modes", "ar", out="a")[0] == 0
    assert evaluate("--modes", "ar", out="b")[0] == 0
    words = ["evaluate", "--compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c"]
    assert main([str(word) for word in words]) == 0
    assert "+0.0" in capsys.readouterr().out and (tmp_path / "c" / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--modes", "fast"), "modes is 'fast'; allowed: ar, threshold, verified"),
        (
            ("--modes", "ar", "--sweep", "threshold=0.5"),
            "sweep is 'threshold=0.5', which changes nothing in ar; add a mode",
        ),
        (("--sweep", "speed=1"), "sweep is 'speed=1'; allowed: NAME=A,B with NAME one of threshold"),
        (("--sweep", "threshold=2"), "threshold is 2.0; allowed: from 0 to 1"),
        (("--sweep", "batch_size=0"), "allowed for batch_size: whole numbers above 0"),
        (("--sweep-tasks", "other"), "sweep_tasks is 'other', but other is not among the tasks"),
        (("--recommend", "best"), "--recommend is 'best'; allowed: points=NUMBER or speed=NUMBER"),
        (("--limit", "0"), "--limit is '0'; allowed: at least 1, or TASK=N with commas"),
        (("--limit", "5,6"), "--limit is '5,6'; allowed: at least 1, or TASK=N with commas"),
        (("--limit", "=6"), "--limit is '=6'; allowed: at least 1, or TASK=N with commas"),
        (("--limit", "mmlu=6"), "limit is 'mmlu=6', but mmlu is not among the tasks"),
        (("--data", "absent"), "the data directory absent does not exist"),
    ],
)
def test_bad_input_is_one_line(evaluate, words, said):
    sweep = ("--sweep", "threshold=0.5") if words[0] == "--sweep-tasks" else ()
    code, out, err = evaluate(*words, *sweep)
    assert code == 2 and said in err and err.count("\n") == 1, err


def test_an_unknown_task_is_named(evaluate):
    code, _, err = evaluate(tasks="gsm9k")
    assert code == 2 and "there is no task 'gsm9k'" in err


def test_tasks_of_a_group_become_one_with_numbers_of_their_own():
    item = items_of(
        [
            {"doc_id": n, "filter": "none", "metrics": ["acc"], "acc": float(n), "arguments": [("q", "a"), ("q", "b")]}
            | {"target": 1}
            for n in (0, 1)
        ],
        {("s", n, r): {"log_probability": -float(r + n)} for n in (0, 1) for r in (0, 1)},
        "s",
        "acc",
        "none",
    )
    assert [(i.answer, i.target, i.score) for i in item] == [("a", "b", 0.0), ("a", "b", 1.0)]
    one = Contender("ar", "m", "ar")
    parts = [Outcome(one, name, "likelihood", "acc", item, 1.0) for name in ("s", "r")]
    [whole] = pooled(parts, {"r": ("mmlu", 0), "s": ("mmlu", 7)})
    assert [i.number for i in whole.items] == [7 * APART, 7 * APART + 1, 0, 1]
    assert (whole.task, whole.wall, whole.score) == ("mmlu", 2.0, 0.5)


def documented() -> list[str]:
    page = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
    return re.findall(r"^ *unmask (evaluate .*)$", page, re.MULTILINE)


def test_the_documented_commands_run(base, questions, tmp_path, monkeypatch):
    """With the tiny model and own questions in the place of the named ones; everything else as it is written."""
    monkeypatch.chdir(tmp_path)
    assert len(documented()) >= 9 and {"points", "speed"} <= set(re.findall(r"--recommend (\w+)=", str(documented())))
    put = {"--model": base, "--base": base, "--plain": base, "--tasks": questions, "--data": tmp_path}
    for line in documented():
        words = shlex.split(line)
        given = {word for word in words if word.startswith("--")}
        out = words[words.index("--out") + 1]
        words = [str(put.get(before, word)) for before, word in zip(["", *words], words, strict=False)]
        more = [] if "--compare" in given else ["--max-new-tokens", "4"]
        more += ["--model", str(base)] if not {"--model", "--compare"} & given else []
        for name in words[2:4] if "--compare" in given else ():
            if not Path(name).exists():
                shutil.copytree("eval", name)
        if out == "DIR":  # stands for a directory of one's own
            shutil.rmtree(out, ignore_errors=True)
        assert main([*words, *more]) == (3 if "--gate" in given else 0), line  # seven items prove nothing


def test_without_a_terminal_lines_tell_the_time_left(evaluate):
    _, _, err = evaluate("--modes", "ar,threshold")
    lines = [line for line in err.splitlines() if line.startswith("[")]
    assert len(lines) == 14 and all(re.search(r", \d+ s left in all$", line) for line in lines), err
    assert lines[-1].startswith("[2/2] threshold, mine: 7/7") and lines[-1].endswith(" 0 s left in all")


def test_workers_write_the_same_answers(evaluate, tmp_path):
    pytest.importorskip("ray")
    code, _, err = evaluate("--modes", "ar,threshold")
    assert code == 0, err
    code, _, err = evaluate("--modes", "ar,threshold", "--workers", 2, out="spread")
    assert code == 0, err
    one, two = (read_items(tmp_path / name / "items.jsonl") for name in ("out", "spread"))
    assert [[(i.number, i.answer, i.score) for i in o.items] for o in one] == [
        [(i.number, i.answer, i.score) for i in o.items] for o in two
    ]


def test_the_cross_check_with_lm_eval_s_own_model(base, questions, capsys, monkeypatch):
    import runpy

    file = Path(__file__).parents[2] / "bench" / "cross_check.py"
    words = ["--model", base, "--tasks", questions, "--limit", 3, "--max-new-tokens", 5]
    monkeypatch.setattr(sys, "argv", [str(file), *map(str, words)])
    runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr().out
    assert re.search(r"mine: 3 items, ours ([\d.]+), lm-eval's \1; scores differ on none; answers differ on 0", said), (
        said
    )
