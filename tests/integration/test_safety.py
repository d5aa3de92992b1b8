"""A bad step, a full disk or a kill never costs more than the steps since the last saved state."""

import importlib
import json
import random
import resource
import signal

import pytest
from processes import Nursery
from training import chat, log, many_rows, recipe, save_base, save_rows

from unmask.errors import CheckpointError, UnmaskError
from unmask.guard import ENOUGH, Guard
from unmask.model import trainstate
from unmask.model.trainstate import states

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
        UnmaskError, match=r"the loss of step 17 is .*, on rows \[\[\d.*state-0000015; lower"
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
    with pytest.raises(
        UnmaskError, match=r"the loss of step 20 is 12.1 \(4 is usual, explosion 3\), on rows \[\[1\]\]"
    ):
        guard.check(20, [[1]], 12.1, 1.0)
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
    with pytest.raises(CheckpointError, match="cannot write to .*file/run: Not a directory"):
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
    rows = save_rows(tmp_path / "rows.jsonl", [chat("q", "an answer")] * 4)
    settings = recipe(base, rows, tmp_path / "run", learning_rate=1e30, clip=1e30, steps=5, warmup_steps=0)
    with pytest.raises(UnmaskError, match=r"of step 2 is (nan|inf), on rows \[\[.*no state was saved yet"):
        train(settings)
