"""Timing that lets two things be compared: they take turns, and medians are compared."""

import statistics
from collections.abc import Callable, Mapping

from unmask.limits import seconds


def in_turn(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    pick: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """Seconds of each candidate, the median unless said; each has run once before, and in every round each runs
    once."""
    for work in candidates.values():
        work()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, work in candidates.items():
            taken[name].append(seconds(work))
    return {name: pick(times) for name, times in taken.items()}
