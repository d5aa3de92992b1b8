"""The benchmark of the training layouts runs, on random rows and on a file, and refuses gradients that differ."""

import json

import pytest
import torch
from training import many_rows, save_base, save_rows

from unmask import cli
from unmask.bench import training
from unmask.core.streams import collate


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(save_base(tmp_path_factory.mktemp("base")))


@pytest.fixture
def small(monkeypatch):
    for name, value in {"BLOCK": 8, "RANK": 4, "LENGTH": 96, "ANSWER": 48}.items():
        monkeypatch.setattr(training, name, value)


@pytest.mark.parametrize("words", [[], ["--data", "rows.jsonl"], ["--dtype", "bf16"]])
def test_table_and_figures(small, base, tmp_path, monkeypatch, words, capsys):
    monkeypatch.chdir(tmp_path)
    save_rows(tmp_path / "rows.jsonl", many_rows())
    command = ["bench", "--training", "--model", base, "--rows", "4", "--rounds", "1", "--out", "out", *words]
    assert cli.main(command) == 0
    report = json.loads((tmp_path / "out/report.json").read_text())
    figures = report["figures"]
    expected = {"train_rows_vs_reference_block", "train_rows_vs_reference_draft", "train_share_of_peak"}
    assert expected < set(figures) and all(value > 0 for value in figures.values())
    assert len(report["sections"][0]["rows"]) == 4 and "share of peak" in capsys.readouterr().out


def test_operations_are_those_of_the_matrix_products(small, base):
    """Counted by PyTorch itself, attention apart."""
    from torch.utils.flop_counter import FlopCounterMode

    for key, case in training.cases_of(base, (), 2, "fp32").items():
        counter = FlopCounterMode(display=False)
        with counter:
            case.backward()
        counted = sum(
            n for op, n in counter.get_flop_counts()["Global"].items() if "mm" in str(op) and "bmm" not in str(op)
        )
        assert case.operations() == pytest.approx(counted, rel=0.1), key


def test_gradients_that_differ_are_not_timed(small, base, monkeypatch, tmp_path, capsys):
    def turned(rows):
        batch = collate(rows)
        return batch if len(rows) < 4 else training.replace(batch, ids=torch.roll(batch.ids, 1, 1))

    monkeypatch.setattr(training, "collate", turned)
    command = ["bench", "--training", "--model", base, "--rows", "2", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert "the gradients of form block differ" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_types_that_do_not_train_are_refused(base, tmp_path, capsys):
    command = ["bench", "--training", "--model", base, "--dtype", "int8", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 2 and "allowed with training: fp32, bf16" in capsys.readouterr().err
