"""Settings: frozen dataclasses whose fields are at once the flag, the default, the help text and the check.

`BlockSpec` is the contract between adapting and decoding and travels inside the checkpoint. `Decoding` is what a
request may ask for (`resolve` says what it then gets). A training recipe is in `recipe`. `options.add_flags` turns a
dataclass into command-line flags and `options.read` a mapping (TOML, JSON, flags) into a checked instance; both take
everything from the fields.
"""

import math
import os
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal

from unmask.errors import ConfigError

Mode = Literal["ar", "threshold", "verified", "auto"]
Context = Literal["block", "causal"]
Scope = Literal["all", "draft"]


def option(
    default: Any = MISSING,
    *,
    help: str,
    check: Callable[[Any], bool] | None = None,
    allowed: str = "",
    metavar: str = "",
) -> Any:
    """A dataclass field that carries its help text and its check; `allowed` says in words what passes."""
    return field(default=default, metadata={"help": help, "check": check, "allowed": allowed, "metavar": metavar})


def positive(value: int) -> bool:
    return value >= 1


def between(low: int, high: int) -> dict[str, Any]:
    """Check and words of an `option` that is a whole number."""
    return {"check": lambda v: low <= v <= high, "allowed": f"from {low} to {high}"}


LARGEST = 1e30
"""What a rate or a factor of training may be at most: its products with weights stay within float32 for a while."""
ABOVE_ZERO: dict[str, Any] = {"check": lambda v: 0 < v <= LARGEST, "allowed": f"above 0, at most {LARGEST:g}"}
MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))
"""Far more threads than cores end a process."""


def fraction(value: float) -> bool:
    return 0.0 <= value <= 1.0


def finite_from_zero(value: float) -> bool:
    return math.isfinite(value) and value >= 0.0


COLD, HOT = 1e-5, 100.0
"""Temperatures below COLD act as 0, above HOT are refused: between the two no logit divided by one leaves float32."""


def _temperature(value: float) -> bool:
    return 0.0 <= value <= HOT


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """The contract between adapting and decoding (design: saved in the checkpoint, never retyped).

    `context="block"`: committed tokens see their whole block (Fast-dLLM v2 as published).
    `context="causal"`: the clean stream is strictly causal, so committed keys and values are those of AR decoding.
    `adapter_scope="draft"`: the fine-tune acts on noisy positions only; the base stays bit for bit what it was.
    """

    block_size: int = option(32, help="positions denoised together (D)", check=positive, allowed="at least 1")
    sub_block_size: int = option(
        8,
        help="positions of a block finished together, left to right (S)",
        check=positive,
        allowed="at least 1, a divisor of the block size",
    )
    mask_id: int = option(
        help="token id that marks a masked slot; never proposed",
        check=lambda v: v >= 0,
        allowed="a row of the embedding",
    )
    stop_ids: tuple[int, ...] = option((), help="token ids that end an answer")
    context: Context = option("block", help="what committed tokens see of their own block")
    adapter_scope: Scope = option("all", help="which positions the fine-tune acts on")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.block_size % self.sub_block_size:
            raise ConfigError(
                f"sub_block_size {self.sub_block_size} does not divide block_size {self.block_size}; "
                f"use a divisor of {self.block_size}"
            )
        if self.adapter_scope == "draft" and self.context != "causal":
            raise ConfigError("adapter_scope 'draft' needs context 'causal': the base's own attention is causal")


def check_fields(settings: Any) -> None:
    """Raise ConfigError for the first field whose value its check refuses; names value and what is allowed."""
    for f in fields(settings):
        check_field(f, getattr(settings, f.name), f.name)


def check_field(f: Field[Any], value: Any, name: str) -> None:
    """Raise ConfigError where the field's check refuses `value`; name: the setting as the user wrote it."""
    check = f.metadata.get("check")
    if check is not None and value is not None and not check(value):
        raise ConfigError(f"{name} is {shown(value)}; allowed: {f.metadata['allowed']}")


def shown(value: Any) -> str:
    """A value as an error quotes it."""
    return f"'{value}'" if isinstance(value, str) else str(value)


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What one request asks for. Sizes left at None come from the checkpoint's `BlockSpec`."""

    mode: Mode = option(
        "auto",
        help="ar, threshold, verified (ar's own text, sooner); auto: the fastest that loses nothing, else threshold",
    )
    max_loss: float | None = option(
        None,
        help="mode auto may take threshold where the model's gate found that it loses at most X points",
        check=finite_from_zero,
        allowed="0 or a positive number",
        metavar="X",
    )
    drafts: Literal["paced", "plain"] = option(
        "paced",
        help="mode verified: paced drafts and checks as far as it pays here; plain drafts a whole block each time",
    )
    prompt_lookup: bool = option(
        True, help="mode verified: also guess what followed the last tokens earlier in prompt and answer"
    )
    rule: str = option(
        "threshold",
        help="which slots are accepted in a step: threshold, top-k, factor, entropy-bound; "
        "name:value sets its parameter",
        metavar="NAME[:VALUE]",
    )
    threshold: float = option(
        0.9,
        help="accept a slot whose confidence is above this (rule threshold)",
        check=fraction,
        allowed="from 0 to 1",
        metavar="X",
    )
    block_size: int | None = option(
        None,
        help="decode in blocks of N, a divisor of the trained size",
        check=positive,
        allowed="at least 1",
        metavar="N",
    )
    sub_block_size: int | None = option(
        None,
        help="finish N slots of a block at a time",
        check=positive,
        allowed="at least 1, a divisor of the block size",
        metavar="N",
    )
    sub_block_cache: bool = option(True, help="reuse a block's keys and values between steps (DualCache)")
    schedule: Literal["reference", "fused"] = option(
        "reference",
        help="reference: the paper's; fused: a block is committed and the next one drafted in one forward "
        "(mode threshold)",
    )
    max_new_tokens: int = option(
        256, help="length limit of an answer, end token included", check=positive, allowed="at least 1", metavar="N"
    )
    temperature: float = option(
        0.0, help="0 (and below 0.00001) is greedy", check=_temperature, allowed="from 0 to 100", metavar="X"
    )
    top_p: float = option(
        1.0,
        help="sample from the smallest set of tokens that holds this much probability",
        check=lambda v: 0.0 < v <= 1.0,
        allowed="above 0, at most 1",
        metavar="X",
    )
    seed: int | None = option(None, help="makes sampling repeatable, whatever else is in the batch", metavar="N")
    logprobs: int | None = option(
        None,
        help="log-probability of each token, and of the N likeliest in its place (modes ar and verified)",
        check=lambda v: 0 <= v <= 20,
        allowed="from 0 to 20",
        metavar="N",
    )
    json_schema: str | None = option(
        None,
        help="the answer is JSON that this JSON Schema allows; {} allows any object (modes ar and verified)",
        metavar="SCHEMA",
    )
    stop: tuple[str, ...] = option((), help="end the answer before this text; may be given several times", metavar="S")
    stop_ids: tuple[int, ...] | None = option(
        None, help="end tokens for this call instead of the checkpoint's", metavar="N"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        self.rule_parameter()

    @property
    def leftmost(self) -> str | None:
        """The name of a setting that needs each token to be written behind all those to its left; None without one."""
        return next((name for name in ("logprobs", "json_schema") if getattr(self, name) is not None), None)

    def rule_parameter(self) -> tuple[str, float | None]:
        """The rule's name and its parameter; None means the rule's own default."""
        name, colon, value = self.rule.partition(":")
        if name not in RULES:
            raise ConfigError(f"rule is '{self.rule}'; allowed: {', '.join(RULES)}, each optionally with :value")
        if not colon:
            return name, self.threshold if name == "threshold" else None
        check, allowed = RULES[name]
        number = _number(value)
        if number is None or not check(number):
            raise ConfigError(f"rule is '{self.rule}'; the value of {name} must be {allowed}")
        if name == "threshold" and self.threshold not in (number, Decoding.threshold):
            raise ConfigError(f"rule is '{self.rule}' but threshold is {self.threshold}; give only one of the two")
        return name, number


RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "threshold": (fraction, "from 0 to 1"),
    "top-k": (lambda k: k >= 1 and k == int(k), "a whole number, at least 1"),
    "factor": (finite_from_zero, "0 or a positive number"),
    "entropy-bound": (finite_from_zero, "0 or a positive number"),
}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
