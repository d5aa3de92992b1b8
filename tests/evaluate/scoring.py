"""Loaded models without files, a backbone that keeps what went through it, and likelihoods by the book."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tiny import full_logits

from unmask.api import Model
from unmask.config import BlockSpec
from unmask.evaluate.likelihood import score
from unmask.model.backbone import Feed
from unmask.model.universal import UniversalBackbone


def loaded(model: Any, spec: BlockSpec | None = None, tokenizer: Any = None, backbone: Any = None) -> Model:
    """A transformers model as `unmask.load` would give it."""
    mask_id = None if spec is None else spec.mask_id
    checkpoint = SimpleNamespace(spec=spec, tokenizer=tokenizer, stop_ids=(), ref="tiny", chain=None, path=Path("tiny"))
    return Model(checkpoint, backbone or UniversalBackbone(model, mask_id=mask_id), 4)  # type: ignore[arg-type]


def scores(model: Model, pairs: list[Any], **how: Any) -> list[Any]:
    """The scores in the order of the pairs."""
    found = dict(score(model, pairs, **{"say": complain, **how}))
    assert sorted(found) == list(range(len(pairs)))
    return [found[index] for index in range(len(pairs))]


def values(model: Model, pairs: list[Any], **how: Any) -> torch.Tensor:
    return torch.tensor([each.log_probability for each in scores(model, pairs, **how)])


def complain(line: str) -> None:
    raise AssertionError(f"said: {line}")


class Recorder:
    """A backbone that keeps (feed, logits of what it reads) of every forward."""

    def __init__(self, backbone: Any) -> None:
        self.backbone, self.calls = backbone, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)

    def forward(self, cache: Any, rows: list[int], feeds: list[Feed]) -> torch.Tensor:
        logits = self.backbone.forward(cache, rows, feeds)
        at = 0
        for feed in feeds:
            self.calls.append((feed, logits[at : at + len(feed.read)].clone()))
            at += len(feed.read)
        return logits


def log_law(model: Any, tokens: list[int], ends: list[int], position: int, banned: int | None) -> torch.Tensor:
    """Log-probabilities [vocab] of the token behind `position`."""
    logits = full_logits(model, tokens, ends)[position]
    if banned is not None:
        logits[banned] = -torch.inf
    return logits.log_softmax(-1)


def chain_rule(model: Any, context: list[int], continuation: list[int], banned: int | None) -> float:
    tokens = context + continuation
    ends = list(range(1, len(tokens) + 1))
    first = len(context)
    return sum(float(log_law(model, tokens, ends, i - 1, banned)[tokens[i]]) for i in range(first, len(tokens)))


def every_order(model: Any, spec: BlockSpec, context: list[int], continuation: list[int]) -> float:
    """The mean over all orders of the chain rule along each, without a cache: every term is a forward of its own."""
    tokens, first = context + continuation, len(context)
    causal, size, part = spec.context == "causal", spec.block_size, spec.sub_block_size
    total = 0.0
    for start in range(first if causal else first // size * size, len(tokens), size):
        clean = [i + 1 if causal else (i // size + 1) * size for i in range(start)]
        if start >= first:
            total += float(log_law(model, tokens[:start], clean, start - 1, spec.mask_id)[tokens[start]])
        for begin in range(start, start + size, part):
            slots = [i for i in range(begin, begin + part) if max(first, start + 1) <= i < len(tokens)]
            orders = list(itertools.permutations(slots)) if slots else []
            for order in orders:
                written = set(range(start, slots[0]))
                for slot in order:
                    shown = [tokens[i] if i in written else spec.mask_id for i in range(start, start + size)]
                    law = log_law(model, tokens[:start] + shown, clean + [start + size] * size, slot - 1, spec.mask_id)
                    total += float(law[tokens[slot]]) / len(orders)
                    written.add(slot)
    return total
