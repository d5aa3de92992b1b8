"""What stops a run before a bad step reaches the weights."""

import math
from collections import deque
from pathlib import Path
from statistics import median

from unmask.errors import UnmaskError
from unmask.model.trainstate import states
from unmask.recipe import Adapt

REMEMBERED, ENOUGH = 50, 10
"""Losses that the median is taken of, and how few are too few."""


class Guard:
    """Refuses a loss or gradient that is not a number, and a loss that explodes."""

    def __init__(self, recipe: Adapt) -> None:
        self.recipe, self.recent = recipe, deque[float](maxlen=REMEMBERED)

    def remember(self, step: int, loss: float, labels: int) -> None:
        """Take in the loss of a step that was made; those of the warm-up and without a label do not count."""
        if step > self.recipe.warmup_steps and labels:
            self.recent.append(loss)

    def check(self, step: int, rows: list[list[int]], loss: float, norm: float) -> None:
        """loss: mean over labels, nats; norm: of the gradient. Raises UnmaskError with the step and its rows.

        A loss explodes when it is above `explosion` times the median of the last 50, which counts as at least 1 nat.
        """
        for name, value in (("loss", loss), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                raise self._stop(f"the {name} of step {step} is {value}", rows)
        factor = self.recipe.explosion
        if factor and len(self.recent) >= ENOUGH and loss > factor * max(1.0, median(self.recent)):
            usual = f"{median(self.recent):.3g} is usual, explosion {factor:g}"
            raise self._stop(f"the loss of step {step} is {loss:.3g} ({usual})", rows)

    def _stop(self, what: str, rows: list[list[int]]) -> UnmaskError:
        output = Path(self.recipe.output)
        saved = states(output)
        good = f"the last good state is {saved[-1]}" if saved else f"no state was saved yet in {output}"
        return UnmaskError(
            f"{what}, on rows {rows}; {good}; lower learning_rate or clip and --resume, or take out a bad row and "
            "start another --output"
        )
