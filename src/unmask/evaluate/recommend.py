"""Which setting to use: the fastest one whose loss stays within a floor, or the best one that is fast enough."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.errors import ConfigError
from unmask.evaluate.outcomes import Contender, Outcome
from unmask.evaluate.pairing import (
    SWITCHES,
    against,
    ar_of,
    common,
    conditions,
    contenders,
    generation,
    of,
    per_forward,
    per_second,
    scores,
    settings,
)
from unmask.evaluate.statistics import Estimate
from unmask.evaluate.tables import labels, percent, points
from unmask.options import flag_of
from unmask.report import Section


@dataclass(frozen=True)
class Candidate:
    """A setting with what it was measured at, over the tasks and items that all candidates share.

    loss: score less that of mode ar, in points; no items for mode ar itself. speed: answer tokens per second.
    """

    contender: Contender
    score: Estimate
    loss: Estimate
    speed: float
    tokens_per_forward: float | None
    times_ar: float

    @property
    def flags(self) -> str:
        return flags(self.contender)


@dataclass(frozen=True)
class Recommendation:
    """What was asked for, the setting that meets it (None where none does), and why, in one line."""

    asked: str
    chosen: Candidate | None
    reason: str
    candidates: tuple[Candidate, ...]


def flags(contender: Contender) -> str:
    """The flags of `unmask generate` that give this setting."""
    words = ["--mode", contender.mode]
    for name in SWITCHES:
        value = settings(contender).get(name)
        if isinstance(value, bool):
            words.append(flag_of(name if value else f"no_{name}"))
        elif value is not None:
            words += [flag_of(name), str(value)]
    return shlex.join(words)


def recommend(
    outcomes: Sequence[Outcome], *, floor_points: float | None = None, floor_speed: float | None = None
) -> Recommendation:
    """The fastest setting for a quality floor, or the best score for a speed floor; give one of the two.

    floor_points: points of the score that may be lost; the whole 95% interval of the paired loss against mode ar must
    stay within them. floor_speed: answer tokens per second, at the batch size of mode ar. ConfigError otherwise.
    """
    if (floor_points is None) == (floor_speed is None):
        raise ConfigError("recommend takes one floor: points of the score that may be lost, or tokens per second")
    floor = floor_points if floor_speed is None else floor_speed
    if floor is None or not 0 < floor < math.inf:
        raise ConfigError(f"the floor is {floor}; allowed: above 0")
    found = candidates(outcomes)
    if floor_points is not None:
        return _for_quality(found, floor_points)
    return _for_speed(found, floor)


def _for_quality(found: tuple[Candidate, ...], floor: float) -> Recommendation:
    asked = f"the fastest setting that loses at most {floor:g} points against mode ar"
    fitting = [each for each in found if each.loss.items and each.loss.low >= -floor]
    best = max(fitting, key=lambda each: each.speed, default=None)
    if best is None:
        closest = max((each for each in found if each.loss.items), key=lambda each: each.loss.low, default=None)
        why = "no setting but mode ar was run"
        if closest is not None:
            why = f"no setting's interval stays within {floor:g} points; the closest is {closest.flags} with "
            why += f"{points(closest.loss)} over {closest.loss.items} items"
        return Recommendation(asked, None, f"{why}; stay with --mode ar, or run more items", found)
    if best.times_ar <= 1:
        why = (
            f"{best.flags} is the fastest within {floor:g} points, but not faster than mode ar ({best.times_ar:.2f} x)"
        )
        return Recommendation(asked, None, f"{why}; stay with --mode ar", found)
    return Recommendation(asked, best, _told(best), found)


def _for_speed(found: tuple[Candidate, ...], floor: float) -> Recommendation:
    asked = f"the best score at {floor:g} tokens per second or more"
    fitting = [each for each in found if each.speed >= floor]
    best = max(fitting, key=lambda each: (each.score.value, each.speed), default=None)
    if best is None:
        fastest = max(found, key=lambda each: each.speed, default=None)
        why = f"no setting reaches {floor:g} tokens per second"
        if fastest is not None:
            why += f"; the fastest is {fastest.flags} with {fastest.speed:.1f}"
        return Recommendation(asked, None, why, found)
    return Recommendation(asked, best, _told(best), found)


def _told(best: Candidate) -> str:
    loss = f", {points(best.loss)} points to mode ar" if best.loss.items else ""
    return (
        f"{best.flags}: score {percent(best.score)} %{loss}, {best.speed:.1f} tokens/s ({best.times_ar:.2f} x mode ar)"
        f" over {best.score.items} items"
    )


def candidates(outcomes: Sequence[Outcome]) -> tuple[Candidate, ...]:
    """The model's settings that can be compared: switches alone differ from mode ar, over common tasks and items."""
    done = generation(outcomes)
    ours = [each for each in contenders(done) if each.role == "model"]
    main = next((each for each in ours if each.mode == "ar" and not each.swept), None)
    if main is None:
        raise ConfigError("recommendations compare with mode ar, which was not run; add ar to --modes")
    ours = [each for each in ours if conditions(each) == conditions(main)]
    done = common(done, ours)
    slow, found = per_second(of(done, main)), []
    for each in ours:
        own, ar = of(done, each), ar_of(each, done)
        speed = per_second(own)
        if speed and slow:
            loss = against(done, each, None if each.mode == "ar" else ar)
            found.append(Candidate(each, scores(own), loss, speed, per_forward(own), speed / slow))
    return tuple(found)


def recommend_section(advice: Recommendation, outcomes: Sequence[Outcome]) -> Section:
    """A recommendation as a section of the report: the answer, and all that was weighed, fastest first."""
    section = Section(
        f"Recommended: {advice.asked}",
        advice.reason + ".",
        ("setting", "tok/s", "times ar", "tok/forward", "score, %", "to ar, points", "flags"),
    )
    called = labels(outcomes)
    for each in sorted(advice.candidates, key=lambda each: -each.speed):
        name = called[each.contender.name] + (" (chosen)" if each is advice.chosen else "")
        measured = (each.speed, each.times_ar, each.tokens_per_forward, percent(each.score), points(each.loss))
        section.row(name, *measured, each.flags)
    if advice.chosen is not None:
        section.figures |= {
            "recommended_tokens_per_second": advice.chosen.speed,
            "recommended_times_ar": advice.chosen.times_ar,
            "recommended_score": advice.chosen.score.value / 100,
        }
    return section
