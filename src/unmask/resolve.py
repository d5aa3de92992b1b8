"""What a request gets: its own settings, and the checkpoint's contract for all that it leaves open."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from textwrap import shorten
from typing import Any, Literal

from unmask.auto import choose
from unmask.config import COLD, BlockSpec, Decoding
from unmask.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Resolved(Decoding):
    """What one request gets: its settings with nothing left open. Made by `resolve`; temperature is 0 or above COLD."""

    mode: Literal["ar", "threshold", "verified"]
    block_size: int
    sub_block_size: int
    stop_ids: tuple[int, ...]


def resolve(wanted: Decoding, spec: BlockSpec | None, stop_ids: tuple[int, ...] = ()) -> Resolved:
    """Fill what a request leaves open from the checkpoint's contract; RequestError where the two contradict.

    spec: None for a plain model, which only mode ar decodes (its blocks are single tokens), up to `stop_ids`. Mode auto
    that nobody has settled yet takes what it does where nothing was measured.
    """
    wanted = choose(wanted, spec).decoding
    if wanted.temperature < COLD:
        wanted = replace(wanted, temperature=0.0)
    mode = _mode(wanted, spec)
    size, part = (1, 1) if spec is None else _sizes(wanted, spec)
    declared = stop_ids if spec is None else spec.stop_ids
    open_ = {
        "mode": mode,
        "block_size": size,
        "sub_block_size": part,
        "stop_ids": declared if wanted.stop_ids is None else wanted.stop_ids,
    }
    return Resolved(**{f.name: getattr(wanted, f.name) for f in fields(Decoding)} | open_)


def _sizes(wanted: Decoding, spec: BlockSpec) -> tuple[int, int]:
    """Block and sub-block size; what is not asked for comes from the checkpoint."""
    size = wanted.block_size or spec.block_size
    if spec.block_size % size:
        raise RequestError(
            f"block_size {size} does not divide {spec.block_size}, the size the checkpoint was trained with; "
            f"use a divisor of {spec.block_size}",
            field="block_size",
            value=size,
            limit=spec.block_size,
        )
    part = wanted.sub_block_size or (
        spec.sub_block_size
        if size % spec.sub_block_size == 0
        else next(n for n in range(min(8, size), 0, -1) if size % n == 0)
    )
    if size % part:
        raise RequestError(
            f"sub_block_size {part} does not divide block_size {size}; use a divisor of {size}",
            field="sub_block_size",
            value=part,
            limit=size,
        )
    return size, part


def _mode(wanted: Decoding, spec: BlockSpec | None) -> Literal["ar", "threshold", "verified"]:
    if spec is None and wanted.mode not in ("ar", "auto"):
        raise RequestError(
            f"mode {wanted.mode} would write noise: this is a plain autoregressive model; "
            "use mode ar, or adapt it first (unmask adapt)",
            field="mode",
            value=wanted.mode,
        )
    if spec is None:
        return "ar"
    if wanted.mode == "verified" and spec.context != "causal":
        raise RequestError(
            f"mode verified needs a checkpoint with context 'causal', this one has '{spec.context}'; "
            'use mode threshold, or adapt with context = "causal"',
            field="mode",
            value="verified",
        )
    if wanted.mode == "threshold" and (name := wanted.leftmost) is not None:
        value = getattr(wanted, name)
        said = shorten(str(value), 60, placeholder=" …")
        raise RequestError(
            f"{name} is {said}, but mode threshold writes by no law of left to right; "
            f"use mode ar{' or verified' if spec.context == 'causal' else ''}",
            field=name,
            value=value,
        )
    assert wanted.mode != "auto"
    return wanted.mode


def ineffective(given: Mapping[str, Any], settings: Resolved) -> dict[str, str]:
    """Which of the settings that were `given` change nothing here: name to what makes them so ("at temperature 0")."""
    found: dict[str, str] = {}
    if given.get("mode", "auto") != "auto":
        found["max_loss"] = "where the mode is named"
    if settings.mode != "verified":
        found |= dict.fromkeys(("drafts", "prompt_lookup"), f"in mode {settings.mode}")
    elif settings.drafts == "plain":
        found["prompt_lookup"] = "with drafts plain"
    if settings.mode != "threshold":
        drafting = ("rule", "threshold", "sub_block_size", "sub_block_cache", "schedule")
        names = drafting if settings.mode == "verified" else (*drafting, "block_size")
        found |= dict.fromkeys(names, f"in mode {settings.mode}")
    elif (rule := settings.rule_parameter()[0]) != "threshold":
        found["threshold"] = f"with rule {rule}"
    if settings.temperature == 0:
        found |= dict.fromkeys(("top_p", "seed"), "at temperature 0")
    return {name: why for name, why in found.items() if name in given}
