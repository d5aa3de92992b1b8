"""The int8 draft network: close to the float one, and never the one that is believed."""

import torch
from tiny import MASK, tiny_model

from unmask.config import BlockSpec, Decoding
from unmask.engine import Engine
from unmask.events import Request
from unmask.model import rough
from unmask.model.rough import RoughLinear, rough_copy
from unmask.model.universal import UniversalBackbone

SPEC = BlockSpec(block_size=8, mask_id=MASK, context="causal", adapter_scope="draft")


def test_a_rough_layer_is_close_to_its_float_layer():
    torch.manual_seed(0)
    for bias in (False, True):
        linear, x = torch.nn.Linear(96, 200, bias=bias), torch.randn(2, 3, 96)
        exact = linear(x)
        error = (RoughLinear(linear)(x) - exact).norm() / exact.norm()
        assert 0 < error < 0.03


def test_a_small_network_is_left_as_it_is():
    model = tiny_model()
    assert rough_copy(model) is model


def test_verified_text_is_ar_text_with_a_rough_draft_in_any_batch(monkeypatch):
    monkeypatch.setattr(rough, "SMALLEST", 0)
    backbone = UniversalBackbone(tiny_model(), tiny_model(), mask_id=MASK)
    prompts = [[5, 6, 7], [9] * 20, [1, 2, 3, 4, 5, 6, 7, 8]]

    def texts(mode, size):
        engine = Engine(backbone, SPEC, batch_size=size)
        requests = [Request(prompt, Decoding(mode=mode, max_new_tokens=24)) for prompt in prompts]
        return [answer.token_ids for answer in engine.generate(requests)]

    assert texts("verified", 1) == texts("verified", 3) == texts("ar", 1)
    assert isinstance(backbone.rough_model.lm_head, RoughLinear)
    assert backbone.rough_model.model.embed_tokens.weight is backbone.draft_model.model.embed_tokens.weight


def test_a_draft_that_is_final_is_never_rough(monkeypatch):
    monkeypatch.setattr(rough, "SMALLEST", 0)
    backbone = UniversalBackbone(tiny_model(), tiny_model(), mask_id=MASK)
    Engine(backbone, SPEC).generate([Request([5, 6, 7], Decoding(mode="threshold", max_new_tokens=12))])
    assert backbone.rough_model is None
