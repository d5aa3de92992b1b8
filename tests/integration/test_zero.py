"""DeepSpeed divides what is trained, in stages 1 to 3, and trains what one process trains."""

import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest
from processes import ENVIRONMENT, Nursery, free_port
from safetensors.torch import load_file
from test_processes import SETTINGS, assert_same_run, write_recipe
from training import log, many_rows, recipe, save_base, save_rows

import unmask.processes as processes
from unmask.errors import ConfigError, MissingExtraError

needed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed: pip install 'unmask[deepspeed]'")
COMPILE = (
    "from deepspeed.accelerator import get_accelerator as a; b = a().create_op_builder('ShareMemCommBuilder'); b.load()"
)
INFINITE = """
import sys, torch, unmask.adapt, unmask.processes
from unmask.cli import main
loop, calls, kept = sys.modules["unmask.adapt"], [], []
def backward(accelerator, network, loss, plain=loop.backward):
    calls.append(loss)
    plain(accelerator, network, loss * (1.0 if len(calls) < 3 else float("inf")))
def update(accelerator, network, optimizer, clip, check, plain=loop.update):
    try:
        return plain(accelerator, network, optimizer, clip, check)
    finally:
        from deepspeed.utils import safe_get_full_fp32_param as whole
        kept.append({n: whole(p).clone() for n, p in network.module.named_parameters() if p.requires_grad})
loop.backward, loop.update = backward, update
code = main(sys.argv[1:])
torch.save(kept[-1], sys.argv[-1] + "/kept.pt")
sys.exit(code)
"""
"""`unmask adapt` whose third step has finite losses and gradients that are not."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("zero")
    save_base(place / "base")
    save_rows(place / "rows.jsonl", many_rows(13))
    return place


@pytest.fixture(scope="module")
def nursery(place):
    """DeepSpeed compiles a helper for the CPU once, which takes longer than a process has here."""
    subprocess.run([sys.executable, "-c", COMPILE], env=ENVIRONMENT, check=True, timeout=400, capture_output=True)
    nursery = Nursery(place)
    yield nursery
    nursery.close()


@needed
@pytest.mark.parametrize("setting", SETTINGS)
def test_each_stage_trains_what_one_process_trains(setting, place, nursery):
    toml = write_recipe(place, setting, **SETTINGS[setting])
    one = place / f"{setting}-alone"
    nursery.run(toml, one)
    for stage in (1, 2, 3):
        output = place / f"{setting}-{stage}"
        nursery.run(toml, output, processes=2, zero=stage)
        assert_same_run(one, output)
        first = next((one / "model").glob("*.safetensors"))
        mine, theirs = load_file(first), load_file(output / "model" / first.name)
        assert set(mine) == set(theirs)
        assert all(float((mine[n] - theirs[n]).float().norm()) <= 1e-3 * float(mine[n].float().norm()) for n in mine)


@needed
def test_processes_without_rows_take_part(place, nursery):
    save_rows(place / "seven.jsonl", many_rows(7))
    toml = write_recipe(
        place, "uneven", data=[str(place / "seven.jsonl")], batch_rows=2, accumulation=2, steps=4, weight_decay=0.1
    )
    one = place / "uneven-alone"
    nursery.run(toml, one)
    assert [line["rows"] for line in log(one)] == [4, 3, 4, 3]
    for stage in (1, 2, 3):
        output = place / f"uneven-{stage}"
        nursery.run(toml, output, processes=3, zero=stage)
        assert_same_run(one, output, tolerance=1e-3)  # Adam's first steps magnify the rounding of gradients near 0


@needed
def test_a_run_goes_on_under_another_stage_and_without_deepspeed(place, nursery):
    """Moments and their step are put back: AdamW without them would move the weights another way."""
    toml = write_recipe(place, "killed", steps=12, save_every=2)
    one, broken = place / "killed-alone", place / "killed"
    nursery.run(toml, one)
    nursery.start(toml, broken, processes=2, zero=3)
    nursery.when_logged(broken, 3, signal.SIGKILL, rank=1)
    assert nursery.wait() == [2, -signal.SIGKILL]
    assert "error: process 0 of 2 lost another one" in nursery.words(0)
    for steps, count, stage in ((5, 3, 1), (7, 2, 3), (9, 2, 2)):
        nursery.start(toml, broken, "--resume", processes=count, zero=stage)
        nursery.when_logged(broken, steps, signal.SIGTERM)
        assert nursery.wait() == [130] * count, nursery.words()
    nursery.run(toml, broken, "--resume")
    assert_same_run(one, broken)


@needed
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_gradient_that_is_not_a_number_leaves_the_weights(stage, place, nursery):
    import torch

    toml, output = write_recipe(place, "infinite", save_every=1), place / f"infinite-{stage}"
    joined = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    joined |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage)}
    run = subprocess.run(
        [sys.executable, "-c", INFINITE, "adapt", str(toml), "--output", str(output)],
        env=ENVIRONMENT | joined | {"MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 2, run.stderr
    assert "error: the norm of the gradient of step 3 is inf" in run.stderr
    aside = output / "doubted-0000002"  # a state is good once the next step has passed
    saved, kept = load_file(aside / "weights.safetensors"), torch.load(output / "kept.pt")
    assert set(saved) == set(kept) and all(saved[name].equal(kept[name]) for name in saved)


@pytest.fixture
def named(monkeypatch):
    """As a launcher's configuration names DeepSpeed."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setattr(processes, "find_spec", lambda name: name)
    return monkeypatch


def test_deepspeed_that_is_not_installed(named, tmp_path):
    named.setattr(processes, "find_spec", lambda name: None if name == "deepspeed" else name)
    with pytest.raises(MissingExtraError, match=r"'deepspeed'.*pip install 'unmask\[deepspeed\]'"):
        processes.join(recipe(tmp_path, tmp_path, tmp_path))


@needed
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bf16": {"enabled": True}}, "bf16 is enabled"),
        ({"fp16": {"enabled": True}}, "fp16 is enabled"),
        ({"optimizer": {"type": "AdamW"}}, "section 'optimizer'"),
        ({"scheduler": {"type": "WarmupLR"}}, "section 'scheduler'"),
        ({"zero_optimization": {"stage": 0}}, "zero_stage is 0"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}}, "to nvme"),
    ],
)
def test_what_the_recipe_decides_is_refused_elsewhere(changed, words, named, tmp_path):
    file = tmp_path / "deepspeed.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, **changed}))
    named.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    with pytest.raises(ConfigError, match=words) as refused:
        processes.join(recipe(tmp_path, tmp_path, tmp_path))
    assert "\n" not in str(refused.value)
