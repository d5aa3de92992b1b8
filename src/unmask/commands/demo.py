"""The main job on the model that ships with unmask: the same prompts in three modes, side by side."""

import argparse
from pathlib import Path

from unmask.config import Decoding
from unmask.errors import ConfigError

EXAMPLES = """examples:
  unmask demo
  unmask demo --json demo.json
  unmask demo --max-new-tokens 128 --threshold 0.9 --threshold 0.7"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write answers and figures as JSON")
    parser.add_argument("--max-new-tokens", metavar="N", type=int, help="length limit of each answer (default 24)")
    parser.add_argument(
        "--threshold", metavar="X", type=float, action="append", help="threshold to show; repeatable (default 0.9)"
    )
    parser.add_argument("--model", metavar="M", default="demo", help="another adapted model (default demo)")


def run(args: argparse.Namespace) -> int:
    thresholds = tuple(args.threshold or (0.9,))
    for threshold in thresholds:  # refuse bad values before the model is loaded
        Decoding(threshold=threshold)
    if args.max_new_tokens is not None and args.max_new_tokens < 1:
        raise ConfigError(f"--max-new-tokens is {args.max_new_tokens}; allowed: at least 1")
    from unmask.demo import LIMIT, main

    return main(args.json, limit=args.max_new_tokens or LIMIT, thresholds=thresholds, model=args.model)
