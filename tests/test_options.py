"""Flags, recipes and templates from the fields of a dataclass."""

import argparse
import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from unmask.config import BlockSpec, Decoding, option
from unmask.errors import ConfigError
from unmask.options import add_flags, given, read, read_toml, template
from unmask.recipe import Adapt
from unmask.resolve import ineffective, resolve


@dataclass(frozen=True, kw_only=True)
class Settings:
    name: str = option(help="who")
    steps: int = option(10, help="how many; 100% of them", check=lambda v: v >= 1, allowed="at least 1")
    rate: float = option(0.5, help="how fast", metavar="R")
    kind: Literal["big", "small"] = option("big", help="which")
    cache: bool = option(True, help="reuse")
    ids: tuple[int, ...] = option((), help="numbers")
    place: Path | None = option(None, help="where")


def parsed(*words: str, cls: type = Settings) -> dict:
    parser = argparse.ArgumentParser()
    add_flags(parser, cls)
    return given(parser.parse_args(words), cls)


def test_flags_take_their_types_from_the_fields():
    words = [
        "--name",
        "a",
        "--steps",
        "3",
        "--rate",
        "2",
        "--kind",
        "small",
        "--no-cache",
        "--ids",
        "1",
        "2",
        "--ids",
        "3",
        "--place",
        "/x",
    ]
    settings = read(Settings, parsed(*words))
    assert settings == Settings(name="a", steps=3, rate=2.0, kind="small", cache=False, ids=(1, 2, 3), place=Path("/x"))


def test_flags_that_are_not_given_leave_the_default_to_the_dataclass():
    assert parsed() == {}
    assert read(Settings, {"name": "a"}) == Settings(name="a")


def test_help_shows_defaults_choices_and_percent_signs():
    parser = argparse.ArgumentParser()
    add_flags(parser, Settings)
    text = " ".join(parser.format_help().split())
    assert "how many; 100% of them (default: 10)" in text
    assert "--kind big|small" in text and "--cache, --no-cache" in text and "--rate R" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "three"], "--steps is 'three'; allowed: a whole number"),
        (["--steps", "1.5"], "--steps is '1.5'; allowed: a whole number"),
        (["--kind", "large"], "--kind is 'large'; allowed: big, small"),
        (["--ids", "x"], "--ids is 'x'; allowed: a whole number"),
    ],
)
def test_a_flag_of_the_wrong_type_is_named_as_typed(words, message):
    with pytest.raises(ConfigError, match=message):
        parsed(*words)


def test_a_refused_value_is_named_as_typed():
    with pytest.raises(ConfigError, match="^--steps is 0; allowed: at least 1$"):
        read(Settings, {"name": "a", "steps": 0}, flags=["steps"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nam": "a"}, "nam is not a setting; did you mean name?"),
        ({"zzz": 1}, "zzz is not a setting; allowed: name, steps"),
        ({"name": 3}, "name is 3; allowed: text"),
        ({"name": "a", "steps": True}, "steps is True; allowed: a whole number"),
        ({"name": "a", "steps": "3"}, "steps is '3'; allowed: a whole number"),
        ({"name": "a", "cache": 1}, "cache is 1; allowed: true or false"),
        ({"name": "a", "ids": 4}, "ids is 4; allowed: a list"),
        ({"name": "a", "ids": ["4"]}, "ids is '4'; allowed: a whole number"),
        ({"name": "a", "steps": None}, "steps is None; allowed: a whole number"),
        ({}, "name is missing"),
    ],
)
def test_values_are_checked_without_being_bent(values, message):
    with pytest.raises(ConfigError, match=message):
        read(Settings, values)


def recipe(tmp_path, text):
    (tmp_path / "r.toml").write_text(text)
    return tmp_path / "r.toml"


def test_flags_take_the_place_of_recipe_keys(tmp_path):
    file = recipe(tmp_path, 'name = "a"\nsteps = 3\nrate = 1\n')
    assert read_toml(Settings, file, {"steps": 4}) == Settings(name="a", steps=4, rate=1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"\n\nstep = 3\n', r"r.toml, line 3: step is not a setting; did you mean steps\?"),
        ('name = "a"\nsteps = "many"\n', "r.toml, line 2: steps is 'many'; allowed: a whole number"),
        ('name = "a"\nsteps = 0\n', "r.toml, line 2: steps is 0; allowed: at least 1"),
        ('name = "a"\n[steps]\nx = 1\n', "r.toml, line 2: steps is"),
        ('name = "a"\nsteps 3\n', "r.toml cannot be read as TOML: .*line 2"),
        ("steps = 3\n", "r.toml: name is missing"),
    ],
)
def test_a_wrong_recipe_names_file_line_and_key(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read_toml(Settings, recipe(tmp_path, text))


def test_a_missing_recipe_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="there is no file .*none.toml"):
        read_toml(Settings, tmp_path / "none.toml")


def test_a_check_across_fields_names_the_file(tmp_path):
    with pytest.raises(ConfigError, match="r.toml: .*does not divide"):
        read_toml(Adapt, recipe(tmp_path, 'base="b"\ndata=["d"]\noutput="o"\nblock_size = 9\n'))


@pytest.mark.parametrize("cls", [Settings, Adapt, Decoding])
def test_the_template_is_toml_with_every_key_and_the_defaults(cls):
    text = template(cls)
    values = tomllib.loads(text)
    for f in dataclasses.fields(cls):
        assert f"{f.name} = " in text and f.metadata["help"] in text
        has_value = f.default is not dataclasses.MISSING and f.default is not None
        assert (f.name in values) == has_value
    required = {f.name: "a" for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
    if "data" in required:
        required["data"] = ["a"]
    assert read(cls, values | required) == read(cls, required)


@pytest.mark.parametrize(
    ("wanted", "context", "expected"),
    [
        ({"threshold": 0.5, "rule": "factor"}, "block", {"threshold": "with rule factor"}),
        ({"threshold": 0.5, "rule": "threshold"}, "block", {}),
        ({"top_p": 0.5, "seed": 1}, "block", {"top_p": "at temperature 0", "seed": "at temperature 0"}),
        ({"top_p": 0.5, "temperature": 1e-6}, "block", {"top_p": "at temperature 0"}),
        ({"top_p": 0.5, "seed": 1, "temperature": 1.0}, "block", {}),
        (
            {"rule": "factor", "sub_block_cache": False},
            "causal",
            dict.fromkeys(["rule", "sub_block_cache"], "in mode verified"),
        ),
        ({"block_size": 4}, "causal", {}),
        ({"max_loss": 1.0}, "causal", {}),
        ({"max_loss": 1.0, "mode": "auto"}, "causal", {}),
        ({"max_loss": 1.0, "mode": "verified"}, "causal", {"max_loss": "where the mode is named"}),
        ({"drafts": "plain", "prompt_lookup": False}, "causal", {"prompt_lookup": "with drafts plain"}),
        (
            {"mode": "ar", "drafts": "plain", "prompt_lookup": False},
            "causal",
            dict.fromkeys(["drafts", "prompt_lookup"], "in mode ar"),
        ),
        ({"block_size": 4, "mode": "ar"}, "causal", {"block_size": "in mode ar"}),
    ],
)
def test_settings_that_change_nothing_are_told_with_the_reason(wanted, context, expected):
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=1, context=context)
    assert ineffective(wanted, resolve(Decoding(**wanted), spec)) == expected


def test_a_field_is_checked_alike_from_python_and_from_a_mapping():
    for make in (lambda: Decoding(threshold=2.0), lambda: read(Decoding, {"threshold": 2.0})):
        with pytest.raises(ConfigError, match="^threshold is 2.0; allowed: from 0 to 1$"):
            make()
