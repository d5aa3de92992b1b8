"""The main job on the model that ships with unmask: the same prompts in three modes, side by side."""

import argparse
from pathlib import Path

EXAMPLES = """examples:
  unmask demo
  unmask demo --json demo.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write answers and figures as JSON")


def run(args: argparse.Namespace) -> int:
    from unmask.demo import main

    return main(json_file=args.json) or 0
