"""docs/data.md: its recipes are read, its tables name what exists, its figures are what the command prints."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from unmask.data.shapes import as_row
from unmask.options import read_toml
from unmask.plan import lines, plan
from unmask.recipe import Adapt, Source

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/data.md").read_text()
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


def test_figures_on_the_page_are_what_the_command_prints():
    shown = next(text for _, text in BLOCKS if text.startswith("$ unmask adapt")).splitlines()
    recipe = read_toml(Adapt, ROOT / re.search(r"recipes/\S+", shown[0])[0])
    printed = list(lines(plan(recipe, ["64xA100"], measure=False)))
    assert len(shown) > 5 and [line for line in shown[1:] if line not in printed] == []
