"""The demo's scripts with stand-ins for the programs that they call: what is asked of them, and what not twice."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "recipes/demo"
CALLED = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
arguments = sys.argv[1:]
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([Path(sys.argv[0]).name, *arguments]) + "\\n")
def after(name):
    return arguments[arguments.index(name) + 1]
"""
UNMASK = """
if arguments[0] == "adapt":
    if "no training" in os.environ.get("BREAK", ""):
        Path(after("--output")).mkdir()
        sys.exit(130)
    (Path(after("--output")) / "model").mkdir(parents=True)
elif arguments[0] == "demo":
    print("a table")
elif arguments[0] == "evaluate":
    out = Path(after("--out"))
    assert (out / "about.json").exists() == ("--resume" in arguments)
    out.mkdir(exist_ok=True)
    (out / "about.json").touch()
    if "no report" in os.environ.get("BREAK", ""):
        sys.exit(130)
    (out / "report.md").touch()
    sys.exit(3 if "--gate" in arguments else 0)
else:
    partial = Path(after("--out") + ".partial")
    if partial.exists() and "--resume" not in arguments:
        sys.exit(2)
    if "no text" in os.environ.get("BREAK", ""):
        partial.touch()
        sys.exit(130)
    rows = int(after("--make")) if "--make" in arguments else len(open(after("--prompts")).readlines())
    Path(after("--out")).write_text("".join(json.dumps({"row": row}) + "\\n" for row in range(rows)))
"""
PYTHON = """
if arguments[0] == "-":
    print(json.dumps({"prompt": "seen by the first run"}))
elif arguments[0].endswith("others.py"):
    Path(after("--out")).write_text(json.dumps({"prompt": "other", "kind": "code"}) + "\\n")
elif arguments[0].endswith("prompts.py"):
    for name, count in {"validation": 2, "test": 2, "more": int(after("--more"))}.items():
        rows = [{"prompt": f"{name} {n}", "kind": kind} for kind in ("math", "code") for n in range(count)]
        (Path(after("--out")) / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
else:
    print("| a table |")
"""
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")


@pytest.fixture
def ran(tmp_path):
    """Runs one of the scripts; gives its exit status and what it called."""
    for name, body in {"unmask": UNMASK, "python": PYTHON}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(CALLED + body)
        (tmp_path / "bin" / name).chmod(0o755)

    def run(script, *arguments, **environment):
        calls = tmp_path / "calls"
        calls.write_text("")
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", DEMO / script, *arguments],
            env={**os.environ, "PATH": path, "CALLS": str(calls), **environment},
            capture_output=True,
            text=True,
        )
        return ended.returncode, [json.loads(line) for line in calls.read_text().splitlines()]

    return run


@pytest.fixture
def again(ran, tmp_path):
    """Runs again.sh with 10 prompts a kind."""

    def run(**environment):
        return ran("again.sh", tmp_path / "gsm8k.jsonl", tmp_path / "out", "10", **environment)

    run.text = tmp_path / "out/text"
    return run


def test_the_run_is_one_epoch_over_prompts_that_no_run_before_took(again):
    code, calls = again()
    assert code == 0
    fresh = [json.loads(line)["prompt"] for line in (again.text / "fresh.jsonl").read_text().splitlines()]
    assert fresh == [f"more {n}" for n in range(450, 460)] * 2
    [prompts] = [call for call in calls if call[1].endswith("prompts.py")]
    assert prompts[prompts.index("--exclude") + 1] == str(again.text / "first.jsonl")
    assert "seen by the first run" in (again.text / "first.jsonl").read_text()
    [training] = [call for call in calls if call[:2] == ["unmask", "adapt"]]
    assert training[training.index("--steps") + 1] == str((20 + 8) // 6)
    assert len((again.text / "chat-validation.jsonl").read_text().splitlines()) == 30
    assert len((again.text / "chat-test.jsonl").read_text().splitlines()) == 270
    measured = [call for call in calls if call[1].endswith("held_out.py")]
    models = [call[call.index("--model") + 1] for call in measured]
    assert models[0] == "demo" and models[1:] == [str(again.text.parent / "run/model")] * 3
    assert ["test.jsonl" in " ".join(call) for call in measured] == [False, False, True, True]


def test_a_run_that_was_cut_off_goes_on_and_makes_nothing_twice(again):
    code, calls = again(BREAK="no text")
    assert code == 130 and not any(call[1] == "adapt" for call in calls)
    code, calls = again(BREAK="no training")
    assert code == 130 and not any(call[1].endswith("prompts.py") for call in calls)
    assert not any("--resume" in call for call in calls if call[1] == "adapt")
    code, calls = again()
    assert code == 0 and all("--resume" in call for call in calls if call[1] == "adapt")
    code, calls = again()
    assert code == 0 and not any(call[:2] == ["unmask", "adapt"] for call in calls)


def test_the_figures_are_of_the_new_adapter_and_its_plain_fine_tune_saw_the_same_rows(ran, again, tmp_path):
    assert again()[0] == 0
    code, calls = ran("figures.sh", tmp_path / "data", tmp_path / "out")
    assert code == 0  # also where the gate lets no mode pass
    new = str(tmp_path / "out/run/model")
    measured = [call for call in calls if call[1].endswith("held_out.py") or call[1] in ("demo", "evaluate")]
    assert len(measured) == 8 and {call[call.index("--model") + 1] for call in measured} == {new}
    [plain] = [call for call in calls if call[:2] == ["unmask", "adapt"]]
    assert plain[2].endswith("demo-plain.toml") and plain[plain.index("--steps") + 1] == str((20 + 8) // 6)
    assert plain[4:6] == [str(again.text / "answers.jsonl"), str(again.text / "chat.jsonl")]
    [_, report] = [call for call in calls if call[1] == "evaluate"]
    assert report[report.index("--plain") + 1] == str(tmp_path / "out/plain/model")


def test_figures_that_were_cut_off_go_on_and_are_made_once(ran, again, tmp_path):
    assert again()[0] == 0
    code, calls = ran("figures.sh", tmp_path / "data", tmp_path / "out", BREAK="no report")
    assert code == 130 and calls[-1][1] == "evaluate" and "--resume" not in calls[-1]
    code, calls = ran("figures.sh", tmp_path / "data", tmp_path / "out")
    assert code == 0 and ["--resume" in call for call in calls if call[1] == "evaluate"] == [True, False]
    assert not any(call[1] == "demo" or call[1].endswith("others.py") for call in calls)
    code, calls = ran("figures.sh", tmp_path / "data", tmp_path / "out")
    assert code == 0 and {call[1].rsplit("/")[-1] for call in calls} == {"held_out.py"}


def test_the_plain_fine_tune_and_its_benchmarks_need_the_text_alone(ran, tmp_path):
    assert ran("text.sh", tmp_path / "gsm8k.jsonl", tmp_path / "out/text", "10")[0] == 0
    code, calls = ran("plain.sh", tmp_path / "data", tmp_path / "out")
    assert code == 0 and [call[1] for call in calls] == ["adapt", "evaluate"]
    assert calls[1][calls[1].index("--model") + 1] == "demo"
    code, calls = ran("plain.sh", tmp_path / "data", tmp_path / "out")
    assert code == 0 and calls == []


def test_the_figures_of_another_model_need_the_text_alone(ran, tmp_path):
    assert ran("text.sh", tmp_path / "gsm8k.jsonl", tmp_path / "out/text", "10")[0] == 0
    code, calls = ran("figures.sh", tmp_path / "data", tmp_path / "out", "demo")
    measured = [call for call in calls if "--model" in call]
    assert code == 0 and len(measured) == 8 and {call[call.index("--model") + 1] for call in measured} == {"demo"}
