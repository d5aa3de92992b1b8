"""From logits to tokens: the only place where that happens."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Proposals:
    """What the network proposes for each slot; everything on the CPU.

    tokens: Long[slot]
    finite: Bool[slot], False where the logits hold NaN or +inf and the proposal means nothing
    confidence: Float[slot], probability of the token under the law it was drawn from; None when not asked for
    entropy: Float[slot] in nats of that law before top-p; None when not asked for
    """

    tokens: Tensor
    finite: Tensor
    confidence: Tensor | None = None
    entropy: Tensor | None = None

    def part(self, start: int, stop: int) -> "Proposals":
        """The proposals of the slots start … stop - 1."""
        return Proposals(*(None if v is None else v[start:stop] for v in vars(self).values()))  # type: ignore[arg-type]


def propose(
    logits: Tensor,
    mask_id: int,
    temperature: Tensor,
    top_p: Tensor,
    uniform: Tensor,
    *,
    confidence: bool = True,
    entropy: bool = False,
) -> Proposals:
    """Propose one token per slot from logits [slot, vocab]; temperature, top_p and uniform are Float[slot] on the CPU.

    The mask id cannot be proposed and takes no part in any probability. A slot at temperature 0 gets its argmax and
    the plain softmax; above 0 the token is drawn from softmax(logits / temperature) cut to the top-p set (Fast-dLLM v2,
    `sample_with_top_p`), by the inverse of its distribution function at the slot's own `uniform` in [0, 1). So a slot's
    token depends on nothing but its own logits and number.
    """
    allowed = logits.float().index_fill(-1, torch.tensor([mask_id], device=logits.device), -torch.inf)
    peak, tokens = allowed.max(dim=-1)
    drawn = torch.nonzero(temperature > 0).flatten()
    if not (confidence or entropy or len(drawn)):
        return Proposals(tokens.cpu(), peak.isfinite().cpu())
    warmth = torch.where(temperature > 0, temperature, 1.0).to(allowed).unsqueeze(-1)
    probability = ((allowed - peak.unsqueeze(-1)) / warmth).softmax(dim=-1)
    chance = probability.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    if len(drawn):
        at = drawn.to(logits.device)
        tokens[at], chance[at] = _draw(probability[at], top_p[drawn].to(allowed), uniform[drawn].to(allowed))
    surprise = torch.special.entr(probability).sum(dim=-1).cpu() if entropy else None
    return Proposals(tokens.cpu(), peak.isfinite().cpu(), chance.cpu() if confidence else None, surprise)


def _draw(probability: Tensor, top_p: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw from probability [slot, vocab] cut to the top-p set; returns tokens Long[slot], their share Float[slot].

    Tokens go in order of falling probability; one is left out once the tokens before it hold more than `top_p`, so the
    one that crosses the border stays and the set is never empty.
    """
    ordered, ids = probability.sort(dim=-1, descending=True, stable=True)
    before = functional.pad(ordered.cumsum(dim=-1)[:, :-1], (1, 0))
    kept = torch.where(before <= top_p.unsqueeze(-1), ordered, 0.0)
    mass = kept.cumsum(dim=-1)
    target = (uniform * mass[:, -1]).unsqueeze(-1)
    last = (kept > 0).sum(dim=-1, keepdim=True) - 1
    place = torch.minimum(torch.searchsorted(mass, target, right=True), last.clamp(min=0))
    tokens = ids.gather(-1, place).squeeze(-1)
    return tokens, (kept.gather(-1, place).squeeze(-1) / mass[:, -1])
