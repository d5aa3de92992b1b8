"""Turn an autoregressive model into a block-diffusion one, as a recipe says.

Every key of a recipe is also a flag, which then takes its place. The model is written to OUTPUT/model, one JSON line
per step to OUTPUT/log.jsonl. A run that was stopped or killed goes on with --resume.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.errors import ConfigError
from unmask.options import add_flags, given, read_toml, template
from unmask.recipe import Adapt

EXAMPLES = """examples:
  unmask adapt --template > mine.toml
  unmask adapt mine.toml
  unmask adapt mine.toml --steps 50 --output runs/short
  unmask adapt mine.toml --resume
  unmask adapt recipes/fast-dllm-v2-1.5b.toml --dry-run --gpus 64xA100"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.toml", type=Path, help="the recipe")
    parser.add_argument("--template", action="store_true", help="print a commented recipe with every key, and stop")
    parser.add_argument("--resume", action="store_true", help="continue from the last state of the same output")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what the recipe takes (rows, tokens, memory, time), and stop"
    )
    parser.add_argument(
        "--gpus", action="append", metavar="NxNAME", help="with --dry-run: estimate for these, as 8xH100"
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: print JSON")
    add_flags(parser.add_argument_group("recipe keys"), Adapt)


def run(args: argparse.Namespace) -> int:
    if args.template:
        print(template(Adapt), end="")
        return 0
    if args.recipe is None:
        raise ConfigError("give a recipe: unmask adapt RECIPE.toml (unmask adapt --template prints one)")
    recipe = read_toml(Adapt, args.recipe, given(args, Adapt))
    if args.dry_run:
        return _dry_run(recipe, args)
    if args.gpus or args.json:
        raise ConfigError(f"{'--gpus' if args.gpus else '--json'} belongs to --dry-run; add it, or leave this out")
    from unmask.adapt import adapt
    from unmask.processes import first

    with _reporter(recipe.steps, shown=first()) as report:
        for progress in adapt(recipe, resume=args.resume):
            report(progress)
    if first():
        print(f"saved {recipe.output}/model")
    return 0


def _dry_run(recipe: Adapt, args: argparse.Namespace) -> int:
    from unmask.plan import lines, plan

    made = plan(recipe, args.gpus)
    print(json.dumps(made.as_json(), indent=2) if args.json else "\n".join(lines(made)))
    return 0


@contextlib.contextmanager
def _reporter(steps: int, *, shown: bool) -> Iterator[Any]:
    """A progress bar where someone is watching, else a line per step, both on standard error; one process shows it."""
    if not shown:
        yield lambda progress: None
        return
    if not sys.stderr.isatty():
        yield lambda progress: print(_line(progress), file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = [*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("adapting", total=steps)
        yield lambda progress: bar.update(task, completed=progress.step, description=_line(progress))


def _line(progress: Any) -> str:
    also = {" ar": progress.ar_loss, " divergence": progress.divergence, " chained": progress.chain_loss}
    also[" validation"] = progress.validation and progress.validation.loss
    more = "".join(f"{name} {value:.3f}" for name, value in also.items() if value is not None)
    return f"step {progress.step}/{progress.steps} loss {progress.loss:.3f}{more} {progress.seconds:.1f} s"
