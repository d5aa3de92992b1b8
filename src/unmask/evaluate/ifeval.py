"""What IFEval's scorer would download: nltk's sentence model `punkt_tab`, which `llama-index-core` carries as data.

The package is found, never imported. The language detector draws random numbers; its seed is fixed, so that two runs
give the same score.
"""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from unmask.evaluate.standins import Files

CACHE = "core/_static/nltk_cache"


class MissingData(LookupError):
    """nltk's data cannot be found."""


@contextlib.contextmanager
def ready_for_ifeval(files: Files) -> Iterator[None]:
    """Let nltk find `punkt_tab` in DIR/nltk_data or in the package, and never download it itself."""
    if importlib.util.find_spec("nltk") is None:
        yield
        return
    import nltk

    folders = [files.directory / "nltk_data"] if files.directory else []
    spec = importlib.util.find_spec("llama_index")
    folders += [Path(each) / CACHE for each in (spec.submodule_search_locations or [] if spec else [])]
    nltk.data.path += [str(each) for each in folders if each.is_dir() and str(each) not in nltk.data.path]
    if importlib.util.find_spec("langdetect") is not None:
        from langdetect import DetectorFactory

        DetectorFactory.seed = 0
    before = nltk.download

    def refuse(name: str, *_: object, **__: object) -> bool:
        raise MissingData(f"nltk's '{name}' is not here; install it with `pip install --no-deps llama-index-core`")

    nltk.download = refuse
    try:
        yield
    finally:
        nltk.download = before
