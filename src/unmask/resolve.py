"""What a request gets: its own settings, and the checkpoint's contract for all that it leaves open.

Where a gate has measured the model (`Admissible`), mode auto keeps to what passed it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from unmask.config import COLD, BlockSpec, Decoding
from unmask.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Resolved(Decoding):
    """What one request gets: its settings with nothing left open. Made by `resolve`; temperature is 0 or above COLD."""

    mode: Literal["ar", "threshold", "verified"]
    block_size: int
    sub_block_size: int
    stop_ids: tuple[int, ...]


@dataclass(frozen=True)
class Admissible:
    """Thresholds that passed the gate, those that were refused, and those that had too few items to decide.

    points: the loss against mode ar that was allowed. items: how many were compared. tasks: which. made_with: versions,
    machine and settings of the run. fingerprint: of the weights it was run on; filled in when it is written.
    """

    thresholds: tuple[float, ...]
    refused: tuple[float, ...]
    undecided: tuple[float, ...]
    points: float
    items: int
    tasks: tuple[str, ...] = ()
    made_with: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def floor(self) -> float:
        """The highest threshold that was refused; -1 where none was."""
        return max(self.refused, default=-1.0)

    @property
    def lowest(self) -> float | None:
        """The lowest threshold that passed and above which none was refused; None where there is none."""
        return min((threshold for threshold in self.thresholds if threshold > self.floor), default=None)


def resolve(wanted: Decoding, spec: BlockSpec | None, stop_ids: tuple[int, ...] = ()) -> Resolved:
    """Fill what a request leaves open from the checkpoint's contract; RequestError where the two contradict.

    spec: None for a plain model, which only mode ar decodes (its blocks are single tokens), up to `stop_ids`.
    """
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


def admitted(wanted: Decoding, spec: BlockSpec | None, record: Admissible | None) -> tuple[Decoding, str]:
    """The settings that mode auto may use under the model's gate, and what was changed and why, in one line.

    Only where auto takes mode threshold with rule threshold: a threshold below the lowest admissible one is raised to
    it; where none is admissible, mode ar is taken. Anything else, and a model without a record, stays as it is ("").
    """
    if record is None or spec is None or wanted.mode != "auto" or _mode(wanted, spec) != "threshold":
        return wanted, ""
    rule, threshold = wanted.rule_parameter()
    if rule != "threshold" or threshold is None:
        return wanted, ""
    if record.lowest is None:
        why = f"no threshold kept within {record.points:g} points of mode ar when the model was evaluated"
        if open_ := " or ".join(f"{each:g}" for each in record.undecided if each > record.floor):
            why = f"{record.items} items were too few to tell whether threshold {open_} keeps within {record.points:g} "
            why += "points of mode ar"
        return replace(wanted, mode="ar"), f"mode auto takes ar: {why}; --mode threshold overrides"
    if threshold >= record.lowest:
        return wanted, ""
    why = f"the lowest that kept within {record.points:g} points of mode ar when the model was evaluated"
    raised = replace(wanted, rule="threshold", threshold=record.lowest)
    return raised, f"threshold {threshold:g} is raised to {record.lowest:g}, {why}; --mode threshold overrides"


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
    if wanted.mode == "auto":
        if spec.context == "block":
            return "threshold"
        return "verified" if wanted.temperature == 0 else "ar"  # sampled text is the model's own law too
    if wanted.mode == "verified" and spec.context != "causal":
        raise RequestError(
            f"mode verified needs a checkpoint with context 'causal', this one has '{spec.context}'; "
            'use mode threshold, or adapt with context = "causal"',
            field="mode",
            value="verified",
        )
    if wanted.mode == "verified" and wanted.temperature > 0:
        raise RequestError(
            f"mode verified is greedy but temperature is {wanted.temperature}; "
            "use temperature 0, or mode threshold or ar",
            field="temperature",
            value=wanted.temperature,
            limit=0,
        )
    return wanted.mode


def ineffective(given: Collection[str], settings: Resolved) -> dict[str, str]:
    """Which of the settings that were `given` change nothing here: name to what makes them so ("at temperature 0")."""
    found: dict[str, str] = {}
    if settings.mode != "threshold":
        drafting = ("rule", "threshold", "sub_block_size", "sub_block_cache", "schedule")
        names = drafting if settings.mode == "verified" else (*drafting, "block_size")
        found |= dict.fromkeys(names, f"in mode {settings.mode}")
    elif (rule := settings.rule_parameter()[0]) != "threshold":
        found["threshold"] = f"with rule {rule}"
    if settings.temperature == 0:
        found |= dict.fromkeys(("top_p", "seed"), "at temperature 0")
    return {name: why for name, why in found.items() if name in given}
