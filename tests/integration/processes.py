"""Runs of `unmask adapt` in one or several processes of their own, on the CPU."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import unmask

ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(unmask.__file__).parent.parent),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def free_port() -> int:
    """Below the ports that systems give to connections, so that none takes it before the run listens."""
    while True:
        with socket.socket() as tried, contextlib.suppress(OSError):
            port = random.randint(15000, 30000)
            tried.bind(("127.0.0.1", port))
            return port


class Nursery:
    """Starts runs within milliseconds (see nursery.py)."""

    def __init__(self, place: Path) -> None:
        self.place, self.number = place, 0
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py"))],
            env=ENVIRONMENT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def start(
        self, toml: Path, output: Path, *flags: str, processes: int = 1, split: bool = False, zero: int = 0
    ) -> None:
        """`unmask adapt TOML --output OUTPUT FLAGS`, in so many processes."""
        self.number += 1
        port = free_port()
        self.said = self.place / f"said-{self.number}"
        words = ["adapt", str(toml), "--output", str(output), *flags]
        order = {
            "words": words,
            "processes": processes,
            "port": port,
            "split": split,
            "zero": zero,
            "said": str(self.said),
        }
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        self.pids = json.loads(self.process.stdout.readline())

    def wait(self) -> list[int]:
        """Exit codes by rank; negative is a signal."""
        return json.loads(self.process.stdout.readline())

    def run(self, *args: object, **how: object) -> None:
        """A run that must end well."""
        self.start(*args, **how)
        assert set(self.wait()) == {0}, self.words()

    def words(self, rank: int | None = None) -> str:
        """What the processes (or one of them) wrote, on both streams."""
        ranks = range(len(self.pids)) if rank is None else [rank]
        return "".join(Path(f"{self.said}.{rank}").read_text() for rank in ranks)

    def when_logged(
        self, output: Path, steps: int, number: int = signal.SIGKILL, rank: int = 0, wait: float = 0
    ) -> None:
        """Send a signal to one process when so many steps are logged, and `wait` seconds later."""
        deadline, log = time.monotonic() + 60, output / "log.jsonl"
        while not (log.is_file() and log.read_bytes().count(b"\n") >= steps):
            assert time.monotonic() < deadline, self.words()
            time.sleep(0.002)
        time.sleep(wait)
        os.kill(self.pids[rank], number)
