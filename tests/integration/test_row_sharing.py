"""The first process of a run encodes the rows, the others wait for it and map them; none of it is left behind."""

import dataclasses
import importlib
import json
import os
import resource
import signal
import time
import warnings

import pytest
from processes import Nursery
from training import chat, log, many_rows, recipe, save_rows

from unmask.cli import main
from unmask.errors import CheckpointError, DataError
from unmask.recipe import Source

loop = importlib.import_module("unmask.adapt")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


def written(place, settings):
    toml = place / "recipe.toml"
    fields = {key: value for key, value in vars(settings).items() if value is not None}
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items()))
    return toml


def left(output):
    """Encoded rows in an output, finished or not."""
    return sorted(path.name for path in output.glob("*rows*") if path.name != "rows.json")


def when(said):
    until = time.monotonic() + 60
    while not said():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_one_process_encodes_and_the_others_wait_longer_than_their_patience(base, tmp_path, nursery):
    """The data come through a pipe, which nobody fills before an exchange would have been given up."""
    save_rows(tmp_path / "rows.jsonl", many_rows(12))
    os.mkfifo(tmp_path / "pipe.jsonl")
    settings = recipe(base, tmp_path / "pipe.jsonl", "by flag", steps=3, process_timeout=6)
    toml, output = written(tmp_path, settings), tmp_path / "run"
    nursery.start(toml, output, processes=2)
    when(lambda: left(output))
    time.sleep(8)
    for _ in ("for its digest", "for its rows"):  # one process reads each of them; another would wait for ever
        (tmp_path / "pipe.jsonl").write_bytes((tmp_path / "rows.jsonl").read_bytes())
        time.sleep(0.5)
    assert nursery.wait() == [0, 0], nursery.words()
    alone = tmp_path / "alone"
    nursery.run(written(tmp_path, recipe(base, tmp_path / "rows.jsonl", "by flag", steps=3)), alone)
    assert [line["labels"] for line in log(output)] == [line["labels"] for line in log(alone)]
    assert [line["loss"] for line in log(output)] == pytest.approx([line["loss"] for line in log(alone)])
    assert left(output) == left(alone) == []
    digests = [json.loads((place / "rows.json").read_text()) for place in (output, alone)]
    assert list(digests[0]["sha256"].values()) == list(digests[1]["sha256"].values())
    assert digests[0]["counts"] == digests[1]["counts"] == {"kept": 12}


def test_the_death_of_the_process_that_encodes_ends_the_others(base, tmp_path, nursery):
    os.mkfifo(tmp_path / "pipe.jsonl")
    toml, output = written(tmp_path, recipe(base, tmp_path / "pipe.jsonl", "by flag")), tmp_path / "run"
    nursery.start(toml, output, processes=3)
    when(lambda: left(output))
    time.sleep(1)  # the others wait
    os.kill(nursery.pids[0], signal.SIGKILL)
    began = time.monotonic()
    assert nursery.wait() == [-signal.SIGKILL, 2, 2] and time.monotonic() - began < 30
    for rank in (1, 2):
        assert f"error: process {rank} of 3 lost another one" in nursery.words(rank)
    assert len(left(output)) == 1  # what the killed one had begun; the next start removes it
    save_rows(tmp_path / "rows.jsonl", many_rows(12))
    nursery.run(written(tmp_path, recipe(base, tmp_path / "rows.jsonl", "by flag", steps=1)), output)
    assert left(output) == []


def test_a_bad_row_ends_all_processes_with_one_line(base, tmp_path, nursery):
    save_rows(tmp_path / "bad.jsonl", [*many_rows(3), {"text": "x"}])
    toml, output = written(tmp_path, recipe(base, tmp_path / "bad.jsonl", "by flag")), tmp_path / "run"
    nursery.start(toml, output, processes=3)
    assert nursery.wait() == [2, 2, 2]
    said = [line for line in nursery.words().splitlines() if "error" in line.lower()]
    assert len(said) == 1 and "bad.jsonl, line 4: has neither" in said[0] and not nursery.words(1)
    assert left(output) == []


def train(settings, **options):
    return list(loop.adapt(settings, **options))


def test_rows_have_no_names_once_they_are_mapped(base, tmp_path):
    data, held = (save_rows(tmp_path / f"{n}.jsonl", many_rows(n)) for n in (12, 5))
    settings = recipe(base, data, tmp_path / "run", steps=3, validation_data=(str(held),), validate_every=1)
    steps = loop.adapt(settings)
    assert next(steps).validation is not None and left(tmp_path / "run") == []
    assert len(list(steps)) == 2
    digests = json.loads((tmp_path / "run" / "rows.json").read_text())["sha256"]
    assert list(digests) == [str(data), str(held)]


def test_what_becomes_of_rows_for_validation_is_written_too(base, tmp_path):
    data = save_rows(tmp_path / "a.jsonl", many_rows(12))
    held = save_rows(tmp_path / "b.jsonl", [*many_rows(3), chat("q" * 600, "too late")])
    train(recipe(base, data, tmp_path / "run", steps=1, validation_data=(str(held),)))
    dropped = {"kept": 3, "dropped: the answer begins after max_length 512": 1}
    sources = json.loads((tmp_path / "run" / "rows.json").read_text())["sources"]
    assert sources == {str(data): {"kept": 12}, f"validation_data: {held}": dropped}


def test_rows_held_out_are_counted_and_never_learned(base, tmp_path):
    data = save_rows(tmp_path / "a.jsonl", many_rows(12))
    [step] = train(recipe(base, data, tmp_path / "run", steps=1, batch_rows=20, validation_rows=5.0))
    assert step.rows == 7 and step.validation is not None
    assert json.loads((tmp_path / "run" / "rows.json").read_text())["counts"]["held out for validation"] == 5


def test_a_line_behind_the_limit_that_changed_is_noticed(base, tmp_path):
    file = save_rows(tmp_path / "a.jsonl", many_rows(12))
    settings = recipe(base, file, tmp_path / "run", steps=2)
    settings = dataclasses.replace(settings, data=(Source(path=str(file), limit=4),))
    train(settings)
    train(settings, resume=True)
    save_rows(file, [*many_rows(11), chat("other", "words")])
    with pytest.raises(CheckpointError, match="sha256 is .*; resume with the same data"):
        train(settings, resume=True)


def test_rows_beyond_the_positions_of_the_base_are_told_once(base, tmp_path):
    file = save_rows(tmp_path / "a.jsonl", [chat("q", "a" * 600), *many_rows(3)])
    with pytest.warns(UserWarning, match="max_length is 900: rows have up to 607 tokens, but the base") as told:
        train(recipe(base, file, tmp_path / "run", steps=1, max_length=900))
    assert sum("positions" in str(warning.message) for warning in told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(recipe(base, file, tmp_path / "other", steps=1, max_length=512))


def test_rows_of_several_machines_stay_until_the_run_ends(base, tmp_path, monkeypatch):
    """As a process sees it that is told of more processes than run on its machine."""
    data = save_rows(tmp_path / "rows.jsonl", many_rows(12))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    steps = loop.adapt(recipe(base, data, tmp_path / "run", steps=3))
    next(steps)
    assert left(tmp_path / "run") == ["rows"]
    list(steps)
    assert left(tmp_path / "run") == []
    steps = loop.adapt(recipe(base, data, tmp_path / "other", steps=3))
    next(steps)
    steps.close()
    assert left(tmp_path / "other") == []


def test_a_refused_run_touches_no_rows(base, tmp_path):
    data, output = save_rows(tmp_path / "rows.jsonl", many_rows(12)), tmp_path / "run"
    train(recipe(base, data, output, steps=1))
    (output / "rows").mkdir()  # of another run, on several machines
    with pytest.raises(CheckpointError, match="give --resume"):
        train(recipe(base, data, output, steps=2))
    with pytest.raises(CheckpointError, match="the same recipe"):
        train(recipe(base, data, output, steps=2, max_length=99), resume=True)
    assert left(output) == ["rows"]


def test_faults_while_encoding_leave_nothing(base, tmp_path):
    data = save_rows(tmp_path / "rows.jsonl", many_rows(200))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot write encoded rows to .*: File too large"):
            train(recipe(base, data, tmp_path / "full"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    save_rows(data, [chat("q", "a"), {"text": "x"}])
    with pytest.raises(DataError, match="line 2"):
        train(recipe(base, data, tmp_path / "bad"))
    assert not (tmp_path / "full").exists() and not (tmp_path / "bad").exists()


def test_a_dry_run_says_the_size_and_leaves_no_files(base, tmp_path, monkeypatch, capsys):
    data, place = save_rows(tmp_path / "rows.jsonl", many_rows(12)), tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    toml = written(tmp_path, recipe(base, data, tmp_path / "run"))
    assert main(["adapt", str(toml), "--dry-run", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    tokens = 3 * made["tokens_per_step"]["mean"]  # a step has 4 rows of 12
    assert made["rows_bytes"] == pytest.approx(5 * tokens + 8 * 13 + (8 + 8) * 12)
    assert main(["adapt", str(toml), "--dry-run"]) == 0
    assert f"epochs; {made['rows_bytes'] / 1e6:.1f} MB on the disk of output" in capsys.readouterr().out
    assert not list(place.iterdir()) and not (tmp_path / "run").exists()
