"""A bad step, a full disk or a kill never costs more than the steps since the last saved state."""

import dataclasses
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
from dataclasses import replace

import pytest
from processes import Nursery
from safetensors.torch import load_file
from training import chat, log, many_rows, recipe, save_base, save_rows

from unmask.errors import CheckpointError, UnmaskError
from unmask.guard import ENOUGH, Guard
from unmask.model import checkpoint, trainstate
from unmask.model.learner import Learner
from unmask.model.trainstate import states
from unmask.recipe import Source

loop = importlib.import_module("unmask.adapt")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", many_rows(20))


def train(settings, **options):
    return list(loop.adapt(settings, **options))


@pytest.mark.parametrize("factor", [1000.0, float("nan"), float("inf")])
def test_a_loss_that_explodes_stops_before_the_weights(base, data, tmp_path, monkeypatch, factor):
    settings = recipe(base, data, tmp_path / "run", steps=20, save_every=15)
    steps, backward, found = loop.adapt(settings), loop._backward, []
    for _ in range(16):
        next(steps)
    kept = (states(tmp_path / "run")[-1] / "weights.safetensors").read_bytes()
    monkeypatch.setattr(loop, "_backward", lambda run, *rest: backward(run, *rest) * factor)
    with pytest.raises(
        UnmaskError, match=r"the loss of step 17 is .*, on .*rows.jsonl lines? \d.*state-0000015; lower"
    ) as stopped:
        next(steps)
    assert "\n" not in str(stopped.value) and ("usual" in str(stopped.value)) == (factor == 1000.0)
    monkeypatch.setattr(loop, "_backward", backward)
    assert (states(tmp_path / "run")[-1] / "weights.safetensors").read_bytes() == kept
    gentler = type(settings)(**vars(settings) | {"learning_rate": 1e-4, "clip": 0.5})
    found += train(gentler, resume=True)
    assert [p.step for p in found] == list(range(16, 21)) and found[-1].learning_rate == 1e-4


def test_what_counts_as_an_explosion(base, data, tmp_path):
    guard = Guard(recipe(base, data, tmp_path, warmup_steps=2, explosion=3.0))
    for step in range(1, 3 + ENOUGH):
        guard.check(step, [[step]], 1e6, 1.0)  # too few losses are known
        guard.remember(step, 1e6 if step <= 2 else 4.0, 1)
    guard.check(20, [[1]], 11.9, 1.0)
    with pytest.raises(UnmaskError, match=r"the loss of step 20 is 12.1 \(4 is usual, explosion 3\), on rows 1, 4, 2;"):
        guard.check(20, [[1, 4], [2]], 12.1, 1.0)
    for step in range(20, 80):
        guard.remember(step, 0.01, 1)
    guard.check(80, [[1]], 2.9, 1.0)  # a small loss that grows is no explosion
    with pytest.raises(UnmaskError, match="no state was saved yet"):
        guard.check(80, [[1]], 3.1, 1.0)
    off = Guard(recipe(base, data, tmp_path, explosion=0.0))
    for step in range(30):
        off.remember(step, 1.0, 1)
    off.check(31, [[1]], 1e9, 1.0)


def test_more_than_one_state_stays_if_wanted(base, data, tmp_path):
    train(recipe(base, data, tmp_path / "run", steps=7, save_every=2, keep=3))
    assert [path.name for path in states(tmp_path / "run")] == [f"state-{n:07d}" for n in (4, 6, 7)]


def names(output, kind="state"):
    return sorted(path.name for path in output.glob(f"{kind}-*"))


WILD = {"learning_rate": 1e30, "clip": 1e30, "warmup_steps": 0, "save_every": 1, "steps": 5}
FULL = WILD | {"method": "full", "learning_rate": 1e-3, "steps": 4}


@pytest.mark.parametrize("keep", [1, 2])
def test_a_state_whose_next_step_fails_is_not_resumed_from(base, data, tmp_path, keep):
    """Two gentle steps, then a wild one: its weights are finite, and the loss that they give is not."""
    calm = recipe(base, data, tmp_path / "run", **FULL, keep=keep)
    steps = loop.adapt(calm)
    next(steps), next(steps)
    steps.close()
    wild = replace(calm, learning_rate=1e18)
    with pytest.raises(UnmaskError, match=r"step 4 is (nan|inf).* good state is .*state-0000002 .*now doubted-0000003"):
        train(wild, resume=True)
    assert names(tmp_path / "run") == [f"state-{n:07d}" for n in (1, 2)[-keep:]]
    assert [p.step for p in train(calm, resume=True)] == [3, 4]
    straight = recipe(base, data, tmp_path / "straight", **FULL, keep=keep)
    train(straight)
    assert log(tmp_path / "run") == log(tmp_path / "straight")
    assert names(tmp_path / "run") == names(tmp_path / "straight") == [f"state-{n:07d}" for n in (3, 4)[-keep:]]
    assert not names(tmp_path / "run", "doubted")


def test_a_first_state_that_is_bad_is_said_to_be(base, data, tmp_path):
    wild = recipe(base, data, tmp_path / "run", **FULL | {"learning_rate": 1e18})
    with pytest.raises(UnmaskError, match="of step 2 is .* no state was saved yet in .* but the one .*doubted-0000001"):
        train(wild)
    assert names(tmp_path / "run") == []
    assert len(train(replace(wild, learning_rate=1e-3), resume=True)) == 4


@pytest.mark.parametrize(
    "change", [{"learning_rate": 1e12}, {"learning_rate": 1e-3, "weight_decay": 1e12}, {"learning_rate": 1e30}]
)
def test_weights_that_cannot_be_saved_are_refused_and_the_good_state_stays(base, data, tmp_path, change):
    """1e12 is finite in float32, and infinite in the float16 of an adapter."""
    calm = recipe(base, data, tmp_path / "run", **WILD | {"learning_rate": 1e-3, "steps": 2})
    for progress in loop.adapt(calm):
        if progress.step == 1:
            break
    changed = {"weight_decay": change.get("weight_decay", 0.0)}
    file = tmp_path / "run" / "recipe.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(
        CheckpointError, match=r"after step 2 .* is not finite in float16: .* good state is .*state-0000001; lower"
    ):
        train(replace(calm, **change), resume=True)
    assert names(tmp_path / "run") == ["state-0000001"] and not (tmp_path / "run" / "model").exists()


def test_nothing_infinite_is_ever_written(base, data, tmp_path):
    for fields in ({}, {"method": "full"}):
        learner = Learner(recipe(base, data, tmp_path / "run", **fields))
        parameter = next(iter(learner.trainable().values()))
        parameter.data.flatten()[0] = 1e6
        if fields:
            learner.own_dtype = checkpoint.DTYPE_NAMES["fp16"]
        with pytest.raises(CheckpointError, match="is not finite in float16: its largest value is 1e.06; nothing"):
            learner.save(tmp_path / "model")
        assert not (tmp_path / "model").exists()


def test_what_is_only_called_a_state_is_none(base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", steps=4, save_every=2)
    train(settings)
    shutil.copytree(tmp_path / "run/state-0000004", tmp_path / "run/state-good")
    assert [p.step for p in train(replace(settings, steps=6), resume=True)] == [5, 6]
    assert names(tmp_path / "run") == ["state-0000006", "state-good"]
    for number in ("state-9999998", "state-10000000"):
        shutil.copytree(tmp_path / "run/state-0000006", tmp_path / "run" / number)
    assert states(tmp_path / "run")[-1].name == "state-10000000"


def test_a_run_without_labels_in_a_step_is_left_as_it_was_by_it(base, data, tmp_path, monkeypatch):
    """O6-11 with moments that are filled and weights that decay: neither acts in a step that has nothing to learn."""
    settings = recipe(base, data, tmp_path / "run", steps=4, save_every=1, keep=9, weight_decay=0.5)
    noised = loop.noised

    def empty(recipe, row, mask_id, step, *rest):
        return noised(recipe, loop.without_labels(row) if step in (3, 4) else row, mask_id, step, *rest)

    monkeypatch.setattr(loop, "noised", empty)
    with pytest.warns(UserWarning, match="step 3 has no label, on rows") as warned:
        steps = train(settings)
    assert len([w for w in warned if "has no label" in str(w.message)]) == 1
    assert [(p.labels == 0, p.grad_norm == 0) for p in steps] == [(False, False)] * 2 + [(True, True)] * 2
    for file in ("weights.safetensors", "optimizer.safetensors"):
        kept = [load_file(tmp_path / "run" / f"state-{n:07d}" / file) for n in (1, 2, 4)]
        assert all(kept[1][name].equal(kept[2][name]) for name in kept[1])
        assert not all(kept[0][name].equal(kept[1][name]) for name in kept[0])


def test_a_signal_in_a_validation_stops_there_and_the_log_is_that_of_the_straight_run(
    base, data, tmp_path, monkeypatch
):
    validation, done = importlib.import_module("unmask.validation"), []
    how = {"steps": 6, "validation_rows": 4.0, "validate_every": 2, "batch_rows": 2}
    train(recipe(base, data, tmp_path / "straight", **how))
    settings, noised = recipe(base, data, tmp_path / "run", **how), validation.noised

    def signalled(*given):
        done.append(given)
        if len(done) == 5:  # in the second validation of two forwards
            os.kill(os.getpid(), signal.SIGTERM)
        return noised(*given)

    monkeypatch.setattr(validation, "noised", signalled)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 4 of 6; continue with --resume"):
        train(settings)
    assert len(done) == 6 and log(tmp_path / "run")[-1]["validation"] is None
    assert [p.step for p in train(settings, resume=True)] == [4, 5, 6]
    assert log(tmp_path / "run") == log(tmp_path / "straight")


def test_a_second_signal_does_what_it_did_before():
    with pytest.raises(KeyboardInterrupt), loop.interruptible() as arrived:
        os.kill(os.getpid(), signal.SIGTERM)
        assert arrived == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("still running")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_while_the_model_is_saved_leaves_nothing_half(base, data, tmp_path, monkeypatch):
    settings, save = recipe(base, data, tmp_path / "run", steps=2), checkpoint.adapters.write_adapter

    def signalled(*given):
        save(*given)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(checkpoint.adapters, "write_adapter", signalled)
    with pytest.raises(KeyboardInterrupt, match="stopped while the model was saved; all steps are done, save it with"):
        train(settings)
    assert not (tmp_path / "run" / "model").exists() and not list((tmp_path / "run").glob(".*"))
    monkeypatch.setattr(checkpoint.adapters, "write_adapter", save)
    (tmp_path / "run" / ".model.0123abcd.tmp").mkdir()  # of a process that was killed
    assert train(settings, resume=True) == [] and (tmp_path / "run" / "model").is_dir()
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize("limit", [300, 30_000])
def test_a_full_disk_leaves_the_last_state(base, data, tmp_path, limit):
    """A limit on the size of files fails as a full disk does: of the log at 300 bytes, of the weights at 30,000."""
    straight, full = tmp_path / "straight", tmp_path / "full"
    train(recipe(base, data, straight, steps=6, save_every=2))
    settings = recipe(base, data, full, steps=6, save_every=2)
    steps = loop.adapt(settings)
    for _ in range(3):
        next(steps)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot (save|write) to .*(File too large|too large)") as stopped:
            list(steps)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(stopped.value)
    assert [path.name for path in states(full)] == ["state-0000002"]
    assert [p.step for p in train(settings, resume=True)] == [3, 4, 5, 6]
    assert log(full) == log(straight)
    for file in ("weights.safetensors", "optimizer.safetensors"):
        assert (states(full)[-1] / file).read_bytes() == (states(straight)[-1] / file).read_bytes()
    assert not [path for path in full.iterdir() if path.name.endswith(".tmp")]


def test_an_output_that_cannot_be_written_is_said_before_the_first_step(base, data, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot write .*file/run: (Not a directory|File exists)"):
        train(recipe(base, data, tmp_path / "file" / "run"))


def test_a_picture_that_cannot_be_written_comes_after_the_state(base, data, tmp_path, monkeypatch):
    def refuse(output, **_):
        assert states(output)
        raise CheckpointError("cannot write")

    monkeypatch.setattr(loop, "draw_curves", refuse)
    with pytest.raises(CheckpointError):
        train(recipe(base, data, tmp_path / "run", save_every=2))
    assert states(tmp_path / "run")[-1].name == "state-0000002"


def test_five_kills_at_random_moments_change_nothing(base, data, tmp_path):
    """Losses, weights and moments are those of the run that nobody killed, bit for bit."""
    assert trainstate.MOMENTS  # the files compared below hold them
    toml, nursery = tmp_path / "recipe.toml", Nursery(tmp_path)
    fields = vars(recipe(base, data, tmp_path / "x", steps=48, save_every=3, context="causal", ar_weight=0.5))
    fields |= {"validation_rows": 4.0, "validate_every": 7, "batch_rows": 2, "accumulation": 2}
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items() if value is not None))
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    try:
        nursery.run(toml, straight)
        for number in range(5):
            nursery.start(toml, killed, *["--resume"][: number and 1])
            nursery.when_logged(killed, (number + 1) * 7 + random.randint(0, 6), wait=random.uniform(0, 0.2))
            assert nursery.wait() == [-signal.SIGKILL]
        nursery.run(toml, killed, "--resume")
    finally:
        nursery.close()
    assert log(killed) == log(straight) and len(log(killed)) == 48
    for file in ("model/adapter_model.safetensors", "model/mask_embedding.safetensors"):
        assert (straight / file).read_bytes() == (killed / file).read_bytes(), file
    for file in ("weights.safetensors", "optimizer.safetensors"):
        assert (states(straight)[-1] / file).read_bytes() == (states(killed)[-1] / file).read_bytes(), file


def test_a_row_that_breaks_a_step_is_named(base, tmp_path):
    """By its line in its file: what was dropped, filtered and repeated before it does not count."""
    good = [chat("q", "an answer") | {"kind": n % 2} for n in range(4)]
    first = save_rows(tmp_path / "a.jsonl", [chat("q" * 900, "never seen"), *good])
    second = save_rows(tmp_path / "b.jsonl", good)
    data = (str(first), Source(path=str(second), filter={"kind": 1}, weight=2.0))
    settings = recipe(base, first, tmp_path / "run", learning_rate=1e30, clip=1e30, steps=5, warmup_steps=0)
    settings = dataclasses.replace(settings, data=data)
    with pytest.raises(UnmaskError, match=r"of step 2 is (nan|inf), on .*; no state was saved yet") as stopped:
        train(settings)
    named = re.search(r"on (.*); no state", str(stopped.value))[1]
    lines = dict(re.split(" lines? ", part) for part in named.split("; "))
    assert set(lines) <= {str(first), str(second)} and len(", ".join(lines.values()).split(", ")) == 4
    allowed = {str(first): {"2", "3", "4", "5"}, str(second): {"2", "4"}}
    assert all(set(lines[name].split(", ")) <= allowed[name] for name in lines)
