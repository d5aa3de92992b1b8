"""How far long work is: a bar where someone is watching, else a line now and then, both on standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

SHARES = 20


class Step(Protocol):
    """Work has come a step further. doing: what, as the bar calls it; a new name begins a new bar."""

    @property
    def doing(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...


@contextlib.contextmanager
def reporter(line: Callable[..., str]) -> Iterator[Callable[[Step], None]]:
    """A function that shows steps. line: what is told of one. Without a terminal, each twentieth is told."""
    if not sys.stderr.isatty():
        yield lambda step: _print_shares(step, line)
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = [*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {}

        def show(step: Step) -> None:
            if step.doing not in tasks:
                tasks[step.doing] = bar.add_task(step.doing, total=step.total)
            bar.update(tasks[step.doing], completed=step.done, description=line(step))

        yield show


def _print_shares(step: Step, line: Callable[..., str]) -> None:
    before, now = ((step.done - back) * SHARES // step.total for back in (1, 0))
    if now > before:
        print(line(step), file=sys.stderr, flush=True)
