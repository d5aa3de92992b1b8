"""Freed memory stays: counted in page faults, which do not depend on what else the machine does."""

import os
import platform
import subprocess
import sys

import pytest

import unmask.heap
from unmask.heap import keep_freed_memory

PROGRAM = """
import resource, sys
from unmask.heap import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "kept" else None
import torch
def work():
    for _ in range(4):
        torch.empty(16_000_000).fill_(1.0)
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
    assert faults("given back") > 1000  # 64 MB are 16,000 pages of 4 KB
    assert faults("kept") < 100


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(unmask.heap.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(unmask.heap.ctypes, "CDLL", lambda _: pytest.fail("it has no mallopt"))
    monkeypatch.setenv(unmask.heap.LARGE_PAGES, "0")
    assert keep_freed_memory() is False
    assert os.environ[unmask.heap.LARGE_PAGES] == "0"  # what somebody has set stays
