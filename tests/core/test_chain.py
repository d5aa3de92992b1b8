"""The chain: each guess of a draft shifts the logits of the next slot."""

import pytest
import torch

from unmask.core import chain as module
from unmask.core.chain import chain_of, chained, shifted
from unmask.core.noise import seeded
from unmask.core.propose import propose

VOCAB, WIDTH, RANK, SLOTS = 50, 12, 4, 5


def guessed(logits, chain, mask_id):
    """Tokens and chances, the laws' own chances given as `propose` gives them; the tokens do not depend on these."""
    zero, one = torch.zeros(len(logits)), torch.ones(len(logits))
    tokens, chance = chained(logits, chain, mask_id, propose(logits, mask_id, zero, one, zero).confidence)
    without, nothing = chained(logits, chain, mask_id, None)
    assert nothing is None and torch.equal(tokens, without)
    return tokens, chance


def made(scale: float = 1.0):
    draw = seeded("chain")
    embedding, head = (torch.randn(VOCAB, WIDTH, generator=draw) for _ in range(2))
    down, up = (scale * torch.randn(RANK, WIDTH, generator=draw) for _ in range(2))
    return torch.randn(SLOTS, WIDTH, generator=draw), embedding, head, down, up


@pytest.mark.parametrize("mask_id", [None, 7, 400])
def test_guesses_are_those_of_the_moved_hidden_states(mask_id):
    """The tables give what the definition does: a forward of the head over h + up down e(x), slot by slot."""
    hidden, embedding, head, down, up = made()
    tokens, chance = guessed(hidden @ head.T, chain_of(embedding, head, down, up), mask_id)
    plain = (hidden @ head.T).argmax(-1)
    assert tokens[0] == plain[0] and not torch.equal(tokens, plain)
    for slot in range(SLOTS):
        moved = hidden[slot] + (shifted(embedding[tokens[slot - 1]][None], down, up)[0] if slot else 0)
        logits = head @ moved
        if mask_id is not None and mask_id < VOCAB:
            logits[mask_id] = -torch.inf
        assert int(logits.argmax()) == tokens[slot]
        assert chance[slot].item() == pytest.approx(logits.softmax(-1).max().item(), rel=1e-4)


def test_only_likely_tokens_are_weighed_again_and_the_others_keep_their_share(monkeypatch):
    monkeypatch.setattr(module, "CANDIDATES", 3)
    hidden, embedding, head, down, up = made(0.4)
    logits = hidden @ head.T
    tokens, chance = guessed(logits, chain_of(embedding, head, down, up), None)
    for slot in range(1, SLOTS):
        law, best = logits[slot].softmax(-1), logits[slot].topk(3).indices
        assert tokens[slot] in best
        shift = head[best] @ shifted(embedding[tokens[slot - 1]][None], down, up)[0]
        weight = law[best] * shift.exp()
        expected = weight[best == tokens[slot]] / (weight.sum() + 1 - law[best].sum())
        assert chance[slot].item() == pytest.approx(expected.item(), rel=1e-3)


def test_a_chain_that_was_not_trained_changes_nothing():
    hidden, embedding, head, down, up = made()
    tokens, chance = guessed(hidden @ head.T, chain_of(embedding, head, down, 0 * up), 7)
    logits = (hidden @ head.T).index_fill(1, torch.tensor([7]), -torch.inf)
    assert torch.equal(tokens, logits.argmax(-1))
    assert torch.allclose(chance, logits.softmax(-1).amax(-1), atol=1e-5)
