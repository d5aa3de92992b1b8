"""The report's tables of what was compared: in short, in the shape of the paper's Table 1, and task by task."""

import re
from collections.abc import Mapping, Sequence

from unmask.evaluate import paper
from unmask.evaluate.outcomes import Contender, Item, Outcome
from unmask.evaluate.pairing import (
    against,
    ar_of,
    contenders,
    generation,
    of,
    per_forward,
    per_second,
    scores,
    swept_text,
    times,
)
from unmask.evaluate.statistics import Estimate, macro_score, percentile
from unmask.report import Section

ROLES = {"model": "", "base": "base", "plain": "plain fine-tune"}
COLUMNS = ("score, %", "to ar", "to base", "to plain", "tok/forward", "tok/s", "forwards", "p50 s", "p95 s")
COUNTS = ("cut, %", "repeated, %", "length", "standard error", "prompts cut", "errors", "items")


def percent(estimate: Estimate) -> str | None:
    """A score with its interval: "43.9 [36.2, 51.9]"."""
    return f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]" if estimate.items else None


def points(estimate: Estimate) -> str | None:
    """A difference with its interval: "−1.2 [−3.4, +0.8]"."""
    if not estimate.items:
        return None
    value, low, high = (f"{n:+.1f}".replace("-", "−") for n in estimate[:3])
    return f"{value} [{low}, {high}]"


def mains(outcomes: Sequence[Outcome]) -> list[Contender]:
    """The contenders that no sweep made: base and plain fine-tune first, then the model with mode ar first."""
    found = [each for each in contenders(outcomes) if not each.swept]
    order = ("base", "plain", "model")
    return sorted(found, key=lambda each: (order.index(each.role), each.mode != "ar"))


def labels(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """What each contender is called in tables, by its name: its role and mode, its own name where that is taken."""
    found: dict[str, str] = {}
    for each in contenders(outcomes):
        parts = (ROLES[each.role], each.mode, swept_text(each))
        label = ", ".join(part for part in parts if part)
        found[each.name] = label if label not in found.values() else each.name
    return found


def prefixes(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """What comes before `{task}_{mode}` in the names of a contender's figures, by the contender's name.

    Nothing for the model under test, `base_` and `plain_`, `sweep_{setting}_{value}_` for the points of a sweep; the
    contender's own name where that is taken.
    """
    found: dict[str, str] = {}
    taken: set[tuple[str, str]] = set()
    for each in contenders(outcomes):
        swept = "".join(f"{name}_{value}_" for name, value in each.swept.items())
        before = ("" if each.role == "model" else f"{each.role}_") + (f"sweep_{swept}" if swept else "")
        if (before, each.mode) in taken:
            before = re.sub(r"[^\w.]+", "_", each.name) + "_"
        taken.add((before, each.mode))
        found[each.name] = before
    return found


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The flat figures of every contender on every task (docs/evaluate.md names them)."""
    found: dict[str, float] = {}
    before = prefixes(outcomes)
    for outcome in outcomes:
        each = outcome.contender
        start = f"{before[each.name]}{outcome.task}_{each.mode}"
        exact = scores([outcome]).scaled(0.01)
        found |= _estimate(f"{start}_score", exact)
        for name, other in references(each, outcomes).items():
            found |= _estimate(f"{start}_vs_{name}", against(outcomes, each, other, task=outcome.task))
        same = [other for other in outcomes if other.task == outcome.task]
        if (ratio := times(same, each, references(each, outcomes)["ar"])) is not None:
            found[f"{start}_times_ar"] = ratio
        found |= {f"{start}_{name}": value for name, value in measured(outcome).items() if value is not None}
    return {name: value for name, value in found.items() if value == value}


def _estimate(name: str, estimate: Estimate) -> dict[str, float]:
    if not estimate.items:
        return {}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def references(contender: Contender, outcomes: Sequence[Outcome]) -> dict[str, Contender | None]:
    """What a contender is compared with: its own mode ar, the base and the plain fine-tune, both in mode ar."""
    ar = ar_of(contender, outcomes, contender.role)
    found = {"ar": None if ar is None or ar.name == contender.name else ar, "base": None, "plain": None}
    for role in ("base", "plain"):
        if contender.role not in ("base", role):
            found[role] = ar_of(contender, outcomes, role)
    return found


def measured(outcome: Outcome) -> dict[str, float | None]:
    """Speed and shape of the answers (of a likelihood task its standard error); what went wrong on the way."""
    items = outcome.items
    done = [item for item in items if not _failed(item)]
    wrong = {"errors": float(len(items) - len(done)), "prompts_cut": float(outcome.cut)}
    if outcome.kind != "generation" or not items:
        known = [item.standard_error for item in done if item.standard_error is not None]
        return {"standard_error": _mean(known), **{name: count for name, count in wrong.items() if count}}
    return {
        "tokens_per_forward": outcome.tokens_per_forward,
        "tokens_per_second": outcome.tokens_per_second,
        "forwards": _mean([item.forwards for item in done]),
        "latency_p50": percentile([item.seconds for item in done], 0.5),
        "latency_p95": percentile([item.seconds for item in done], 0.95),
        "cut": _mean([item.finish_reason == "length" for item in items]),
        "repeated": _mean([item.repeated for item in done]),
        "length": _mean([item.tokens for item in done]),
        **wrong,
    }


def _failed(item: Item) -> bool:
    return bool(item.error) or item.finish_reason == "error"


def errors(items: Sequence[Item]) -> str | None:
    """How many failed and why the first did: "3: out of memory"; None where none did."""
    failed = [item for item in items if _failed(item)]
    why = next((f": {item.error}" for item in failed if item.error), "")
    return f"{len(failed)}{why}" if failed else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def task_section(task: str, outcomes: Sequence[Outcome]) -> Section:
    """One task: a row for each contender that no sweep made."""
    rows = {each.contender.name: each for each in outcomes if each.task == task}
    kind, metric = next((each.kind, each.metric) for each in rows.values())
    about = f"{kind}, {metric}. Differences in points, paired over the same items, with their 95% intervals."
    section = Section(f"Task {task}", about, ("model and mode", *COLUMNS, *COUNTS))
    called = labels(outcomes)
    for each in mains(outcomes):
        outcome = rows.get(each.name)
        if outcome is None:
            continue
        other = references(each, outcomes)
        differences = (points(against(outcomes, each, other[name], task=task)) for name in ("ar", "base", "plain"))
        m = measured(outcome)
        speed = [m.get(name) for name in ("tokens_per_forward", "tokens_per_second", "forwards")]
        latency = [m.get(name) for name in ("latency_p50", "latency_p95")]
        shares = [None if (share := m.get(name)) is None else f"{100 * share:.1f}" for name in ("cut", "repeated")]
        wrong = (outcome.cut or None, errors(outcome.items))
        cells = (percent(scores([outcome])), *differences, *speed, *latency, *shares, m.get("length"))
        cells += (m.get("standard_error"), *wrong)
        section.row(called[each.name], *cells, len(outcome.items))
    return section


def short_section(outcomes: Sequence[Outcome]) -> Section:
    """All generation tasks together."""
    section = Section(
        "In short",
        "All generation tasks together. Score over all items, and mean of the tasks with equal weight; differences in "
        "points over the same items, to the model's own mode ar and to base and plain fine-tune in mode ar. An "
        "interval that holds 0 means that these items do not tell the two apart.",
        (
            "model and mode",
            "score, %",
            "task mean, %",
            "to ar",
            "to base",
            "to plain",
            "tok/forward",
            "tok/s",
            "times ar",
            "items",
        ),
    )
    called, before = labels(outcomes), prefixes(outcomes)
    for each in mains(outcomes):
        own = generation(of(outcomes, each))
        if not own:
            continue
        other = references(each, outcomes)
        found = {name: against(outcomes, each, other[name], kind="generation") for name in ("ar", "base", "plain")}
        macro = macro_score([[item.score for item in outcome.items] for outcome in own]).scaled(100)
        speed, ratio = per_second(own), times(outcomes, each, ar_of(each, outcomes, each.role))
        forward, pooled = per_forward(own), scores(own)
        cells = (percent(pooled), percent(macro), *map(points, found.values()), forward, speed, ratio, pooled.items)
        section.row(called[each.name], *cells)
        start = f"{before[each.name]}all_{each.mode}"
        section.figures |= _estimate(f"{start}_score", pooled.scaled(0.01))
        section.figures |= _estimate(f"{start}_mean", macro.scaled(0.01))
        for name, difference in found.items():
            section.figures |= _estimate(f"{start}_vs_{name}", difference)
        told = {"tokens_per_forward": forward, "tokens_per_second": speed, "times_ar": ratio}
        section.figures |= {f"{start}_{name}": value for name, value in told.items() if value is not None}
    return section


def table1_section(outcomes: Sequence[Outcome]) -> Section:
    """Tasks as columns and their mean, as the paper's Table 1, with its rows beneath where a task is the same."""
    main = [outcome for outcome in outcomes if not outcome.contender.swept]
    tasks = list(dict.fromkeys(outcome.task for outcome in main))
    section = Section(
        "Scores by task (the paper's Table 1)",
        "Scores in percent, 95% intervals in the tables of the tasks; the mean gives every task the same weight. Rows "
        f"marked {paper.MARK} are the paper's: other models, with their own prompts and shots, on an A100. What can be "
        "compared across is how far the block-diffusion model lies from its own base and from its plain fine-tune.",
        ("model and mode", *tasks, "mean"),
    )
    called = labels(outcomes)
    for each in mains(outcomes):
        by_task = {outcome.task: 100 * outcome.score for outcome in of(main, each)}
        _row(section, called[each.name], by_task, tasks)
    columns = {task: paper.column(task) for task in tasks}
    for name, values in paper.TABLE1.items() if any(columns.values()) else ():
        table = dict(zip(paper.TABLE1_TASKS, values, strict=True))
        _row(section, f"{name} {paper.MARK}", {t: table[c] for t, c in columns.items() if c is not None}, tasks)
    return section


def _row(section: Section, name: str, scores_of: Mapping[str, float], tasks: Sequence[str]) -> None:
    """Scores by task; the mean only where no task is missing, since means over other tasks cannot be compared."""
    cells = [scores_of.get(task) for task in tasks]
    known = [cell for cell in cells if cell is not None]
    mean = f"{sum(known) / len(known):.1f}" if known and len(known) == len(tasks) else None
    section.row(name, *(None if cell is None else f"{cell:.1f}" for cell in cells), mean)


def skipped_section(skipped: Mapping[str, str]) -> Section:
    section = Section("Skipped", "Tasks that were asked for and did not run.", ("task", "reason"))
    for task, reason in skipped.items():
        section.row(task, reason)
    return section
