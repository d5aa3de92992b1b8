"""The report of an evaluation: outcomes in; report.json, report.md, report.html and items.jsonl out."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import DataError
from unmask.evaluate.outcomes import Outcome
from unmask.evaluate.records import NAME, read_items, write_items
from unmask.evaluate.samples import samples_section
from unmask.evaluate.sweeps import area_section, speed_section, sweep_sections
from unmask.evaluate.tables import figures, mains, short_section, skipped_section, table1_section, task_section
from unmask.model.files import read_json
from unmask.report import Report, Section, machine


def build(
    outcomes: Sequence[Outcome],
    skipped: Mapping[str, str],
    settings: Mapping[str, Any],
    made_with: Mapping[str, Any],
    *,
    title: str = "unmask evaluate",
    more: Sequence[Section] = (),
    finished: bool = True,
) -> Report:
    """A report of what was measured.

    skipped: tasks that did not run, with the reason. made_with: versions, hashes of weights and data, seeds; its
    `machine`, where it has one, is the report's. more: sections of gate and recommendations, which come after the
    summary.
    """
    where = made_with.get("machine")
    about = {"made_with": dict(made_with), "skipped": dict(skipped)}
    report = Report(title, where if isinstance(where, Mapping) else machine(), settings, finished=finished, about=about)
    for section in _sections(outcomes, skipped, more):
        report.add(section)
    return report


def _sections(outcomes: Sequence[Outcome], skipped: Mapping[str, str], more: Sequence[Section]) -> Iterator[Section]:
    done = [outcome for outcome in outcomes if outcome.items]
    if not done:
        yield from more
        yield skipped_section(skipped)
        return
    generated = [outcome for outcome in done if outcome.kind == "generation"]
    if generated:
        yield short_section(done)
    yield from more
    table = table1_section(done)
    table.figures |= figures(done)
    yield table
    if skipped:
        yield skipped_section(skipped)
    if generated:
        yield speed_section(done)
        if any(each.mode == "ar" and each.role == "model" for each in mains(done)):
            yield area_section(done)
    yield from sweep_sections(done)
    for task in dict.fromkeys(outcome.task for outcome in done if not outcome.contender.swept):
        yield task_section(task, [outcome for outcome in done if outcome.task == task])
    if generated:
        yield samples_section(done)


def write(
    outcomes: Sequence[Outcome],
    skipped: Mapping[str, str],
    settings: Mapping[str, Any],
    made_with: Mapping[str, Any],
    out: Path,
    **how: Any,
) -> Report:
    """Write the report and items.jsonl into `out`; `how` as for `build`. CheckpointError where that is impossible."""
    report = build(outcomes, skipped, settings, made_with, **how)
    write_items(outcomes, out / NAME)
    report.write(out)
    return report


def saved(directory: Path) -> tuple[list[Outcome], dict[str, Any]]:
    """The outcomes of a report directory, and its report.json; DataError or CheckpointError names the file."""
    if not (directory / "report.json").is_file():
        raise DataError("no report of unmask evaluate; give a directory that it wrote with --out", file=directory)
    return read_items(directory / NAME), read_json(directory / "report.json")


def rebuilt(directory: Path, **how: Any) -> Report:
    """The report of a directory, computed again from its items; `how` as for `build`."""
    outcomes, about = saved(directory)
    made_with = {"machine": about.get("machine", {})} | dict(about.get("made_with", {}))
    return build(outcomes, about.get("skipped", {}), about.get("settings", {}), made_with, **how)
