import json
import os
import re
import sys

import pytest

from unmask.errors import CheckpointError
from unmask.report import INK, Plot, Report, Section, shown, svg


def section():
    made = Section("Speed & size", "What it is.", ("n", "ours", "theirs"))
    made.row(1, 2.0, None)
    made.row(2, 1234.5, 0.123456)
    made.figures["speed"] = 2.0
    made.plot("n", ("ours", "theirs"))
    return made


def test_missing_cells_are_left_out_of_plots():
    series = {"ours": [(1.0, 2.0), (2.0, 1234.5)], "theirs": [(2.0, 0.123456)]}
    assert section().plots == [Plot("Speed & size", "n", series)]


def test_cells_as_people_read_them():
    assert [shown(cell) for cell in (None, 1234.5, 0.123456, 3, "x")] == ["–", "1234", "0.123", "3", "x"]


def test_a_column_that_no_row_fills_is_not_shown():
    section = Section("S", "about", ("name", "to base", "score"))
    section.row("a", None, 1)
    section.row("b", None, None)
    assert "| name | score |" in section.text() and "to base" not in section.page()
    assert section.columns == ("name", "to base", "score")
    section.row("c", 2, None)
    assert "| a | – | 1 |" in section.text() and "to base" in section.page()


def test_bars_are_drawn_where_x_is_a_text():
    made = Section("Memory", "About.", ("type", "MB", "least"))
    made.row("fp32", 3.0, 2.0)
    made.row("int8", 2.0, 1.0)
    made.plot("type", ("MB", "least"))
    assert made.plots[0][2] == {"MB": [("fp32", 3.0), ("int8", 2.0)], "least": [("fp32", 2.0), ("int8", 1.0)]}
    assert "<svg" in svg(*made.plots[0])


@pytest.mark.parametrize("log", ["x", True])
def test_a_logarithmic_axis_is_for_numbers_bars_have_none(log):
    assert "confidence" in svg("Rules", "rule", {"ours": [("confidence", 3.0), ("factor:1", 2.0)]}, log)


def test_bars_and_line_breaks_in_a_cell_do_not_break_a_markdown_table():
    made = Section("Tasks", "About.", ("task", "why"))
    made.row("a|b", "one\ntwo\r\nthree")
    assert made.text().splitlines()[-1] == r"| a\|b | one two three |"


def test_a_report_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    """A process that dies while it writes leaves the former report."""
    Report("Speed", {}, {}, [section()]).write(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert sorted(before) == ["report.html", "report.json", "report.md"]
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Report("Speed", {}, {}, [section(), section()]).write(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_three_files_and_markup_is_escaped(tmp_path):
    report = Report("a <b>", {"cores": 2}, {"model": "<script>"})
    report.add(section())
    report.write(tmp_path / "new" / "out")
    content = json.loads((tmp_path / "new/out/report.json").read_text())
    assert content["figures"] == {"speed": 2.0} and content["machine"] == {"cores": 2}
    page = (tmp_path / "new/out/report.html").read_text()
    assert "Speed &amp; size" in page and "<script>" not in page and "a &lt;b&gt;" in page and "<b>" not in page
    assert "| 2 | 1234 | 0.123 |" in (tmp_path / "new/out/report.md").read_text()


def test_a_report_that_was_cut_short_says_so(tmp_path):
    report = Report("Speed", {}, {}, [section()], finished=False)
    report.write(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["finished"] is False
    for name in ("report.md", "report.html"):
        assert "Speed (unfinished: what was measured so far)" in (tmp_path / name).read_text()
    report.finished = True
    report.write(tmp_path)
    assert "unfinished" not in (tmp_path / "report.md").read_text()


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot write .*file/report.json: "):
        Report("t", {}, {}).write(tmp_path / "file")


def test_without_matplotlib_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'unmask[bench]'" in svg("t", "x", {"a": [(1.0, 2.0)]}, False)


def test_plots_take_the_colour_of_the_page_and_say_what_they_show():
    drawn = svg("Speed <x>", "n", {"ours": [(1.0, 2.0, 1.5, 2.5), (4.0, 3.0, 2.0, 3.5)]}, "x", "tok/s")
    assert "currentColor" in drawn and INK not in drawn
    assert '<svg role="img" aria-label="Speed &lt;x&gt;: ours, by n; the table holds the numbers" ' in drawn
    assert re.search(r"<text [^>]*>tok/s</text>", drawn)  # text, not outlines
    assert drawn == svg("Speed <x>", "n", {"ours": [(1.0, 2.0, 1.5, 2.5), (4.0, 3.0, 2.0, 3.5)]}, "x", "tok/s")


def test_a_section_may_have_no_table_and_markup_of_its_own(tmp_path):
    report = Report(
        "t", {}, {}, [Section("Samples", "Look.", markup="<b>here</b>")], about={"made_with": {"torch": "2"}}
    )
    report.write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<p>Look.</p><b>here</b>" in page and "<table" not in page
    assert json.loads((tmp_path / "report.json").read_text())["made_with"] == {"torch": "2"}
    assert "<summary>made with</summary>" in page and "|" not in (tmp_path / "report.md").read_text()


def test_a_plot_without_points_is_left_out():
    made = Section("t", "a", ("n",))
    made.lines("t", "n", {"ours": []})
    assert made.plots == []
