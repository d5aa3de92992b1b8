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
        model.batch_size = batch
        for workload in workloads:
            prompts = (prompts_of(workload) * batch)[: max(batch, 4)]
            for mode in modes:
                answers = model.generate(prompts, mode=mode, max_new_tokens=limit)
                rows.append(
                    {
                        "workload": workload,
                        "batch": batch,
                        "mode": mode,
                        "tokens": sum(a.completion_tokens for a in answers),
                        "seconds": answers[0].batch_seconds,
                        "forwards": sum(a.forwards for a in answers),
                        "checks": sum(a.forwards_by_kind.get("check", 0) for a in answers),
                    }
                )
    return rows


def rate(rows: list[Row], **which: Any) -> float | None:
    """Tokens per second of the rows that match, together; None where there is none."""
    chosen = [row for row in rows if all(row[name] == value for name, value in which.items())]
    total = sum(row["seconds"] for row in chosen)
    return sum(row["tokens"] for row in chosen) / total if total else None


def ratio(rows: list[Row], numerator: str, denominator: str, **which: Any) -> float | None:
    chosen = [row for row in rows if all(row[name] == value for name, value in which.items())]
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
