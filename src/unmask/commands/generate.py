"""Answer prompts.

One prompt is streamed as its text settles, with a line of figures on standard error. Several are decoded together
and printed in their order. With --json each answer is one JSON object on a line of its own.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.commands.checking import check_settings, figures, placed
from unmask.commands.loading import add_loading, load_model
from unmask.commands.prompts import Prompt, prompts_from_file, prompts_from_stdin
from unmask.config import Decoding
from unmask.errors import ConfigError, UnmaskError
from unmask.events import Committed, Finished
from unmask.options import add_flags, given, read

EXAMPLES = """examples:
  unmask generate --prompt "Why is the sky blue?"
  unmask generate --prompt "def fib(n):" --raw --mode ar --max-new-tokens 64
  unmask generate --prompt "A short story." --temperature 0.8 --seed 7
  unmask generate --model runs/mine --prompts questions.jsonl --json > answers.jsonl
  echo "Name three rivers." | unmask generate -

A line of a prompts file is {"prompt": text}, {"messages": [...]} or {"prompt_ids": [...]}."""

KEYS = ("text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens", "forwards", "seconds", "mode")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("prompts (one of)")
    what.add_argument("--prompt", metavar="T", help="one prompt")
    what.add_argument("--prompts", metavar="F.jsonl", type=Path, help="a file with one prompt per line")
    what.add_argument("stdin", nargs="?", metavar="-", help="standard input: a prompt per line, or JSONL")
    add_loading(parser)
    decoding = parser.add_argument_group("decoding")
    add_flags(decoding, Decoding)
    out = parser.add_argument_group("input and output")
    out.add_argument("--raw", action="store_true", help="take prompts as they are, without the chat template")
    out.add_argument("--json", action="store_true", help="one JSON object per answer")


def run(args: argparse.Namespace) -> int:
    chosen = given(args, Decoding)
    read(Decoding, chosen, flags=chosen)
    prompts = _prompts(args)
    model = load_model(args)
    why = check_settings(model, chosen, args.json)
    requests = [_request(model, prompt, args.raw, chosen) for prompt in prompts]
    alone = len(prompts) == 1 and not args.json
    with _progress(len(prompts)) as advance:
        answers = _print_answers(model.run(requests), prompts, alone=alone, as_json=args.json, advance=advance)
    if not args.json:
        print(figures(answers, why), file=sys.stderr)
    return 0


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    if sum(source is not None for source in (args.prompt, args.prompts, args.stdin)) != 1:
        raise ConfigError("give the prompts once: --prompt TEXT, --prompts FILE, or - for standard input")
    if args.prompt is not None:
        return [Prompt(args.prompt, "")]
    if args.prompts is not None:
        return prompts_from_file(args.prompts)
    if args.stdin != "-":
        raise ConfigError(f"'{args.stdin}' is not understood; give --prompt '{args.stdin}', or - for standard input")
    return prompts_from_stdin()


def _request(model: Any, prompt: Prompt, raw: bool, decoding: dict[str, Any]) -> Any:
    try:
        return model.request(prompt.value, raw=raw, **decoding)
    except UnmaskError as e:
        raise placed(e, prompt.where) from None


def _print_answers(
    events: Iterator[Any], prompts: list[Prompt], *, alone: bool, as_json: bool, advance: Any
) -> list[Any]:
    """`_printed`, whose half-written line is ended where somebody interrupts it."""
    try:
        return _printed(events, prompts, alone=alone, as_json=as_json, advance=advance)
    except KeyboardInterrupt:
        print(flush=True)
        raise


def _printed(events: Iterator[Any], prompts: list[Prompt], *, alone: bool, as_json: bool, advance: Any) -> list[Any]:
    """Print every answer once it and all before it are there; the text of a single one as it settles.

    A request that fails does not take its neighbours with it: the first failure is raised after the others are out.
    """
    done: dict[int, Any] = {}
    printed, failed = 0, []
    for event in events:
        if alone and isinstance(event, Committed) and event.text:
            print(event.text, end="", flush=True)
        if not isinstance(event, Finished):
            continue
        done[event.index] = event.answer
        advance()
        while printed in done:
            answer, prompt = done[printed], prompts[printed]
            printed += 1
            if answer.error is not None:
                failed.append(placed(answer.error, prompt.where))
            elif as_json:
                print(json.dumps(_object(answer, len(prompts)), ensure_ascii=False), flush=True)
            else:
                print(_plain(answer, printed, alone), flush=True)
    if failed:
        raise failed[0]
    return list(done.values())


def _object(answer: Any, batch: int) -> dict[str, Any]:
    """The contract's keys; logprobs where asked for; `batch_seconds` only where several answers share the time."""
    row = {key: getattr(answer, key) for key in KEYS}
    if answer.logprobs is not None:
        row["logprobs"] = [_law(token, *law) for token, law in zip(answer.token_ids, answer.logprobs, strict=True)]
    return row | {"batch_seconds": answer.batch_seconds} if batch > 1 else row


def _law(token: int, logprob: float, likeliest: Any) -> dict[str, Any]:
    named = [{"token_id": each, "logprob": value} for each, value in likeliest]
    return {"token_id": token, "logprob": logprob, "likeliest": named}


def _plain(answer: Any, number: int, alone: bool) -> str:
    ids = " ".join(map(str, answer.token_ids))
    if alone:
        return "" if answer.text is not None else ids
    return f"[{number}]\n{answer.text if answer.text is not None else ids}\n"


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar on standard error for many prompts, where someone is watching."""
    if total == 1 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("answers", total=total)
        yield lambda: bar.advance(task)
