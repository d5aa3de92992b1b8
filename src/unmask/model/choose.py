"""Which backbone decodes a checkpoint: the native one where it can, else the universal one, and why."""

from typing import Any

import torch
from torch import Tensor

from unmask.errors import ConfigError, UnsupportedModelError
from unmask.model.checkpoint import Checkpoint
from unmask.model.native.backbone import KIND_OF, NativeBackbone, why_not_native
from unmask.model.native.gpu import GpuBackbone
from unmask.model.native.shape import EMBEDDING
from unmask.model.sources import Say, say_on_stderr
from unmask.model.universal import UniversalBackbone

BACKBONES = ("auto", "native", "universal")


def backbone_for(checkpoint: Checkpoint, wanted: str, *, int8: bool = False, say: Say = say_on_stderr) -> Any:
    """The backbone `wanted` (one of `BACKBONES`) for a checkpoint.

    A shape that the native backbone does not know falls back to the universal one, which is said. int8: hold the
    matrices in bytes, which only the native backbone does; UnsupportedModelError where it cannot run the model.
    """
    reason = "it was asked for" if wanted == "universal" else _why_not_native(checkpoint)
    if int8 and checkpoint.device.type != "cpu":
        reason = "int8 weights are for CPUs; use --dtype bf16 on a GPU"
    if reason is None:
        return _native(checkpoint, int8, say)
    network = checkpoint.model  # whatever is wrong with it comes first
    if int8 and wanted == "universal":
        raise ConfigError("dtype int8 needs the native backbone; leave out backbone universal, or take another dtype")
    if int8:
        raise UnsupportedModelError(f"dtype int8 needs the native backbone, which cannot run this model here: {reason}")
    if wanted != "universal":
        say(f"note: backbone universal, since {reason}")
    mask_id, vector = None if checkpoint.spec is None else checkpoint.spec.mask_id, checkpoint.mask_vector
    return UniversalBackbone(network, checkpoint.draft_model, mask_id=mask_id, mask_vector=vector)


def _native(checkpoint: Checkpoint, int8: bool, say: Say) -> NativeBackbone | GpuBackbone:
    config, tensors, device = checkpoint.config, checkpoint.tensors, checkpoint.device
    mask, adapter, everywhere = _mask(checkpoint), checkpoint.adapter, not checkpoint.drafts
    if device.type == "cpu":
        kind = "int8" if int8 else KIND_OF[checkpoint.dtype]
        if checkpoint.dtype == torch.float16 and not int8:
            say("note: float16 weights are held as float32, a CPU has no arithmetic for them")
        return NativeBackbone(config, tensors, kind=kind, mask=mask, adapter=adapter, everywhere=everywhere)
    dtype = checkpoint.dtype
    return GpuBackbone(config, tensors, dtype=dtype, device=device, mask=mask, adapter=adapter, everywhere=everywhere)


def _why_not_native(checkpoint: Checkpoint) -> str | None:
    if checkpoint.device.type == "cpu" and checkpoint.dtype not in KIND_OF:
        return f"its weights are {str(checkpoint.dtype).removeprefix('torch.')}; --dtype fp32 rounds them"
    return why_not_native(checkpoint.config, checkpoint.tensors, checkpoint.adapter, checkpoint.device)


def _mask(checkpoint: Checkpoint) -> Tensor | None:
    """What a masked slot is embedded as: a vector of its own, else the mask id's row; None for a plain model."""
    if checkpoint.spec is None or checkpoint.mask_vector is not None:
        return checkpoint.mask_vector
    return checkpoint.tensors[EMBEDDING][checkpoint.spec.mask_id]
