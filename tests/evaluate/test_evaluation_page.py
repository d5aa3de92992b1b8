"""docs/evaluate.md: the figures that it names are those of a report, and a report has no others."""

import re
from pathlib import Path

import pytest
from made_outcomes import everything

from unmask.evaluate.gate import gate, gate_section
from unmask.evaluate.recommend import recommend, recommend_section
from unmask.evaluate.report import build
from unmask.evaluate.statistics import area

PAGE = (Path(__file__).parent.parent.parent / "docs/evaluate.md").read_text()


@pytest.fixture(scope="module")
def figures():
    outcomes = everything()
    verdicts, advice = gate(outcomes, 5.0), recommend(outcomes, floor_points=5.0)
    more = [gate_section(verdicts, outcomes, 5.0), recommend_section(advice, outcomes)]
    return build(outcomes, {}, {}, {}, more=more).figures


def named():
    """The names in the table of figures, but for those of a comparison and those that stand for others (…)."""
    table = PAGE[PAGE.index("| figure | meaning |") : PAGE.index("Two contenders of the same role")]
    found = re.findall(r"`([^`]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:] if line))
    return [name for name in found if "…" not in name and "difference" not in name]


def pattern(name):
    return re.compile(name.replace("{task}", "[a-z0-9]+").replace("{mode}", "(ar|threshold|verified)"))


def test_every_named_figure_is_there(figures):
    assert len(named()) >= 17
    for name in named():
        assert any(pattern(name).fullmatch(figure) for figure in figures), name


def test_every_figure_is_named(figures):
    known = [pattern(name) for name in named()]
    known += [pattern("{task}_{mode}_vs_" + other) for other in ("ar", "base", "plain")]
    for figure in figures:
        bare = re.sub(r"^(base_|plain_|sweep_([a-z_]+_(\d[\d.]*|True|False)_)+)", "", figure)
        bare = re.sub(r"_(low|high)$", "", bare)
        assert any(each.fullmatch(bare) for each in known), figure


def test_the_worth_of_a_token_at_half_the_score():
    assert "at half the score a token per forward is worth 0.11" in PAGE
    assert area(1.0, [(1.0 + 1e-9, 0.5), (2.0, 0.5)]) == pytest.approx(1.11, abs=0.005)


def test_the_exit_code_is_documented():
    assert "exit code 3" in " ".join(PAGE.split())
