import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.core.propose import Proposals, propose

MASK = 7


def one(logits: torch.Tensor, temperature: float = 0.0, top_p: float = 1.0, uniform: float = 0.5) -> Proposals:
    """Propose for each row of logits with the same settings."""
    n = len(logits)
    return propose(
        logits,
        MASK,
        torch.full((n,), temperature),
        torch.full((n,), top_p),
        torch.full((n,), uniform),
        confidence=True,
        entropy=True,
    )


def law(*chances: float) -> torch.Tensor:
    """Logits [1, 8] of the given probabilities for tokens 0, 1, …; other tokens are impossible."""
    full = torch.zeros(8)
    full[: len(chances)] = torch.tensor(chances)
    return full.log().unsqueeze(0)


def test_greedy_takes_the_argmax_and_its_softmax_share():
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0, 0.0, 0.0, 0.0, -torch.inf]])
    found = one(logits)
    assert found.tokens.tolist() == [1]
    assert torch.allclose(found.confidence, logits.softmax(-1)[0, 1:2])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_o4_11_the_mask_is_never_proposed_and_has_no_share(temperature):
    logits = law(0.0, 0.004, 0.006)
    logits[0, MASK] = torch.tensor(0.99).log()
    found = one(logits, temperature, uniform=0.7)
    assert found.tokens.tolist() == [2]
    assert found.confidence.item() == pytest.approx(0.6)


@pytest.mark.parametrize("top_p, order", [(1.0, [0, 1, 2]), (0.9999, [1, 0, 2])])
def test_drawing_inverts_the_distribution(top_p, order):
    """In order of the ids, or of falling probability where a top-p set has to be found."""
    chances = [0.3, 0.5, 0.2]
    edges = torch.tensor([0.0, *(chances[token] for token in order)]).cumsum(0)
    for token, low, high in zip(order, edges, edges[1:], strict=False):
        for uniform in (low + 1e-3, high - 1e-3):
            found = one(law(*chances), 1.0, top_p, float(uniform))
            assert found.tokens.tolist() == [token]
            assert found.confidence.item() == pytest.approx(chances[token], abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
@pytest.mark.parametrize("top_p", [1.0, 0.9999])
def test_impossible_tokens_are_not_drawn_at_the_edges(uniform, top_p):
    impossible_first = law(0.0, 0.5, 0.5)
    assert one(impossible_first, 1.0, top_p, uniform).tokens.item() in (1, 2)


@pytest.mark.parametrize("vocab", [8, 256, 257, 1000])
def test_the_largest_is_the_first_largest_of_any_vocabulary(vocab):
    logits = torch.randint(0, 40, (64, vocab), generator=torch.Generator().manual_seed(0)).float()
    without = logits.clone()
    without[:, MASK] = -1
    found = one(logits)
    assert torch.equal(found.tokens, without.argmax(-1)) and found.confidence.shape == (64,)


@pytest.mark.parametrize("spread", [0.0, 0.01, 5.0])
def test_top_p_of_a_large_vocabulary_is_the_set_by_definition(spread):
    """Sets of more than a chunk, and of less."""
    logits = torch.randn(4, 2000, generator=torch.Generator().manual_seed(1)) * spread
    logits[:, MASK] = -torch.inf
    chance, ids = logits.softmax(-1).sort(descending=True, stable=True)
    size = int((chance[0].cumsum(0) <= 0.5).sum()) + 1
    found = one(logits[:1].expand(400, -1), 1.0, 0.5, 0.5)
    share = chance[0, :size] / chance[0, :size].sum()
    middle = int((share.cumsum(0) <= 0.5).sum())
    assert abs(int((ids[0] == found.tokens[0]).nonzero()) - middle) <= 1
    assert found.confidence[0].item() == pytest.approx(share[middle].item(), rel=1e-3)


@pytest.mark.parametrize("top_p, share", [(0.4, [1.0]), (0.6, [0.625, 0.375]), (0.85, [0.5, 0.3, 0.2])])
def test_top_p_keeps_the_token_that_crosses_and_renormalises(top_p, share):
    seen = {}
    for uniform in torch.linspace(0, 0.9999, 101):
        found = one(law(0.5, 0.3, 0.2), 1.0, top_p, float(uniform))
        seen[int(found.tokens)] = found.confidence.item()
    assert [seen[token] for token in sorted(seen)] == pytest.approx(share, abs=1e-5)


def test_temperature_warms_the_law():
    found = one(law(0.8, 0.2), temperature=2.0, uniform=0.0)
    assert found.confidence.item() == pytest.approx(0.8**0.5 / (0.8**0.5 + 0.2**0.5))


def test_entropy_is_that_of_the_law():
    assert one(law(0.5, 0.25, 0.25)).entropy.item() == pytest.approx(1.0397, abs=1e-4)
    assert one(law(1.0)).entropy.item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-6, 1e-4, 2.0, 1e30])
@pytest.mark.parametrize("top_p", [1.0, 0.999, 1e-4, 1e-30])
def test_o4_06_extreme_settings_stay_finite(dtype, temperature, top_p):
    peaked = torch.full((3, 8), -3e4)
    peaked[0, 2], peaked[1], peaked[2, 3] = 3e4, 0.0, 0.5
    found = one(peaked.to(dtype), temperature, top_p, uniform=0.99)
    assert found.finite.all() and found.confidence.isfinite().all() and found.entropy.isfinite().all()
    assert (found.tokens != MASK).all()
    if temperature <= 1e-4:
        assert found.tokens[0] == 2
        assert found.tokens[2] == 3 and found.confidence[0] == 1.0


def test_o4_10_slots_with_nan_or_infinity_are_named():
    logits = torch.zeros(5, 8)
    logits[1, 3], logits[2, 3], logits[3, :], logits[4, 3] = torch.nan, torch.inf, torch.nan, -torch.inf
    for temperature in (0.0, 1.0):
        assert one(logits, temperature).finite.tolist() == [True, False, False, False, True]


def test_only_what_is_asked_for_is_computed():
    found = propose(torch.zeros(2, 8), MASK, torch.zeros(2), torch.ones(2), torch.zeros(2), confidence=False)
    assert found.confidence is None and found.entropy is None and found.tokens.tolist() == [0, 0]
    assert found.part(1, 2).tokens.tolist() == [0]


def test_no_slot_is_no_proposal():
    empty = torch.zeros(0)
    assert propose(torch.zeros(0, 8), MASK, empty, empty, empty).tokens.tolist() == []


def test_logits_of_the_caller_stay_as_they_are():
    logits = torch.zeros(1, 8)
    one(logits, 1.0)
    assert logits.tolist() == [[0.0] * 8]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=2, max_size=5))
def test_a_slot_does_not_depend_on_its_neighbours(seed, temperatures):
    random = torch.Generator().manual_seed(seed)
    n = len(temperatures)
    logits, uniform = torch.randn(n, 8, generator=random) * 3, torch.rand(n, generator=random)
    top_p, warm = torch.rand(n, generator=random) * 0.9 + 0.1, torch.tensor(temperatures)
    together = propose(logits, MASK, warm, top_p, uniform)
    for i in range(n):
        alone = propose(logits[i : i + 1], MASK, warm[i : i + 1], top_p[i : i + 1], uniform[i : i + 1])
        assert alone.tokens[0] == together.tokens[i]
        assert torch.allclose(alone.confidence[0], together.confidence[i])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocab", [8, 300])
def test_where_only_some_tokens_are_allowed_no_other_has_a_share(temperature, vocab):
    """Slots 1 and 2 of four may take tokens 3, 4 and the mask; their neighbours are as without."""
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(0)) * 5
    table = torch.zeros(2, vocab, dtype=torch.bool)
    table[:, [3, 4, MASK]] = True

    def found(allowed):
        each = (torch.full((4,), temperature), torch.ones(4), torch.full((4,), 0.3))
        return propose(logits, MASK, *each, entropy=True, likeliest=3, allowed=allowed)

    free, bound = found([(0, None)]), found([(0, None), (1, table), (3, None)])
    for name in ("tokens", "confidence", "entropy", "logprob"):
        for slot in (0, 3):
            assert torch.equal(getattr(free, name)[slot], getattr(bound, name)[slot])
    law = logits[1:3, 3:5].softmax(-1)
    assert torch.allclose(bound.logprobs[1:3].exp().sum(-1), torch.ones(2)) and bound.logprobs[1, 2] == -torch.inf
    expected = law.argmax(-1) if temperature == 0 else (law[:, 0] <= 0.3).long()
    assert bound.tokens[1:3].tolist() == (3 + expected).tolist()
    assert torch.allclose(bound.confidence[1:3], law.gather(-1, expected[:, None])[:, 0])
    assert torch.allclose(bound.entropy[1:3], -(law * law.log()).sum(-1), atol=1e-5)
