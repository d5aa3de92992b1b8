import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.core.propose import Proposals, propose

MASK = 7


def one(logits: torch.Tensor, temperature: float = 0.0, top_p: float = 1.0, uniform: float = 0.5) -> Proposals:
    """Propose for each row of logits with the same settings."""
    n = len(logits)
    return propose(logits, MASK, torch.full((n,), temperature), torch.full((n,), top_p), torch.full((n,), uniform),
                   confidence=True, entropy=True)


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
    found = one(logits, temperature, uniform=0.3)
    assert found.tokens.tolist() == [2]
    assert found.confidence.item() == pytest.approx(0.6)


@pytest.mark.parametrize("uniform, token", [(0.0, 1), (0.49, 1), (0.51, 0), (0.79, 0), (0.81, 2), (0.999999, 2)])
def test_drawing_inverts_the_distribution_in_order_of_falling_probability(uniform, token):
    found = one(law(0.3, 0.5, 0.2), temperature=1.0, uniform=uniform)
    assert found.tokens.tolist() == [token]
    assert found.confidence.item() == pytest.approx([0.3, 0.5, 0.2][token], abs=1e-6)


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
