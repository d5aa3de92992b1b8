"""The Python interface: a loaded model that streams and generates."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from unmask.config import Adapt, BlockSpec, Decoding
from unmask.engine import Engine
from unmask.errors import ConfigError, RequestError
from unmask.events import Answer, Event, Request
from unmask.model.checkpoint import Checkpoint, load_checkpoint
from unmask.model.masktoken import choose_mask_id
from unmask.model.universal import UniversalBackbone
from unmask.options import read, read_toml
from unmask.text import render

Prompt = str | Sequence[dict[str, Any]] | Sequence[int]
BACKBONES = ("auto", "universal")


class Model:
    """A checkpoint with the network that decodes it."""

    def __init__(self, checkpoint: Checkpoint, backbone: Any, spec: BlockSpec, batch_size: int) -> None:
        self.checkpoint, self.backbone, self.spec, self.batch_size = checkpoint, backbone, spec, batch_size

    @property
    def tokenizer(self) -> Any | None:
        return self.checkpoint.tokenizer

    def stream(
        self, prompt: Prompt, *, raw: bool = False, provisional: bool = False, **decoding: Any
    ) -> Iterator[Event]:
        """Events of one answer as it settles; the last is `Finished`. decoding: the fields of `Decoding`.

        raw: take a text as it is, without the chat template. provisional: also show the block being written.
        """
        request = dataclasses.replace(self.request(prompt, raw=raw, **decoding), provisional=provisional)
        return self.run([request])

    def generate(self, prompts: Iterable[Prompt], *, raw: bool = False, **decoding: Any) -> list[Answer]:
        """The answers, in the order of the prompts. One that cannot be served carries its `error`."""
        return self._engine().generate([self.request(prompt, raw=raw, **decoding) for prompt in prompts])

    def request(self, prompt: Prompt, *, raw: bool = False, **decoding: Any) -> Request:
        """A request for one prompt: a text, a list of messages, or token ids."""
        settings = read(Decoding, decoding)
        if self.checkpoint.spec is None and settings.mode == "auto":
            settings = dataclasses.replace(settings, mode="ar")
        if self.checkpoint.spec is None and settings.mode != "ar":
            raise RequestError(
                f"mode {settings.mode} would write noise: {self.checkpoint.ref} is a plain autoregressive model; "
                "use mode ar, or adapt it first (unmask adapt)",
                field="mode",
                value=settings.mode,
            )
        return Request(prompt_ids=self.encode(prompt, raw), decoding=settings)

    def encode(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """Token ids of a prompt in any of its three forms."""
        if not isinstance(prompt, str) and prompt and all(isinstance(token, int) for token in prompt):
            return [int(token) for token in prompt]  # type: ignore[arg-type]
        if self.tokenizer is None:
            raise RequestError(f"{self.checkpoint.ref} has no tokenizer; give prompt_ids", field="prompt")
        return render(self.tokenizer, prompt, raw)  # type: ignore[arg-type]

    def run(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Events of several requests, decoded together."""
        return self._engine().run(requests)

    def _engine(self) -> Engine:
        """An engine of its own for each call, so that two streams can be read in turn."""
        return Engine(self.backbone, self.spec, self.tokenizer, batch_size=self.batch_size)


def load(
    ref: str | Path = "demo",
    *,
    dtype: str | torch.dtype | None = None,
    device: str = "auto",
    backbone: str = "auto",
    mask_id: int | None = None,
    base: str | None = None,
    batch_size: int = 8,
) -> Model:
    """Load a model reference: `demo`, a directory, a hub id, a .gguf file. dtype None keeps the checkpoint's own.

    Raises CheckpointError, UnsupportedModelError, CapacityError or ConfigError, each with what to do about it.
    """
    if backbone not in BACKBONES:
        raise ConfigError(f"backbone is '{backbone}'; allowed: {', '.join(BACKBONES)}")
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; allowed: at least 1")
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    checkpoint = load_checkpoint(ref, dtype=dtype, device=where, mask_id=mask_id, base=base)
    spec = checkpoint.spec or _plain_spec(checkpoint)
    network = UniversalBackbone(
        checkpoint.model, checkpoint.draft_model, mask_id=spec.mask_id, mask_vector=checkpoint.mask_vector
    )
    return Model(checkpoint, network, spec, batch_size)


def adapt(recipe: str | Path | Mapping[str, Any] | Adapt, *, resume: bool = False, **fields: Any) -> Iterator[Any]:
    """Train as a recipe says: a TOML file, a mapping or an `Adapt`, with `fields` in the place of its own.

    Yields one `Progress` per step; nothing happens until it is iterated.
    """
    from unmask.adapt import adapt as run

    if isinstance(recipe, Adapt):
        return run(dataclasses.replace(recipe, **fields), resume=resume)
    if isinstance(recipe, Mapping):
        return run(read(Adapt, {**recipe, **fields}), resume=resume)
    return run(read_toml(Adapt, Path(recipe), fields), resume=resume)


def _plain_spec(checkpoint: Checkpoint) -> BlockSpec:
    """What the engine needs of a model that was never adapted: an id that its text never contains, and end tokens."""
    mask_id, missing = choose_mask_id(checkpoint.model.config, checkpoint.tokenizer)
    if missing:
        raise ConfigError(f"{checkpoint.ref} has no unused token id to decode with; adapt it first")
    return BlockSpec(mask_id=mask_id, stop_ids=checkpoint.stop_ids)
