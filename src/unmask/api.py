"""The Python interface: a loaded model that streams and generates."""

import dataclasses
import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from unmask.auto import Admissible, Choice, Measured, choose
from unmask.config import BlockSpec, Decoding
from unmask.core.pace import Costs
from unmask.engine import Engine
from unmask.errors import ConfigError, RequestError, UnmaskError
from unmask.events import Answer, Event, Request, refusal
from unmask.guide import guided
from unmask.model.admissible import read_admissible
from unmask.model.checkpoint import Checkpoint, load_checkpoint
from unmask.model.choose import BACKBONES, backbone_for
from unmask.model.hf import device_named
from unmask.model.speed import assumed, read_measured
from unmask.options import read, read_toml
from unmask.recipe import Adapt
from unmask.resolve import Resolved, resolve
from unmask.text import render

Prompt = str | Sequence[dict[str, Any]] | Sequence[int]


class Model:
    """A checkpoint with the network that decodes it. spec: None for a plain model, which has mode ar only."""

    def __init__(self, checkpoint: Checkpoint, backbone: Any, batch_size: int) -> None:
        self.checkpoint, self.backbone, self.batch_size = checkpoint, backbone, batch_size
        self.told: set[str] = set()

    @property
    def spec(self) -> BlockSpec | None:
        return self.checkpoint.spec

    @property
    def tokenizer(self) -> Any | None:
        return self.checkpoint.tokenizer

    @functools.cached_property
    def admissible(self) -> Admissible | None:
        """What `unmask evaluate --gate` found of this model's thresholds; None where it was not run."""
        return read_admissible(self.checkpoint.ref, self.checkpoint.path)

    @functools.cached_property
    def measured(self) -> Measured | None:
        """What `unmask bench` measured of this model on this machine; None where it was not run."""
        return read_measured(self.backbone, self.checkpoint.path)

    def stream(
        self, prompt: Prompt, *, raw: bool = False, provisional: bool = False, **decoding: Any
    ) -> Iterator[Event]:
        """Events of one answer as it settles; the last is `Finished`. decoding: the fields of `Decoding`.

        raw: take a text as it is, without the chat template. provisional: also show the block being written.
        """
        request = dataclasses.replace(self.request(prompt, raw=raw, **decoding), provisional=provisional)
        return self.run([request])

    def generate(self, prompts: Iterable[Prompt], *, raw: bool = False, **decoding: Any) -> list[Answer]:
        """The answers, in the order of the prompts. One prompt that cannot be served carries its `error`.

        A mistake in the settings, which all prompts share, is raised (ConfigError, RequestError), before any work.
        """
        settings = self.decoding(**decoding)
        asked = [self._ask(prompt, raw, settings) for prompt in prompts]
        answers = iter(self.engine().generate([each for each in asked if isinstance(each, Request)]))
        return [each if isinstance(each, Answer) else next(answers) for each in asked]

    def request(self, prompt: Prompt, *, raw: bool = False, **decoding: Any) -> Request:
        """A request for one prompt: a text, a list of messages, or token ids."""
        settings = self.decoding(**decoding)
        return Request(prompt_ids=self.encode(prompt, raw), decoding=settings)

    def decoding(self, **fields: Any) -> Decoding:
        """Checked settings for this model, from fields of `Decoding`; raises for what it can serve to no prompt.

        Mode auto is settled (`chosen`).
        """
        settings = self.chosen(read(Decoding, fields)).decoding
        self.resolved(settings)
        if settings.mode == "verified":
            self.backbone.prepare()  # before any clock runs
        return settings

    def chosen(self, settings: Decoding) -> Choice:
        """What mode auto takes for a request with these settings, and why; warns once where the model's gate changes
        what was asked for. Another mode stays as it is."""
        if settings.mode != "auto" or self.spec is None:
            return choose(settings, self.spec)
        causal = self.spec.context == "causal"
        choice = choose(
            settings,
            self.spec,
            admissible=self.admissible if not causal or settings.max_loss is not None else None,
            measured=self.measured if causal else None,
            batch=self.batch_size,
        )
        if choice.warning and choice.warning not in self.told:
            self.told.add(choice.warning)
            warnings.warn(choice.warning, UserWarning, stacklevel=2)
        return choice

    def resolved(self, settings: Decoding) -> Resolved:
        """What a request with these settings gets; RequestError where they contradict the model."""
        full = resolve(self.chosen(settings).decoding, self.spec, self.checkpoint.stop_ids)
        if any(full.stop) and self.tokenizer is None:
            raise RequestError(
                f"stop strings need a tokenizer, {self.checkpoint.ref} has none; use stop_ids", field="stop"
            )
        guided(full.json_schema, full.stop_ids, self.tokenizer, self.backbone.vocab_size)  # refused here, if at all
        return full

    def _ask(self, prompt: Prompt, raw: bool, settings: Decoding) -> Request | Answer:
        try:
            return Request(prompt_ids=self.encode(prompt, raw), decoding=settings)
        except UnmaskError as error:
            return refusal(error, settings.mode, text=None if self.tokenizer is None else "")

    def encode(self, prompt: Prompt, raw: bool = False, tokenizer: Any = None) -> list[int]:
        """Token ids of a prompt in any of its three forms. tokenizer: a copy of the model's, for another thread."""
        if not isinstance(prompt, str) and prompt and all(isinstance(token, int) for token in prompt):
            return [int(token) for token in prompt]  # type: ignore[arg-type]
        if self.tokenizer is None:
            raise RequestError(f"{self.checkpoint.ref} has no tokenizer; give prompt_ids", field="prompt")
        return render(tokenizer or self.tokenizer, prompt, raw)  # type: ignore[arg-type]

    def run(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Events of several requests, decoded together."""
        return self.engine().run(requests)

    def engine(self, **how: Any) -> Engine:
        """An engine of its own for each call, so that two streams can be read in turn. how: as `Engine` takes it."""
        return Engine(
            self.backbone,
            self.spec,
            self.tokenizer,
            batch_size=self.batch_size,
            stop_ids=self.checkpoint.stop_ids,
            costs=self.costs,
            chain=self.checkpoint.chain,
            **how,
        )

    @property
    def costs(self) -> Costs:
        """What forwards cost here: as measured by `unmask bench`, else as assumed."""
        return assumed(self.backbone) if self.measured is None else self.measured.costs


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
    """Load a model reference: `demo`, a directory, a hub id, a .gguf file.

    dtype: fp32, bf16, fp16, or int8 (matrices in bytes, native backbone only); None keeps the checkpoint's own.
    backbone: auto and native fall back to universal, and say so, where the native one cannot run the model.

    Raises CheckpointError, UnsupportedModelError, CapacityError or ConfigError, each with what to do about it.
    """
    if backbone not in BACKBONES:
        raise ConfigError(f"backbone is '{backbone}'; allowed: {', '.join(BACKBONES)}")
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; allowed: at least 1")
    checkpoint = opened(ref, dtype=dtype, device=device, mask_id=mask_id, base=base)
    return Model(checkpoint, backbone_for(checkpoint, backbone, int8=dtype == "int8"), batch_size)


def opened(
    ref: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str = "auto",
    mask_id: int | None = None,
    base: str | None = None,
) -> Checkpoint:
    """The checkpoint of a model reference without its weights in memory; arguments and errors as of `load`."""
    int8 = dtype == "int8"
    kind, where = None if int8 else dtype, device_named(device)
    return load_checkpoint(ref, dtype=kind, device=where, mask_id=mask_id, base=base, lightly=True, int8=int8)


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
