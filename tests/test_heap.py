"""Freed memory stays: counted in page faults, which do not depend on what else the machine does."""

import os
import platform
import subprocess
import sys

import pytest

import unmask.heap
from unmask.cli import main
from unmask.heap import keep_freed_memory

PROGRAM = """
import ctypes, resource, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # pages of 4 KB, whatever the system prefers
from unmask.heap import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import torch
def work():
    for _ in range(4):
        torch.empty(16_000_000).fill_(1.0)
for _ in range(8):  # until each aligned block has found its place, which takes one to four rounds
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way):
    environment = {name: value for name, value in os.environ.items() if name != unmask.heap.LARGE_PAGES}
    done = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_is_freed_is_not_mapped_again():
    assert faults("given back") > 60_000  # four times 64 MB, 16,000 pages each
    assert faults("kept") < 100


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(unmask.heap.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(unmask.heap.ctypes, "CDLL", lambda _: pytest.fail("it has no mallopt"))
    monkeypatch.setenv(unmask.heap.LARGE_PAGES, "0")
    assert keep_freed_memory() is False
    assert os.environ[unmask.heap.LARGE_PAGES] == "0"  # what somebody has set stays


def test_training_keeps_it_where_the_process_is_its_own(monkeypatch):
    kept = []
    monkeypatch.setattr("unmask.cli.keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setattr(sys, "argv", ["unmask", "adapt", "--template"])
    assert main(["adapt", "--template"]) == 0 and not kept  # called from a program: its memory is its own affair
    assert main() == 0 and kept
