"""Several processes train what one trains: the same losses and weights, whatever their number and way of sharing."""

import json
import signal
import time

import pytest
from processes import Nursery
from safetensors.torch import load_file
from training import log, many_rows, recipe, save_base, save_rows

from unmask.errors import ConfigError
from unmask.model.trainstate import states
from unmask.processes import join, share

SETTINGS = {
    "full-block": {"method": "full", "accumulation": 2, "validation_rows": 3.0, "validate_every": 2},
    "low-rank-causal-ar": {"context": "causal", "ar_weight": 0.5, "accumulation": 3, "batch_rows": 2},
    "low-rank-draft": {"context": "causal", "adapter_scope": "draft", "full_share": 0.5, "batch_rows": 5},
    "distilled": {"context": "causal", "adapter_scope": "draft", "distill": 0.5, "checkpointing": True},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("processes")
    save_base(place / "base")
    save_rows(place / "rows.jsonl", many_rows(13))
    return place


@pytest.fixture(scope="module")
def nursery(place):
    nursery = Nursery(place)
    yield nursery
    nursery.close()


def write_recipe(place, name, **fields):
    settings = {
        "base": str(place / "base"),
        "data": [str(place / "rows.jsonl")],
        "output": "given by flag",
        "block_size": 8,
        "sub_block_size": 4,
        "rank": 4,
        "steps": 5,
        "batch_rows": 4,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "save_every": 2,
        "threads": 1,
        **fields,
    }
    toml = place / f"{name}.toml"
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    return toml


def assert_same_run(one, other, tolerance=1e-4):
    """The same log and the same state, to what the order of a sum may change. tolerance: of weights and moments."""
    for mine, theirs in zip(log(one), log(other), strict=True):
        for key in set(mine) - {"validation"}:
            same = mine[key] is theirs[key] is None or mine[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-6)
            assert same, (key, mine, theirs)
        if mine["validation"]:
            assert mine["validation"]["loss"] == pytest.approx(theirs["validation"]["loss"], rel=1e-5)
            assert mine["validation"]["levels"] == pytest.approx(theirs["validation"]["levels"], rel=1e-5)
    for file in ("weights.safetensors", "optimizer.safetensors"):
        a, b = (load_file(states(output)[-1] / file) for output in (one, other))
        assert set(a) == set(b)
        for name in a:
            assert float((a[name] - b[name]).norm()) <= tolerance * float(a[name].norm()), (file, name)


@pytest.fixture(scope="module", params=SETTINGS)
def alone(request, place, nursery):
    """A run in one process, and its recipe."""
    toml, output = write_recipe(place, request.param, **SETTINGS[request.param]), place / f"{request.param}-alone"
    nursery.run(toml, output)
    assert len(log(output)) == 5
    return toml, output


@pytest.mark.parametrize(("processes", "split"), [(2, False), (3, False), (2, True)])
def test_o6_01_several_processes_train_what_one_trains(alone, nursery, processes, split):
    toml, output = alone
    together = output.with_name(f"{output.name}-{processes}-{split}")
    nursery.run(toml, together, processes=processes, split=split)
    assert_same_run(output, together)
    said = nursery.words(0).splitlines()
    assert len([line for line in said if line.startswith("step ")]) == 5 and said[-1].startswith("saved ")
    assert "step " not in nursery.words(1)


def test_o6_04_a_process_without_rows_takes_part(place, nursery):
    """7 rows in forwards of 2, two forwards a step: the last step of an epoch has 3 rows, and one process of three has
    none at all. Both validation rows go to two of the three."""
    save_rows(place / "seven.jsonl", many_rows(9))
    toml = write_recipe(
        place,
        "uneven",
        data=[str(place / "seven.jsonl")],
        batch_rows=2,
        accumulation=2,
        steps=4,
        validation_rows=2.0,
        validate_every=1,
    )
    one = place / "uneven-1"
    nursery.run(toml, one)
    assert [line["rows"] for line in log(one)] == [4, 3, 4, 3]
    for processes, split in ((2, False), (3, False), (3, True)):
        output = place / f"uneven-{processes}-{split}"
        nursery.run(toml, output, processes=processes, split=split)
        assert_same_run(one, output)


@pytest.mark.parametrize(("number", "index"), [(1, 0), (2, 1), (3, 0), (4, 3), (5, 2), (8, 7)])
def test_every_row_of_a_step_is_fed_once(number, index):
    for window in ([[1, 2, 3, 4]], [[1, 2], [3]], [[1, 2], [3, 4], [5]], [[5], [1, 2], [3, 4], [6, 7], [8]]):
        shares = [share(window, n, number) for n in range(number)]
        assert len({len(mine) for mine in shares}) == 1
        fed = [row for mine in shares for part in mine for row in part]
        assert sorted(fed) == sorted(row for part in window for row in part)
        assert all(len(part) <= max(map(len, window)) for part in shares[index])
    assert share([[1, 2], [3]], 0, 1) == [[1, 2], [3]]


def test_o6_03_a_killed_process_ends_the_run_and_any_number_resumes(place, nursery):
    """The others notice at once; three processes and then one finish what two began, as one would have done it."""
    toml = write_recipe(place, "killed", steps=24, save_every=4, data=[str(place / "rows.jsonl")])
    one, broken = place / "killed-1", place / "killed"
    nursery.run(toml, one)
    started = time.monotonic()
    nursery.start(toml, broken, processes=2)
    nursery.when_logged(broken, 6, signal.SIGKILL, rank=1)
    codes = nursery.wait()
    assert codes == [2, -signal.SIGKILL] and time.monotonic() - started < 50
    assert "error: process 0 of 2 lost another one" in nursery.words(0) and "--resume" in nursery.words(0)
    nursery.start(toml, broken, "--resume", processes=3, split=True)
    nursery.when_logged(broken, 14, signal.SIGKILL, rank=0)
    codes = nursery.wait()
    assert codes[0] == -signal.SIGKILL and set(codes[1:]) == {2}
    assert [line["step"] for line in log(broken)] == list(range(1, len(log(broken)) + 1))
    nursery.start(toml, broken, "--resume", processes=2)
    nursery.when_logged(broken, 18, signal.SIGTERM, rank=1)
    assert nursery.wait() == [130, 130]
    nursery.run(toml, broken, "--resume")
    assert_same_run(one, broken)


def test_an_accelerator_that_attention_has_no_form_for_is_left_alone(place, monkeypatch):
    """As on an Apple computer, where PyTorch offers mps."""
    taken = []

    def joined(**given):
        taken.append(given["cpu"])
        raise ConfigError("enough seen")

    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("accelerate.Accelerator", joined)
    with pytest.raises(ConfigError, match="enough seen"):
        join(recipe(place / "base", place / "rows.jsonl", place / "mps"))
    assert taken == [True]
