"""The command `unmask`. Each subcommand is a module of `commands` that is imported only when it is asked for."""

import argparse
import contextlib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import unmask
from unmask.config import MOST_THREADS
from unmask.errors import ConfigError, ToldError, UnmaskError
from unmask.heap import keep_freed_memory
from unmask.options import suggestion

COMMANDS = {
    "demo": "the three modes side by side on the model that ships with unmask",
    "adapt": "turn an autoregressive model into a block-diffusion one, as a recipe says",
    "generate": "answer prompts",
    "serve": "an HTTP server with OpenAI's API, and a page that shows blocks being written",
    "chat": "talk with a model, and watch its blocks fill in",
    "export": "write a model in a form that other programs load",
    "synthesize": "write training text: prompts answered by the base itself",
    "evaluate": "compare modes, base and fine-tune on tasks, item by item",
    "bench": "measure speed and memory here, beside what else could run the model",
    "doctor": "what this machine can do, what is missing, and whether a model fits",
}
OK, FAULT, USER, INTERRUPTED = 0, 1, 2, 130


class Parser(argparse.ArgumentParser):
    """argparse, whose errors become ours: one line, exit code 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Help, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")

    def standard_input_first(self, words: list[str]) -> list[str]:
        """A lone `-` (standard input) moves to the front, where no flag with several values can take it for one of
        them; directly behind a flag that takes a value it is that value and stays."""
        front: list[str] = []
        others: list[str] = []
        for before, word in zip(["", *words], words, strict=False):
            flag = self._option_string_actions.get(before)
            takes_value = flag is not None and flag.nargs != 0
            (front if word == "-" and not takes_value else others).append(word)
        return front + others

    def reject_unknown(self, rest: list[str]) -> None:
        if rest:
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            flag = rest[0].partition("=")[0]
            hint = suggestion(flag, flags) if flag.startswith("--") else f"see {self.prog} --help"
            raise ConfigError(f"{self.prog} does not know {rest[0]}; {hint}")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(100, _columns()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 2 the user's input, 3 a gate that is not held,
    130 interrupted, 1 our fault."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None and words[:1] == ["adapt"]:  # the process is the command's own, and no tensor exists yet
        keep_freed_memory()
    try:
        with _plain_warnings():
            return _dispatch(words)
    except ToldError:
        return USER
    except UnmaskError as e:
        return _explain(f"error: {e}", USER, words)
    except KeyboardInterrupt as e:
        return _explain(": ".join(["interrupted", *map(str, e.args)]), INTERRUPTED, words)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as e:
        what = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
        return _explain(f"internal error: {what} (run again with --debug for details)", FAULT, words)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as one line each, without those that libraries address to one another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        yield


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print(_overview())
        return OK
    if name == "--version":
        print(f"unmask {unmask.__version__}")
        return OK
    if name not in COMMANDS:
        raise ConfigError(f"unmask has no command '{name}'; there are {', '.join(COMMANDS)}")
    command = importlib.import_module(f"unmask.commands.{name}")
    parser = Parser(prog=f"unmask {name}", description=command.__doc__, epilog=command.EXAMPLES)
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    own = "--threads" in parser._option_string_actions  # adapt's is a key of its recipe
    if not own:
        parser.add_argument("--threads", type=int, metavar="N", help="CPU threads; fewer beside other busy programs")
    try:
        args, rest = parser.parse_known_args(parser.standard_input_first(words[1:]))
    except SystemExit as e:  # --help
        return int(e.code or 0)
    parser.reject_unknown(rest)
    if not own and args.threads is not None:
        _use_threads(args.threads)
    return command.run(args)


def _use_threads(count: int) -> None:
    if not 1 <= count <= MOST_THREADS:
        raise ConfigError(f"--threads is {count}; allowed: from 1 to {MOST_THREADS}")
    os.environ["OMP_NUM_THREADS"] = str(count)  # for processes that this one starts
    import torch

    torch.set_num_threads(count)


def _explain(line: str, code: int, words: list[str]) -> int:
    sys.stdout.flush()
    if "--debug" in words:
        traceback.print_exc()
    print(line, file=sys.stderr, flush=True)
    return code


def _overview() -> str:
    rows = "\n".join(f"  {name:<10} {about}" for name, about in COMMANDS.items())
    return (
        "usage: unmask COMMAND [options]\n\n"
        "Turn a pretrained autoregressive language model into a block-diffusion one, and decode it in three modes.\n\n"
        f"commands:\n{rows}\n\n"
        "examples:\n"
        "  unmask demo\n"
        '  unmask generate --prompt "Why is the sky blue?"\n'
        "  unmask generate --help\n\n"
        "A model is `demo`, a directory, a Hugging Face hub id, or a .gguf file. Exit codes: 0 done, 2 wrong input,\n"
        "3 a gate that is not held, 130 interrupted, 1 a fault of unmask."
    )


def _columns() -> int:
    try:
        return os.get_terminal_size().columns
    except OSError:
        return 100


if __name__ == "__main__":
    sys.exit(main())
