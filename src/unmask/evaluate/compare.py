"""Two reports side by side, paired over the items that both have."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.errors import CheckpointError, DataError
from unmask.evaluate.outcomes import Outcome
from unmask.evaluate.pairing import contenders, generation, pairs, per_forward, per_second, same_items, scores, tasks
from unmask.evaluate.records import digest
from unmask.evaluate.report import saved
from unmask.evaluate.statistics import pooled
from unmask.evaluate.tables import labels, percent, points, prefixes
from unmask.journal import flat
from unmask.model.files import read_json
from unmask.report import Report, Section

COLUMNS = ("model and mode", "A, %", "B, %", "B − A, points", "A tok/forward", "B tok/forward", "A tok/s", "B tok/s")

FILES = {"report.json", "report.md", "report.html"}


def compare(a: Path, b: Path, out: Path | None = None) -> Report:
    """B less A for every contender that both have, over their common items; written into `out` if given.

    Contenders belong together by their name or, where the two have no name in common, by role, mode and swept settings.

    DataError where they have no task, contender or item in common, or where a common item was asked otherwise.
    CheckpointError where `out` holds anything but a comparison.
    """
    if out is not None:
        _check_out(out)
    (first, about_a), (second, about_b) = saved(a), saved(b)
    second = aligned(first, second)
    check(first, second, a, b)
    machines = {"A": about_a.get("machine", {}), "B": about_b.get("machine", {})}
    report = Report("unmask evaluate --compare", machines, {"A": str(a), "B": str(b)})
    common = [task for task in tasks(first) if task in tasks(second)]
    if sum(any(o.kind == "generation" for o in first if o.task == task) for task in common):
        report.add(_section("all generation tasks", generation(first), generation(second), common))
    for task in common:
        report.add(_section(task, first, second, [task]))
    report.add(_settings(about_a, about_b))
    left = _left_out(first, second)
    if left.rows:
        report.add(left)
    if out is not None:
        report.write(out)
    return report


def _check_out(out: Path) -> None:
    """CheckpointError where `out` holds anything but a comparison, which would be lost."""
    held = {file.name for file in out.iterdir() if not file.name.startswith(".")} if out.is_dir() else set()
    about = read_json(out / "report.json") if "report.json" in held else {}
    if held and (held - FILES or set(about.get("settings", {})) != {"A", "B"}):
        raise CheckpointError(f"{out} holds something else than a comparison; give a new directory as --out")


def aligned(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[Outcome]:
    """`second`, whose contenders take the names of `first` by role, mode and swept settings if no name is in common."""
    if {each.name for each in contenders(first)} & {each.name for each in contenders(second)}:
        return list(second)
    names, called = {label: name for name, label in labels(first).items()}, labels(second)
    renamed = {each: names.get(label, each) for each, label in called.items()}
    return [replace(o, contender=replace(o.contender, name=renamed[o.contender.name])) for o in second]


def check(first: Sequence[Outcome], second: Sequence[Outcome], a: Path, b: Path) -> None:
    """DataError, in one line, where two evaluations did not ask the same."""
    if not set(tasks(first)) & set(tasks(second)):
        raise DataError(f"no task in common: {a} has {_list(tasks(first))}; {b} has {_list(tasks(second))}")
    names = {each.name for each in contenders(second)}
    if not any(each.name in names for each in contenders(first)):
        raise DataError(
            f"no contender in common: {a} has {_list(each.name for each in contenders(first))}; {b} has {_list(names)}"
        )
    for ours, theirs in _matched(first, second):
        where = f"task {ours.task}, {ours.contender.name}"
        if (ours.kind, ours.metric) != (theirs.kind, theirs.metric):
            raise DataError(f"{where}: {a} scores {ours.kind} by {ours.metric}, {b} {theirs.kind} by {theirs.metric}")
        found = pairs(ours, theirs)
        if not found and ours.items and theirs.items:
            raise DataError(f"{where}: no item in common; run both with the same items")
        other = next((pair for pair in found if digest(pair[0]) != digest(pair[1])), None)
        if other is not None:
            hashes = " and ".join(digest(item)[:12] for item in other)
            raise DataError(
                f"{where}, item {other[0].number}: prompt or target differ (sha256 {hashes}); "
                "run both on the same data, with the same prompts"
            )


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


def _matched(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Outcomes of the same task by contenders of the same name."""
    others = {(outcome.contender.name, outcome.task): outcome for outcome in second}
    keys = [(outcome, (outcome.contender.name, outcome.task)) for outcome in first]
    return [(outcome, others[key]) for outcome, key in keys if key in others]


def _section(title: str, first: Sequence[Outcome], second: Sequence[Outcome], chosen: Sequence[str]) -> Section:
    section = Section(
        title, "B less A over the same items, with the 95% interval of the paired difference.", (*COLUMNS, "items")
    )
    called, before = labels(first), prefixes(first)
    matched = [same_items(pair) for pair in _matched(first, second) if pair[0].task in chosen]
    for each in contenders(pair[0] for pair in matched):
        ours, theirs = ([pair[n] for pair in matched if pair[n].contender.name == each.name] for n in (0, 1))
        changed = [[b.score - a.score for a, b in pairs(*pair)] for pair in zip(ours, theirs, strict=True)]
        difference, both = pooled(changed).scaled(100), (ours, theirs)
        cells = [percent(scores(side)) for side in both] + [points(difference)]
        section.row(called[each.name], *cells, *map(per_forward, both), *map(per_second, both), difference.items)
        start = f"{before[each.name]}{'all' if len(chosen) > 1 or title != chosen[0] else chosen[0]}_{each.mode}"
        for name, value in zip(("", "_low", "_high"), difference[:3], strict=True):
            if difference.items:
                section.figures[f"{start}_difference{name}"] = value
    return section


def _settings(a: dict[str, Any], b: dict[str, Any]) -> Section:
    """What the two were run with, where it differs."""
    section = Section("Settings that differ", "A difference may come from these as well.", ("setting", "A", "B"))
    told = set()
    for part in ("settings", "made_with", "machine"):
        one, two = flat(a.get(part, {})), flat(b.get(part, {}))
        for key in one | two:
            sides = tuple(str(side[key]) if key in side else None for side in (one, two))
            about = (key.rsplit(".")[-1], *sides)  # some settings are in two parts
            if one.get(key) != two.get(key) and about not in told:
                told.add(about)
                section.row(f"{part}: {key}", *sides)
    if not section.rows:
        section.about = "None: settings, versions, hashes and machine are the same."
        section.columns = ()
    return section


def _left_out(first: Sequence[Outcome], second: Sequence[Outcome]) -> Section:
    """What only one of the two has, and so was not compared."""
    section = Section("Not compared", "What only one of the two has.", ("task and contender", "only in", "items"))
    for name, ours, theirs in (("A", first, second), ("B", second, first)):
        others = {(o.contender.name, o.task): {item.number for item in o.items} for o in theirs}
        for o in ours:
            left = {item.number for item in o.items} - others.get((o.contender.name, o.task), set())
            if left:
                section.row(f"{o.task}, {o.contender.name}", name, len(left))
    return section
