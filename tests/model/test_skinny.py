"""Few rows through rearranged weights: the same numbers, the weights of the moment, and nothing left in the module."""

import copy

import pytest
import torch
from torch import nn

from unmask.model import skinny
from unmask.model.skinny import SkinnyLinear, make_skinny, plain_linear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (2, 16), (3, 40)])
def test_the_product_is_that_of_a_plain_layer(bias, shape):
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 200, bias=bias), torch.randn(*shape, 96)
    with torch.inference_mode():
        expected = layer(x)
        make_skinny(layer)
        assert type(layer) is SkinnyLinear
        assert torch.allclose(layer(x), expected, atol=1e-5)
        with plain_linear():
            assert torch.equal(layer(x), expected)


def test_changed_weights_are_noticed():
    layer, x = nn.Linear(8, 16), torch.ones(1, 8)
    make_skinny(layer)
    with torch.no_grad():
        before = layer(x)
        layer.weight += 1
        assert torch.allclose(layer(x), before + 8, atol=1e-5)
        layer.weight.data = torch.zeros(16, 8)
        assert torch.allclose(layer(x), layer.bias.expand(1, 16), atol=1e-6)


def test_gradients_and_copies_are_those_of_a_plain_layer():
    layer = nn.Linear(8, 16)
    make_skinny(layer)
    with torch.no_grad():
        layer(torch.ones(1, 8))
    assert set(layer.state_dict()) == {"weight", "bias"} and torch.equal(copy.deepcopy(layer).weight, layer.weight)
    layer(torch.ones(1, 8)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.ones(16, 8))


def test_without_memory_for_a_second_copy_layers_stay_plain(monkeypatch):
    monkeypatch.setattr(skinny, "available_memory", lambda device: 1000)
    layer = nn.Linear(8, 16)
    make_skinny(layer)
    assert type(layer) is nn.Linear
