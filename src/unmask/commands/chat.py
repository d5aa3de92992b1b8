"""Talk with a model, and watch its blocks fill in.

On a terminal the block being written is drawn: masked slots as shaded boxes, proposed tokens coloured by confidence
(green above 0.9, red below 0.5), settled text plain. Ctrl-C stops an answer, Ctrl-D ends the chat. Lines that come from
a pipe are answered in turn, with nothing drawn. A line that starts with / is a command (/help), with // a message.
"""

import argparse
import codecs
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.commands.checking import check_settings, figures, placed
from unmask.commands.conversation import Conversation, Turn
from unmask.commands.loading import add_loading, load_model
from unmask.config import Decoding
from unmask.errors import ConfigError, DataError, UnmaskError
from unmask.events import Answer, Committed, Event, Finished
from unmask.options import add_flags, given, read

EXAMPLES = """examples:
  unmask chat
  unmask chat --model runs/mine/model --mode threshold --threshold 0.8
  unmask chat --system "Answer in one sentence." --temperature 0.7
  printf 'Name a river.\\nAnd another.\\n' | unmask chat"""

OK, WRONG = 0, 2
PROMPT = "> "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_loading(parser)
    add_flags(parser.add_argument_group("decoding"), Decoding)
    parser.add_argument("--system", metavar="TEXT", default="", help="the system message")


def run(args: argparse.Namespace) -> int:
    chosen = given(args, Decoding)
    read(Decoding, chosen, flags=chosen)
    model = load_model(args)
    if not getattr(model.tokenizer, "chat_template", None):
        raise ConfigError(
            f"{args.model} has no chat template, so it cannot be talked with; use unmask generate --raw --prompt TEXT"
        )
    chat = Chat(model, chosen, Conversation(args.system))
    chat.told = check_settings(model, chosen, as_json=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if not sys.stdin.isatty():
        return chat.answer_lines(_piped())
    settings = model.chosen(read(Decoding, chosen)).decoding
    _say(f"{args.model}, mode {settings.mode}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.")
    chat.talk(_typed())
    return OK


class Chat:
    """A conversation with a model, its settings, and what a line of input does to them."""

    def __init__(self, model: Any, chosen: dict[str, Any], conversation: Conversation) -> None:
        self.model, self.chosen, self.conversation = model, chosen, conversation
        self.told = ""
        self.retries = 0

    def talk(self, lines: Iterator[str]) -> None:
        """Somebody types. A mistake is said and Ctrl-C stops what is going on; neither ends the chat."""
        for line in lines:
            try:
                if not self.take(line):
                    return
            except UnmaskError as e:
                _say(f"error: {e}")
            except KeyboardInterrupt:
                _say("stopped")

    def answer_lines(self, lines: Iterator[str]) -> int:
        """Lines of a pipe. A mistake is said, the others are still answered; returns the exit code."""
        code = OK
        for line in lines:
            try:
                if not self.take(line):
                    break
            except UnmaskError as e:
                _say(f"error: {e}")
                code = WRONG
        return code

    def take(self, line: str) -> bool:
        """Do what a line says; False where it ends the chat."""
        line = line.strip()
        if any("\ud800" <= c <= "\udfff" for c in line):  # how readline hands over bytes that are no text
            raise ConfigError("that line is not UTF-8 text; type it again")
        if line.startswith("/") and not line.startswith("//"):
            name, _, argument = line[1:].partition(" ")
            if name not in COMMANDS:
                raise ConfigError(f"there is no command /{name}; /help lists them, and // starts a message with /")
            return COMMANDS[name][0](self, argument.strip())
        if line:
            self.retries = 0
            self.ask(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def ask(self, question: str) -> None:
        """Answer a question, which is taken back where nothing came of it."""
        talk = self.conversation
        unread = talk.unread
        talk.turns.append(Turn(question))
        try:
            self.answer()
        finally:
            if not talk.turns[-1].answer:
                talk.turns.pop()
                talk.unread = unread

    def answer(self) -> None:
        """Answer the open question; what was written before Ctrl-C stays in the conversation."""
        talk = self.conversation
        settings = self.model.decoding(**self._seeded())
        room, before = self.model.backbone.max_positions - settings.max_new_tokens, talk.unread
        prompt = talk.fit(self.model.encode, room)
        dropped = talk.unread - before
        if dropped and len(prompt) <= room:
            what = "the oldest turn is" if dropped == 1 else f"the {dropped} oldest turns are"
            _say(f"({what} no longer read: the model takes {self.model.backbone.max_positions} tokens)")
        events = self.model.stream(prompt, provisional=_draws(), **_fields(settings))
        said: list[str] = []
        done: list[Answer] = []
        try:
            _show(_heard(events, said, done), self.model.tokenizer, len(prompt))
        finally:
            events.close()
            if said:
                talk.turns[-1].answer = "".join(said)
        if done[0].error is not None:
            raise placed(done[0].error)
        cut = f", cut at --max-new-tokens {settings.max_new_tokens}" if done[0].finish_reason == "length" else ""
        _say(figures(done, self.told) + cut)

    def _seeded(self) -> dict[str, Any]:
        """The settings, with a seed of its own for each retry."""
        seed = self.chosen.get("seed")
        return self.chosen if seed is None else self.chosen | {"seed": seed + self.retries}

    def set(self, name: str, value: Any) -> bool:
        """Change a setting, unless the model cannot be decoded so."""
        changed = self.chosen | {name: value}
        self.told = check_settings(self.model, changed, as_json=False)
        self.chosen = changed
        return True


def _fields(settings: Decoding) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in Decoding.__dataclass_fields__}


def _heard(events: Iterator[Event], said: list[str], done: list[Answer]) -> Iterator[Event]:
    """The same events, noted: settled text in `said`, the answer in `done`."""
    for event in events:
        if isinstance(event, Committed):
            said.append(event.text or "")
        elif isinstance(event, Finished):
            done.append(event.answer)
        yield event


def _draws() -> bool:
    """Whether somebody watches, on a terminal that can move its cursor."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    from rich.console import Console

    return not Console().is_dumb_terminal


def _show(events: Iterator[Event], tokenizer: Any, start: int) -> None:
    from unmask.commands import drawing

    if not _draws():
        write = lambda text: print(text, end="", flush=True)  # noqa: E731
        return drawing.write_plainly(events, write, safe=sys.stdout.isatty())
    from rich.console import Console

    drawing.draw(events, Console(highlight=False, markup=False, emoji=False), tokenizer, start)


def _say(line: str) -> None:
    """Tell something that is not part of an answer. Parts of it were typed, or come out of a checkpoint."""
    from unmask.commands.drawing import visible

    print(visible(line), file=sys.stderr, flush=True)


def _typed() -> Iterator[str]:
    """Lines that somebody types, with editing and earlier lines where Python has readline."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    shown = sys.stdout.isatty()
    while True:
        if not shown:  # answers go elsewhere, and only they
            print(PROMPT, end="", file=sys.stderr, flush=True)
        try:
            yield input(PROMPT if shown else "")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            _say("\nCtrl-D or /quit ends the chat")
        except UnicodeDecodeError:
            yield "\udcff"


def _piped() -> Iterator[str]:
    for n, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.removeprefix(codecs.BOM_UTF8 if n == 1 else b"").decode("utf-8")
        except UnicodeDecodeError:
            raise DataError("is not UTF-8 text", file="standard input", line=n) from None


def _mode(chat: Chat, argument: str) -> bool:
    if not argument:
        raise ConfigError("/mode takes ar, threshold, verified or auto")
    return chat.set("mode", argument)


def _threshold(chat: Chat, argument: str) -> bool:
    try:
        value = float(argument)
    except ValueError:
        raise ConfigError(f"/threshold is '{argument}'; allowed: a number from 0 to 1") from None
    return chat.set("threshold", value)


def _clear(chat: Chat, argument: str) -> bool:
    chat.conversation.clear()
    return True


def _retry(chat: Chat, argument: str) -> bool:
    """Ask the last question again. The first answer stays where nothing comes of the second."""
    if not chat.conversation.turns:
        raise ConfigError("there is no question to ask again")
    turn = chat.conversation.turns[-1]
    chat.conversation.turns[-1] = replace(turn, answer="")
    chat.retries += 1
    try:
        chat.answer()
    finally:
        if not chat.conversation.turns[-1].answer:
            chat.conversation.turns[-1] = turn
    return True


def _system(chat: Chat, argument: str) -> bool:
    chat.conversation.system = argument
    if not argument:
        _say("no system message; /system TEXT sets one")
    return True


def _save(chat: Chat, argument: str) -> bool:
    if not argument:
        raise ConfigError("/save takes the name of a file")
    file = Path(argument).expanduser()
    chat.conversation.save(file)
    _say(f"saved {file}")
    return True


def _help(chat: Chat, argument: str) -> bool:
    for name, (_, takes, about) in COMMANDS.items():
        _say(f"  {f'/{name} {takes}':<18} {about}")
    return True


def _quit(chat: Chat, argument: str) -> bool:
    return False


COMMANDS: dict[str, tuple[Callable[[Chat, str], bool], str, str]] = {
    "mode": (_mode, "NAME", "decode in mode ar, threshold, verified or auto"),
    "threshold": (_threshold, "X", "accept slots whose confidence is above X (mode threshold)"),
    "retry": (_retry, "", "ask the last question again"),
    "clear": (_clear, "", "forget the conversation; the system message stays"),
    "system": (_system, "TEXT", "set the system message; without a text there is none"),
    "save": (_save, "FILE", "write the conversation to a new file, one line of JSON"),
    "help": (_help, "", "this list"),
    "quit": (_quit, "", "end the chat"),
}
