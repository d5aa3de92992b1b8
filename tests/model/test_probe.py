"""Families outside the proved ones are tried before they are used."""

import dataclasses

import pytest
import torch
from families import FAMILIES, SHAPES
from tiny import tiny_model
from transformers import AutoConfig, AutoModelForCausalLM

from unmask.errors import UnsupportedModelError
from unmask.model import checkpoint
from unmask.model.checkpoint import load_checkpoint
from unmask.model.probe import PROVED, probe
from unmask.model.universal import UniversalBackbone


def network(kind, **changes):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SHAPES, **changes})
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval()


def test_the_proved_families_are_those_of_the_parity_tests():
    assert {name.split("-")[0] for name in FAMILIES} == PROVED


@pytest.mark.parametrize("kind", ["gemma", "gpt_neox", "stablelm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_unproved_family_that_holds_the_identities_passes(kind, dtype):
    probe(UniversalBackbone(network(kind).to(dtype), mask_id=None))


class Scaled(UniversalBackbone):
    def forward(self, cache, rows, feeds):
        return super().forward(cache, rows, feeds) * 1.01


class Forgetful(UniversalBackbone):
    def forward(self, cache, rows, feeds):
        cache.clear(0)
        return super().forward(cache, rows, feeds)


class Causal(UniversalBackbone):
    """Ignores what it is told to see, as a network with a mask of its own would."""

    def forward(self, cache, rows, feeds):
        narrow = [dataclasses.replace(f, ends=[f.start + n + 1 for n in range(len(f.tokens))]) for f in feeds]
        return super().forward(cache, rows, narrow)


class Everything(UniversalBackbone):
    """Sees later blocks too where they are there."""

    def forward(self, cache, rows, feeds):
        block = feeds[0].ends != [n + 1 for n in range(12)]
        wide = [dataclasses.replace(f, ends=[12] * len(f.tokens)) for f in feeds] if block else feeds
        return super().forward(cache, rows, wide)


@pytest.mark.parametrize(
    ("backbone", "identity"),
    [
        (Scaled, "the model's own logits"),
        (Forgetful, "through the cache equal one forward"),
        (Causal, "a block is seen whole"),
        (Everything, "through the cache equal one forward"),
    ],
)
def test_an_identity_that_does_not_hold_is_named(backbone, identity):
    with pytest.raises(UnsupportedModelError, match=identity):
        probe(backbone(tiny_model(), mask_id=None))


class Raising(UniversalBackbone):
    def forward(self, cache, rows, feeds):
        raise RuntimeError("no mask\nof this shape")


def test_a_network_that_raises_is_refused_in_one_line():
    with pytest.raises(UnsupportedModelError, match=r"'qwen2' .* \(RuntimeError: no mask of this shape\)"):
        probe(Raising(tiny_model(), mask_id=None))


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_learned_absolute_positions_are_refused_by_name_and_by_table(kind, tmp_path):
    model = network(kind, do_layer_norm_before=True)
    with pytest.raises(
        UnsupportedModelError, match=r"learned absolute positions \((transformer.wpe|.*embed_positions)\)"
    ):
        probe(UniversalBackbone(model, mask_id=None))
    model.save_pretrained(tmp_path / kind)
    with pytest.raises(UnsupportedModelError, match="learned absolute positions, and a draft may reach beyond"):
        load_checkpoint(tmp_path / kind)


def test_only_unproved_families_are_tried_at_loading(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(checkpoint, "probe", lambda backbone: tried.append(backbone.model.config.model_type))
    for kind in ("llama", "stablelm"):
        network(kind).save_pretrained(tmp_path / kind)
        load_checkpoint(tmp_path / kind)
    assert tried == ["stablelm"]
