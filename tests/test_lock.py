"""One writer at a time, and a lock that a killed process leaves behind locks nobody out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import unmask
from unmask.errors import CheckpointError
from unmask.lock import locked

HOLD = """
import sys
from pathlib import Path
from unmask.lock import locked
with locked(Path(sys.argv[1])):
    print(flush=True)
    input()
"""


@pytest.mark.parametrize("there", [True, False])
def test_a_second_writer_is_refused_in_one_line(tmp_path, there):
    path = tmp_path / "new" / "run"
    if there:
        path.mkdir(parents=True)
    with locked(path):
        with (
            pytest.raises(CheckpointError, match="new/run is being written by another process; wait until it ends"),
            locked(path),
        ):
            pass
        with locked(tmp_path / "new" / "other"):
            pass
        with pytest.raises(CheckpointError, match="is being written"), locked(path):
            pass
    with locked(path):
        pass
    assert [file.name for file in (tmp_path / "new").iterdir()] == (["run"] if there else [])


def test_a_killed_process_locks_nobody_out(tmp_path):
    home = str(Path(unmask.__file__).parent.parent)
    words = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=os.environ | {"PYTHONPATH": home}) as holder:
        holder.stdout.readline()
        with pytest.raises(CheckpointError, match="another process"), locked(tmp_path / "run"):
            pass
        holder.kill()
    assert (tmp_path / ".run.lock").exists()
    with locked(tmp_path / "run"):
        pass
    assert not (tmp_path / ".run.lock").exists()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="^cannot write .*: File name too long$"), locked(tmp_path / ("x" * 300)):
        pass
