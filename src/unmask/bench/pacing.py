"""What forwards cost by the positions in them, through everything that a step of decoding does with them; for mode
verified to choose by."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from unmask.bench.clock import in_turn
from unmask.config import BlockSpec, Decoding
from unmask.core.chain import Chain
from unmask.core.pace import Costs
from unmask.engine import proposals
from unmask.resolve import resolve
from unmask.row import Block, Row, Step
from unmask.verified import check, draft

CLEAN = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 24, 32, 64, 96)
DRAFT = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 96)


def forward_costs(
    backbone: Any, spec: BlockSpec, prefix: int, rounds: int, gain: float, chain: Chain | None = None
) -> Costs:
    """Least seconds of checks and drafts behind `prefix` positions of one row, all logits read and proposals made."""
    row = Row([1] * (prefix + 1), resolve(Decoding(mode="ar"), spec), spec)
    cache = backbone.new_cache(1, prefix + 1 + max(CLEAN))
    backbone.forward(cache, [0], [row.causal("prefill", row.prompt[:-1], 0).feed])
    checks = {str(n): check(row, [1] * (n - 1)) for n in CLEAN}
    drafts = {str(n): draft(row, Block.open(prefix, [1], n, spec.mask_id), n, True) for n in DRAFT}

    def timed(steps: Mapping[str, Step]) -> tuple[tuple[int, float], ...]:
        works = {n: partial(_take, backbone, cache, step, spec.mask_id, chain) for n, step in steps.items()}
        return tuple((int(n), seconds) for n, seconds in in_turn(works, rounds, min).items())

    return Costs(timed(checks), timed(drafts), gain)


def _take(backbone: Any, cache: Any, step: Step, mask_id: int, chain: Chain | None) -> None:
    proposals(backbone.forward(cache, [0], [step.feed]), [step], mask_id, chain)
