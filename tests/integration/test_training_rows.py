"""The benchmark of the training layouts runs, on random rows and on a file, and refuses gradients that differ."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from training import many_rows, save_base, save_rows

PROGRAM = Path(__file__).parents[2] / "bench" / "training_rows.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("training_rows", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(save_base(tmp_path_factory.mktemp("base")))


def test_table_and_figures(bench, base, tmp_path, capsys):
    rows = save_rows(tmp_path / "rows.jsonl", many_rows())
    for words in (["--length", "96", "--answer", "48"], ["--data", str(rows)]):
        assert bench.main([base, "--rows", "4", "--block-size", "8", "--rank", "4", "--rounds", "2", *words]) == 0
        *table, line = capsys.readouterr().out.splitlines()
        report = json.loads(line)
        assert len(table) == 5 and all(value > 0 for value in report["figures"].values())
        assert {"train_rows_vs_reference_block", "train_rows_vs_reference_draft"} < set(report["figures"])
        assert all(difference <= 1e-5 for difference in report["gradient_difference"].values())


def test_gradients_that_differ_are_not_timed(bench, base, monkeypatch, capsys):
    def half(rows):
        batch = collate(rows)
        return batch if len(rows) < 4 else bench.replace(batch, ids=torch.roll(batch.ids, 1, 1))

    collate = bench.collate
    monkeypatch.setattr(bench, "collate", half)
    assert bench.main([base, "--rows", "2", "--length", "48", "--answer", "24", "--block-size", "8"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "the gradients of form block differ" in said.err
