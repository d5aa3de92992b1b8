"""From settings to contenders: the model in its modes, what stands beside it, and the points of the sweeps."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from unmask.config import BlockSpec, Decoding
from unmask.errors import ConfigError
from unmask.evaluate.outcomes import Contender
from unmask.evaluate.settings import MODES, Evaluate
from unmask.options import read

SWEPT = ("threshold", "rule", "block_size", "sub_block_size", "sub_block_cache", "schedule", "max_new_tokens")
"""Settings of `Decoding` that a sweep may vary; `batch_size` is one too."""


def contenders(
    ref: str, spec: BlockSpec | None, settings: Evaluate, decoding: Mapping[str, Any], batch_size: int
) -> list[Contender]:
    """The model in each of its modes, then base and plain fine-tune in mode ar, then the points of the sweeps.

    decoding: fields of `Decoding` that were given, for all. ConfigError for a mode or sweep that the model cannot do.
    """
    found = [
        Contender(mode, ref, mode, decoding=_effective(decoding, mode), batch_size=batch_size)
        for mode in _modes(ref, spec, settings)
    ]
    ar = _effective(decoding, "ar")
    if settings.base is not None:
        found.append(Contender("base", settings.base, "ar", "base", ar, batch_size))
    if settings.plain is not None:
        found.append(Contender("plain", settings.plain, "ar", "plain", ar, batch_size))
    for text in settings.sweep:
        found += _points(text, found, [c for c in found if c.role == "model" and not c.swept])
    return found


def _modes(ref: str, spec: BlockSpec | None, settings: Evaluate) -> list[str]:
    """The modes asked for; those that the model can where none are. Mode ar is always among them: all is paired with
    it."""
    can = ["ar"]
    if spec is not None:
        can += ["threshold", "verified"] if spec.context == "causal" else ["threshold"]
    asked = settings.mode_names or can
    unable = [mode for mode in asked if mode not in can]
    if unable:
        kind = "a plain model" if spec is None else "trained with context 'block'"
        raise ConfigError(f"modes is '{settings.modes}', but {ref} is {kind}; it has {', '.join(can)}")
    return [mode for mode in MODES if mode in asked or mode == "ar"]


def _effective(decoding: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """The settings that change something in a mode, so that contenders differ only where they do."""
    drafting = {"rule", "threshold", "sub_block_size", "sub_block_cache", "schedule"}
    idle = {"threshold": set(), "verified": drafting}.get(mode, drafting | {"block_size"})
    return {name: value for name, value in decoding.items() if name not in idle}


def _points(text: str, before: list[Contender], models: list[Contender]) -> Iterator[Contender]:
    """One contender per combination of values and mode in which they change something; none that is there already."""
    axes = [_values(part, text) for part in text.split()]
    swept = dict(axes)
    if len(swept) < len(axes):
        raise ConfigError(f"sweep is '{text}'; allowed: each NAME once, with all its values, as threshold=0.5,0.9")
    there, effective = {_identity(contender) for contender in before}, False
    for values in itertools.product(*swept.values()):
        chosen = dict(zip(swept, values, strict=True))
        for model in models:
            mine = _effective({k: v for k, v in chosen.items() if k != "batch_size"}, model.mode)
            if "batch_size" in chosen:
                mine["batch_size"] = chosen["batch_size"]
            if not mine:
                continue
            effective = True
            decoding = {**model.decoding, **{k: v for k, v in mine.items() if k != "batch_size"}}
            name = " ".join([model.mode, *(f"{key}={value}" for key, value in mine.items())])
            point = dataclasses.replace(
                model, name=name, decoding=decoding, batch_size=mine.get("batch_size", model.batch_size), swept=mine
            )
            if _identity(point) not in there:
                there.add(_identity(point))
                yield point
    if not effective:
        raise ConfigError(
            f"sweep is '{text}', which changes nothing in {', '.join(model.name for model in models)}; "
            "add a mode in which it does to modes"
        )


def _identity(contender: Contender) -> tuple[Any, ...]:
    """Equal for points of a sweep that would do the same. A point of its own is kept beside a mode's defaults, so that
    each sweep is whole."""
    settings = dataclasses.asdict(contender)
    return tuple(str(settings[name]) for name in ("model", "mode", "decoding", "batch_size", "swept"))


def _values(part: str, text: str) -> tuple[str, list[Any]]:
    """The name and the checked values of one axis."""
    name, _, listed = part.partition("=")
    name, given = name.strip().replace("-", "_"), [value for value in listed.split(",") if value]
    if name not in (*SWEPT, "batch_size") or not given:
        raise ConfigError(f"sweep is '{text}'; allowed: NAME=A,B with NAME one of {', '.join(SWEPT)}, batch_size")
    if name == "batch_size":
        if not all(value.isdecimal() and int(value) for value in given):
            raise ConfigError(f"sweep is '{text}'; allowed for batch_size: whole numbers above 0")
        return name, [int(value) for value in given]
    return name, [getattr(read(Decoding, {name: _typed(name, value)}, "sweep"), name) for value in given]


def _typed(name: str, value: str) -> Any:
    """A value from text as TOML would give it."""
    if value in ("true", "false"):
        return value == "true"
    if name in ("rule", "schedule"):
        return value
    try:
        return float(value) if name == "threshold" else int(value)
    except ValueError:
        return value
