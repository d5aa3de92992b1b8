"""Where rows are from: what was read, which model answered, and how. One file for all rows."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.model.checkpoint import Checkpoint, base_digest
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


def model_made_with(checkpoint: Checkpoint, loading: dict[str, Any]) -> dict[str, Any]:
    """All that decides what a model computes."""
    int8 = loading["dtype"] == "int8"
    adapter = checkpoint.path / "adapter_model.safetensors"
    return {
        "reference": checkpoint.ref,
        "sha256": base_digest(checkpoint.tensors.files[0].parent),
        "adapter_sha256": sha256(adapter) if checkpoint.adapter is not None else None,
        "dtype": "int8" if int8 else str(checkpoint.dtype).removeprefix("torch."),
        "backbone": loading["backbone"],
        "device": checkpoint.device.type,
    }


def _of_prompts(prompts: Sequence[Prompt]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps(prompt.value).encode() + b"\n")
    return digest.hexdigest()
