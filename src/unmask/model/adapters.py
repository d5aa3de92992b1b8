"""Low-rank adapters in PEFT's file format, read and merged without PEFT.

At decode time an adapter is W + scale · B A (LoRA, arXiv 2106.09685), so a handful of products replaces an import that
takes longer than the merge. What this reader does not know (DoRA, per-module ranks, trained biases) is refused.
"""

import copy
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unmask.errors import CheckpointError
from unmask.model.files import read_json
from unmask.model.tensors import FileTensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SPEC, MASK, CHAIN = "block_spec.json", "mask_embedding.safetensors", "chain.safetensors"
PREFIX = "base_model.model."
FLOAT8 = torch.float8_e4m3fn
UNKNOWN = (
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "fan_in_fan_out",
    "layer_replication",
    "use_qalora",
    "trainable_token_indices",
    "target_parameters",
)


@dataclass(frozen=True)
class Adapter:
    """Low-rank weights by module name: A [rank, in] and B [out, rank]. Where they were trained: `mask_vector` [hidden],
    and the chain's `down` and `up`, both [rank, hidden]."""

    pairs: dict[str, tuple[Tensor, Tensor]]
    scale: float
    mask_vector: Tensor | None
    chain: tuple[Tensor, Tensor] | None = None


def is_adapter(directory: Path) -> bool:
    return (directory / CONFIG).is_file()


def about(directory: Path) -> dict[str, Any]:
    """What is said about an adapter: base, base_sha256, spec; of a directory that PEFT wrote, its base alone.

    A mask's embedding without the block spec that belongs to it is an error: the adapter was made to fill masks.
    """
    if (directory / SPEC).is_file() or (directory / MASK).is_file():
        return read_json(directory / SPEC)
    return {"base": read_json(directory / CONFIG).get("base_model_name_or_path")}


def read_adapter(directory: Path) -> Adapter:
    """Read an adapter directory; CheckpointError for a missing or damaged file or an option that is not known here."""
    config = read_json(directory / CONFIG)
    unknown = [name for name in UNKNOWN if config.get(name)]
    if str(config.get("peft_type", "LORA")) != "LORA" or config.get("bias", "none") != "none" or unknown:
        what = unknown[0] if unknown else f"peft_type {config.get('peft_type')}, bias {config.get('bias')}"
        raise CheckpointError(f"{directory / CONFIG}: only plain LoRA adapters are read, this one has {what}")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise CheckpointError(f"{directory / CONFIG}: r is {rank!r}, lora_alpha {alpha!r}; both must be above 0")
    mask = read_tensors(directory / MASK).get("mask_embedding") if (directory / MASK).is_file() else None
    scale = alpha / rank**0.5 if config.get("use_rslora") else alpha / rank
    return Adapter(_pairs(read_tensors(directory / WEIGHTS), directory), scale, mask, _chain(directory / CHAIN))


def _chain(file: Path) -> tuple[Tensor, Tensor] | None:
    if not file.is_file():
        return None
    tensors = read_tensors(file)
    down, up = tensors.get("down"), tensors.get("up")
    if down is None or up is None or down.ndim != 2 or down.shape != up.shape:
        raise CheckpointError(f"{file} holds something other than `down` and `up`, both [rank, hidden]")
    return down, up


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; CheckpointError names it when it is missing or damaged."""
    try:
        return load_file(file)
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent} has no {file.name}") from None
    except (OSError, SafetensorError) as e:
        raise CheckpointError(f"{file} is damaged ({e}); fetch or train it again") from None


def _pairs(tensors: dict[str, Tensor], directory: Path) -> dict[str, tuple[Tensor, Tensor]]:
    pairs = {}
    for name in tensors:
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            partner = name.replace(".lora_A.", ".lora_B.")
            if partner not in tensors:
                raise CheckpointError(f"{directory / WEIGHTS} has {name} but not {partner}")
            pairs[module] = (tensors[name], tensors[partner])
    if len(tensors) != 2 * len(pairs) or not pairs:
        raise CheckpointError(f"{directory / WEIGHTS} holds something other than pairs of lora_A and lora_B weights")
    return pairs


def check_fits(adapter: Adapter, tensors: FileTensors, width: int) -> None:
    """CheckpointError where an adapter does not fit the matrices of a checkpoint. width: of its hidden states."""
    if adapter.chain is not None and adapter.chain[0].shape[1] != width:
        raise CheckpointError(
            f"the adapter's chain is for hidden states of {adapter.chain[0].shape[1]}, the base's have {width}; "
            "give the base that it was trained on"
        )
    for name, (down, up) in adapter.pairs.items():
        _same_size(name, tensors.shape(f"{name}.weight") if f"{name}.weight" in tensors else None, down, up)


def merged(model: nn.Module, adapter: Adapter) -> nn.Module:
    """A model with the adapter in its linear layers; every other parameter is the same storage as `model`'s.

    The sum is taken in float32 and rounded once to the weights' own type.
    """
    shared: dict[int, Any] = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    draft = copy.deepcopy(model, shared)
    for name, (down, up) in adapter.pairs.items():
        layer = _linear(draft, name, down, up)
        layer.weight = nn.Parameter(folded(layer.weight.data, adapter.scale, down, up), requires_grad=False)
    return draft


def folded(weight: Tensor, scale: float, down: Tensor, up: Tensor) -> Tensor:
    """weight [out, in] + scale * up @ down, summed in float32 and rounded once to the weight's own type."""
    delta = scale * (up.to(weight.device).float() @ down.to(weight.device).float())
    return (weight.float() + delta).to(weight.dtype)


def _linear(model: nn.Module, name: str, down: Tensor, up: Tensor) -> Any:
    """The linear layer that an adapter changes."""
    try:
        layer: Any = model.get_submodule(name)
    except AttributeError:
        layer = None
    _same_size(name, tuple(layer.weight.shape) if isinstance(layer, nn.Linear) else None, down, up)
    return layer


def _same_size(name: str, size: tuple[int, ...] | None, down: Tensor, up: Tensor) -> None:
    """CheckpointError where a matrix of this size (None: there is none) is not the one an adapter was trained on."""
    if size is None:
        raise CheckpointError(f"the adapter changes {name}, which the base does not have; give its own base")
    if size != (up.shape[0], down.shape[1]):
        raise CheckpointError(
            f"the adapter's {name} is [{up.shape[0]}, {down.shape[1]}], the base's is {list(size)}; "
            "give the base that it was trained on"
        )


def write_adapter(
    directory: Path,
    state: dict[str, Tensor],
    config: dict[str, Any],
    mask_vector: Tensor | None,
    chain: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Write PEFT's two files, the mask's embedding and the chain. state: PEFT's names (`base_model.model.….weight`)."""
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
    (directory / CONFIG).write_text(json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")
    save_file({name: t.detach().cpu().contiguous() for name, t in state.items()}, directory / WEIGHTS, {"format": "pt"})
    if mask_vector is not None:
        save_file({"mask_embedding": mask_vector.detach().cpu().contiguous()}, directory / MASK, {"format": "pt"})
    if chain is not None:
        named = {name: t.detach().cpu().contiguous() for name, t in zip(("down", "up"), chain, strict=True)}
        save_file(named, directory / CHAIN, {"format": "pt"})


def peft_state(model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(state, config) of a PEFT-wrapped model's active adapter, as `save_adapter` takes them."""
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, save_embedding_layers=False), model.active_peft_config.to_dict()


def laid_into(fresh: dict[str, Tensor], state: dict[str, Tensor], ratio: float) -> dict[str, Tensor]:
    """An adapter's weights, float32, in the places of a fresh one's, whose rank may be larger and whose B is zero: it
    computes what it did, and what is new of the rank begins as in any fresh adapter.

    ratio: of the two scales, state's over fresh's; A and B share it. What does not fit into `fresh` keeps its shape.
    """
    laid = {}
    for name, tensor in state.items():
        axis = int(".lora_B." in name)  # of the rank: A is [rank, in], B [out, rank]
        laid[name] = weight = tensor.float() * ratio**0.5
        place = fresh.get(name, weight)
        known, others = weight.shape[axis], weight.shape[1 - axis]
        if place.shape[axis] > known and place.shape[1 - axis] == others:
            laid[name] = torch.cat([weight, place.narrow(axis, known, place.shape[axis] - known).float()], dim=axis)
    return laid


def in_float8(state: dict[str, Tensor], config: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(state, config) of an adapter in float8: three bits behind the leading one, half the bytes of float16.

    All are multiplied by one power of two, so that the largest comes close to the type's limit and small ones keep
    their bits; `lora_alpha` takes it back, so PEFT reads the adapter as any other.
    """
    most = max(float(tensor.abs().max()) for tensor in state.values())
    factor = 2.0 ** math.floor(math.log2(torch.finfo(FLOAT8).max / most)) if most else 1.0
    scaled = {name: (tensor.float() * factor).to(FLOAT8) for name, tensor in state.items()}
    return scaled, config | {"lora_alpha": config["lora_alpha"] / factor**2}


def to_dtype(tensor: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device=device, dtype=dtype)
