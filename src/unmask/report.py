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
from typing import Any, NamedTuple

import torch

from unmask.journal import flat, replacement
from unmask.limits import processor

Series = Mapping[str, Sequence[tuple[Any, ...]]]
"""Name to points (x, y), or (x, y, low, high) with an interval. Where x is a text, bars are drawn."""
INK = "#010203"
"""Stands for the page's own text colour while a plot is drawn."""
COLOURS = ("#3b82f6", "#e8743b", "#12a37a", "#c45ad0", "#b8860b", "#ef4b5f", "#0e9fb5", "#8a8f98")
MARKERS = "osD^vPX*"
STYLE = """:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--line:#d0d7de;--soft:#f3f5f8;--mark:#ffe08a}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--text:#e6edf3;--line:#3d444d;--soft:#161b22;--mark:#6b4f00}}
body{font:16px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}
body{color:var(--text);background:var(--page)}
h1{font-size:1.7rem;line-height:1.2}h2{font-size:1.25rem;margin-top:2.5rem}.wide{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
td,th{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
td.long{text-align:left;white-space:normal;min-width:16rem}
td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:var(--page)}
@media(max-width:40rem){td:first-child,th:first-child{white-space:normal;min-width:6rem;max-width:8rem}}
.plots{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:0 1 32rem;min-width:min(100%,20rem)}
svg{max-width:100%;height:auto}svg text{font-family:system-ui,sans-serif!important}
details{border-top:1px solid var(--line);padding:.4rem 0}summary{cursor:pointer}
pre{overflow-x:auto;background:var(--soft);padding:.6rem;font-size:.85rem}"""


class Plot(NamedTuple):
    """log: True for both axes, "x" for that one alone; bars have no such x axis. zero: the y axis begins at 0."""

    title: str
    x: str
    series: Series
    log: bool | str = False
    y: str = ""
    zero: bool = True


@dataclass
class Section:
    """A table with its explanation, its figures and its plots. Without columns it has no table.

    markup: HTML that comes last on the page, whose maker has escaped what it holds.
    """

    title: str
    about: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    plots: list[Plot] = field(default_factory=list)
    markup: str = ""

    def row(self, *cells: Any) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def filled(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Columns and rows as people read them: without the columns that no row fills."""
        kept = [at for at in range(len(self.columns)) if not self.rows or any(row[at] is not None for row in self.rows)]
        return tuple(self.columns[at] for at in kept), [tuple(row[at] for at in kept) for row in self.rows]

    def plot(self, x: str, columns: Sequence[str], *, log: bool = False) -> None:
        """Plot columns of this table against another; missing cells are left out."""
        at, series = self.columns.index(x), {}
        for name in columns:
            cells = [(row[at], row[self.columns.index(name)]) for row in self.rows]
            series[name] = [(a if isinstance(a, str) else float(a), float(b)) for a, b in cells if b is not None]
        self.lines(self.title, x, series, log=log)

    def lines(
        self, title: str, x: str, series: Series, *, log: bool | str = False, y: str = "", zero: bool = True
    ) -> None:
        """Add a plot of the series that have points; none where no series has."""
        filled = {name: points for name, points in series.items() if points}
        if filled:
            self.plots.append(Plot(title, x, filled, log, y, zero))

    def text(self) -> str:
        """The section in Markdown, without its plots."""
        lines = [f"## {self.title}", "", self.about, ""]
        columns, rows = self.filled()
        if columns:
            lines += [_markdown_row(columns), "|" + "---|" * len(columns)]
        return "\n".join([*lines, *(_markdown_row(tuple(map(shown, row))) for row in rows), ""])

    def page(self) -> str:
        """The section in HTML."""
        text = f"<h2>{html.escape(self.title)}</h2><p>{html.escape(self.about)}</p>"
        plots = "".join(f"<figure>{svg(*plot)}</figure>" for plot in self.plots)
        text += _table(self) if self.columns else ""
        return text + (f'<div class="plots">{plots}</div>' if plots else "") + self.markup


@dataclass
class Report:
    """Sections under a title, with the machine and the settings they were measured with.

    about: what else report.json is to say (versions, hashes), under its own names.
    """

    title: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    sections: list[Section] = field(default_factory=list)
    finished: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        return {name: value for section in self.sections for name, value in section.figures.items()}

    def add(self, section: Section) -> None:
        self.sections.append(section)

    def write(self, directory: Path) -> None:
        """Write the three files, each replaced at once; CheckpointError where that is impossible."""
        content: dict[str, Any] = {
            "figures": self.figures,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "finished": self.finished,
            **self.about,
        }
        content["sections"] = [{"title": s.title, "columns": s.columns, "rows": s.rows} for s in self.sections]
        written = {"json": json.dumps(content, indent=1, default=str) + "\n"}
        written |= {"md": self._markdown(), "html": self._html()}
        for kind, text in written.items():
            with replacement(directory / f"report.{kind}", "what was there before is untouched") as file:
                file.write(text.encode())

    @property
    def _heading(self) -> str:
        return self.title if self.finished else f"{self.title} (unfinished: what was measured so far)"

    @property
    def _where(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in flat(self.machine).items())

    def _markdown(self) -> str:
        head = [f"# {self._heading}", "", self._where, "", self._how, ""]
        return "\n".join([*head, *(section.text() for section in self.sections)])

    @property
    def _how(self) -> str:
        """The settings that say something, in a line."""
        told = flat(dict(self.settings)).items()
        return "; ".join(
            f"{name} {value}" for name, value in told if value not in (None, "", [], ()) and value is not False
        )

    def _html(self) -> str:
        parts = [f"<h1>{html.escape(self._heading)}</h1>"]
        parts.append(f"<p>{html.escape(self._where)}</p>")
        parts += [section.page() for section in self.sections]
        for name, told in {"settings": self.settings, **self.about}.items():
            text = html.escape(json.dumps(dict(told), default=str, indent=1, ensure_ascii=False))
            parts.append(
                f"<details><summary>{html.escape(name.replace('_', ' '))}</summary><pre>{text}</pre></details>"
            )
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


def svg(title: str, x: str, series: Series, log: bool | str = False, y: str = "", zero: bool = True) -> str:
    """A plot as inline SVG, of bars where x is a text, else of lines; a note in its place without matplotlib.

    Text is text, in the page's colour and font, so that a plot can be read in the dark and by a screen reader.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return "<p>(plots need matplotlib: pip install 'unmask[bench]')</p>"
    inks = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with rc_context({**inks, "svg.fonttype": "none", "svg.hashsalt": "unmask", "font.size": 11}):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        _draw(axes, series)
        axes.set(title=title, xlabel=x, ylabel=y)
        places = {point[0] for points in series.values() for point in points}
        if log and not any(isinstance(place, str) for place in places):
            _logarithmic(axes, sorted(places))
        if log is True:
            axes.set_yscale("log")
        elif zero:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(framealpha=0, fontsize=9)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawn = buffer.getvalue()
    label = html.escape(f"{title}: {', '.join(series)}, by {x}; the table holds the numbers")
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor")
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _draw(axes: Any, series: Series) -> None:
    """Lines with their intervals, or bars side by side where x is a text."""
    places = list(dict.fromkeys(point[0] for points in series.values() for point in points))
    width = 1 / (len(series) + 1)
    for n, (name, points) in enumerate(series.items()):
        heights = [point[1] for point in points]
        spread = (
            [[max(0.0, y - low) for _, y, low, _ in points], [max(0.0, high - y) for _, y, _, high in points]]
            if (all(len(point) == 4 for point in points))
            else None
        )
        look = {"color": COLOURS[n % len(COLOURS)], "label": name}
        if isinstance(places[0], str):
            at = [places.index(point[0]) + n * width for point in points]
            axes.bar(at, heights, width, yerr=spread, ecolor=INK, **look)
        else:
            at = [point[0] for point in points]
            axes.errorbar(at, heights, yerr=spread, marker=MARKERS[n % len(MARKERS)], capsize=3, **look)
    if isinstance(places[0], str):
        axes.set_xticks([i + (len(series) - 1) * width / 2 for i in range(len(places))], places)


def _logarithmic(axes: Any, places: list[float]) -> None:
    """The x axis by powers of two, with the measured places as its ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()


def machine() -> dict[str, Any]:
    """What a figure was measured on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _markdown_row(cells: Sequence[str]) -> str:
    """A row of a table; a cell's own bars and line breaks would end it."""
    return "| " + " | ".join(" ".join(cell.replace("|", r"\|").splitlines()) for cell in cells) + " |"


def _table(section: Section) -> str:
    columns, rows = section.filled()
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(section.title)}">{table}</div>'


def _cell(cell: Any) -> str:
    text = shown(cell)
    return f"<td{' class=long' if len(text) > 36 else ''}>{html.escape(text)}</td>"
