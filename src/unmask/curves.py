"""A picture of a run: `curves.html` in its directory, drawn from its log. Left out where matplotlib is missing."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.report import svg
from unmask.rundir import read_log, replace_text, writing

POINTS = 400
"""Most points of a curve; a longer run is drawn as the means of neighbouring steps."""
Curve = list[tuple[float, float]]


def draw_curves(output: Path, *, older_than: float = 0.0) -> None:
    """Write `output/curves.html`: loss, validation loss, learning rate and norm of the gradient by step.

    older_than: leave a picture that is younger than so many seconds.
    """
    picture = output / "curves.html"
    if find_spec("matplotlib") is None:
        return
    if picture.is_file() and time.time() - picture.stat().st_mtime < older_than:
        return
    records = read_log(output)
    checked = [record for record in records if record.get("validation")]
    levels = checked[-1]["validation"]["levels"] if checked else {}
    losses = {
        "loss": _curve(records, "loss"),
        "next-token loss": _curve(records, "ar_loss"),
        "chained": _curve(records, "chain_loss"),
    }
    held = {"validation": [(r["step"], r["validation"]["loss"]) for r in checked]}
    for level in levels:
        held[f"{level} masked"] = [(r["step"], r["validation"]["levels"][level]) for r in checked]
    plots = {
        "Loss (nats per label)": losses | {"validation": held["validation"]},
        "Validation loss by share of masked slots": held if levels else {},
        "Learning rate": {"learning rate": _curve(records, "learning_rate")},
        "Norm of the gradient": {"norm": _curve(records, "grad_norm")},
    }
    drawn = [svg(title, "step", kept, False) for title, curves in plots.items() if (kept := _filled(curves))]
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>training</title>'
    with writing(output):
        replace_text(picture, head + "".join(f"<div>{plot}</div>" for plot in drawn) + "</html>\n")


def _filled(curves: dict[str, Curve]) -> dict[str, Curve]:
    return {name: points for name, points in curves.items() if points}


def _curve(records: list[dict[str, Any]], name: str) -> Curve:
    points = [(float(r["step"]), float(r[name])) for r in records if r.get(name) is not None]
    width = -(-len(points) // POINTS) or 1
    groups = [points[at : at + width] for at in range(0, len(points), width)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
