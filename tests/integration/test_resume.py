"""Killed and stopped runs of the command line go on as if nothing had happened, bit for bit on one thread."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training import log, many_rows, save_base, save_rows

import unmask
from unmask.cli import main

STEPS = 60
SLOW_SAVING = (  # the same command, with time to die between the files of state 20
    "import sys, time; import unmask.model.trainstate as t; save = t.save_file\n"
    "def slow(tensors, file): save(tensors, file); time.sleep(9 * ('state-0000020' in str(file)))\n"
    "t.save_file = slow; from unmask.cli import main; sys.exit(main(sys.argv[1:]))"
)
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(unmask.__file__).parent.parent),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "error::FutureWarning",
}


class Run:
    """A run of `unmask adapt` in a process of its own."""

    def __init__(self, toml, output, *flags, slow_saving=False):
        self.output = output
        how = ["-c", SLOW_SAVING] if slow_saving else ["-m", "unmask"]
        self.process = subprocess.Popen(
            [sys.executable, *how, "adapt", str(toml), "--output", str(output), *flags],
            env=ENVIRONMENT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def when(self, condition, number):
        """Send signal `number` as soon as `condition` holds; returns the exit code and what stands on stderr."""
        deadline = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.002)
        self.process.send_signal(number)
        _, self.stderr = self.process.communicate(timeout=60)
        return self.process.returncode

    def logged(self, steps):
        file = self.output / "log.jsonl"
        return lambda: file.is_file() and file.read_bytes().count(b"\n") >= steps

    def saving(self, step):
        return lambda: any((d / "weights.safetensors").is_file() for d in self.output.glob(f".state-{step:07d}.*.tmp"))


def listing(output):
    return sorted(path.name for path in output.iterdir())


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """One run straight through, and one that is killed twice and stopped twice on its way; what was seen after each."""
    place, seen = tmp_path_factory.mktemp("resume"), {}
    rows = save_rows(place / "rows.jsonl", many_rows(20))
    toml = place / "recipe.toml"
    toml.write_text(f"""
        base = "{save_base(place / "base")}"
        data = ["{rows}"]
        output = "elsewhere"
        context = "causal"
        ar_weight = 0.5
        block_size = 8
        sub_block_size = 4
        rank = 4
        steps = {STEPS}
        batch_rows = 4
        learning_rate = 1e-3
        warmup_steps = 5
        decay = "linear"
        save_every = 4
        threads = 1
    """)
    straight, broken = place / "straight", place / "broken"
    assert main(["adapt", str(toml), "--output", str(straight)]) == 0
    run = Run(toml, broken)
    seen["killed"] = run.when(run.logged(random.randint(5, 15)), signal.SIGKILL)
    run = Run(toml, broken, "--resume", slow_saving=True)
    seen["killed saving"] = run.when(run.saving(20), signal.SIGKILL)
    seen["after killed saving"] = listing(broken)
    for name, number, steps in (("SIGINT", signal.SIGINT, random.randint(25, 35)), ("SIGTERM", signal.SIGTERM, 45)):
        run = Run(toml, broken, "--resume")
        seen[name] = run.when(run.logged(steps), number)
        seen[f"{name} said"], seen[f"{name} log"] = run.stderr.splitlines(), len(log(broken))
        seen[f"after {name}"] = listing(broken)
    assert main(["adapt", str(toml), "--output", str(broken), "--resume"]) == 0
    return straight, broken, seen


def test_o6_03_the_losses_are_those_of_the_straight_run(stages):
    straight, broken, seen = stages
    assert (seen["killed"], seen["killed saving"]) == (-signal.SIGKILL, -signal.SIGKILL)
    assert [line["step"] for line in log(straight)] == list(range(1, STEPS + 1))
    assert log(broken) == log(straight)


def test_o6_03_the_weights_and_moments_are_those_of_the_straight_run(stages):
    straight, broken, _ = stages
    for file in (
        "model/adapter_model.safetensors",
        "model/mask_embedding.safetensors",
        f"state-{STEPS:07d}/weights.safetensors",
        f"state-{STEPS:07d}/optimizer.safetensors",
    ):
        assert (straight / file).read_bytes() == (broken / file).read_bytes(), file


def test_o6_03_a_partial_state_is_ignored_and_then_removed(stages):
    straight, broken, seen = stages
    left = [name for name in seen["after killed saving"] if name.endswith(".tmp")]
    assert len(left) == 1 and left[0].startswith(".state-0000020.") and "state-0000016" in seen["after killed saving"]
    assert not [name for name in seen["after SIGINT"] if name.endswith(".tmp")]
    assert (
        listing(broken)
        == listing(straight)
        == ["curves.html", "log.jsonl", "model", "recipe.json", "rows.json", f"state-{STEPS:07d}"]
    )


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stopped_run_saves_its_state_and_says_how_to_go_on(stages, name):
    _, _, seen = stages
    assert seen[name] == 130
    steps = seen[f"{name} log"]
    assert steps < STEPS and f"state-{steps:07d}" in seen[f"after {name}"]
    *progress, last = seen[f"{name} said"]
    assert last == f"interrupted: stopped after step {steps} of {STEPS}; continue with --resume"
    assert progress and all(line.startswith("step ") for line in progress)
