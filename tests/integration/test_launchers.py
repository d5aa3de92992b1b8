"""docs/scale.md: its commands, started as they stand by the launchers they name, train what one process trains."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import ENVIRONMENT, free_port
from test_processes import assert_same_run, write_recipe
from training import log, many_rows, save_base, save_rows

from unmask.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scale.md").read_text()
BLOCKS = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
PROGRAMS = {"accelerate": ["-m", "accelerate.commands.launch"], "torchrun": ["-m", "torch.distributed.run"]}


def command(*parts):
    """The one command of the page that has all these parts."""
    [found] = [line for line in COMMANDS if all(part in line for part in parts)]
    return found


class Started:
    """A command of the page on this machine, for a recipe and an output of the test."""

    def __init__(self, line, toml, output, *flags, port=None, **replaced):
        for old, new in {"mine.toml": str(toml), **replaced}.items():
            assert old in line
            line = line.replace(old, new)
        program, *words = shlex.split(line)
        words = words[words[0] == "launch" :]
        if port is None:
            words = ["--main_process_port" if program == "accelerate" else "--master-port", str(free_port()), *words]
        self.said = output.with_name(f"{output.name}-{free_port()}.txt")
        with self.said.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, *PROGRAMS[program], *words, "--output", str(output), *flags],
                env=ENVIRONMENT,
                cwd=ROOT,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def wait(self, seconds=120):
        """Exit code and what all its processes wrote; nothing of it stays behind."""
        try:
            return self.process.wait(seconds), self.said.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def children(self):
        """Its processes by rank."""
        found = {}
        for pid in map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()):
            variables = dict(v.split("=", 1) for v in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in v)
            if "RANK" in variables:
                found[int(variables["RANK"])] = pid
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("launchers")
    save_base(place / "base")
    save_rows(place / "rows.jsonl", many_rows(13))
    return place


@pytest.fixture(scope="module")
def alone(place):
    """A run in one process, and its recipe."""
    toml, output = write_recipe(place, "launched", steps=12, accumulation=2, save_every=3), place / "alone"
    assert main(["adapt", str(toml), "--output", str(output)]) == 0
    return toml, output


def test_the_page_has_these_commands_only():
    """Each is run by a test below."""
    assert len(COMMANDS) == 5 and all(line.endswith("-m unmask adapt mine.toml") for line in COMMANDS)
    shipped = {file.name for file in (ROOT / "recipes/accelerate").glob("*.yaml")}
    assert {name for line in COMMANDS for name in re.findall(r"\w+\.yaml", line)} == shipped


def test_a_killed_process_ends_what_torchrun_started_and_accelerate_resumes_it(alone, place):
    toml, one = alone
    output = place / "together"
    run = Started(command("torchrun"), toml, output)
    deadline, lines = time.monotonic() + 90, output / "log.jsonl"
    while not (lines.is_file() and lines.read_bytes().count(b"\n") >= 4):
        assert run.process.poll() is None and time.monotonic() < deadline, run.said.read_text()
        time.sleep(0.002)
    os.kill(run.children()[1], signal.SIGKILL)
    code, said = run.wait(60)
    assert code not in (0, None)
    assert re.search(r"^error: process 0 of 2 lost another one, .*--resume", said, re.MULTILINE), said
    assert 4 <= len(log(output)) < 12
    code, said = Started(command("ddp.yaml", "--num_processes 2"), toml, output, "--resume").wait()
    assert code == 0, said
    assert said.count("saved ") == 1  # one of the two processes speaks
    assert_same_run(one, output)


def test_two_machines_are_two_launchers_that_meet(alone, place):
    toml, one = alone
    output, port = place / "machines", free_port()
    replaced = {"ADDRESS": "127.0.0.1", "29500": str(port), "--num_processes 16": "--num_processes 2"}
    runs = [
        Started(command("ADDRESS"), toml, output, port=port, **replaced, **{"--machine_rank 0": f"--machine_rank {n}"})
        for n in (0, 1)
    ]
    for code, said in [run.wait() for run in runs]:
        assert code == 0, said
    assert_same_run(one, output)


def test_fsdp2_without_a_gpu_is_refused(alone, place):
    """accelerate would train under DDP instead and say nothing."""
    code, said = Started(command("fsdp2.yaml"), alone[0], place / "refused").wait()
    assert code != 0
    assert re.search(r"^error: the launcher names FSDP, which accelerate has for GPUs only", said, re.MULTILINE), said
    assert not (place / "refused").exists()


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed: pip install 'unmask[deepspeed]'")
def test_deepspeed(alone, place):
    toml, one = alone
    output = place / "deepspeed"
    code, said = Started(command("deepspeed.yaml"), toml, output).wait(240)
    assert code == 0, said
    assert_same_run(one, output)
