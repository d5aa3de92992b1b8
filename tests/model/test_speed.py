"""The record of what `unmask bench` measured: it holds for these weights, this machine, these threads and this type."""

import json

import pytest
import torch
from tiny import MASK, byte_tokenizer, native, tiny_model

import unmask
from unmask.auto import Measured
from unmask.config import BlockSpec
from unmask.core.pace import Costs
from unmask.errors import CheckpointError
from unmask.model import speed
from unmask.model.checkpoint import save_full
from unmask.model.speed import assumed, read_measured, write_measured

RECORD = Measured(
    Costs(((1, 0.02), (8, 0.03)), ((2, 0.01), (8, 0.02)), 1.7),
    {"ar": {1: 40.0, 4: 90.5}, "verified": {1: 61.0}},
    "2026-01-02",
)
SPEC = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal")


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    save_full(tiny_model(), byte_tokenizer(), SPEC, tmp_path / "model")
    return tmp_path / "model"


def test_what_is_written_is_read(saved):
    backbone = native(tiny_model())
    assert read_measured(backbone, saved) is None
    file = write_measured(RECORD, backbone, saved)
    assert read_measured(backbone, saved) == RECORD and file.parent == saved.parent / "home" / "speed"
    assert not list(file.parent.glob("*.tmp"))


def test_a_loaded_model_goes_by_it(saved):
    model = unmask.load(saved)
    assert model.measured is None and model.costs == assumed(model.backbone)
    write_measured(RECORD, model.backbone, saved)
    again = unmask.load(saved)
    assert again.costs == RECORD.costs and again.engine().costs == RECORD.costs
    assert "1.52 times ar at batch 1" in again.chosen(unmask.Decoding()).why


def test_it_holds_for_nothing_else(saved, tmp_path, monkeypatch):
    backbone = native(tiny_model())
    write_measured(RECORD, backbone, saved)
    assert read_measured(native(tiny_model(), kind="int8"), saved) is None
    other = tmp_path / "other"
    save_full(tiny_model(1), byte_tokenizer(), SPEC, other)
    assert read_measured(backbone, other) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 7)
        assert read_measured(backbone, saved) is None
    monkeypatch.setattr(speed, "processor", lambda: "another processor")
    assert read_measured(backbone, saved) is None, "a home directory may be shared by machines"


@pytest.mark.parametrize("damage", ["{", "{}", '{"costs": {"clean": [[1, 0]], "draft": [[1, 1]], "gain": 1}}'])
def test_a_damaged_record_is_named(saved, damage):
    backbone = native(tiny_model())
    file = write_measured(RECORD, backbone, saved)
    whole = json.loads(file.read_text())
    file.write_text(damage if damage == "{" else json.dumps(json.loads(damage) | {"made_on": whole["made_on"]}))
    with pytest.raises(CheckpointError, match=f"{file.name}"):
        read_measured(backbone, saved)


def test_assumed_costs_grow_with_positions():
    for kind in ("fp32", "bf16", "int8"):
        costs = assumed(native(tiny_model(), kind=kind))
        assert costs.check(1, 1) == 1.0 < costs.check(6, 1) < costs.check(6, 4) * 4
        assert costs.drafting(2, 1) < costs.drafting(8, 1)
