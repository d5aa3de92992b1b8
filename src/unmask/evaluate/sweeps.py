"""Sweeps as tables and plots in the shape of the paper's: sub-block sizes (Table 3, Figure 6), block sizes (Table 4),
thresholds (Figure 4), batch sizes (Figure 5); by length of the answer; and accuracy against parallelism."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from unmask.config import Decoding
from unmask.evaluate import paper
from unmask.evaluate.outcomes import Contender, Outcome
from unmask.evaluate.pairing import (
    against,
    common,
    contenders,
    generation,
    of,
    per_forward,
    per_second,
    scores,
    settings,
    tasks,
    times,
    value_text,
)
from unmask.evaluate.statistics import Estimate, area, percentile
from unmask.evaluate.tables import labels, mains, percent, points, references
from unmask.report import Section

ACROSS = ("sub_block_size", "block_size", "threshold", "batch_size", "sub_block_cache")
"""Which of several swept settings runs across the table, the first that is there."""
TITLES = {
    ("threshold",): (
        "Threshold (Figure 4)",
        "A lower threshold accepts more slots in a step: tokens per forward and per second rise, and where the score "
        "begins to fall beyond its interval lies the useful limit. The paper goes from 39.1 tokens/s at 1.0 to 101.7 "
        "at 0.9 with hardly any loss.",
    ),
    ("sub_block_size",): (
        "Sub-block size (Table 3)",
        "Smaller sub-blocks are decided from left to right in shorter stretches: scores tend to rise, parallelism to "
        "fall. In the paper 8 is the best compromise for blocks of 32.",
    ),
    ("block_size",): (
        "Block size at decoding (Table 4)",
        "Blocks that differ from the trained size do not fit what the model has learnt: in the paper GSM8K falls the "
        "more the smaller they get, so the trained size with smaller sub-blocks is the better switch.",
    ),
    ("batch_size",): (
        "Batch size (Figure 5)",
        "Tokens per second of the whole batch. Parallel decoding pays most while a forward is bound by memory; as the "
        "batch grows mode ar catches up. The paper's advantage at 64 is 1.5 times on an A100 and 1.8 on an H100.",
    ),
    ("max_new_tokens",): (
        "Length of the answer",
        "Short answers gain least from parallel decoding: each of its forwards is heavier, and few tokens are left to "
        "share it. Times ar is below 1 where it is slower.",
    ),
    ("sub_block_cache",): (
        "Sub-block cache on and off",
        "The cache reuses a block's keys and values between its steps. It should not change scores beyond their "
        "interval, and it saves time only where computing, not memory, is the limit.",
    ),
    ("batch_size", "sub_block_cache", "sub_block_size"): (
        "Sub-block size, batch and cache (Figure 6)",
        "In the paper the cache leaves scores alone and helps at batch 32 only, where computing is the limit; larger "
        "sub-blocks are faster and score slightly less.",
    ),
}


def sweep_sections(outcomes: Sequence[Outcome]) -> Iterator[Section]:
    """A section for each combination of settings that was swept."""
    swept = [each for each in contenders(outcomes) if each.swept]
    groups: dict[tuple[str, ...], list[Contender]] = {}
    for each in swept:
        groups.setdefault(tuple(sorted(each.swept)), []).append(each)
    order = list(TITLES)
    for names in sorted(groups, key=lambda key: (order.index(key) if key in order else len(order), key)):
        yield _section(names, groups[names], outcomes)


def _section(names: tuple[str, ...], swept: list[Contender], outcomes: Sequence[Outcome]) -> Section:
    across = next((name for name in ACROSS if name in names), names[0])
    about = f"Settings {' and '.join(names)} varied together." if names[1:] else "All else is the same."
    title, about = TITLES.get(names, (f"{', '.join(names)} varied", about))
    asked = {paper.column(task) for task in tasks(outcomes)}
    rows = paper.SWEEPS.get(across, {}) if names == (across,) else {}
    published = {what: row for what, row in rows.items() if what.split(",")[0] in asked}
    if published:
        about += f" Rows marked {paper.MARK}: another model."
    values = {each.swept[across] for each in swept} | {x for row in published.values() for x in row}
    places = sorted(values)
    section = Section(title, about, (across.replace("_", " "), *map(value_text, places)))
    lines: dict[tuple[Any, ...], dict[Any, Contender]] = {}
    for each in swept:
        rest = {name: value for name, value in each.swept.items() if name != across}
        lines.setdefault((each.mode, *sorted(rest.items())), {})[each.swept[across]] = each
    for key, line in sorted(lines.items(), key=lambda entry: entry[0]):
        for what, cells in _rows(line, outcomes):
            section.row(f"{_line_name(key)}: {what}", *(cells.get(place) for place in places))
    for what, row in published.items():
        section.row(f"{what} {paper.MARK}", *(f"{row[place]:g}" if place in row else None for place in places))
    _plots(section, across, lines, outcomes)
    return section


def _line_name(key: tuple[Any, ...]) -> str:
    mode, *rest = key
    return ", ".join([mode, *(f"{name.replace('_', ' ')} {value_text(value)}" for name, value in rest)])


def _rows(line: dict[Any, Contender], outcomes: Sequence[Outcome]) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Rows of one line of a sweep: scores by task, then difference, parallelism and speed over generation tasks."""
    for task in tasks(outcomes):
        shares = {x: percent(scores(_on(outcomes, each, task))) for x, each in line.items()}
        if any(shares.values()):
            yield f"{task}, score %", shares
    for name, measure in (
        ("to ar, points", lambda each: points(_to_ar(outcomes, each))),
        ("tok/forward", lambda each: per_forward(generation(of(outcomes, each)))),
        ("tok/s", lambda each: per_second(of(outcomes, each))),
        ("times ar", lambda each: _times_ar(outcomes, each)),
        ("seconds per answer, p50", lambda each: _median(of(outcomes, each))),
    ):
        cells = {x: measure(each) for x, each in line.items()}
        if any(cell is not None for cell in cells.values()):
            yield name, cells


def _on(outcomes: Sequence[Outcome], contender: Contender, task: str) -> list[Outcome]:
    return _of_task(of(outcomes, contender), task)


def _of_task(outcomes: Iterable[Outcome], task: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.task == task]


def _to_ar(outcomes: Sequence[Outcome], each: Contender) -> Estimate:
    return against(outcomes, each, references(each, outcomes)["ar"], kind="generation")


def _times_ar(outcomes: Sequence[Outcome], each: Contender) -> float | None:
    return times(outcomes, each, references(each, outcomes)["ar"])


def _median(outcomes: Iterable[Outcome]) -> float | None:
    return percentile([item.seconds for each in generation(outcomes) for item in each.items], 0.5)


def _plots(
    section: Section, across: str, lines: dict[tuple[Any, ...], dict[Any, Contender]], outcomes: Sequence[Outcome]
) -> None:
    """Score, with its interval, and tokens per second, by the setting that runs across."""
    x, quality, speed = across.replace("_", " "), {}, {}
    for key, line in lines.items():
        name = _line_name(key)
        own = {place: generation(of(outcomes, line[place])) for place in sorted(line)}
        shown = {place: value_text(place) if isinstance(place, bool) else place for place in own}
        found = {place: scores(each) for place, each in own.items()}
        quality[name] = [(shown[p], e.value, e.low, e.high) for p, e in found.items() if e.items]
        rates = {place: per_second(each) for place, each in own.items()}
        speed[name] = [(shown[p], rate) for p, rate in rates.items() if rate is not None]
    log = "x" if across != "threshold" else False
    section.lines(f"Score by {x}", x, quality, log=log, y="score, % (95% interval)")
    section.lines(f"Tokens per second by {x}", x, speed, log=log, y="tokens per second")


def speed_section(outcomes: Sequence[Outcome]) -> Section:
    """Score against tokens per second, as the paper's Figure 1a; its points in the table, being of other machines."""
    section = Section(
        "Score against speed (Figure 1)",
        "Right and up is better. All generation tasks together; every point is one model in one mode on this machine. "
        f"Rows marked {paper.MARK} are GSM8K on an A100: only their order and ratios can be compared.",
        ("model and mode", "tok/s", "score, %"),
    )
    called, series = labels(outcomes), {}
    for each in mains(outcomes):
        own = generation(of(outcomes, each))
        rate, quality = per_second(own), scores(own)
        if rate is not None:
            section.row(called[each.name], rate, percent(quality))
            series[called[each.name]] = [(rate, quality.value, quality.low, quality.high)]
    section.lines("Score against speed", "tokens per second", series, y="score, % (95% interval)")
    for name, (rate, value) in paper.FIGURE1.items():
        section.row(f"{name} {paper.MARK}", f"{rate:g}", f"{value:g}")
    return section


def on_the_curve(outcomes: Sequence[Outcome], mode: str) -> list[Contender]:
    """The model's own settings in `mode` that differ in the threshold alone, each threshold once: with most tasks."""
    found: dict[float, Contender] = {}
    for each in contenders(outcomes):
        if each.role == "model" and each.mode == mode and set(each.swept) <= {"threshold"}:
            threshold = settings(each).get("threshold", Decoding.threshold)
            other = found.get(threshold)
            if other is None or len(of(outcomes, each)) > len(of(outcomes, other)):
                found[threshold] = each
    return list(found.values())


def curve(outcomes: Sequence[Outcome], ar: Contender, settings: Sequence[Contender]) -> list[tuple[float, Estimate]]:
    """The settings on the curve: tokens per forward over those of mode ar, and score in percent; ar is the first.

    The outcomes are those of common tasks and items.
    """
    slow, found = per_forward(of(outcomes, ar)), []
    for each in settings:
        own = of(outcomes, each)
        forward = per_forward(own)
        if forward and slow:
            found.append((forward / slow, scores(own)))
    return [(1.0, scores(of(outcomes, ar))), *sorted(found, key=lambda point: point[0])] if found else []


def area_section(outcomes: Sequence[Outcome]) -> Section:
    """The curve of score over tokens per forward, and the area under it, of every task and of all together."""
    section = Section(
        "Accuracy and parallelism",
        "Score over tokens per forward in units of mode ar, by the thresholds that were run, all over the same items. "
        "The area counts parallelism by the score that is kept: 1 is mode ar, 3 would be three times its tokens per "
        "forward without any loss, and parallelism beyond a loss counts for ever less (docs/evaluate.md has the "
        "formula). All: the tasks that every point was run on.",
        ("task and mode", "ar, score %", "times ar's tok/forward: score %", "area", "items"),
    )
    every, series = generation(outcomes), {}
    ar = next((each for each in mains(every) if each.role == "model" and each.mode == "ar"), None)
    if ar is None:
        return section
    modes = dict.fromkeys(each.mode for each in contenders(every) if each.role == "model" and each.mode != "ar")
    lines = {mode: on_the_curve(every, mode) for mode in modes}
    shared = common(every, [ar, *(each for line in lines.values() for each in line)])
    for mode, line in lines.items():
        for task in ("all", *tasks(of(every, ar))):
            on = [each for each in line if _on(every, each, task)]
            part = shared if task == "all" else common(_of_task(every, task), [ar, *on])
            found = curve(part, ar, line if task == "all" else on)
            if not found:
                continue
            (_, anchor), *others = found
            size = area(anchor.value, [(forward, each.value) for forward, each in others])
            told = ", ".join(f"{forward:.2f}: {each.value:.1f}" for forward, each in others)
            name = f"all ({', '.join(tasks(shared))})" if task == "all" else task
            section.row(f"{name}, {mode}", f"{anchor.value:.1f}", told, size, anchor.items)
            if size is not None:
                section.figures[f"{task}_{mode}_area"] = size
            if task == "all":
                series[mode] = [(forward, each.value, each.low, each.high) for forward, each in found]
    x = "tokens per forward, times those of mode ar"
    section.lines("Score over tokens per forward", x, series, y="score, % (95% interval)")
    return section
