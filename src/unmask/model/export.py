"""A checkpoint written anew, in one of three forms, all or nothing; never over something that is there.

hf             as it is: an adapter as an adapter that names its base, a whole model as a whole model
merged         one network, adapters folded into its weights; transformers loads it, and unmask with its block spec
fast-dllm-v2   the official layout (`official`)
"""

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import CheckpointError, ConfigError, UnsupportedModelError
from unmask.model import adapters
from unmask.model.checkpoint import Checkpoint, base_of, load_checkpoint
from unmask.model.files import read_json, replacing
from unmask.model.hf import read_config
from unmask.model.masktoken import declared_stops
from unmask.model.official import check_official, name_the_mask, official_config
from unmask.model.outgoing import SHARD, Part, outgoing, plain_config, write_weights
from unmask.model.sources import sha256

FORMATS = ("hf", "merged", "fast-dllm-v2")
BESIDE = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "LICENSE*",
    "NOTICE*",
)
"""What goes along with the weights: the tokenizer, the settings of transformers' `generate`, the terms of use."""
SPARE = 64 * 2**20
"""Bytes that stay free on the disk."""


@dataclass(frozen=True)
class Wrote:
    """A file of an export: its path, its bytes and their sha256."""

    path: Path
    size: int
    sha256: str


def export(
    ref: str | Path,
    form: str,
    out: Path,
    *,
    mask_id: int | None = None,
    tell: Callable[[Part], Any] = lambda part: None,
    shard: int = SHARD,
) -> list[Wrote]:
    """Write a model reference to the directory `out` in a form of `FORMATS`; returns its files by name.

    mask_id: for a checkpoint that does not state its own. tell: how far the weights are. shard: bytes of a weight
    file, at most. Raises ConfigError for an `out` that holds something, UnsupportedModelError where the form cannot
    hold the model, CheckpointError for files that cannot be read or written; then nothing is left behind.
    """
    if form not in FORMATS:
        raise ConfigError(f"format is '{form}'; allowed: {', '.join(FORMATS)}")
    out = out if out.name not in ("", "..") else out.resolve()
    _check_free(out)
    checkpoint = load_checkpoint(ref, mask_id=mask_id, lightly=True, streamed=True)
    made = _adapter(checkpoint, out) if form == "hf" and checkpoint.adapter is not None else None
    if made is None:
        made = _whole(checkpoint, form, out, tell, shard)
    with replacing(out) as fresh:
        _copy(_base(checkpoint), fresh)
        made(fresh)
        _check_loads(fresh, checkpoint, form)
    return [Wrote(file, file.stat().st_size, sha256(file)) for file in sorted(out.iterdir())]


def _check_free(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"--out {out} is not empty; give a directory that is new or empty")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; give a directory that is new or empty")


def _base(checkpoint: Checkpoint) -> Path:
    """The directory of the weights: of an adapter its base's."""
    return checkpoint.tensors.files[0].parent


def _adapter(checkpoint: Checkpoint, out: Path) -> Callable[[Path], None]:
    """Writes an adapter as it lies, with its base named so that it is found from anywhere."""
    files = [
        file for name in (adapters.WEIGHTS, adapters.MASK, adapters.CHAIN) if (file := checkpoint.path / name).is_file()
    ]
    base = base_of(adapters.about(checkpoint.path), checkpoint.path)
    named = str(Path(base).expanduser().resolve()) if Path(base).expanduser().exists() else base
    _check_disk(out, sum(file.stat().st_size for file in files))
    edits = {adapters.CONFIG: "base_model_name_or_path", adapters.SPEC: "base"}

    def write(fresh: Path) -> None:
        for file in files:
            shutil.copyfile(file, fresh / file.name)
        for name, key in edits.items():
            if (checkpoint.path / name).is_file():
                _write(fresh / name, read_json(checkpoint.path / name) | {key: named})

    return write


def _whole(
    checkpoint: Checkpoint, form: str, out: Path, tell: Callable[[Part], Any], shard: int
) -> Callable[[Path], None]:
    """Writes one network with everything folded in."""
    entries, (config, _) = read_json(_base(checkpoint) / "config.json"), read_config(_base(checkpoint))
    if form == "fast-dllm-v2":
        check_official(checkpoint, config)
    elif checkpoint.drafts:
        raise UnsupportedModelError(
            f"{checkpoint.ref} cannot be merged: its adapter acts on drafts only, and in the weights it would change "
            "the text of modes ar and verified; use --format hf, which keeps base and adapter apart"
        )
    weights = outgoing(checkpoint)
    _check_disk(out, weights.total)

    def write(fresh: Path) -> None:
        if form == "fast-dllm-v2":
            assert checkpoint.spec is not None
            _official_tokenizer(checkpoint, fresh)
            made = official_config(config, checkpoint.spec, weights)
        else:
            made = plain_config(_transformers_own(entries, config), checkpoint, weights)
        _write(fresh / "config.json", made)
        _write_generation(fresh, checkpoint, config, bans_mask=form != "fast-dllm-v2")
        write_weights(weights, fresh, tell, shard)

    return write


def _transformers_own(entries: dict[str, Any], config: Any) -> dict[str, Any]:
    """The entries of config.json; of the official layout, those of the Qwen2 that it is."""
    if entries.get("model_type") == config.model_type:
        return entries
    left_out = ("bd_size", "conplemenrary_mask")
    kept = {key: value for key, value in entries.items() if key not in left_out}
    return kept | {"model_type": config.model_type, "architectures": ["Qwen2ForCausalLM"]}


def _official_tokenizer(checkpoint: Checkpoint, fresh: Path) -> None:
    if not (fresh / "tokenizer.json").is_file() or not (fresh / "tokenizer_config.json").is_file():
        assert checkpoint.tokenizer is not None
        checkpoint.tokenizer.save_pretrained(fresh)
    name_the_mask(fresh)


def _write_generation(fresh: Path, checkpoint: Checkpoint, config: Any, *, bans_mask: bool) -> None:
    """Let transformers' `generate` end where unmask ends, and never write the mask, which is no text."""
    file, spec = fresh / "generation_config.json", checkpoint.spec
    found = read_json(file) if file.is_file() else {}
    made = dict(found)
    if checkpoint.stop_ids and set(checkpoint.stop_ids) != set(declared_stops(config, None, _Entries(found))):
        made["eos_token_id"] = list(checkpoint.stop_ids)
    if bans_mask and spec is not None:
        made["suppress_tokens"] = sorted({*(found.get("suppress_tokens") or ()), spec.mask_id})
    if made != found:
        _write(file, made)


class _Entries:
    def __init__(self, entries: dict[str, Any]) -> None:
        self.eos_token_id = entries.get("eos_token_id")


def _check_disk(out: Path, needed: int) -> None:
    """CheckpointError, with both numbers, where the disk has no room."""
    there = next(place for place in [out, *out.absolute().parents] if place.is_dir())
    free = shutil.disk_usage(there).free
    if needed + SPARE > free:
        raise CheckpointError(
            f"the export needs {needed / 1e9:.2f} GB in {out}, {free / 1e9:.2f} GB are free there; "
            "make room, or give an --out on another disk"
        )


def _copy(base: Path, fresh: Path) -> None:
    for file in _beside(base):
        shutil.copyfile(file, fresh / file.name)


def _beside(base: Path) -> Iterator[Path]:
    for pattern in BESIDE:
        yield from (file for file in sorted(base.glob(pattern)) if file.is_file())


def _check_loads(fresh: Path, checkpoint: Checkpoint, form: str) -> None:
    """What was written is read back, but for the weights, before it takes its place: it must be the same contract."""
    back, spec = load_checkpoint(fresh, lightly=True, streamed=True).spec, checkpoint.spec
    if back is not None and spec is not None and form == "fast-dllm-v2":
        if back.sub_block_size != spec.sub_block_size:
            warnings.warn(
                f"the layout states no sub-block size: this model's is {spec.sub_block_size}, programs that read it "
                f"take {back.sub_block_size} unless told (--sub-block-size {spec.sub_block_size})",
                UserWarning,
                stacklevel=3,
            )
        back = dataclasses.replace(back, sub_block_size=spec.sub_block_size)
    assert back == spec, (back, spec)


def _write(file: Path, entries: dict[str, Any]) -> None:
    file.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
