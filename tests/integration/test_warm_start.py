"""Training that goes on from an adapter: the same one, one of a smaller rank or another alpha, one stored in float8."""

import importlib
import json

import pytest
import torch
from safetensors.torch import load_file
from training import recipe

from unmask.core.noise import seeded
from unmask.core.streams import collate, draw_noise, noisy_row
from unmask.errors import ConfigError
from unmask.model.adapters import read_adapter
from unmask.model.learner import Learner

loop = importlib.import_module("unmask.adapt")  # the name in the package is the function

DRAFT = {"context": "causal", "adapter_scope": "draft", "full_share": 0.5, "decay": "linear"}
FILES = ("adapter_model.safetensors", "mask_embedding.safetensors")


def train(settings):
    return list(loop.adapt(settings))


def losses(learner):
    ids = torch.arange(20, 60)
    noise = draw_noise(len(ids), 8, seeded("a row"), shift=False, full_share=0.5)
    return learner(collate([noisy_row(ids, ids > 25, [noise], block_size=8, mask_id=260, causal=True)]))


@pytest.fixture(scope="module")
def trained(base, data, tmp_path_factory):
    """An adapter of rank 4 and alpha 8 that has learned something, and its recipe's losses."""
    out = tmp_path_factory.mktemp("trained")
    train(recipe(base, data, out / "run", **DRAFT))
    return out / "run" / "model"


def test_it_continues_exactly(base, data, trained, tmp_path):
    second = recipe(base, data, tmp_path / "second", **DRAFT, start_from=str(trained))
    Learner(second).save(tmp_path / "copy")
    for file in FILES:
        kept, copied = load_file(trained / file), load_file(tmp_path / "copy" / file)
        assert set(kept) == set(copied) and all(torch.equal(kept[name], copied[name]) for name in kept)
    fresh = train(recipe(base, data, tmp_path / "fresh", **DRAFT))
    assert train(second)[0].loss < 0.95 * fresh[0].loss


@pytest.mark.parametrize("fields", [{"rank": 7, "alpha": 14.0}, {"rank": 12, "alpha": 8.0}, {"alpha": 3.0}])
def test_a_larger_rank_or_another_alpha_begins_where_the_smaller_one_was(base, data, trained, tmp_path, fields):
    same = Learner(recipe(base, data, tmp_path / "run", **DRAFT, start_from=str(trained)))
    grown = Learner(recipe(base, data, tmp_path / "run", **DRAFT | fields, start_from=str(trained)))
    ranks = {p.shape[0] for name, p in grown.trainable().items() if ".lora_A." in name}
    assert ranks == {fields.get("rank", 4)}
    torch.testing.assert_close(losses(grown), losses(same), rtol=1e-5, atol=1e-5)
    losses(grown)[0].backward()
    for name, parameter in grown.trainable().items():  # what is new can learn: A is not zero where B is
        if ".lora_B." in name:
            assert parameter.grad is not None and parameter.grad.abs().amax(dim=0).gt(0).all(), name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 2}, "has rank 4, the recipe 2; use 4 or more"),
        ({"method": "full", "adapter_scope": "all"}, "start_from continues an adapter"),
    ],
)
def test_what_does_not_fit_is_refused(base, data, trained, tmp_path, fields, message):
    with pytest.raises(ConfigError, match=message):
        Learner(recipe(base, data, tmp_path / "run", **DRAFT | fields, start_from=str(trained)))


def test_float8_is_half_as_large_and_nearly_the_same(base, data, trained, tmp_path):
    settings = recipe(base, data, tmp_path / "run", **DRAFT, start_from=str(trained), stored_as="float8")
    Learner(settings).save(tmp_path / "small")
    fine, coarse = read_adapter(trained), read_adapter(tmp_path / "small")
    for name, (down, up) in fine.pairs.items():
        kept_down, kept_up = coarse.pairs[name]
        assert kept_down.dtype == kept_up.dtype == torch.float8_e4m3fn
        wanted, found = fine.scale * up.float() @ down.float(), coarse.scale * kept_up.float() @ kept_down.float()
        assert 0 < (found - wanted).norm() < 0.06 * wanted.norm(), name  # each weight within 1/16, 3% on average
    sizes = [sum(t.nbytes for t in load_file(each / FILES[0]).values()) for each in (trained, tmp_path / "small")]
    assert sizes[0] == 2 * sizes[1]


def test_float8_goes_on_as_it_was_stored(base, data, trained, tmp_path):
    first = recipe(base, data, tmp_path / "run", **DRAFT, start_from=str(trained), stored_as="float8")
    Learner(first).save(tmp_path / "small")
    again = Learner(recipe(base, data, tmp_path / "run", **DRAFT, start_from=f"{tmp_path}/small", stored_as="float8"))
    before = dict(Learner(first).trainable())
    for name, parameter in again.trainable().items():  # neither A nor B has grown at the other's expense
        assert (parameter - before[name]).abs().max() <= before[name].abs().max() / 16, name
    again.save(tmp_path / "again")
    for file in (*FILES, "adapter_config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "small" / file).read_bytes()


def test_a_fresh_adapter_can_be_float8(base, data, tmp_path):
    Learner(recipe(base, data, tmp_path / "run", **DRAFT, stored_as="float8")).save(tmp_path / "small")
    pairs = read_adapter(tmp_path / "small").pairs.values()
    assert all(not up.float().any() and down.float().any() for down, up in pairs)
    assert json.loads((tmp_path / "small" / "adapter_config.json").read_text())["lora_alpha"] > 0


def test_a_whole_model_is_not_stored_in_float8(base, data, tmp_path):
    with pytest.raises(ConfigError, match="stored_as 'float8' is for adapters"):
        recipe(base, data, tmp_path / "run", method="full", stored_as="float8")
