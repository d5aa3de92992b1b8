"""The record of what `unmask bench` measured: it holds for these weights, this machine, these threads and this type."""

import json
from dataclasses import replace

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


def damaged(entries, what):
    return {
        "cut": "{",
        "list": "[]",
        "empty": "{}",
        "no time": json.dumps({**entries, "costs": {"clean": [[1, 0]], "draft": [[1, 1]], "gain": 1}}),
        "nan": json.dumps({**entries, "costs": {"clean": [[1, float("nan")]], "draft": [[1, 1]], "gain": 1}}),
        "no rate": json.dumps({**entries, "rates": {"ar": {"1": 0.0}}}),
        "no forward": json.dumps({**entries, "costs": {"clean": [], "draft": [[1, 1]], "gain": 1}}),
    }[what]


@pytest.mark.parametrize("what", ["cut", "list", "empty", "no time", "nan", "no rate", "no forward"])
def test_a_damaged_record_is_said_once_and_stops_nothing(saved, what, capsys):
    backbone = native(tiny_model())
    file = write_measured(RECORD, backbone, saved)
    file.write_text(damaged(json.loads(file.read_text()), what))
    model = unmask.load(saved)
    for mode in ("ar", "threshold", "verified", "auto", "ar"):
        assert model.generate([[1, 2]], mode=mode, max_new_tokens=2)[0].error is None
    assert capsys.readouterr().err.count(f"{file} cannot be used") == 1
    assert write_measured(RECORD, backbone, saved) == file and read_measured(backbone, saved) == RECORD


def test_a_folder_that_cannot_be_written_to_is_one_error(saved, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "speed").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        write_measured(RECORD, native(tiny_model()), saved)


def test_what_was_measured_before_and_not_now_is_kept(saved):
    backbone = native(tiny_model())
    write_measured(RECORD, backbone, saved)
    write_measured(replace(RECORD, rates={"ar": {4: 80.0, 16: 200.0}}, when="2026-02-03"), backbone, saved)
    again = read_measured(backbone, saved)
    assert again.rates == {"ar": {1: 40.0, 4: 80.0, 16: 200.0}, "verified": {1: 61.0}} and again.when == "2026-02-03"


def test_assumed_costs_grow_with_positions():
    for kind in ("fp32", "bf16", "int8"):
        costs = assumed(native(tiny_model(), kind=kind))
        assert costs.check(1, 1) == 1.0 < costs.check(6, 1) < costs.check(6, 4) * 4
        assert costs.drafting(2, 1) < costs.drafting(8, 1)
