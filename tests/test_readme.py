"""What README says exists, and its commands are accepted."""

import re
from pathlib import Path

from training import save_base

import unmask
from unmask.cli import main as cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


def test_the_tree_names_existing_files():
    tree = next(text for _, text in BLOCKS if text.startswith("src/unmask/"))
    listed = re.findall(r"^  ([\w/]+(?:\.py|/))", tree, re.MULTILINE)
    assert len(listed) > 10
    assert [name for name in listed if not (ROOT / "src/unmask" / name).exists()] == []
    assert {p.name for p in (ROOT / "src/unmask").glob("*.py")} - {"__init__.py", "__main__.py"} <= set(
        re.findall(r"[\w]+\.py", tree)
    )


def test_links_lead_somewhere():
    assert [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not (ROOT / link).exists()] == []


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test", "check"} <= named <= targets


def test_commands_are_subcommands(capsys):
    for command in set(re.findall(r"^unmask ([a-z]+)", README, re.MULTILINE)):
        assert cli([command, "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_the_python_example_runs(tmp_path, capsys):
    code = next(text for language, text in BLOCKS if language == "python")
    base = save_base(tmp_path / "base")
    code = code.replace('"demo"', repr(str(base))).replace(', mode="verified"', ', mode="ar", max_new_tokens=5')
    names: dict = {}
    exec(code, names)  # noqa: S102 - our own README
    assert len(names["answers"]) == 2 and isinstance(names["model"], unmask.Model)
    assert capsys.readouterr().out
