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


def chained(logits: Tensor, chain: Chain, mask_id: int | None, chance: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Tokens, Long [slot], and how likely each is behind the one before it, Float [slot], of one draft's logits [slot,
    vocab], greedily from left to right; on the CPU. The first slot's law stays: what stands before it is known.

    chance: Float [slot] on the CPU, of each slot's likeliest token under its own law; None where nobody asks how likely
    they are.
    """
    top, ids = logits.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
    top, ids = top.float().cpu(), ids.cpu()
    if mask_id is not None:
        top = top.masked_fill(ids == mask_id, -torch.inf)
    top = top - top.amax(dim=-1, keepdim=True)  # relative to the likeliest
    gain, named = chain.gain[ids], ids.tolist()
    tokens, masses = [named[0][int(top[0].argmax())]], top.exp().sum(dim=-1)
    chances = [] if chance is None else [float(chance[0])]
    for slot in range(1, len(top)):
        weighed = top[slot] + gain[slot] @ chain.shift[tokens[-1]]
        best = int(weighed.argmax())
        tokens.append(named[slot][best])
        if chance is not None:
            others = max(0.0, float(1 / chance[slot] - masses[slot]))  # what is not weighed again, together
            mass = (weighed - weighed[best]).exp().sum() + others * (-weighed[best]).exp()
            chances.append(float(1 / mass))
    return torch.tensor(tokens), None if chance is None else torch.tensor(chances)
