"""The gate: whether a mode's loss against the model's own mode ar stays within so many points.

What passed is stored with the model (`model.admissible`), so that mode `auto` and the server respect it.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from unmask.auto import Admissible
from unmask.config import Decoding
from unmask.errors import CheckpointError, ConfigError
from unmask.evaluate.outcomes import Contender, Outcome
from unmask.evaluate.pairing import SWITCHES, ar_of, changes, contenders, generation, of, settings, tasks
from unmask.evaluate.statistics import Estimate, items_needed, pooled
from unmask.evaluate.tables import labels, points
from unmask.model.admissible import read_admissible, write_admissible
from unmask.model.sources import Say, say_on_stderr
from unmask.report import Section

NOT_HELD = 3
"""Exit code of the command where the gate is not held: nobody's mistake, so neither 1 nor 2."""
State = Literal["passed", "failed", "too few items"]


@dataclass(frozen=True)
class Verdict:
    """Whether one contender's loss stays within `points`, over one task or (`all`) all generation tasks together.

    difference: score less that of mode ar, in points, paired over the same items, with its 95% interval
    state: passed where the interval's lower end is at or above -points; failed where the difference itself is at or
        below it; else too few items to decide
    needed: with too few, about how many items like these would decide it
    decides: whether it counts for the gate; not where the task is scored by likelihood, which decodes nothing
    """

    contender: Contender
    scope: str
    difference: Estimate
    points: float
    state: State
    needed: int | None = None
    decides: bool = True

    @property
    def passed(self) -> bool:
        return self.state == "passed"

    @property
    def proved_worse(self) -> bool:
        """Whether the whole interval lies beyond the margin, on a task that counts."""
        return self.decides and self.difference.high < -self.points

    def line(self, name: str) -> str:
        """In words: "threshold, threshold 0.7, all: −1.9 [−3.5, −0.4] points: failed"."""
        told = points(self.difference) or "nothing to compare"
        more = f", about {self.needed} would decide ({self.difference.items} were run)" if self.needed else ""
        return f"{name}, {self.scope}: {told} points: {self.state}{more}"


def gate(outcomes: Sequence[Outcome], points: float) -> list[Verdict]:
    """A verdict for each mode and setting of the model but ar: over all generation tasks, then task by task.

    A task scored by likelihood has a verdict that does not decide. A contender without any generation item that mode
    ar did too is not in the list. ConfigError where `points` is not above 0, or where mode ar was not run.
    """
    if not 0 < points < math.inf:
        raise ConfigError(f"gate is {points}; allowed: above 0 (points of the score)")
    tested = [each for each in contenders(generation(outcomes)) if each.role == "model" and each.mode != "ar"]
    if tested and not any(ar_of(each, outcomes) for each in tested):
        raise ConfigError("the gate compares with mode ar, which was not run; add ar to --modes")
    found: list[Verdict] = []
    decoded = ("all", *tasks(generation(outcomes)))
    for each in tested:
        ar = ar_of(each, outcomes)
        for task in ("", *tasks(of(outcomes, each))):
            kind = "" if task else "generation"
            groups = changes(outcomes, each, ar, kind=kind, task=task)
            if any(groups):
                found.append(_verdict(each, task or "all", [change for group in groups for change in group], points))
    return [replace(verdict, decides=verdict.scope in decoded) for verdict in found]


def _verdict(contender: Contender, scope: str, changed: list[float], margin: float) -> Verdict:
    difference = pooled([changed]).scaled(100)
    same = contender.mode == "verified" and not any(changed)  # its text is mode ar's, however few the items
    if difference.low >= -margin or same:
        return Verdict(contender, scope, difference, margin, "passed")
    needed = items_needed(changed, margin / 100)
    if needed is None:
        return Verdict(contender, scope, difference, margin, "failed")
    return Verdict(contender, scope, difference, margin, "too few items", max(needed, len(changed) + 1))


def held(verdicts: Sequence[Verdict]) -> bool:
    """Whether every mode passed over all generation tasks, and none is proved worse on a single task.

    A single task often has too few items to pass alone, so there only a proved loss counts. The points of a sweep
    merely say which settings are admissible, unless nothing else was run. False without verdicts.
    """
    asked = [verdict for verdict in verdicts if not verdict.contender.swept] or verdicts
    every = [verdict for verdict in asked if verdict.scope == "all"]
    return bool(every) and all(v.passed for v in every) and not any(v.proved_worse for v in asked)


def gate_section(verdicts: Sequence[Verdict], outcomes: Sequence[Outcome], margin: float) -> Section:
    """The verdicts of a gate of `margin` points as a section of the report."""
    section = Section(
        f"Gate: at most {margin:g} points below mode ar",
        "Passed: the whole 95% interval of the paired difference lies at or above the margin. Failed: the difference "
        "itself lies at or below it. Too few items: the interval reaches beyond the margin; so many items would "
        "decide. Mode verified, whose text is mode ar's by construction, passes where no item differs. The gate is "
        "held where every mode passes over all tasks and none is proved worse on one; points of a sweep only say which "
        "settings are admissible, and likelihood does not decide. Gate held: " + ("yes." if held(verdicts) else "no."),
        ("setting", "tasks", "to ar, points", "verdict", "items", "items needed"),
    )
    called = labels(outcomes)
    rows = [v for group in _by_contender(verdicts) for v in (group if len(group) > 2 else group[:1])]
    for v in rows:  # one task alone is what all tasks are
        scope = v.scope if v.decides else f"{v.scope} (likelihood)"
        section.row(called[v.contender.name], scope, points(v.difference), v.state, v.difference.items, v.needed)
    section.figures["gate_held"] = float(held(verdicts))
    return section


def admissible(verdicts: Sequence[Verdict], made_with: Mapping[str, Any]) -> Admissible | None:
    """What the gate says of mode threshold at the checkpoint's own sizes; None where it says nothing.

    A threshold is admissible where it passed over all tasks and no task proves it worse; of two contenders with the
    same threshold the one with more items counts. Contenders that change another switch than the threshold are left
    out, since `auto` uses the checkpoint's own, and so are answers of swept lengths.
    """
    by_threshold: dict[float, list[Verdict]] = {}
    for group in _by_contender(verdicts):
        wanted = settings(group[0].contender)
        others = {name for name in SWITCHES if wanted.get(name, getattr(Decoding, name)) != getattr(Decoding, name)}
        others |= set(group[0].contender.swept) - {*SWITCHES, "batch_size"}
        if group[0].contender.mode == "threshold" and others <= {"threshold"}:
            threshold = float(wanted.get("threshold", Decoding.threshold))
            by_threshold[threshold] = max(by_threshold.get(threshold, []), group, key=_items)
    if not by_threshold:
        return None
    found: dict[str, list[float]] = {"passed": [], "failed": [], "too few items": []}
    for threshold, group in sorted(by_threshold.items()):
        worse = any(verdict.proved_worse for verdict in group)
        found["failed" if worse else group[0].state].append(threshold)
    return Admissible(
        thresholds=tuple(found["passed"]),
        refused=tuple(found["failed"]),
        undecided=tuple(found["too few items"]),
        points=verdicts[0].points,
        items=max(map(_items, by_threshold.values())),
        tasks=tuple(sorted({v.scope for group in by_threshold.values() for v in group} - {"all"})),
        made_with=dict(made_with),
    )


def _by_contender(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """The verdicts of each contender, that over all tasks first."""
    names = dict.fromkeys(verdict.contender.name for verdict in verdicts)
    return [[verdict for verdict in verdicts if verdict.contender.name == name] for name in names]


def _items(group: Sequence[Verdict]) -> int:
    return group[0].difference.items if group else 0


def store(
    verdicts: Sequence[Verdict],
    model: str,
    directory: Path,
    made_with: Mapping[str, Any],
    say: Say = say_on_stderr,
) -> Path | None:
    """Store what the gate says of mode threshold with the model; returns the file, None where nothing is stored.

    An earlier record of more items stays, and one of as many where this run leaves open what that had decided; `say` is
    told.

    model: the reference as given. directory: where it was found (`Checkpoint.path`).
    """
    found, before = admissible(verdicts, made_with), None
    if found is None:
        return None
    with contextlib.suppress(CheckpointError):  # a damaged record is replaced
        before = read_admissible(model, directory)
    if before is not None and (before.items > found.items or before.items == found.items and _undoes(found, before)):
        say(
            f"the earlier record of thresholds for mode auto, of {before.items} items, is kept: this run has "
            f"{found.items}, too few to take its place"
        )
        return None
    return write_admissible(found, model, directory)


def _undoes(found: Admissible, before: Admissible) -> bool:
    """Whether a record leaves open what an earlier one had decided, or decides nothing in its place."""
    decided = {*before.thresholds, *before.refused}
    return bool(decided & set(found.undecided)) or bool(decided) and not found.thresholds and not found.refused
