"""The picture of docs/ablations.md: every variant's loss, tokens per forward and score, one dot a seed.

    python recipes/miniature/picture.py recipes/miniature/ablations.jsonl --out docs/images/ablations.svg

Of the runs that ablate.py wrote, on new problems told with sentences that the fine-tunes saw.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Line = dict[str, Any]
PANELS = ("loss, nats a token", "tokens per forward", "score, %")
COLOURS, MARKERS = ("#0969da", "#bf3989", "#1a7f37"), ("o", "s", "^")


def values(line: Line, threshold: float) -> tuple[float, float, float]:
    """Loss, tokens per forward and score of a run on new problems; a plain fine-tune in mode ar."""
    found = line["sets"]["seeds"]
    each = found[0] if len(found) == 1 else next(one for one in found if one.get("threshold") == threshold)
    return line["nats"], each["tokens"] / each["forwards"], 100 * each["right"].count("1") / len(each["right"])


def dot(axes: Axes, x: list[float], y: list[float], seed: int, **how: Any) -> None:
    n = seed % len(COLOURS)
    axes.scatter(x, y, s=26, color=COLOURS[n], marker=MARKERS[n], **how)


def picture(runs: dict[str, list[Line]], threshold: float) -> Figure:
    figure = Figure(figsize=(9.6, 0.27 * len(runs) + 0.9), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for n, (axes, title) in enumerate(zip(panels, PANELS, strict=True)):
        for row, lines in enumerate(runs.values()):
            points = {line["seed"]: values(line, threshold)[n] for line in lines}
            axes.plot(list(points.values()), [row] * len(points), color="#8c959f", zorder=1)
            for seed, value in points.items():
                dot(axes, [value], [row], seed, zorder=2)
        axes.set(xlabel=title, yticks=range(len(runs)), yticklabels=list(runs))
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    for seed in sorted({line["seed"] for lines in runs.values() for line in lines}):
        dot(panels[0], [], [], seed, label=f"seed {seed}")
    panels[0].legend(fontsize=9)
    panels[0].invert_yaxis()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    runs: dict[str, list[Line]] = defaultdict(list)
    for line in map(json.loads, options.results.read_text().splitlines()):
        runs[line["variant"]].append(line)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "unmask", "font.size": 10}):
        picture(runs, options.threshold).savefig(options.out, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
