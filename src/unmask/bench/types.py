"""Number types beside each other: speed of mode ar, and what they cost in quality.

The loss is the mean negative log-likelihood, in nats per token, of docstrings of Python's standard library: text that
is on every machine and belongs to no training set of ours.
"""

import argparse
import csv
import decimal
import random
import statistics
import textwrap
import threading
from typing import Any

import torch
from torch.nn import functional

from unmask.api import Model, load
from unmask.bench.answers import answered
from unmask.model.backbone import Feed

KINDS = ("fp32", "bf16", "int8")
SOURCES = (argparse, csv, decimal, random, textwrap, threading, statistics)
LONGEST, PIECE = 1024, 256


def by_type(ref: str, prompts: list[str], limit: int) -> list[dict[str, Any]]:
    """Per type: tokens per second at batch 1 (types take turns prompt by prompt), loss, and MB of weights."""
    models = {kind: load(ref, dtype=kind, device="cpu", batch_size=1) for kind in KINDS}
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for prompt in [prompts[0], *prompts]:  # the first once more, to warm up
        for kind, model in models.items():
            [answer] = answered(model, [prompt], mode="ar", max_new_tokens=limit)
            rates[kind].append(answer.completion_tokens / (answer.batch_seconds or answer.seconds))
    return [
        {
            "type": kind,
            "rate": statistics.median(rates[kind][1:]),
            "loss": loss(model),
            "bytes": model.backbone.network.nbytes,
        }
        for kind, model in models.items()
    ]


def loss(model: Model) -> float:
    """Nats per token of the text, read causally behind its first token."""
    tokens = model.encode("\n\n".join(textwrap.dedent(source.__doc__ or "") for source in SOURCES), raw=True)
    backbone, tokens = model.backbone, tokens[: min(LONGEST, model.backbone.max_positions)]
    cache, total = backbone.new_cache(1, len(tokens)), 0.0
    for start in range(0, len(tokens) - 1, PIECE):
        part = tokens[start : min(start + PIECE, len(tokens) - 1)]
        ends = list(range(start + 1, start + len(part) + 1))
        logits = backbone.forward(cache, [0], [Feed(part, start, ends, [False] * len(part), list(range(len(part))))])
        targets = torch.tensor(tokens[start + 1 : start + len(part) + 1])
        total += float(functional.cross_entropy(logits, targets, reduction="sum"))
    return total / (len(tokens) - 1)
