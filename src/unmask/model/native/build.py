"""The kernel, compiled once for the machine at hand and kept beside the converted models."""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from unmask.model.sources import Say, home, say_on_stderr

SOURCE = Path(__file__).with_name("kernel.c")
FLAGS = ("-O2", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-fPIC")
COMPILERS = ("cc", "gcc", "clang")


class NoKernel(Exception):
    """Why the kernel cannot be had here; its text is shown to the user."""


@functools.cache
def library(say: Say = say_on_stderr, *options: str) -> ctypes.CDLL:
    """The compiled kernel, built on first use; NoKernel where that is impossible. options: further compiler flags."""
    file = home() / "kernel" / f"{_fingerprint(options)}.so"
    if file.is_file():
        with contextlib.suppress(OSError):  # one that was damaged is made again
            return ctypes.CDLL(str(file))
    _compile(file, options, say)
    try:
        return ctypes.CDLL(str(file))
    except OSError as e:
        raise NoKernel(f"the kernel cannot be loaded ({e})") from None


def _compile(file: Path, options: tuple[str, ...], say: Say) -> None:
    """Compile beside `file` and rename, so that two processes at once do no harm.

    The OpenMP functions stay undefined: they are found in the library that PyTorch has loaded, so that both use one
    pool of threads instead of two that fight for the cores.
    """
    compiler = os.environ.get("CC") or next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        raise NoKernel(f"there is no C compiler ({', '.join(COMPILERS)}); install one, or set CC")
    say("compiling the CPU kernel once (a few seconds)")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            object_file, made = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
            _call([compiler, *FLAGS, "-fopenmp", *options, "-c", str(SOURCE), "-o", str(object_file)])
            _call([compiler, "-shared", str(object_file), "-o", str(made), "-lm"])
            os.replace(made, file)
    except OSError as e:
        raise NoKernel(f"the kernel cannot be compiled in {file.parent}: {e.strerror or e}") from None


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        raise NoKernel(f"{command[0]} cannot compile the kernel: {next((w for w in why if 'error' in w), why[0])}")


def _fingerprint(options: tuple[str, ...]) -> str:
    """Of everything that the compiled file depends on: the source, the flags and the processor's abilities."""
    parts = [SOURCE.read_text(encoding="utf-8"), *FLAGS, *options, platform.machine(), os.environ.get("CC", "")]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    except OSError:
        parts.append(platform.processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
