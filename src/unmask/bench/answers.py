"""Tokens per second of whole answers: by mode, batch size and workload, beside other programs."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from unmask.api import Model
from unmask.bench.clock import in_turn
from unmask.engine import Engine
from unmask.errors import RequestError
from unmask.events import Answer
from unmask.model.peer import Peer

Row = dict[str, Any]


def prompts_of(workload: str) -> list[str]:
    """The bench's own prompts of one kind."""
    lines = (files("unmask") / "assets/bench_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [row["prompt"] for row in map(json.loads, lines) if row["kind"] == workload]


PLAIN = "verified, plain"
"""Mode verified that drafts and checks block by block, for reference."""


def by_mode(model: Model, modes: list[str], workloads: list[str], batches: list[int], limit: int) -> list[Row]:
    """Per workload, batch size and mode: tokens, seconds and forwards of the answers to the same prompts.

    There are four prompts, or one batch if that is more; modes take turns batch by batch. Prompt tokens and end tokens
    do not count; the time of prompts does. Beside mode verified stands `PLAIN`.
    """
    settings: list[Row] = [{"mode": mode, "max_new_tokens": limit} for mode in modes]
    if "verified" in modes:
        settings.append({"mode": "verified", "drafts": "plain", "max_new_tokens": limit})
    rows = [row for batch in batches for workload in workloads for row in _in_turn([model], workload, batch, settings)]
    return [{**row, "mode": PLAIN} if row.get("drafts") == "plain" else row for row in rows]


def unguessable(model: Model, limit: int) -> list[Row]:
    """Modes ar and verified at batch 1 on text that no draft can guess: sampled at temperature 2."""
    hot = {"temperature": 2.0, "seed": 0, "max_new_tokens": limit}
    return _in_turn([model], "chat", 1, [{"mode": mode, **hot} for mode in ("ar", "verified")])


def by_threshold(model: Model, thresholds: list[float], batches: list[int], limit: int) -> list[Row]:
    """The same for mode threshold under both schedules, beside mode ar, on prompts of mathematics."""
    settings: list[Row] = [{"mode": "ar", "max_new_tokens": limit}]
    for threshold in thresholds:
        for schedule in ("reference", "fused"):
            settings.append(
                {"mode": "threshold", "threshold": threshold, "schedule": schedule, "max_new_tokens": limit}
            )
    return [row for batch in batches for row in _in_turn([model], "math", batch, settings)]


def by_backbone(model: Model, other: Model, modes: list[str], limit: int) -> dict[str, tuple[float, float]]:
    """Per mode: tokens per second of `model` and of `other` at batch 1 on the same prompts, in turn."""
    settings = [{"mode": mode, "max_new_tokens": limit} for mode in modes]
    rows = _in_turn([model, other], "math", 1, settings)
    pairs = zip(rows[: len(modes)], rows[len(modes) :], strict=True)
    return {ours["mode"]: (rate([ours]) or 0.0, rate([theirs]) or 0.0) for ours, theirs in pairs}


def _in_turn(models: list[Model], workload: str, batch: int, settings: list[Row]) -> list[Row]:
    """A row per model and settings; they take turns batch by batch, each having answered one prompt before."""
    rows = [
        {**each, "workload": workload, "batch": batch, "tokens": 0, "seconds": 0.0, "forwards": 0, "checks": 0}
        | {"texts": [], "guesses": [], "spent": Counter()}
        for _ in models
        for each in settings
    ]
    pairs = [(model, each) for model in models for each in settings]
    prompts = (prompts_of(workload) * batch)[: max(batch, 4)]
    for model, each in pairs:
        model.batch_size = batch
        model.generate(prompts[:1], **each | {"max_new_tokens": 4})
    for start in range(0, len(prompts), batch):
        for row, (model, each) in zip(rows, pairs, strict=True):
            engine = model.engine()
            answers = answered(model, prompts[start : start + batch], engine, **each)
            row["tokens"] += sum(a.completion_tokens for a in answers)
            row["seconds"] += answers[0].batch_seconds or 0.0
            row["forwards"] += sum(a.forwards for a in answers)
            row["checks"] += sum(a.forwards_by_kind.get("check", 0) for a in answers)
            row["texts"] += [a.token_ids for a in answers]
            row["guesses"] += [guess for a in answers for guess in a.checks]
            row["spent"].update(engine.seconds)
    return rows


def answered(model: Model, prompts: Sequence[Any], engine: Engine | None = None, **decoding: Any) -> list[Answer]:
    """The answers; a prompt that cannot be answered ends the measurement with its error."""
    answers = (engine or model.engine()).generate([model.request(prompt, **decoding) for prompt in prompts])
    for answer in answers:
        if answer.error is not None:
            raise RequestError(f"a prompt of the benchmark cannot be answered: {answer.error}")
    if not any(answer.completion_tokens for answer in answers):
        raise RequestError("the model ends its answers at once, so there is nothing to measure; use another model")
    return answers


def compared(rows: list[Row], **which: Any) -> tuple[float | None, float | None, float | None, float | None]:
    """Of the rows that match: tokens per second, the same over mode ar's, tokens per forward, and what a forward costs
    each row in forwards of mode ar, whose rows match in workload and batch."""
    own, per_forward = rate(rows, **which), ratio(rows, "tokens", "forwards", **which)
    beside = {name: which[name] for name in ("workload", "batch") if name in which} | {"mode": "ar"}
    ar, ar_per_forward = rate(rows, **beside), ratio(rows, "tokens", "forwards", **beside)
    if not own or not per_forward or not ar or not ar_per_forward:
        return own, None, per_forward, None
    return own, own / ar, per_forward, per_forward / ar_per_forward / (own / ar)


def equal_texts(row: Row, rows: list[Row], **other: Any) -> float | None:
    """The share of a row's texts that the row with `other` in the place of its own settings has too."""
    kept = ("batch",) if other.get("mode") == "ar" else ("batch", "threshold")
    wanted = {name: row[name] for name in kept} | other
    match = next((each for each in rows if all(each.get(name) == value for name, value in wanted.items())), None)
    if match is None:
        return None
    return statistics.mean(a == b for a, b in zip(row["texts"], match["texts"], strict=True))


def rate(rows: list[Row], **which: Any) -> float | None:
    """Tokens per second of the rows that match, together; None where there is none."""
    chosen = [row for row in rows if all(row.get(name) == value for name, value in which.items())]
    total = sum(row["seconds"] for row in chosen)
    return sum(row["tokens"] for row in chosen) / total if total else None


def ratio(rows: list[Row], numerator: str, denominator: str, **which: Any) -> float | None:
    chosen = [row for row in rows if all(row.get(name) == value for name, value in which.items())]
    below = sum(row[denominator] for row in chosen)
    return sum(row[numerator] for row in chosen) / below if below else None


def beside(model: Model, other: Any, prompts: list[str], limit: int) -> tuple[float, float]:
    """(ours, theirs) in tokens per second in mode ar at batch 1, prompt by prompt in turn: medians over the prompts.

    other: called with token ids and a limit, gives (token ids, seconds)."""
    model.batch_size = 1
    ours, theirs = [], []
    for prompt in [prompts[0], *prompts]:  # the first once more, to warm up
        ids = model.encode(prompt)
        [answer] = answered(model, [ids], mode="ar", max_new_tokens=limit)
        ours.append(answer.completion_tokens / (answer.batch_seconds or answer.seconds))
        written, taken = other(ids, limit)
        theirs.append(len(written) / taken)
    return statistics.median(ours[1:]), max(statistics.median(theirs[1:]), 1e-9)


def transformers_peer(peer: Peer) -> Any:
    """`beside`'s other side: generate, with the attention that is faster for a token."""
    times = in_turn(peer.forwards([1] * 64, [1]), 5)
    peer.use_attention(min(times, key=lambda name: times[name]))
    return peer.greedy


def llama_cpp_peer(gguf: str, threads: int) -> Any:
    """`beside`'s other side: llama.cpp on a GGUF file."""
    from unmask.model.peer import LlamaCpp

    return LlamaCpp(gguf, threads).greedy
