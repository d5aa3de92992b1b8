"""The weights of a checkpoint as they leave it: adapters folded in, the mask's vector in its row of the embedding.

They are read, changed and written one after the other, so that a model need not fit into memory; what is held at a time
is one file of at most `SHARD` bytes.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unmask.errors import UnsupportedModelError
from unmask.model.adapters import folded
from unmask.model.checkpoint import Checkpoint
from unmask.model.hf import read_config
from unmask.model.quiet import quiet

SHARD = 2 * 10**9
"""Bytes of a weight file, at most, unless a single tensor is larger."""


@dataclass(frozen=True)
class Part:
    """So many of all bytes are written."""

    doing: str
    done: int
    total: int


@dataclass(frozen=True)
class Outgoing:
    """Weights by name. shapes: of each, after all changes; read: makes one, in `dtype`; tied: whether the head is the
    embedding; rows: how many tokens the embedding has."""

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    dtype: torch.dtype
    tied: bool
    rows: int

    def size(self, name: str) -> int:
        """Bytes of one tensor."""
        return prod(self.shapes[name]) * self.dtype.itemsize

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(map(self.size, self.shapes))


@dataclass(frozen=True)
class _Ends:
    """Names of the two matrices that have a row per token, and whether the first gives its rows as they are."""

    embedding: str
    head: str
    plain: bool


def outgoing(checkpoint: Checkpoint) -> Outgoing:
    """The weights of one network that does all that the checkpoint does; not for adapters that act on drafts only.

    UnsupportedModelError for a mask's vector that no row of the embedding could give.
    """
    assert not checkpoint.drafts, "two networks are not one"
    tensors, adapter, vector, spec = checkpoint.tensors, checkpoint.adapter, checkpoint.mask_vector, checkpoint.spec
    ends, tied = _ends(checkpoint)
    shapes = {name: tensors.shape(name) for name in tensors if not (tied and name == ends.head)}
    rows = grown = shapes[ends.embedding][0]
    if vector is not None and spec is not None:
        if not ends.plain:
            raise UnsupportedModelError(
                f"{checkpoint.ref}: the embedding of model type '{checkpoint.config.model_type}' changes its rows, so "
                "the mask's trained vector cannot be one of them; use --format hf, which keeps it apart"
            )
        grown = max(rows, spec.mask_id + 1)
    per_token = {ends.embedding, ends.head, ends.head.removesuffix("weight") + "bias"} & set(shapes)
    shapes |= {name: (grown, *shapes[name][1:]) for name in per_token}
    pairs = {f"{module}.weight": pair for module, pair in adapter.pairs.items()} if adapter is not None else {}

    def read(name: str) -> Tensor:
        tensor = tensors[name]
        if adapter is not None and name in pairs:
            tensor = folded(tensor, adapter.scale, *pairs[name])
        if name in per_token and grown > rows:
            tensor = torch.cat([tensor, tensor.new_zeros(grown - rows, *tensor.shape[1:])])
        if name == ends.embedding and vector is not None and spec is not None:
            tensor[spec.mask_id] = vector.to(device=tensor.device, dtype=tensor.dtype)
        return tensor

    return Outgoing(shapes, read, checkpoint.dtype, tied, grown)


def _ends(checkpoint: Checkpoint) -> tuple[_Ends, bool]:
    """The two ends of the network, and whether they are one matrix: a checkpoint that ties them and then holds another
    head is untied, as transformers takes it."""
    config, model_class = read_config(checkpoint.tensors.files[0].parent)
    with quiet(), torch.device("meta"):
        model = model_class(config)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    names: dict[int, str] = {id(module): f"{name}.weight" for name, module in model.named_modules()}
    ends = _Ends(names[id(embedding)], names[id(head)], type(embedding) is nn.Embedding)
    tensors, tied = checkpoint.tensors, bool(config.tie_word_embeddings)
    if tied and ends.head in tensors:
        tied = torch.equal(tensors[ends.head], tensors[ends.embedding])
    return ends, tied


def write_weights(out: Outgoing, directory: Path, tell: Callable[[Part], Any], limit: int = SHARD) -> None:
    """Write safetensors files of at most `limit` bytes each (one tensor at least) into a directory, with the index
    that transformers reads where there are several."""
    groups, done = _groups(out, limit), 0
    names = [_file_name(n, len(groups)) for n in range(1, len(groups) + 1)]
    for file, group in zip(names, groups, strict=True):
        held = {}
        for name in group:
            held[name] = out.read(name).contiguous()
            done += out.size(name)
            tell(Part("writing", done, out.total))
        save_file(held, directory / file, {"format": "pt"})
    if len(groups) > 1:
        places = {name: file for file, group in zip(names, groups, strict=True) for name in group}
        index = {"metadata": {"total_size": out.total}, "weight_map": dict(sorted(places.items()))}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _groups(out: Outgoing, limit: int) -> list[list[str]]:
    groups: list[list[str]] = []
    held = 0
    for name in out.shapes:
        if not groups or held + out.size(name) > limit:
            groups, held = [*groups, []], 0
        groups[-1].append(name)
        held += out.size(name)
    return groups


def _file_name(number: int, files: int) -> str:
    return "model.safetensors" if files == 1 else f"model-{number:05}-of-{files:05}.safetensors"


def plain_config(entries: dict[str, Any], checkpoint: Checkpoint, out: Outgoing) -> dict[str, Any]:
    """A config.json that transformers reads without code of anyone's, with the block spec where there is one."""
    spec = checkpoint.spec
    made = {key: value for key, value in entries.items() if key not in ("block_spec", "auto_map", "torch_dtype")}
    for place in (made, made.get("text_config")):
        if isinstance(place, dict) and "vocab_size" in place:
            place["vocab_size"] = out.rows
    made |= {"tie_word_embeddings": out.tied, "dtype": str(out.dtype).removeprefix("torch.")}
    return made if spec is None else made | {"block_spec": dataclasses.asdict(spec)}
