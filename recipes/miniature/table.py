"""The tables of docs/ablations.md, from what `ablate.py` wrote.

    python recipes/miniature/table.py recipes/miniature/ablations.jsonl --mode threshold --threshold 0.9

A cell is the mean over seeds with each seed's own value behind it; differences to the plain fine-tune are taken item by
item, with the bootstrap's 95% interval over items of all seeds together.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.evaluate.statistics import difference as paired

Line = dict[str, Any]


def cell(values: list[float], form: str) -> str:
    mean = format(sum(values) / len(values), form)
    return mean if len(values) == 1 else f"{mean} ({', '.join(format(value, form) for value in values)})"


def measure(line: Line, name: str, mode: str, threshold: float | None) -> Line | None:
    """What a run did on a set in a way of decoding; a plain fine-tune in mode ar whatever was asked for."""
    found = line["sets"][name]
    if len(found) == 1:
        return found[0]
    return next((each for each in found if (each["mode"], each.get("threshold")) == (mode, threshold)), None)


def difference(runs: list[Line], plain: dict[int, Line], name: str, mode: str, threshold: float | None) -> str:
    """Points above the plain fine-tune of the same seed, on the same items; "" if that is missing."""
    if any(run["seed"] not in plain for run in runs):
        return ""
    changes: list[float] = []
    for run in runs:
        ours, theirs = measure(run, name, mode, threshold), measure(plain[run["seed"]], name, mode, threshold)
        changes += [int(a) - int(b) for a, b in zip(ours["right"], theirs["right"], strict=True)]
    found = paired(changes).scaled(100)
    return f"{found.value:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def rows(runs: dict[str, list[Line]], plain: dict[int, Line], way: tuple[str, float | None]) -> Iterator[list[str]]:
    """A row of cells for each variant that decodes this way."""
    for variant, lines in runs.items():
        cells = [variant, cell([line["nats"] for line in lines], ".3f")]
        for name in ("seeds", "templates"):
            found = [each for line in lines if (each := measure(line, name, *way))]
            if not found:
                break
            cells += [
                cell([each["tokens"] / each["forwards"] for each in found], ".2f"),
                cell([100 * each["right"].count("1") / len(each["right"]) for each in found], ".1f"),
                difference(lines, plain, name, *way),
            ]
        else:
            yield cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--mode", default="threshold")
    parser.add_argument("--threshold", type=float, action="append", help="repeat it: a table for each")
    parser.add_argument("--plain", default="plain", help="the variant that differences are taken to (default plain)")
    parser.add_argument("--only", action="append", help="a variant to show; repeat it (default all)")
    options = parser.parse_args()
    runs: dict[str, list[Line]] = defaultdict(list)
    for line in map(json.loads, options.results.read_text().splitlines()):
        runs[line["variant"]].append(line)
    plain = {line["seed"]: line for line in runs.get(options.plain, [])}
    runs = {name: lines for name, lines in runs.items() if not options.only or name in options.only}
    columns = ["tokens per forward", "score, %", "to plain, points"]
    head = ["variant", "loss, nats", *columns, *(f"new templates: {column}" for column in columns)]
    for threshold in options.threshold or [None]:
        if threshold is not None:
            print(f"\nThreshold {threshold:g}:\n")
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for cells in rows(runs, plain, (options.mode, threshold)):
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
