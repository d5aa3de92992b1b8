"""Tokens per second of whole answers: by mode, batch size and workload, beside other programs."""

import json
import statistics
from importlib.resources import files
from typing import Any

from unmask.api import Model
from unmask.bench.clock import in_turn
from unmask.model.peer import Peer

Row = dict[str, Any]


def prompts_of(workload: str) -> list[str]:
    """The bench's own prompts of one kind."""
    lines = (files("unmask") / "assets/bench_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [row["prompt"] for row in map(json.loads, lines) if row["kind"] == workload]


def by_mode(model: Model, modes: list[str], workloads: list[str], batches: list[int], limit: int) -> list[Row]:
    """Per workload, batch size and mode: tokens, seconds and forwards of as many answers as the batch is large.

    Modes take turns on the same prompts. Prompt tokens and end tokens do not count; the time of prompts does.
    """
    rows = []
    for mode in modes:
        model.generate(prompts_of(workloads[0])[:1], mode=mode, max_new_tokens=4)
    for batch in batches:
        for workload in workloads:
            for mode in modes:
                rows.append(_measured(model, workload, batch, mode=mode, max_new_tokens=limit))
    return rows


def by_threshold(model: Model, thresholds: list[float], batches: list[int], limit: int) -> list[Row]:
    """The same for mode threshold under both schedules, beside mode ar, on prompts of mathematics."""
    rows = []
    for batch in batches:
        rows.append(_measured(model, "math", batch, mode="ar", max_new_tokens=limit))
        for threshold in thresholds:
            for schedule in ("reference", "fused"):
                fields = {"mode": "threshold", "threshold": threshold, "schedule": schedule}
                rows.append(_measured(model, "math", batch, **fields, max_new_tokens=limit))
    return rows


def _measured(model: Model, workload: str, batch: int, **decoding: Any) -> Row:
    model.batch_size = batch
    prompts = (prompts_of(workload) * batch)[: max(batch, 4)]
    answers = model.generate(prompts, **decoding)
    return decoding | {
        "workload": workload,
        "batch": batch,
        "tokens": sum(a.completion_tokens for a in answers),
        "seconds": answers[0].batch_seconds,
        "forwards": sum(a.forwards for a in answers),
        "checks": sum(a.forwards_by_kind.get("check", 0) for a in answers),
        "texts": [a.token_ids for a in answers],
    }


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
        answer = model.generate([ids], mode="ar", max_new_tokens=limit)[0]
        ours.append(answer.completion_tokens / answer.seconds)
        written, taken = other(ids, limit)
        theirs.append(len(written) / taken)
    return statistics.median(ours[1:]), statistics.median(theirs[1:])


def transformers_peer(peer: Peer) -> Any:
    """`beside`'s other side: generate, with the attention that is faster for a token."""
    times = in_turn(peer.forwards([1] * 64, [1]), 5)
    peer.use_attention(min(times, key=lambda name: times[name]))
    return peer.greedy


def llama_cpp_peer(gguf: str, threads: int) -> Any:
    """`beside`'s other side: llama.cpp on a GGUF file."""
    from unmask.model.peer import LlamaCpp

    return LlamaCpp(gguf, threads).greedy


def by_mode_alone(model: Model, modes: list[str], prompts: list[str], limit: int) -> dict[str, float]:
    """Tokens per second of each mode at batch 1, prompt by prompt."""
    model.batch_size, found = 1, {}
    for mode in modes:
        model.generate(prompts[:1], mode=mode, max_new_tokens=2)
        answers = model.generate(prompts, mode=mode, max_new_tokens=limit)
        found[mode] = sum(a.completion_tokens for a in answers) / answers[0].batch_seconds
    return found
