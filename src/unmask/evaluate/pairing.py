"""Which outcomes belong together: the settings of a contender, what it is compared with, and the items both did."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from unmask.config import Decoding
from unmask.evaluate.outcomes import Contender, Item, Outcome
from unmask.evaluate.statistics import Estimate, pooled, score

SWITCHES = ("rule", "threshold", "block_size", "sub_block_size", "sub_block_cache", "schedule")
"""The fields of `Decoding` that trade speed for quality."""


def settings(contender: Contender) -> dict[str, Any]:
    """Decoding settings of a contender that differ from the defaults, the swept ones among them."""
    swept = {name: value for name, value in contender.swept.items() if name in Decoding.__dataclass_fields__}
    return {**contender.decoding, **swept}


def batch_size(contender: Contender) -> int:
    return int(contender.swept.get("batch_size", contender.batch_size))


def conditions(contender: Contender) -> dict[str, Any]:
    """What is no switch and yet decides what an answer is or takes (max_new_tokens, batch_size): only contenders with
    the same can be weighed against each other."""
    chosen = {name: value for name, value in settings(contender).items() if name not in SWITCHES}
    changed = {name: value for name, value in chosen.items() if value != getattr(Decoding, name, None)}
    return changed | {"batch_size": batch_size(contender)}


def swept_text(contender: Contender) -> str:
    """The swept settings as people read them: "threshold 0.7, sub block cache off"."""
    return ", ".join(f"{name.replace('_', ' ')} {value_text(value)}" for name, value in contender.swept.items())


def value_text(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def contenders(outcomes: Iterable[Outcome]) -> list[Contender]:
    """Every contender once, in the order of their first outcome."""
    return list({outcome.contender.name: outcome.contender for outcome in outcomes}.values())


def of(outcomes: Iterable[Outcome], contender: Contender) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.contender.name == contender.name]


def tasks(outcomes: Iterable[Outcome]) -> list[str]:
    return list(dict.fromkeys(outcome.task for outcome in outcomes))


def ar_of(contender: Contender, outcomes: Sequence[Outcome], role: str = "model") -> Contender | None:
    """Mode ar of the model in `role` that `contender` is compared with.

    The one with most of the same swept settings (batch size, length), and none swept otherwise.
    """
    found = [each for each in contenders(outcomes) if each.role == role and each.mode == "ar"]
    fitting = [each for each in found if each.swept.items() <= contender.swept.items()]
    return max(fitting, key=lambda each: len(each.swept), default=None)


def pairs(ours: Outcome, theirs: Outcome) -> list[tuple[Item, Item]]:
    """The items that both did, by number."""
    others = {item.number: item for item in theirs.items}
    return [(item, others[item.number]) for item in ours.items if item.number in others]


def same_items(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes on one task over the items that all of them have; the time by the share of the tokens that is left."""
    if not outcomes:
        return []
    shared = set.intersection(*({item.number for item in outcome.items} for outcome in outcomes))
    return [_only(outcome, shared) for outcome in outcomes]


def _only(outcome: Outcome, numbers: set[int]) -> Outcome:
    items = [item for item in outcome.items if item.number in numbers]
    tokens = sum(item.tokens for item in outcome.items)
    share = sum(item.tokens for item in items) / tokens if tokens else 1.0
    return replace(outcome, items=items, wall=outcome.wall * share)


def common(outcomes: Sequence[Outcome], among: Sequence[Contender]) -> list[Outcome]:
    """What all of `among` did: their outcomes on the tasks that each of them has, over the items that each has there.

    Only there can scores, speeds and tokens per forward of several contenders be told side by side.
    """
    names, found = {each.name for each in among}, []
    for task in tasks(outcomes):
        done = [outcome for outcome in outcomes if outcome.task == task and outcome.contender.name in names]
        if len(contenders(done)) == len(names):
            found += [outcome for outcome in same_items(done) if outcome.items]
    return found


def times(outcomes: Sequence[Outcome], ours: Contender, theirs: Contender | None) -> float | None:
    """Tokens per second of `ours` over those of `theirs`, on the same tasks and items."""
    done = common(generation(outcomes), [ours, theirs] if theirs is not None else [])
    fast, slow = (per_second(of(done, each)) if each is not None else None for each in (ours, theirs))
    return fast / slow if fast and slow else None


def changes(
    outcomes: Sequence[Outcome], ours: Contender, theirs: Contender | None, *, kind: str = "", task: str = ""
) -> list[list[float]]:
    """Score of `ours` less that of `theirs` for every common item, a list a task; of one kind or task where given."""
    if theirs is None:
        return []
    other = {outcome.task: outcome for outcome in of(outcomes, theirs)}
    return [
        [item.score - same.score for item, same in pairs(outcome, other[outcome.task])]
        for outcome in of(outcomes, ours)
        if outcome.task in other and kind in ("", outcome.kind) and task in ("", outcome.task)
    ]


def against(
    outcomes: Sequence[Outcome], ours: Contender, theirs: Contender | None, *, kind: str = "", task: str = ""
) -> Estimate:
    """Paired difference over all common items, in points; no items where there is nothing to compare with."""
    return pooled(changes(outcomes, ours, theirs, kind=kind, task=task)).scaled(100)


def scores(outcomes: Iterable[Outcome]) -> Estimate:
    """Score over all items, in percent."""
    return score([item.score for outcome in outcomes for item in outcome.items]).scaled(100)


def per_forward(outcomes: Iterable[Outcome]) -> float | None:
    """Answer tokens per forward over all items; None for likelihood tasks."""
    items = [item for outcome in outcomes for item in outcome.items]
    forwards = sum(item.forwards for item in items)
    return sum(item.tokens for item in items) / forwards if forwards else None


def per_second(outcomes: Iterable[Outcome]) -> float | None:
    """Answer tokens per second over the generation tasks."""
    chosen = [outcome for outcome in outcomes if outcome.kind == "generation"]
    tokens, wall = sum(item.tokens for each in chosen for item in each.items), sum(each.wall for each in chosen)
    return tokens / wall if tokens and wall else None


def generation(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind == "generation"]
