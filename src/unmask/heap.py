"""Memory that a process takes and frees again and again, kept instead of given back to the system.

A training step on a CPU frees gigabytes of activations and the next one takes them again. glibc maps every large block
anew, and the kernel clears it in pages of 4 KB, each at its first touch. What is kept is not touched for the first
time again, and PyTorch can ask for pages of 2 MB.
"""

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt (malloc.h)."""
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""Read by PyTorch when it makes its first tensor."""


def keep_freed_memory() -> bool:
    """Let freed blocks stay with this process, in large pages if no tensor exists yet. False where the C library is
    not glibc: then nothing is kept. A value of THP_MEM_ALLOC_ENABLE that is set already stays."""
    os.environ.setdefault(LARGE_PAGES, "1")
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))
