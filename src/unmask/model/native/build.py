"""The kernel, compiled once for the machine at hand and kept beside the converted models."""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from unmask.errors import CheckpointError
from unmask.model.sources import Say, home, say_on_stderr, sha256

SOURCE = Path(__file__).with_name("kernel.c")
KEYS, CHUNK, QUERIES = 8, 128, 24
"""Keys of a panel of the cache, keys between two corrections of a running softmax, queries that read a chunk of keys
together."""
WIDEST_GROUP, WIDEST_HEAD = 64, 256
"""Most heads per key/value head, most values of a head."""
SIZES = {"KEYS": KEYS, "CHUNK": CHUNK, "QUERIES": QUERIES, "WIDEST_GROUP": WIDEST_GROUP, "WIDEST_HEAD": WIDEST_HEAD}
FLAGS = ("-O2", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-fPIC")
SIZE_FLAGS = tuple(f"-D{name}={value}" for name, value in SIZES.items())
COMPILERS = ("gcc", "cc")
"""gcc, whose OpenMP is that of PyTorch; `cc` is gcc nearly everywhere."""


class NoKernel(Exception):
    """Why the kernel cannot be had here; its text is shown to the user."""


@functools.cache
def library(say: Say = say_on_stderr, *options: str) -> ctypes.CDLL:
    """The compiled kernel, built on first use; NoKernel where that is impossible. options: further compiler flags."""
    try:
        file = home() / "kernel" / f"{_fingerprint(options)}.so"
    except CheckpointError as e:
        raise NoKernel(f"there is no place for the kernel: {e}") from None
    failed = file.with_suffix(".failed")
    if failed.is_file():
        raise NoKernel(f"{failed.read_text(encoding='utf-8')}; remove {failed} to try again")
    if _is_whole(file):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(file))
    _compile(file, options, say)
    try:
        return ctypes.CDLL(str(file))
    except OSError as e:
        why = f"the kernel was compiled and cannot be loaded ({e})"
        with contextlib.suppress(OSError):  # else every start would compile it again
            failed.write_text(why, encoding="utf-8")
        raise NoKernel(why) from None


def _is_whole(file: Path) -> bool:
    """Whether the compiled file is as it was written: loading a damaged one may end the process."""
    said = file.with_suffix(".sha256")
    return file.is_file() and said.is_file() and said.read_text(encoding="utf-8") == sha256(file)


def _compile(file: Path, options: tuple[str, ...], say: Say) -> None:
    """Compile beside `file` and rename, so that two processes at once do no harm.

    The OpenMP functions stay undefined: they are found in the library that PyTorch has loaded, so that both use one
    pool of threads instead of two that fight for the cores.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or [name for name in COMPILERS if shutil.which(name)][:1]
    if compiler and shutil.which(compiler[0]) is None:
        raise NoKernel(f"CC is '{os.environ['CC']}', and there is no program {compiler[0]}")
    if not compiler:
        raise NoKernel(f"there is no C compiler ({', '.join(COMPILERS)}); install one, or set CC")
    say("compiling the CPU kernel once (a few seconds)")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _sweep(file.parent)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            object_file, made = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
            _call([*compiler, *FLAGS, *SIZE_FLAGS, "-fopenmp", *options, "-c", str(SOURCE), "-o", str(object_file)])
            _call([*compiler, "-shared", str(object_file), "-o", str(made), "-lm"])
            said = made.with_suffix(".sha256")
            said.write_text(sha256(made), encoding="utf-8")
            os.replace(made, file)
            os.replace(said, file.with_suffix(".sha256"))
    except OSError as e:
        raise NoKernel(f"the kernel cannot be compiled in {file.parent}: {e.strerror or e}") from None


def _sweep(folder: Path) -> None:
    """Remove what a killed compilation left behind, an hour after."""
    for left in folder.glob("tmp*"):
        if time.time() - left.stat().st_mtime > 3600:
            shutil.rmtree(left, ignore_errors=True)


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        raise NoKernel(f"{command[0]} cannot compile the kernel: {next((w for w in why if 'error' in w), why[0])}")


def _fingerprint(options: tuple[str, ...]) -> str:
    """Of everything that the compiled file depends on: the source, the flags and the processor's abilities."""
    parts = [
        SOURCE.read_text(encoding="utf-8"),
        *FLAGS,
        *SIZE_FLAGS,
        *options,
        platform.machine(),
        os.environ.get("CC", ""),
    ]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    except OSError:
        parts.append(platform.processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
