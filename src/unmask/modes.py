"""The modes by name: each is a function from a row to its program."""

from collections.abc import Callable

from unmask.decode import autoregressive, threshold
from unmask.row import Program, Row
from unmask.verified import verified

MODES: dict[str, Callable[[Row], Program]] = {"ar": autoregressive, "threshold": threshold, "verified": verified}
