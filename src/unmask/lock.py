"""One writer at a time: a lock that the system takes back when its process ends, however it ends."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unmask.errors import CheckpointError

LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system without locks answers; there nothing is guarded."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else who calls this writes `path`, a file or a directory, which need not be there yet.

    The lock is on the file `.NAME.lock` beside it, which is gone at the end. Raises CheckpointError where another one
    writes it, or where nothing can be written.
    """
    path = path.absolute()
    file = path.with_name(f".{path.name}.lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = _taken(file)
    except BlockingIOError:
        raise CheckpointError(
            f"{path} is being written by another process; wait until it ends, or write to another place"
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()
        os.close(handle)


def _taken(file: Path) -> int:
    """The open lock file, locked. It is opened again where another process has removed it in between."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in LOCKLESS:
                os.close(handle)
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), file.stat()):
                return handle
        os.close(handle)
