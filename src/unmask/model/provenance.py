"""What decides what a model computes, for the files that say what results were made with."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from unmask.model.checkpoint import Checkpoint, base_digest
from unmask.model.sources import sha256


def model_made_with(checkpoint: Checkpoint, loading: dict[str, Any]) -> dict[str, Any]:
    """All that decides what a model computes. loading: the arguments of `api.load`."""
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


def versions(*packages: str) -> dict[str, str | None]:
    """Installed versions; None for a package that is not there. Nothing is imported."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
