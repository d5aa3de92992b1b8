"""Rows held out: by seed, with their like, and before they are weighted and packed."""

import itertools
import json

import pytest
import torch
from tiny import MASK, byte_tokenizer
from training import chat, save_rows

from unmask.data import Packing, Row, load_rows, open_rows
from unmask.data.holdout import held_out
from unmask.errors import ConfigError
from unmask.recipe import Source


def rows(count):
    generator = torch.Generator().manual_seed(1)
    lengths = [9 + 5 * (n % 4) for n in range(count)]
    return [Row(torch.randint(50, (n,), generator=generator), torch.arange(n) >= 4) for n in lengths]


@pytest.mark.parametrize(("wanted", "count"), [(0.25, 5), (0.001, 1), (3.0, 3)])
def test_rows_are_held_out_by_seed(wanted, count):
    every = rows(20)
    found = [held_out(every, wanted, seed) for seed in (1, 1, 2)]
    for learned, held in found:
        assert len(held) == count and sorted([*learned, *held]) == list(range(20))
        assert learned.tolist() == sorted(learned) and held.tolist() == sorted(held)
    chosen = [held.tolist() for _, held in found]
    assert chosen[0] == chosen[1] and (chosen[0] != chosen[2] or count < 2)


def test_a_row_that_comes_again_is_held_out_with_its_like():
    every = rows(10) * 3
    learned, held = held_out(every, 4.0, 0)
    texts = [{tuple(every[n].ids.tolist()) for n in part} for part in (learned, held)]
    assert len(held) == len(texts[1]) == 4 and len(learned) == 18 and not texts[0] & texts[1]


def test_something_is_left_to_learn_from():
    with pytest.raises(ConfigError, match="validation_rows is 20, but there are 20 rows"):
        held_out(rows(20), 20.0, 0)


@pytest.fixture(scope="module")
def tokenizer():
    made = byte_tokenizer(eos_token="</turn>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return made


@pytest.mark.parametrize("packing", [None, Packing(48, 8, MASK)])
def test_no_text_is_both_learned_and_validated(tmp_path, tokenizer, packing):
    """Packed too, where a copy lies in another row, behind other documents."""
    file = save_rows(tmp_path / "rows.jsonl", [chat(f"#{n:02}#", "a" * (n % 9)) for n in range(40)])
    (tmp_path / "kept").mkdir()
    options = {"max_length": 200, "truncation": "keep", "stop_ids": (tokenizer.eos_token_id,), "packing": packing}
    weighted = Source(path=str(file), weight=2.5)
    found = load_rows([weighted], tokenizer, **options, hold=0.25, directory=tmp_path / "kept")
    assert found.counts["held out for validation"] == 10
    learned, held = (
        {name for row in part for name in tokenizer.decode(row.ids).split("#")[1::2] if len(name) == 2}
        for part in (found.rows, found.held)
    )
    if packing is None:
        assert len(found.held) == 10 and len(held) == 10 and len(learned) == 30
        times = sorted(len(list(group)) for _, group in itertools.groupby(sorted(str(r.ids) for r in found.rows)))
        assert times[0] == 2 and times[-1] == 3 and len(times) == 30
    assert held and learned and not held & learned
    again = open_rows(tmp_path / "kept")
    for part in ("rows", "held"):
        assert [str(row) for row in getattr(again, part)] == [str(row) for row in getattr(found, part)]
    assert json.loads((tmp_path / "kept" / "about.json").read_text())["learned"] == len(found.rows)


def test_packed_documents_that_fill_no_row_are_too_few_to_hold_out(tmp_path, tokenizer):
    file = save_rows(tmp_path / "rows.jsonl", [chat(str(n), "a") for n in range(40)])
    options = {"max_length": 400, "truncation": "keep", "stop_ids": (tokenizer.eos_token_id,), "hold": 1.0}
    with pytest.raises(ConfigError, match="validation_rows is 1; 1 documents fill no row of 400 tokens: hold out more"):
        load_rows([str(file)], tokenizer, **options, packing=Packing(400, 8, MASK))
