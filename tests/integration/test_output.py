"""The output of a run belongs to one run at a time, which is told by what it was made from and not by its paths."""

import importlib
import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from processes import Nursery
from safetensors.torch import load_file, save_file
from training import log, many_rows, recipe, save_base, save_rows

from unmask.cli import main
from unmask.errors import CheckpointError, ConfigError
from unmask.model.learner import Learner
from unmask.model.trainstate import states

loop = importlib.import_module("unmask.adapt")


def train(settings, **options):
    return list(loop.adapt(settings, **options))


def test_a_second_run_in_one_output_is_refused(base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", steps=3)
    steps = loop.adapt(settings)
    next(steps)
    for resume in (False, True):
        with pytest.raises(CheckpointError, match="run is being written by another process"):
            train(settings, resume=resume)
    assert len(list(steps)) == 2 and [line["step"] for line in log(tmp_path / "run")] == [1, 2, 3]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_killed_run_locks_nobody_out_and_several_processes_do_not_lock_each_other_out(base, data, tmp_path):
    toml, nursery = tmp_path / "recipe.toml", Nursery(tmp_path)
    fields = vars(recipe(base, data, "by flag", steps=60, save_every=5))
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items() if value is not None))
    try:
        nursery.start(toml, tmp_path / "run")
        nursery.when_logged(tmp_path / "run", 6)
        assert nursery.wait() == [-signal.SIGKILL] and (tmp_path / ".run.lock").exists()
        nursery.run(toml, tmp_path / "run", "--resume", "--steps", "9", processes=2)
        holder = loop.adapt(replace(recipe(base, data, tmp_path / "run", steps=12, save_every=5)), resume=True)
        next(holder)
        nursery.start(toml, tmp_path / "run", "--resume", "--steps", "12", processes=2)
        assert nursery.wait() == [2, 2]
        assert nursery.words().count("error: ") == 1 and "is being written by another process" in nursery.words()
    finally:
        nursery.close()
    assert len(list(holder)) == 2 and [line["step"] for line in log(tmp_path / "run")] == list(range(1, 13))


def test_the_log_is_cut_by_its_steps(base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", steps=4)
    train(settings)
    file = tmp_path / "run" / "log.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[1:], lines[3].replace('"step": 4', '"step": 5')]))
    train(replace(settings, steps=5), resume=True)
    assert [line["step"] for line in log(tmp_path / "run")] == [2, 3, 4, 5]


@pytest.mark.parametrize("line", ["{}", '{"step": 2', "[]", '{"step": 2, "loss": "x", "labels": 1}'])
def test_a_damaged_line_of_the_log_is_named(base, data, tmp_path, line):
    settings = recipe(base, data, tmp_path / "run", steps=3)
    train(settings)
    file = tmp_path / "run" / "log.jsonl"
    first, _, last = file.read_text().splitlines()
    file.write_text(f"{first}\n{line}\n{last}\n")
    with pytest.raises(CheckpointError, match="log.jsonl, line 2: is damaged; take this line out"):
        train(replace(settings, steps=4), resume=True)


@pytest.mark.parametrize("text", ["{}", '{"step": 3}', '{"step": "2"}', "[]", "{"])
def test_a_damaged_state_is_named(base, data, tmp_path, text):
    settings = recipe(base, data, tmp_path / "run", steps=2)
    train(settings)
    (states(tmp_path / "run")[-1] / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"state-0000002/state.json (is damaged|cannot be read|does not hold)"):
        train(replace(settings, steps=4), resume=True)


def test_other_weights_under_the_base_are_another_base(base, data, tmp_path):
    place = shutil.copytree(base, tmp_path / "base")
    settings = recipe(place, data, tmp_path / "run", steps=2)
    train(settings)
    moved = shutil.move(place, tmp_path / "elsewhere")
    assert [p.step for p in train(replace(settings, base=str(moved), steps=3), resume=True)] == [3]
    save_base(moved, seed=1)
    with pytest.raises(CheckpointError, match="base_sha256 is '.*', the run in .* was made with"):
        train(replace(settings, base=str(moved), steps=4), resume=True)


def test_a_run_may_move_and_be_named_otherwise(base, data, tmp_path, monkeypatch):
    rows = shutil.copy(data, tmp_path / "rows.jsonl")
    held = save_rows(tmp_path / "held.jsonl", many_rows(3))
    settings = recipe(base, rows, tmp_path / "run", steps=2, validation_data=(str(held),))
    train(settings)
    (tmp_path / "new").mkdir()
    for name in ("run", "rows.jsonl", "held.jsonl"):
        shutil.move(tmp_path / name, tmp_path / "new" / name)
    monkeypatch.chdir(tmp_path / "new")
    moved = replace(settings, data=("rows.jsonl",), output="../new/run", validation_data=("held.jsonl",), steps=3)
    assert [p.step for p in train(moved, resume=True)] == [3]
    save_rows(tmp_path / "new" / "rows.jsonl", many_rows(12)[::-1])
    with pytest.raises(CheckpointError, match="sha256 is .* resume with the same data"):
        train(replace(moved, steps=4), resume=True)


def test_an_output_that_is_something_else_stays_as_it_is(base, data, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("recipe.json", "log.jsonl"):
        (tmp_path / "mine" / name).write_text('{"flour": 500}')
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    for name in ("mine", "photos"):
        for resume in (False, True):
            with pytest.raises(
                CheckpointError, match=f"{name} is no run and not empty .it holds (a|log).*another --ou"
            ):
                train(recipe(base, data, tmp_path / name), resume=resume)
    assert {file.read_text() for file in (tmp_path / "mine").iterdir()} == {'{"flour": 500}'}
    (tmp_path / "empty").mkdir()
    assert len(train(recipe(base, data, tmp_path / "empty", steps=1))) == 1
    for output in ("", "  "):
        with pytest.raises(ConfigError, match="output is '.*'; allowed: a directory"):
            recipe(base, data, output)
    with pytest.raises(CheckpointError, match="File name too long"):
        train(recipe(base, data, tmp_path / ("x" * 300)))


def test_there_must_be_a_run_to_resume(base, data, tmp_path, monkeypatch):
    settings = recipe(base, data, tmp_path / "run", steps=2)
    with pytest.raises(CheckpointError, match="run holds no run to resume; leave --resume out to start one"):
        train(settings, resume=True)
    assert not (tmp_path / "run").exists()
    steps = loop.adapt(settings)
    next(steps)
    steps.close()  # as a kill before the first state
    assert [p.step for p in train(settings, resume=True)] == [1, 2]
    (tmp_path / "other" / ".rows.0123abcd.tmp").mkdir(parents=True)  # a kill while rows were encoded
    assert len(train(replace(settings, output=str(tmp_path / "other")), resume=True)) == 2
    assert not list((tmp_path / "other").glob(".*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": 1}, "was trained on a base with sha256 .*; give its own base"),
        ({"mask_id": 259}, "has mask_id 260, the recipe 259; use the same"),
        ({"context": "causal"}, "has context 'block', the recipe 'causal'; use the same"),
        ({"context": "causal", "adapter_scope": "draft"}, "has context 'block'"),
        ({"objective": "next-token"}, "was trained to fill masks, objective 'next-token' has none"),
    ],
)
def test_a_warm_start_from_something_else_is_refused(base, data, tmp_path, change, message):
    Learner(recipe(base, data, tmp_path / "run")).save(tmp_path / "adapter")
    if "base" in change:
        change = {"base": str(save_base(tmp_path / "base", seed=1))}
    settings = replace(recipe(base, data, tmp_path / "run", start_from=str(tmp_path / "adapter")), **change)
    with pytest.raises(ConfigError, match=message):
        Learner(settings)


def test_a_warm_start_of_another_width_is_refused(base, data, tmp_path):
    Learner(recipe(base, data, tmp_path / "run", objective="next-token")).save(tmp_path / "adapter")
    wide = save_base(tmp_path / "wide", hidden_size=96)
    with pytest.raises(ConfigError, match="does not fit the base .*wide .weight base_model"):
        Learner(recipe(wide, data, tmp_path / "run", start_from=str(tmp_path / "adapter")))
    (tmp_path / "masked").mkdir()
    learner = Learner(recipe(base, data, tmp_path / "run"))
    learner.save(tmp_path / "masked")
    vector = load_file(tmp_path / "masked" / "mask_embedding.safetensors")["mask_embedding"]
    save_file({"mask_embedding": torch.cat([vector, vector])}, tmp_path / "masked" / "mask_embedding.safetensors")
    with pytest.raises(ConfigError, match="does not fit the base .*mask_embedding"):
        Learner(recipe(base, data, tmp_path / "run", start_from=str(tmp_path / "masked")))


BOUNDS = {
    "learning_rate": "1e300",
    "seed": str(10**23),
    "process_timeout": str(10**23),
    "rank": "1000000000",
    "block_size": "1000000000000",
    "draws": "1000000000000",
    "threads": "100000",
    "alpha": "inf",
    "weight_decay": "1e300",
    "max_length": str(10**12),
    "steps": "9" * 400,
    "output": "",
}


@pytest.mark.parametrize("name", BOUNDS)
def test_what_no_run_could_do_is_refused_in_a_clear_line(base, data, tmp_path, name, capfd):
    toml = tmp_path / "recipe.toml"
    toml.write_text(f'base = "{base}"\ndata = ["{data}"]\noutput = "{tmp_path}/run"\n')
    flag = "--" + name.replace("_", "-")
    assert main(["adapt", str(toml), flag, BOUNDS[name]]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {flag} is ") and "; allowed: " in line
    assert os.listdir(tmp_path) == ["recipe.toml"]


def test_threads_of_every_command_have_a_bound(capfd):
    assert main(["doctor", "--threads", "100000"]) == 2
    assert "error: --threads is 100000; allowed: from 1 to " in capfd.readouterr().err
