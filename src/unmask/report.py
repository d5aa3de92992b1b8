"""Reports: a directory with report.json, report.md and report.html (one file, plots inside, no network).

Every report has flat `figures` (name to number), tables to read and plots to look at.
"""

import html
import io
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unmask.errors import CheckpointError

Series = Mapping[str, Sequence[tuple[Any, float]]]
"""Name to points. Where x is a text, bars are drawn."""
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.3rem .8rem;border-bottom:1px solid #d0d7de;text-align:right}
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}svg{background:#fff}}"""


@dataclass
class Section:
    """A table with its explanation, its figures and its plots (title, x axis, series, logarithmic)."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    plots: list[tuple[str, str, Series, bool]] = field(default_factory=list)

    def row(self, *cells: Any) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def plot(self, x: str, columns: Sequence[str], *, log: bool = False) -> None:
        """Plot columns of this table against another; missing cells are left out."""
        at, series = self.columns.index(x), {}
        for name in columns:
            cells = [(row[at], row[self.columns.index(name)]) for row in self.rows]
            series[name] = [(a if isinstance(a, str) else float(a), float(b)) for a, b in cells if b is not None]
        self.lines(self.title, x, series, log=log)

    def lines(self, title: str, x: str, series: Series, *, log: bool = False) -> None:
        self.plots.append((title, x, {name: points for name, points in series.items() if points}, log))

    def text(self) -> str:
        """The section in Markdown, without its plots."""
        lines = [f"## {self.title}", "", self.about, "", _markdown_row(self.columns), "|" + "---|" * len(self.columns)]
        return "\n".join([*lines, *(_markdown_row(tuple(map(shown, row))) for row in self.rows), ""])


@dataclass
class Report:
    """Sections under a title, with the machine and the settings they were measured with."""

    title: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    sections: list[Section] = field(default_factory=list)
    finished: bool = True

    @property
    def figures(self) -> dict[str, float]:
        return {name: value for section in self.sections for name, value in section.figures.items()}

    def add(self, section: Section) -> None:
        self.sections.append(section)

    def write(self, directory: Path) -> None:
        """Write the three files; CheckpointError where that is impossible."""
        content: dict[str, Any] = {
            "figures": self.figures,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "finished": self.finished,
        }
        content["sections"] = [{"title": s.title, "columns": s.columns, "rows": s.rows} for s in self.sections]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "report.json").write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
            (directory / "report.md").write_text(self._markdown(), encoding="utf-8")
            (directory / "report.html").write_text(self._html(), encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"cannot write the report to {directory}: {error.strerror}") from None

    @property
    def _heading(self) -> str:
        return self.title if self.finished else f"{self.title} (unfinished: what was measured so far)"

    def _markdown(self) -> str:
        where = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        return "\n".join([f"# {self._heading}", "", where, "", *(section.text() for section in self.sections)])

    def _html(self) -> str:
        parts = [f"<h1>{html.escape(self._heading)}</h1>"]
        parts.append("<p>" + html.escape(", ".join(f"{name} {value}" for name, value in self.machine.items())) + "</p>")
        for section in self.sections:
            parts += [f"<h2>{html.escape(section.title)}</h2><p>{html.escape(section.about)}</p>", _table(section)]
            parts += [svg(*plot) for plot in section.plots]
        asked = json.dumps(dict(self.settings), default=str, indent=1)
        parts.append(f"<details><summary>settings</summary><pre>{html.escape(asked)}</pre></details>")
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        head += f"<title>{html.escape(self.title)}</title>"
        head, body = f"<head>{head}<style>{STYLE}</style></head>", "".join(parts)
        return f'<!doctype html><html lang="en">{head}<body>{body}</body></html>'


def shown(cell: Any) -> str:
    """A cell as people read it."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return str(cell)


def svg(title: str, x: str, series: Series, log: bool) -> str:
    """A plot as inline SVG, of bars where x is a text, else of lines; a note in its place without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "<p>(plots need matplotlib: pip install 'unmask[bench]')</p>"
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for n, (name, points) in enumerate(series.items()):
        at, heights = [a for a, _ in points], [b for _, b in points]
        if isinstance(at[0], str):
            axes.bar([i + n / (len(series) + 1) for i in range(len(at))], heights, 1 / (len(series) + 1), label=name)
            axes.set_xticks([i + (len(series) - 1) / (len(series) + 1) / 2 for i in range(len(at))], at)
        else:
            axes.plot(at, heights, marker="o", label=name)
    axes.set(title=title, xlabel=x)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    drawn = buffer.getvalue()
    return drawn[drawn.index("<svg") :]


def machine() -> dict[str, Any]:
    """What a figure was measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    """The processor's name; Python leaves it empty on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(section: Section) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in section.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(shown(cell))}</td>" for cell in row) + "</tr>" for row in section.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
