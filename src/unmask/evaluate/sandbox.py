"""Programs that a model wrote run here: in a process of their own that sees no network, no other process and no file
but Python's own, with limits on everything, and is killed as a whole.

What it rests on: Linux namespaces (user, mount, pid, net, ipc, uts), a file system of its own, a system-call filter,
no new privileges, resource limits. `jail.py` builds it, from the standard library alone. Where a machine cannot do
this, generated code is refused; `allow_weaker` runs it with plain limits instead, and the verdict says so.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.evaluate.callfilter import CALLS, sieve

PACKAGES = ("numpy",)
"""Third-party packages that a program may import; HumanEval+ and MBPP+ need numpy for their tests."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONCOERCECLOCALE": "0"}
"""All that a program finds in its environment: settings that make two runs alike."""


class SandboxError(UnmaskError):
    """This machine cannot run generated code safely."""


@dataclass(frozen=True)
class Verdict:
    """How a program ended. passed: it ran to its very end without an exception.

    reason: "passed", the exception's last line, or the limit that was hit. output: standard output and error together,
    the first bytes of it. timed_out: it hit the limit on CPU or wall time. isolated: False in the weaker mode.
    """

    passed: bool
    reason: str
    output: str
    timed_out: bool = False
    isolated: bool = True


def run(
    program: str,
    *,
    seconds: float = 10.0,
    wall: float | None = None,
    memory: int = 1 << 30,
    processes: int = 8,
    output: int = 1 << 16,
    disk: int = 16 << 20,
    allow_weaker: bool = False,
) -> Verdict:
    """Run a Python program in the sandbox and say how it ended.

    seconds: CPU time of a process, rounded up; a busy machine does not use it up. wall: seconds on the clock, for what
    waits without computing; ten times `seconds`, at least 60, unless said. memory: bytes, of each process and of all
    together. processes: how many, and threads, at a time. output: bytes kept, the rest is dropped. disk: bytes of its
    directory.

    Raises SandboxError where the machine cannot isolate it and `allow_weaker` is False.
    """
    problem = missing()
    if problem and not allow_weaker:
        raise SandboxError(problem)
    job = {
        "program": program,
        "cpu": max(1, -int(-seconds // 1)),
        "wall": max(60.0, 10 * seconds) if wall is None else wall,
        "memory": memory,
        "processes": processes,
        "output": output,
        "disk": disk,
        "packages": _packages(),
        "environment": ENVIRONMENT,
    }
    return _weaker(job) if problem else _verdict(_jail(roomed(job)), job)


def roomed(job: dict[str, Any]) -> dict[str, Any]:
    """The job with what the isolated mode needs beside the limits."""
    machine = os.uname().machine
    return {**job, "room": True, "filter": sieve(machine).hex(), "keyctl": CALLS[machine]["keyctl"]}


def run_many(programs: Sequence[str], workers: int | None = None, **limits: Any) -> list[Verdict]:
    """Verdicts in the order of the programs. workers: how many run at a time; None for one per CPU."""
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda program: run(program, **limits), programs))


@functools.cache
def missing() -> str:
    """What this machine lacks for the sandbox, as one line with the way out; empty where nothing is missing."""
    if sys.platform != "linux":
        lacks = f"Linux (this is {sys.platform})"
    elif os.uname().machine not in CALLS:
        lacks = f"a filter of system calls for {os.uname().machine}"
    else:
        job = {
            "program": "",
            "cpu": 10,
            "wall": 60.0,
            "memory": 1 << 30,
            "processes": 8,
            "output": 4096,
            "disk": 1 << 20,
        }
        answer = _jail(roomed({**job, "packages": {}, "environment": ENVIRONMENT}))
        if answer.get("passed"):
            return ""
        lacks = answer.get("missing") or answer.get("output", "").strip()[-200:] or str(answer)
    return (
        f"generated code is not run: the sandbox lacks something here ({lacks}); use Linux 5.14 or later where "
        "unprivileged user namespaces are allowed, leave out the tasks that run code, or allow the weaker sandbox"
    )


def _jail(job: dict[str, Any]) -> dict[str, Any]:
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    command = [python, "-I", "-S", str(Path(__file__).with_name("jail.py"))]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, encoding="utf-8", env={}, cwd="/")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    except json.JSONDecodeError:
        return {"missing": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


def _weaker(job: dict[str, Any]) -> Verdict:
    with tempfile.TemporaryDirectory() as home:
        file, directory = Path(home) / "program.py", Path(home) / "empty"
        directory.mkdir()
        file.write_text(job["program"], encoding="utf-8")
        answer = _jail({**job, "room": False, "file": str(file), "directory": str(directory)})
    return _verdict(answer, job, isolated=False)


def _verdict(answer: dict[str, Any], job: dict[str, Any], isolated: bool = True) -> Verdict:
    if "missing" in answer:
        raise SandboxError(f"the sandbox failed: {answer['missing']}; run it again")
    output = answer["output"] + (f"\n… {answer['dropped']} more bytes" if answer["dropped"] else "")
    timed = answer.get("timed", False)
    reason = answer.get("reason") or _reason(answer, job, output)
    return Verdict(answer.get("passed", False), reason, output, timed, isolated)


def _reason(answer: dict[str, Any], job: dict[str, Any], output: str) -> str:
    code = answer["exit"]
    if answer["timed"]:
        return f"CPU time: more than {job['cpu']} s"
    if code < 0:
        return f"ended by signal {-code}"
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if code == 1 and lines else f"ended with exit code {code} before its last line"


@functools.cache
def _packages() -> dict[str, str]:
    """Directories of the allowed packages, and of the shared libraries that wheels put beside them. Imports nothing."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        for where in (spec.submodule_search_locations or []) if spec else []:
            found |= {each.name: str(each) for each in (Path(where), Path(f"{where}.libs")) if each.is_dir()}
    return found
