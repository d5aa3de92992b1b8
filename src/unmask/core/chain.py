"""Drafts whose slots see one another: the token guessed for a slot shifts the logits of the next.

A draft is one forward, so its slots are laws of their own: what stands second is guessed without knowing what was
guessed first, and of two ways to go on a draft mixes both. Here the hidden state h behind a slot is moved by a small
function of the token x guessed before it, h + up · down · e(x), with e the input embedding (low rank, trained). As the
output layer is linear, a token v gains s(x) · r(v), two vectors of the rank's size from two tables; of each slot only
the likeliest `CANDIDATES` are weighed again. Mode verified checks the guesses, so no text depends on any of this.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CANDIDATES = 64
"""Tokens of a slot that are weighed again."""


@dataclass(frozen=True)
class Chain:
    """shift: Float [vocab, rank], s of the token before; gain: Float [vocab, rank], r of the token itself."""

    shift: Tensor
    gain: Tensor


def shifted(before: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """What is added to hidden states, Float [slot, hidden]: of the embeddings of the tokens before, [slot, hidden].

    down, up: Float [rank, hidden].
    """
    return before @ down.T @ up


def chain_of(embedding: Tensor, head: Tensor, down: Tensor, up: Tensor) -> Chain:
    """The tables of a trained chain: embedding, head Float [vocab, hidden]; down, up Float [rank, hidden]."""
    return Chain(embedding @ down.T, head @ up.T)


def chained(logits: Tensor, chain: Chain, mask_id: int | None) -> tuple[Tensor, Tensor]:
    """Tokens, Long [slot], and how likely each is behind the one before it, Float [slot], of one draft's logits [slot,
    vocab], greedily from left to right; on the CPU. The first slot's law stays: what stands before it is known."""
    values = logits.float()
    if mask_id is not None and mask_id < values.shape[-1]:
        values = values.index_fill(-1, torch.tensor([mask_id], device=values.device), -torch.inf)
    top, ids = values.topk(min(CANDIDATES, values.shape[-1]), dim=-1)
    total = values.logsumexp(-1)
    others = (1 - (top.logsumexp(-1) - total).exp()).clamp_min(0).log().cpu()  # their probability, together
    top, ids = (top - total.unsqueeze(-1)).cpu(), ids.cpu()
    gain = chain.gain[ids]
    tokens, chance = [int(ids[0, 0])], [float(top[0, 0].exp())]
    for slot in range(1, len(top)):
        weighed = top[slot] + gain[slot] @ chain.shift[tokens[-1]]
        best = int(weighed.argmax())
        tokens.append(int(ids[slot, best]))
        chance.append(float((weighed[best] - torch.logaddexp(weighed.logsumexp(0), others[slot])).exp()))
    return torch.tensor(tokens), torch.tensor(chance)
