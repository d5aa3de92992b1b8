"""docs/data.md: its recipes are read, its tables name what exists, its figures are what the command prints."""

import re
import tracemalloc
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tiny import byte_tokenizer
from training import chat, save_rows

from unmask.data import Chosen, Order, load_rows
from unmask.data.shapes import as_row
from unmask.data.stored import Stored
from unmask.options import read_toml
from unmask.plan import lines, plan
from unmask.recipe import Adapt, Source

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/data.md").read_text()
pytestmark = pytest.mark.usefixtures("empty_hub")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "toml"])
def test_recipes_on_the_page_are_read(text, tmp_path):
    (tmp_path / "r.toml").write_text('base = "b"\noutput = "o"\n' + text)
    assert len(read_toml(Adapt, tmp_path / "r.toml").data) > 1


def test_every_key_of_a_source_is_on_the_page():
    table = PAGE.split("## Columns")[0]
    assert all(f"`{field.name}`" in table for field in fields(Source))


def test_every_pair_of_columns_on_the_page_is_known():
    table = PAGE.split("## Columns")[1].split("\n\n")[1]
    pairs = re.findall(r"`(\w+)` and `(\w+)`(?=[;, ])", table)
    known = [
        pair
        for pair in pairs
        if "messages" in as_row(dict(zip(pair, ("q", "a"), strict=True)))[0] or pair[0] == "prompt"
    ]
    assert {("question", "answer"), ("query", "response"), ("input", "output")} <= set(known)


def test_the_size_of_rows_on_the_disk_is_that_on_the_page(tmp_path):
    token, row = map(int, re.search(r"(\d+) bytes a token and\s+(\d+)\s+a\s+row", PAGE).groups())
    file = save_rows(tmp_path / "a.jsonl", [chat("q", "a" * n) for n in range(50)])
    tokenizer = byte_tokenizer(eos_token="</turn>")
    found = load_rows([str(file)], tokenizer, max_length=99, truncation="keep", stop_ids=(tokenizer.eos_token_id,))
    assert found.bytes == token * sum(len(each.ids) for each in found.rows) + row * 50 + 8


def test_memory_beside_the_rows_of_a_step_is_that_on_the_page():
    """Of the order of an epoch, per row."""
    told, recipe = int(re.search(r"(\d+) bytes for each row", PAGE)[1]), Adapt(base="b", data=("d",), output="o")
    none = np.zeros(0)
    rows = Chosen(Stored(none, none, np.arange(0, 300 * 50_001, 300), none, none), np.arange(50_000))
    tracemalloc.start()
    Order(rows, recipe).at(1)
    peak = tracemalloc.get_traced_memory()[1] / 50_000
    tracemalloc.stop()
    assert 0.5 * told < peak <= told


def test_figures_on_the_page_are_what_the_command_prints():
    shown = next(text for _, text in BLOCKS if text.startswith("$ unmask adapt")).splitlines()
    recipe = read_toml(Adapt, ROOT / re.search(r"recipes/\S+", shown[0])[0])
    printed = list(lines(plan(recipe, ["64xA100"], measure=False)))
    assert len(shown) > 5 and [line for line in shown[1:] if line not in printed] == []
