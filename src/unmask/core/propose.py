"""From logits to tokens: the only place where that happens."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 256

Logprobs = tuple[float, tuple[tuple[int, float], ...]]
"""A token's log-probability, and the likeliest tokens with theirs, the likeliest first."""


@dataclass(frozen=True)
class Proposals:
    """What the network proposes for each slot; everything on the CPU.

    tokens: Long[slot]
    finite: Bool[slot], False where the logits hold NaN or +inf and the proposal means nothing
    confidence: Float[slot], probability of the token under the law it was drawn from; None when not asked for
    entropy: Float[slot] in nats of that law before top-p; None when not asked for
    logprob: Float[slot], the token's log-probability under the network's own law, whatever the temperature; likeliest
        and their logprobs: Long and Float[slot, k], the k likeliest tokens of that law; None when not asked for
    """

    tokens: Tensor
    finite: Tensor
    confidence: Tensor | None = None
    entropy: Tensor | None = None
    logprob: Tensor | None = None
    likeliest: Tensor | None = None
    logprobs: Tensor | None = None

    def part(self, start: int, stop: int) -> "Proposals":
        """The proposals of the slots start … stop - 1."""
        return Proposals(*(None if v is None else v[start:stop] for v in vars(self).values()))  # type: ignore[arg-type]

    def logprobs_of(self, slot: int, most: int) -> Logprobs:
        """A slot's log-probability and its `most` likeliest tokens, fewer where no more have a chance."""
        assert self.logprob is not None and self.likeliest is not None and self.logprobs is not None
        ids, values = self.likeliest[slot, :most].tolist(), self.logprobs[slot, :most].tolist()
        likeliest = tuple((i, value) for i, value in zip(ids, values, strict=True) if value > -torch.inf)
        return float(self.logprob[slot]), likeliest


def propose(
    logits: Tensor,
    mask_id: int | None,
    temperature: Tensor,
    top_p: Tensor,
    uniform: Tensor,
    *,
    confidence: bool = True,
    entropy: bool = False,
    likeliest: int | None = None,
    allowed: Iterable[tuple[int, Tensor | None]] = (),
) -> Proposals:
    """Propose one token per slot from logits [slot, vocab]; temperature, top_p and uniform are Float[slot] on the CPU.

    The mask id cannot be proposed and takes no part in any probability; None, or an id beyond the vocabulary (the mask
    of an adapter whose base has no unused id), bans nothing. A slot at temperature 0 gets its argmax and the plain
    softmax; above 0 the token is drawn from softmax(logits / temperature) cut to the top-p set (Fast-dLLM v2,
    `sample_with_top_p`), by the inverse of its distribution function at the slot's own `uniform` in [0, 1). So a slot's
    token depends on nothing but its own logits and number. likeliest: how many tokens to name beside the proposed one,
    with log-probabilities of the plain softmax. allowed: pairs of a slot and Bool[k, vocab], the only tokens that exist
    for the k slots from there on, or None; every law is one over these.
    """
    n, vocab = logits.shape
    values = functional.pad(logits.float(), (0, -vocab % CHUNK), value=-torch.inf)
    for first, table in allowed:
        if table is not None:
            values[first : first + len(table), :vocab].masked_fill_(~table.to(values.device), -torch.inf)
    if mask_id is not None and mask_id < vocab:
        values[:, mask_id] = -torch.inf
    peak, tokens = _largest(values)
    drawn = torch.nonzero(temperature > 0).flatten()
    if not (confidence or entropy or len(drawn) or likeliest is not None):
        return Proposals(tokens.cpu(), peak.isfinite().cpu())
    plain = None if likeliest is None else values.log_softmax(dim=-1)
    at = drawn.to(logits.device)
    if len(drawn):
        values[at] = (values[at] - peak[at].unsqueeze(-1)) / temperature[drawn].to(values).unsqueeze(-1)
    probability = values.softmax(dim=-1)
    chance = probability.amax(dim=-1)
    if len(drawn):
        tokens[at], chance[at] = _draw(probability[at], top_p[drawn].to(values), uniform[drawn].to(values))
    surprise = torch.special.entr(probability).sum(dim=-1).cpu() if entropy else None
    found = Proposals(tokens.cpu(), peak.isfinite().cpu(), chance.cpu() if confidence else None, surprise)
    return found if plain is None else _with_logprobs(found, plain, likeliest or 0)


def _with_logprobs(found: Proposals, plain: Tensor, k: int) -> Proposals:
    """The proposals with what `plain` [slot, vocab] has as log-probabilities."""
    values, ids = plain.topk(k)
    logprob = plain.gather(-1, found.tokens.to(plain.device).unsqueeze(-1)).squeeze(-1)
    return replace(found, logprob=logprob.cpu(), likeliest=ids.cpu(), logprobs=values.cpu())


def _largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value per row of [n, a multiple of CHUNK] and its first index; NaN counts as the largest.

    On a CPU `max(dim=-1)` is an order of magnitude slower than `amax`, because it carries the index along: so the best
    chunk is found first, and the index only inside it.
    """
    n, width = values.shape
    chunks = values.view(n, width // CHUNK, CHUNK)
    chunk = chunks.amax(dim=-1).argmax(dim=-1)
    peak, offset = chunks[torch.arange(n, device=values.device), chunk].max(dim=-1)
    return peak, chunk * CHUNK + offset


def _draw(probability: Tensor, top_p: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw from probability [slot, vocab] cut to the top-p set; returns tokens Long[slot], their share Float[slot].

    Sorting a vocabulary is slow, so it is done only for a slot whose set is larger than CHUNK. How a slot is treated
    depends on that slot alone.
    """
    tokens, share = torch.zeros_like(uniform, dtype=torch.long), torch.zeros_like(uniform)

    def draw(slots: Tensor, ordered: Tensor, ids: Tensor | None) -> None:
        place, share[slots] = _invert(ordered, top_p[slots], uniform[slots])
        tokens[slots] = place if ids is None else ids.gather(-1, place.unsqueeze(-1)).squeeze(-1)

    whole, cut = torch.nonzero(top_p >= 1).flatten(), torch.nonzero(top_p < 1).flatten()
    draw(whole, probability[whole], None)
    if len(cut):
        first, ids = probability[cut].topk(CHUNK)
        enough = first.sum(dim=-1) > top_p[cut]
        draw(cut[enough], first[enough], ids[enough])
        draw(cut[~enough], *probability[cut[~enough]].sort(dim=-1, descending=True, stable=True))
    return tokens, share


def _invert(ordered: Tensor, top_p: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Place Long[slot] and share Float[slot] of a draw from ordered [slot, token].

    A token is left out once the tokens before it hold more than `top_p`; the one that crosses the border stays, so the
    set is never empty, and what stays is renormalised.
    """
    before = functional.pad(ordered.cumsum(dim=-1)[:, :-1], (1, 0))
    kept = torch.where(before <= top_p.unsqueeze(-1), ordered, 0.0)
    mass = kept.cumsum(dim=-1)
    place = torch.searchsorted(mass, (uniform * mass[:, -1]).unsqueeze(-1), right=True)
    inside = (mass < mass[:, -1:]).sum(dim=-1, keepdim=True)  # the last token that adds to the mass
    place = torch.minimum(place, inside)
    return place.squeeze(-1), kept.gather(-1, place).squeeze(-1) / mass[:, -1]
