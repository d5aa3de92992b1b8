import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask import config
from unmask.core.rules import NEEDS_ENTROPY, RULES, entropy_bound, factor, threshold, top_k
from unmask.core.verify import accepted


def test_threshold_is_strict():
    assert threshold(torch.tensor([0.5, 0.9, 0.95, 1.0]), None, 0.9).tolist() == [False, False, True, True]
    assert not threshold(torch.tensor([1.0]), None, 1.0).any()


def test_top_k_takes_the_first_of_equals():
    assert top_k(torch.tensor([0.1, 0.9, 0.5, 0.5]), None, 2).tolist() == [False, True, True, False]
    assert top_k(torch.tensor([0.1, 0.9]), None, 5).tolist() == [True, True]


@pytest.mark.parametrize("f, count", [(0.0, 0), (0.2, 0), (0.21, 1), (0.31, 2), (0.79, 2), (0.81, 3), (9.0, 4)])
def test_factor_takes_the_largest_n(f, count):
    confidence = torch.tensor([0.8, 0.9, 0.1, 0.9])  # sorted: 2 x 0.1, 3 x 0.1, 4 x 0.2, 5 x 0.9
    accept = factor(confidence, None, f)
    assert int(accept.sum()) == count
    assert set(torch.nonzero(accept).flatten().tolist()) == set([1, 3, 0, 2][:count])


@pytest.mark.parametrize("gamma, slots", [(0.0, {2}), (0.05, {2}), (0.1, {2, 0}), (0.29, {2, 0}), (0.31, {2, 0, 1})])
def test_entropy_bound_leaves_out_the_largest_term(gamma, slots):
    entropy = torch.tensor([0.2, 0.5, 0.1])
    assert set(torch.nonzero(entropy_bound(torch.ones(3), entropy, gamma)).flatten().tolist()) == slots


def test_settings_know_every_rule_and_accept_its_default():
    assert set(config.RULES) == set(RULES) and NEEDS_ENTROPY <= set(RULES)
    for name, (_, default) in RULES.items():
        assert config.RULES[name][0](default)
    assert config.Decoding().threshold == RULES["threshold"][1]


@given(st.sampled_from(sorted(RULES)), st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0, 3))
def test_any_rule_returns_one_boolean_per_slot(name, chances, parameter):
    confidence = torch.tensor(chances)
    accept = RULES[name][0](confidence, 1 - confidence, parameter)
    assert accept.shape == confidence.shape and accept.dtype == torch.bool


@pytest.mark.parametrize(
    "draft, target, kept",
    [
        ([], [5], 0),
        ([1], [1, 2], 1),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 9, 3], [1, 2, 3, 4], 1),
        ([9, 2], [1, 2, 3], 0),
    ],
)
def test_accepted_counts_the_common_beginning(draft, target, kept):
    assert accepted(draft, target) == kept
