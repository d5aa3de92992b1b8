"""What stops a run before a bad step reaches the weights."""

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from unmask.errors import UnmaskError
from unmask.model.trainstate import last_good, set_aside, states, step_of
from unmask.recipe import Adapt

REMEMBERED, ENOUGH = 50, 10
"""Losses that the median is taken of, and how few are too few."""


def numbered(rows: Iterable[int]) -> str:
    return f"rows {', '.join(map(str, rows))}"


class Guard:
    """Refuses a loss or gradient that is not a number, and a loss that explodes."""

    def __init__(self, recipe: Adapt, named: Callable[[Iterable[int]], str] = numbered, *, first: bool = True) -> None:
        """named: what a user calls rows with these numbers. first: in all processes of a run but one, False."""
        self.recipe, self.named, self.first, self.recent = recipe, named, first, deque[float](maxlen=REMEMBERED)
        self._warned = False

    def remember(self, step: int, loss: float, labels: int) -> None:
        """Take in the loss of a step that was made; those of the warm-up and without a label do not count."""
        if step > self.recipe.warmup_steps and labels:
            self.recent.append(loss)

    def unlabelled(self, step: int, rows: list[list[int]]) -> None:
        """Say once that a step has nothing to learn from."""
        if self.first and not self._warned:
            warnings.warn(f"step {step} has no label, on rows {rows}; such steps change nothing", stacklevel=2)
        self._warned = True

    def check(self, step: int, rows: list[list[int]], loss: float, norm: float) -> None:
        """loss: mean over labels, nats; norm: of the gradient. Raises UnmaskError with the step and its rows.

        A loss explodes when it is above `explosion` times the median of the last 50, which counts as at least 1 nat.
        A state that the step began from is then set aside.
        """
        for name, value in (("loss", loss), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                raise self._stop(step, f"the {name} of step {step} is {value}", rows)
        factor = self.recipe.explosion
        if factor and len(self.recent) >= ENOUGH and loss > factor * max(1.0, median(self.recent)):
            usual = f"{median(self.recent):.3g} is usual, explosion {factor:g}"
            raise self._stop(step, f"the loss of step {step} is {loss:.3g} ({usual})", rows)

    def _stop(self, step: int, what: str, rows: list[list[int]]) -> UnmaskError:
        output = Path(self.recipe.output)
        good = [state for state in states(output) if step_of(state) < step - 1]
        aside = [set_aside(state) for state in states(output)[len(good) :] if self.first]
        renamed = f" but the one that the step began from, now {aside[-1]}" if aside and not good else ""
        renamed = f" (the step began from a later one, now {aside[-1]})" if aside and good else renamed
        named = self.named(n for part in rows for n in part)
        return UnmaskError(
            f"{what}, on {named}; {last_good(good, output)}{renamed}; lower learning_rate or clip and --resume, "
            "or take out a bad row and start another --output"
        )
