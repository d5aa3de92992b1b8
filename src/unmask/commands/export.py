"""Write a model in a form that other programs load.

hf: as it is, an adapter beside its base. merged: one network, adapters folded into its weights, which transformers
loads too. fast-dllm-v2: the official layout (Qwen2 shapes, context block). Nothing is written over. What was written is
listed on standard output as `sha256sum -c` reads it.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from unmask.commands.progress import reporter
from unmask.errors import ConfigError

EXAMPLES = """examples:
  unmask export --model runs/mine/model --format merged --out mine
  unmask export --model runs/mine/model --format fast-dllm-v2 --out for-other-engines
  unmask export --model demo --format hf --out demo-adapter > demo-adapter.sha256"""

LARGE = 10**9
"""Bytes of weights above which progress is told."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "demo, a directory, a hub id, or a .gguf file (default: demo)"
    parser.add_argument("--model", default="demo", metavar="M", help=what)
    parser.add_argument("--format", required=True, metavar="hf|merged|fast-dllm-v2", help="what is written")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="a directory that is new or empty")
    mask = "mask token of a checkpoint that does not state its own"
    parser.add_argument("--mask-id", type=int, metavar="N", help=mask)


def run(args: argparse.Namespace) -> int:
    from unmask.model.export import FORMATS, export

    if args.format not in FORMATS:
        raise ConfigError(f"--format is '{args.format}'; allowed: {', '.join(FORMATS)}")
    with reporter(_line) as report:
        wrote = export(
            args.model,
            args.format,
            args.out,
            mask_id=args.mask_id,
            tell=lambda part: report(part) if part.total >= LARGE else None,
        )
    for file in wrote:
        print(f"{file.sha256}  {file.path}")
    total = sum(file.size for file in wrote)
    print(f"saved {args.out}: {len(wrote)} files, {total / 1e6:.1f} MB", file=sys.stderr)
    return 0


def _line(part: Any) -> str:
    return f"{part.doing} {part.done / 1e9:.1f} of {part.total / 1e9:.1f} GB"
