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

from unmask.commands.loading import add_loading, load_model
from unmask.commands.prompts import Prompt, prompts_from_file, prompts_from_stdin
from unmask.config import Decoding
from unmask.errors import ConfigError, UnmaskError
from unmask.events import Committed, Finished
from unmask.options import add_flags, flag_of, given, read
from unmask.resolve import ineffective

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
    why = _check_settings(model, chosen, args.json)
    requests = [_request(model, prompt, args.raw, chosen) for prompt in prompts]
    alone = len(prompts) == 1 and not args.json
    with _progress(len(prompts)) as advance:
        answers = _print_answers(model.run(requests), prompts, alone=alone, as_json=args.json, advance=advance)
    if not args.json:
        print(_figures(answers, why), file=sys.stderr)
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


def _check_settings(model: Any, chosen: dict[str, Any], as_json: bool) -> str:
    """Refuse settings that no prompt can be answered with on this model; warn of those that change nothing. Returns
    why mode auto chose as it did, "" for another mode."""
    try:
        wanted = read(Decoding, chosen)
        settings = model.resolved(wanted)
    except UnmaskError as e:
        raise _placed(e, Prompt("", "")) from None
    for name, reason in ineffective(chosen, settings).items():
        flag = flag_of(name if chosen[name] is not False else f"no_{name}")
        print(f"warning: {flag} has no effect {reason}", file=sys.stderr)
    if wanted.logprobs is not None and not as_json:
        print("warning: --logprobs shows with --json only", file=sys.stderr)
    why: str = model.chosen(wanted).why
    return why


def _request(model: Any, prompt: Prompt, raw: bool, decoding: dict[str, Any]) -> Any:
    try:
        return model.request(prompt.value, raw=raw, **decoding)
    except UnmaskError as e:
        raise _placed(e, prompt) from None


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
                failed.append(_placed(answer.error, prompt))
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


def _placed(error: UnmaskError, prompt: Prompt) -> UnmaskError:
    """The same error with the flag as typed in the place of the setting's name, and the prompt's place before it."""
    text, setting = str(error), str(getattr(error, "field", None))
    if setting in Decoding.__dataclass_fields__ and text.startswith(setting + " "):
        text = flag_of(setting) + text.removeprefix(setting)
    return type(error)(f"{prompt.where}: {text}" if prompt.where else text)


def _figures(answers: list[Any], why: str) -> str:
    tokens, forwards = sum(a.completion_tokens for a in answers), sum(a.forwards for a in answers)
    seconds, named = max(a.batch_seconds for a in answers), "token" if tokens == 1 else "tokens"
    return (
        f"{tokens} {named} in {seconds:.2f} s: {tokens / max(seconds, 1e-9):.1f} tokens/s, {forwards} forwards, "
        f"{tokens / max(forwards, 1):.2f} tokens per forward, mode {answers[0].mode}" + (f" ({why})" if why else "")
    )


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
