"""Write training text: prompts answered by the base itself.

The rows are those that `unmask adapt` reads, in the order of the prompts, each prompt once. An answer that the length
limit cut carries "ended": false, so that its end is not learned. A run that was stopped or killed goes on with
--resume. What was made, from what and how, stands beside the rows in OUT.about.json.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.commands.loading import add_loading, loading
from unmask.commands.progress import reporter
from unmask.commands.prompts import Prompt, prompts_from
from unmask.errors import ConfigError
from unmask.options import add_flags, given, read
from unmask.synthesize.settings import Synthesis

EXAMPLES = """examples:
  unmask synthesize --model demo --prompts questions.jsonl --out rows.jsonl
  unmask synthesize --prompts a.jsonl b.txt --exclude test.jsonl --max-new-tokens 512 --out rows.jsonl
  unmask synthesize --prompts questions.jsonl --out rows.jsonl --resume
  unmask synthesize --make 1000 --seed 1 --out rows.jsonl

A line of a prompts file is {"prompt": text}, {"messages": [...]} or {"prompt_ids": [...]}, or plain text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", nargs="+", action="extend", default=[], metavar="F", help="files of prompts")
    parser.add_argument("stdin", nargs="?", metavar="-", help="prompts from standard input")
    parser.add_argument("--out", required=True, type=Path, metavar="F.jsonl", help="where the rows go")
    parser.add_argument("--resume", action="store_true", help="continue the run that was writing the same file")
    add_flags(parser.add_argument_group("what is written"), Synthesis)
    add_loading(parser)


def run(args: argparse.Namespace) -> int:
    chosen = given(args, Synthesis)
    settings, how = read(Synthesis, chosen, flags=chosen), loading(args)
    prompts = _prompts(args, settings)
    from unmask.synthesize.run import Progress, synthesize

    with reporter(_line) as report:
        for event in synthesize(prompts, args.out, settings, how, resume=args.resume):
            if isinstance(event, Progress):
                report(event)
            else:
                summary = event
    for line in _told(summary):
        print(line, file=sys.stderr)
    print(f"saved {args.out}")
    return 0


def _prompts(args: argparse.Namespace, settings: Synthesis) -> list[Prompt]:
    if args.stdin not in (None, "-"):
        raise ConfigError(f"'{args.stdin}' is not understood; give --prompts {args.stdin}, or - for standard input")
    sources = [*args.prompts, *([args.stdin] if args.stdin else [])]
    if bool(sources) == (settings.make is not None):
        raise ConfigError("say once where prompts come from: --prompts FILE …, - for standard input, or --make N")
    if sources.count("-") > 1:
        raise ConfigError("standard input is given twice; leave one - out")
    return [prompt for source in sources for prompt in prompts_from(source)]


def _line(progress: Any) -> str:
    rate = progress.tokens / max(progress.seconds, 1e-9)
    return f"{progress.doing} {progress.done}/{progress.total}, {rate:.0f} tokens/s"


def _told(summary: Any) -> Iterator[str]:
    """What became of the prompts, and how fast."""
    counts = summary.counts
    yield (
        f"{counts['rows']} rows of {counts['prompts']} prompts, {counts['tokens']} tokens; "
        f"{counts['cut']} answers cut, {counts['repeated']} with the text of another"
    )
    for reason, n in counts["dropped"].items():
        yield f"{n} dropped: {reason}"
    if summary.tokens:
        yield f"{summary.tokens} tokens in {summary.seconds:.1f} s: {summary.tokens / summary.seconds:.1f} tokens/s"
    else:
        yield "nothing was left to do"
