"""Rules: which of the proposals are accepted in this step.

A rule takes confidence Float[n] and entropy Float[n] of the masked slots (entropy is None unless the rule is in
`NEEDS_ENTROPY`) and its parameter, and returns Bool[n]. It may accept nothing: the decoder then takes the most
confident slot, so no rule can hang; it is shown masked slots only, so no rule can overwrite.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Rule = Callable[[Tensor, Tensor | None, float], Tensor]


def threshold(confidence: Tensor, entropy: Tensor | None, tau: float) -> Tensor:
    """Accept what is strictly more confident than tau (Fast-dLLM v2, section 3.3); 1 means one slot per step."""
    return confidence > tau


def top_k(confidence: Tensor, entropy: Tensor | None, k: float) -> Tensor:
    """Accept the k most confident slots."""
    return _first(confidence.argsort(descending=True, stable=True), int(k))


def factor(confidence: Tensor, entropy: Tensor | None, f: float) -> Tensor:
    """Accept the n most confident slots for the largest n with (n + 1)(1 - c_n) < f (Fast-dLLM, factor rule)."""
    ordered, order = confidence.sort(descending=True, stable=True)
    size = torch.arange(2, len(ordered) + 2, dtype=ordered.dtype)
    passing = torch.nonzero(size * (1 - ordered) < f)
    return _first(order, int(passing.max()) + 1 if len(passing) else 0)


def entropy_bound(confidence: Tensor, entropy: Tensor | None, gamma: float) -> Tensor:
    """Accept the slots of lowest entropy while their sum without its largest term stays within gamma (EB-sampler).

    That sum bounds how far the accepted tokens, drawn independently, can be from their joint law.
    """
    assert entropy is not None
    ordered, order = entropy.sort(stable=True)
    before = functional.pad(ordered.cumsum(0)[:-1], (1, 0))
    return _first(order, int((before <= gamma).sum()))


def _first(order: Tensor, n: int) -> Tensor:
    """Bool[len(order)], True at the first n indices of `order`."""
    accept = torch.zeros(len(order), dtype=torch.bool)
    accept[order[:n]] = True
    return accept


RULES: dict[str, tuple[Rule, float]] = {
    "threshold": (threshold, 0.9),
    "top-k": (top_k, 1.0),
    "factor": (factor, 1.0),
    "entropy-bound": (entropy_bound, 0.1),
}
NEEDS_ENTROPY = frozenset({"entropy-bound"})
