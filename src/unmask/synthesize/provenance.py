"""Where rows are from: what was read, which model answered, and how. One file for all rows."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.model.checkpoint import Checkpoint
from unmask.model.provenance import model_made_with
from unmask.model.sources import sha256
from unmask.synthesize.jobs import Prompt
from unmask.synthesize.settings import Synthesis

MAY_CHANGE = ("workers",)
"""Settings that do not change the rows, so that a resumed run may have others."""


def made_with(
    checkpoint: Checkpoint, loading: dict[str, Any], settings: Synthesis, prompts: Sequence[Prompt]
) -> dict[str, Any]:
    """All that decides the rows."""
    kept = {name: value for name, value in asdict(settings).items() if name not in MAY_CHANGE}
    return {
        "unmask": __version__,
        "model": model_made_with(checkpoint, loading) | {"mode": "ar"},
        "settings": kept,
        "prompts": {"count": len(prompts), "sha256": _of_prompts(prompts)} if settings.make is None else None,
        "excluded": {file: sha256(Path(file)) for file in settings.exclude},
    }


def _of_prompts(prompts: Sequence[Prompt]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps(prompt.value).encode() + b"\n")
    return digest.hexdigest()
