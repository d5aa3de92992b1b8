"""How likely a model finds given texts, in each of its modes; many pairs share a forward.

`score` is for pairs of a context and what continues it (multiple choice), `score_rolling` for whole texts (perplexity).
`terms` says what the numbers are.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.api import Model
from unmask.errors import CapacityError, ConfigError, RequestError
from unmask.evaluate.lanes import Lanes, Text
from unmask.evaluate.pairs import Pair, prefix_token, windows
from unmask.evaluate.terms import Lane, Program, Score, chain, masked
from unmask.model.backbone import Backbone
from unmask.model.files import available_memory
from unmask.model.sources import Say, say_on_stderr
from unmask.resolve import Resolved
from unmask.row import Row, check_prompt

SAMPLES = 4
"""Estimates drawn per part of a block, where not asked otherwise. Parts of up to four slots are then exact."""


def score(
    model: Model,
    pairs: Sequence[Pair],
    *,
    mode: str = "auto",
    samples: int = SAMPLES,
    seed: int = 0,
    batch_size: int | None = None,
    decoding: Mapping[str, Any] | None = None,
    say: Say = say_on_stderr,
) -> Iterator[tuple[int, Score]]:
    """Log-likelihoods of continuations given their contexts: (place in `pairs`, Score), in the order they are ready.

    mode: ar (and verified, which writes the same) by the chain rule; threshold by the masked estimate of `terms`, from
    `samples` draws; auto as decoding takes it. An empty context is the prefix token. decoding: fields of `Decoding`, of
    which the sizes of block and sub-block count in mode threshold; `say` gets a line that names the others, and one
    where contexts had to be cut. A pair's number depends, but for rounding, on the pair and the seed alone.

    Raises, before any work: RequestError for settings that contradict the model, a token outside the vocabulary, or a
    continuation longer than the model's positions; ConfigError for samples or batch_size below 1; CapacityError.
    While it runs, RequestError where the network says NaN.
    """
    settings = _settings(model, mode, decoding or {}, say)
    size = model.batch_size if batch_size is None else batch_size
    if samples < 1 or size < 1:
        name, value = ("samples", samples) if samples < 1 else ("batch_size", size)
        raise ConfigError(f"{name} is {value}; allowed: at least 1")
    texts = [_text(model, settings, pair) for pair in pairs]
    cut = [text.cut for text in texts if text.cut]
    if cut:
        say(
            f"warning: {len(cut)} of {len(texts)} contexts are cut on the left, {sum(cut)} tokens in all: "
            f"the model takes {model.backbone.max_positions} positions"
        )

    def program(text: Text, lane: Lane) -> Program:
        row = Row(text.tokens, settings, model.spec)
        if settings.mode == "threshold":
            return masked(row, text.first, lane, samples, seed)
        return chain(row, text.first, lane)

    mask_id = None if model.spec is None else model.spec.mask_id
    rows, capacity = _room(model.backbone, texts, settings, size)
    return Lanes(model.backbone, mask_id, rows, capacity).scores(texts, program)


def score_rolling(model: Model, texts: Sequence[Sequence[int]], **how: Any) -> Iterator[tuple[int, Score]]:
    """Log-likelihoods of whole texts (token ids), each behind the prefix token: (place in `texts`, Score).

    A text longer than the model's positions is scored in windows (see `windows`), as lm-eval does. how: as for `score`.
    The perplexity of a text is exp(-log_probability / tokens).
    """
    settings = _settings(model, how.get("mode", "auto"), how.get("decoding") or {}, lambda line: None)
    prefix = prefix_token(model.checkpoint)
    cut = [list(windows(text, prefix, longest(model.backbone, settings) - 1)) for text in texts]
    found = score(model, [pair for pairs in cut for pair in pairs], **how)
    owner = [number for number, pairs in enumerate(cut) for _ in pairs]

    def together() -> Iterator[tuple[int, Score]]:
        parts: list[list[Score]] = [[] for _ in texts]
        yield from ((number, _sum([])) for number, pairs in enumerate(cut) if not pairs)
        for index, each in found:
            number = owner[index]
            parts[number].append(each)
            if len(parts[number]) == len(cut[number]):
                yield number, _sum(parts[number])

    return together()


def _sum(parts: list[Score]) -> Score:
    """The score of a text from those of its windows, whose draws are independent."""
    errors = [part.standard_error for part in parts]
    greedy = [part.greedy for part in parts]
    return Score(
        math.fsum(part.log_probability for part in parts),
        None if None in errors else math.hypot(*(error or 0.0 for error in errors)),
        None if None in greedy else all(greedy),
        sum(part.tokens for part in parts),
        sum(part.forwards for part in parts),
    )


def longest(backbone: Backbone, settings: Resolved) -> int:
    """Tokens of a pair that the model takes; in mode ar the last one is never fed."""
    return backbone.max_positions + (settings.mode != "threshold")


def _settings(model: Model, mode: str, decoding: Mapping[str, Any], say: Say) -> Resolved:
    """The model's settings in a mode; says which of those that were given change no likelihood."""
    settings = model.resolved(model.decoding(**{**decoding, "mode": mode}))
    counts = {"mode", "block_size", "sub_block_size"} if settings.mode == "threshold" else {"mode"}
    unused = [name for name in decoding if name not in counts]
    if unused:
        say(f"warning: {', '.join(unused)} changes no likelihood in mode {settings.mode}: nothing is decoded")
    return settings


def _text(model: Model, settings: Resolved, pair: Pair) -> Text:
    """A pair as one sequence of a length that the model takes; RequestError where it cannot be."""
    context, continuation = [int(token) for token in pair[0]], [int(token) for token in pair[1]]
    limit = longest(model.backbone, settings)
    if len(continuation) >= limit:
        raise RequestError(
            f"the continuation has {len(continuation)} tokens but the model takes {limit - 1} behind a context; "
            "score it as a rolling text",
            field="continuation",
            value=len(continuation),
            limit=limit - 1,
        )
    whole = (context or [prefix_token(model.checkpoint)]) + continuation
    tokens = whole[-limit:]
    check_prompt(tokens, 0, model.backbone.vocab_size, limit + 1)
    return Text(tokens, len(tokens) - len(continuation), len(whole) - len(tokens))


def _room(backbone: Backbone, texts: list[Text], settings: Resolved, batch_size: int) -> tuple[int, int]:
    """Rows and positions per row of the cache: at most `batch_size`, and what memory holds; CapacityError for none."""
    over = settings.block_size if settings.mode == "threshold" else 0
    capacity = -(-(max((len(text.tokens) for text in texts), default=1) + over) // 64) * 64
    needed, free = capacity * backbone.position_bytes, available_memory(backbone.device)
    if free is not None and needed > free:
        raise CapacityError(
            f"keys and values of {capacity} positions need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
            "score shorter texts"
        )
    fit = batch_size if free is None or not needed else max(1, int(0.9 * free / needed))
    return min(batch_size, fit, max(1, len(texts))), capacity
