"""What forwards cost by the positions in them, through everything that a step of decoding does with them; for mode
verified to choose by."""

from functools import partial
from typing import Any

import torch

from unmask.bench.clock import in_turn
from unmask.config import BlockSpec
from unmask.core.pace import Costs
from unmask.core.propose import propose
from unmask.model.backbone import Feed

CLEAN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 96)
DRAFT = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 96)


def forward_costs(backbone: Any, spec: BlockSpec, prefix: int, rounds: int, gain: float) -> Costs:
    """Median seconds of checks and drafts behind `prefix` positions of one row, all logits read and proposals made."""
    cache = backbone.new_cache(1, prefix + max(CLEAN))
    backbone.forward(cache, [0], [_check(0, prefix, [prefix - 1])])

    def timed(positions: tuple[int, ...], draft: bool) -> tuple[tuple[int, float], ...]:
        works = {str(n): partial(_step, backbone, cache, spec, prefix, n, draft) for n in positions}
        return tuple((int(n), seconds) for n, seconds in in_turn(works, rounds).items())

    return Costs(timed(CLEAN, False), timed(DRAFT, True), gain)


def _step(backbone: Any, cache: Any, spec: BlockSpec, prefix: int, n: int, draft: bool) -> None:
    feed = _draft(spec, prefix, n) if draft else _check(prefix, n, list(range(n)))
    logits, reads = backbone.forward(cache, [0], [feed]), len(feed.read)
    greedy = torch.zeros(reads)
    propose(logits, spec.mask_id, greedy, torch.ones(reads), greedy, confidence=draft)


def _check(start: int, n: int, read: list[int]) -> Feed:
    return Feed([1] * n, start, list(range(start + 1, start + n + 1)), [False] * n, read)


def _draft(spec: BlockSpec, start: int, n: int) -> Feed:
    own = spec.adapter_scope == "draft"
    masked = [False] + [True] * (n - 1)
    return Feed([1] + [spec.mask_id] * (n - 1), start, [start + n] * n, masked, list(range(n - 1)), own, checked=own)
