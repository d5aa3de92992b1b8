"""`unmask chat`: history, commands, and what is drawn."""

import contextlib
import io
import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from scripted import ScriptedBackbone, sure, writes
from tiny import MASK, VOCAB, byte_tokenizer, tiny_model

import unmask
from unmask.api import Model
from unmask.cli import Parser, main
from unmask.commands import chat, drawing
from unmask.commands.conversation import Conversation, Turn
from unmask.config import BlockSpec
from unmask.errors import ConfigError
from unmask.events import Committed, Finished, Provisional
from unmask.model.checkpoint import save_full
from unmask.text import render

END = 256
TOKENIZER = byte_tokenizer(eos_token="<end>")
SPEC = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END,), context="causal")


def scripted(script=None, positions: int = 4096, spec: BlockSpec | None = SPEC, **how) -> Model:
    """A model whose script is asked for the logits of each position, with the byte tokenizer."""
    backbone = ScriptedBackbone(script or says("ok"), vocab_size=VOCAB, max_positions=positions)
    backbone.prepare = lambda: None
    return Model(
        SimpleNamespace(
            spec=spec, tokenizer=TOKENIZER, stop_ids=(END,), ref="scripted", chain=None, path=Path("nowhere")
        ),
        backbone,
        batch_size=1,
    )


def says(*texts: str, confidence: float = 0.99):
    """A script that writes these texts as the first, second, … answer; an answer begins behind the last turn's sign."""
    answers = [[*text.encode(), END] for text in texts]
    state = {"start": 0, "turn": -1}

    def script(who, position, step):
        if state.get("asked") != chatting.asked:
            state.update(start=position, turn=state["turn"] + 1, asked=chatting.asked)
        tokens = answers[min(state["turn"], len(answers) - 1)]
        place = position - state["start"]
        return sure(tokens[place] if 0 <= place < len(tokens) else END, confidence, VOCAB)

    return script


chatting = SimpleNamespace(asked=0)


@pytest.fixture(autouse=True)
def no_costs(monkeypatch):
    """A script has none, measured or assumed."""
    monkeypatch.setattr("unmask.api.read_measured", lambda *_: None)
    monkeypatch.setattr("unmask.api.assumed", lambda *_: None)


@pytest.fixture
def talk():
    """A chat over a scripted model: lines in; what each prompt was, as text, comes back."""

    def start(model: Model, *lines: str, **chosen):
        seen: list[str] = []
        stream = model.stream

        def watched(prompt, **how):
            chatting.asked += 1
            seen.append(TOKENIZER.decode(prompt))
            return stream(prompt, **how)

        model.stream = watched
        made = chat.Chat(model, {"mode": "ar", **chosen}, Conversation())
        code = made.answer_lines(iter(lines))
        return made, seen, code

    return start


def turns(made: chat.Chat) -> list[tuple[str, str]]:
    return [(turn.question, turn.answer) for turn in made.conversation.turns]


# History and commands


def test_the_model_reads_the_whole_conversation(talk, capsys):
    made, seen, code = talk(scripted(says("one", "two")), "/system Be brief.", "first", "second")
    assert code == 0 and turns(made) == [("first", "one"), ("second", "two")]
    assert seen[1] == (
        "<turn>system\nBe brief.</turn>\n<turn>user\nfirst</turn>\n<turn>assistant\none</turn>\n"
        "<turn>user\nsecond</turn>\n<turn>assistant\n"
    )
    out, err = capsys.readouterr()
    assert out == "one\ntwo\n"
    figures = r"\d+ tokens in \d+\.\d\d s: [\d.]+ tokens/s, \d+ forwards, [\d.]+ tokens per forward, mode ar"
    assert [re.fullmatch(figures, line) is not None for line in err.splitlines()] == [True, True]


def test_clear_forgets_and_keeps_the_system_message(talk):
    made, seen, _ = talk(scripted(says("a")), "/system S", "first", "/clear", "second")
    assert "first" not in seen[1] and "<turn>system\nS</turn>" in seen[1] and turns(made) == [("second", "a")]
    assert "system" not in talk(scripted(), "/system S", "/system", "x")[1][0]


def test_retry_asks_the_same_again_in_place(talk):
    made, seen, _ = talk(scripted(says("one", "two")), "q", "/retry")
    assert seen[0] == seen[1] and turns(made) == [("q", "two")]


def test_a_retry_of_a_seeded_answer_has_a_seed_of_its_own(talk):
    made, *_ = talk(scripted(), "q", "/retry", "/retry", temperature=1.0, seed=7)
    assert made._seeded()["seed"] == 9
    made.take("another")
    assert made._seeded()["seed"] == 7


def test_a_retry_that_comes_to_nothing_keeps_the_first_answer(talk, monkeypatch):
    made, *_ = talk(scripted(says("one")), "q")
    monkeypatch.setattr(made.model, "stream", lambda *_, **__: interrupted())
    with pytest.raises(KeyboardInterrupt):
        made.take("/retry")
    assert turns(made) == [("q", "one")]


def interrupted(*events):
    yield from events
    raise KeyboardInterrupt


def test_ctrl_c_keeps_what_was_written_and_the_chat(talk, monkeypatch, capsys):
    made, *_ = talk(scripted(says("one")))
    answers = [interrupted(Committed(0, [72, 105], "Hi")), interrupted()]
    monkeypatch.setattr(made.model, "stream", lambda *_, **__: answers.pop(0))
    made.talk(iter(["q", "r"]))
    assert turns(made) == [("q", "Hi")]
    assert capsys.readouterr() == ("Hi\n", "stopped\nstopped\n")


def test_mode_and_threshold_change_what_comes_next(talk, capsys):
    made, _, code = talk(scripted(says("abcdefgh")), "/mode threshold", "/threshold 0.5", "q")
    assert made.chosen["mode"] == "threshold" and made.chosen["threshold"] == 0.5 and code == 0
    assert capsys.readouterr().err.endswith("mode threshold\n")


@pytest.mark.parametrize(
    "line,said",
    [
        ("/mode quick", "mode is 'quick'; allowed: ar, threshold, verified, auto"),
        ("/mode", "/mode takes ar, threshold, verified or auto"),
        ("/threshold high", "/threshold is 'high'; allowed: a number from 0 to 1"),
        ("/threshold 2", "threshold is 2.0; allowed: from 0 to 1"),
        ("/retry", "there is no question to ask again"),
        ("/save", "/save takes the name of a file"),
        ("/save x", "there is nothing to save yet; ask something first"),
        ("caf\udce9", "that line is not UTF-8 text; type it again"),
        ("/bye", "there is no command /bye; /help lists them, and // starts a message with /"),
    ],
)
def test_a_mistake_is_one_line_and_the_chat_goes_on(talk, capsys, line, said):
    made, seen, code = talk(scripted(), line, "q")
    assert capsys.readouterr().err.splitlines()[0] == f"error: {said}"
    assert code == 2 and len(seen) == 1 and made.chosen["mode"] == "ar"


def test_a_mode_that_the_model_lacks_changes_nothing(talk, capsys):
    block = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="block")
    made, *_ = talk(scripted(spec=block), "/mode verified")
    assert made.chosen["mode"] == "ar"
    assert capsys.readouterr().err.startswith("error: --mode verified needs a checkpoint with context 'causal'")


def test_two_slashes_start_a_message_with_one(talk):
    made, *_ = talk(scripted(), "//etc/passwd?")
    assert turns(made) == [("/etc/passwd?", "ok")]


def test_help_names_every_command_and_quit_ends(talk, capsys):
    _, seen, code = talk(scripted(), "/help", "/quit", "never asked")
    told = capsys.readouterr().err
    assert all(f"/{name}" in told for name in chat.COMMANDS) and (seen, code) == ([], 0)


def test_save_writes_a_line_that_prompts_files_take_and_never_over_a_file(talk, tmp_path, capsys):
    file = tmp_path / "deep" / "talk.jsonl"
    talk(scripted(says("é")), "/system S", "q", f"/save {file}", f"/save {file}")
    assert json.loads(file.read_text()) == {
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "é"},
        ]
    }
    assert f"error: {file} exists; give another name" in capsys.readouterr().err


def test_old_turns_are_dropped_from_what_is_read_and_said_but_not_from_what_is_saved(talk, capsys, tmp_path):
    asked = ["x" * 30, "y" * 30, "z" * 30]
    made, seen, _ = talk(scripted(says("ok"), positions=190), *asked, f"/save {tmp_path / 't'}", max_new_tokens=40)
    assert asked[0] in seen[1] and asked[0] not in seen[2] and asked[1] in seen[2]
    assert "(the oldest turn is no longer read: the model takes 190 tokens)" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "t").read_text())["messages"]) == 6


def test_a_question_that_never_fits_is_refused_and_the_conversation_stays(talk, capsys):
    made, _, code = talk(scripted(says("ok"), positions=150), "first", "x" * 200, "second", max_new_tokens=40)
    assert code == 2 and turns(made) == [("first", "ok"), ("second", "ok")]
    assert made.conversation.unread == 0
    told = capsys.readouterr().err
    assert "error: the prompt has 219 tokens but the model takes 150" in told and "no longer read" not in told


def test_an_answer_that_the_limit_cuts_says_so(talk, capsys):
    talk(scripted(says("abcdef")), "q", max_new_tokens=3)
    assert capsys.readouterr().err.rstrip().endswith("mode ar, cut at --max-new-tokens 3")


def test_history_is_fitted_turn_by_turn():
    made = Conversation("S", [Turn("a", "b"), Turn("c", "d"), Turn("e")])
    encode = lambda messages: render(TOKENIZER, messages)  # noqa: E731
    whole = len(encode(made.messages()))
    assert len(made.fit(encode, whole)) == whole and made.unread == 0
    assert made.fit(encode, whole - 1) == encode(made.messages(1)) and made.unread == 1
    assert made.fit(encode, 1) == encode(made.messages(2)) and made.unread == 2


# Drawing


@pytest.mark.parametrize("text", ["\x1b[2J", "\x1b]0;title\x07", "a\rb", "\x08\x7f", "\x9b31m", "\u202eabc", "\u2028"])
def test_no_control_character_reaches_the_terminal(text):
    shown = drawing.visible(text)
    assert len(shown) == len(text)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in drawing.BIDI + "\u2028" for c in shown)


def test_text_is_otherwise_as_it_is():
    text = "tab\tand\nline, é 你好 👩‍👩‍👧 e\u0301 [bold]x[/bold]"
    assert drawing.visible(text) == text


def test_control_characters_are_kept_from_a_terminal_and_not_from_a_file():
    for safe, shown in ((True, "␛[2Jx\n"), (False, "\x1b[2Jx\n")):
        out = io.StringIO()
        drawing.write_plainly(iter([Committed(0, [1], "\x1b[2Jx")]), out.write, safe)
        assert out.getvalue() == shown


def block(tokens, masked=(), confidence=None, start=10):
    slots = [i in masked for i in range(len(tokens))]
    return Provisional(0, start, list(tokens), slots, confidence or [1.0] * len(tokens))


def test_slots_are_boxes_and_colours():
    drawn = drawing.slots(block(b"abc_e", masked={3}, confidence=[1.0, 0.95, 0.6, 0.0, 0.2]), 11, TOKENIZER, "░░")
    assert drawn.plain == "bc░░ e"
    assert [(drawn.plain[s.start : s.end], s.style) for s in drawn.spans] == [
        ("b", "italic green"),
        ("c", "italic yellow"),
        ("░░ ", "dim"),
        ("e", "italic red"),
    ]


def test_settled_slots_are_not_drawn_again():
    assert drawing.slots(block(b"abcd"), 14, TOKENIZER, "░░").plain == ""
    assert drawing.slots(block(b"abcd"), 3, TOKENIZER, "░░").plain == "abcd"


def test_unfinished_characters_line_ends_and_escapes_take_no_more_than_their_place():
    two = "é".encode()
    assert drawing.slots(block(two[:1], start=0), 0, TOKENIZER, "░░").plain == "·"
    assert drawing.slots(block(two, start=0), 0, TOKENIZER, "░░").plain.replace("·", "") in ("", "é")
    assert drawing.slots(block(b"a\n\t\x1b", start=0), 0, TOKENIZER, "░░").plain == "a⏎ ␛"


@pytest.mark.parametrize(
    "text", ["one two three four five", "你好世界" * 5, "x" * 45, "a  b   c    d     e", "ab 你好你好你好"]
)
@pytest.mark.parametrize("size", [1, 3])
def test_lines_do_not_depend_on_how_the_text_came(text, size):
    console = Console(file=io.StringIO(), width=20)
    whole, last = drawing.settled_lines(text, 10, console)
    lines, rest = [], ""
    for at in range(0, len(text), size):
        more, rest = drawing.settled_lines(rest + text[at : at + size], 10, console)
        lines += more
    assert [line.rstrip() for line in [*lines, rest]] == [line.rstrip() for line in [*whole, last]]
    assert all(drawing.Text(line.rstrip()).cell_len <= 10 for line in [*whole, last])


class Screen:
    """As much of a terminal as the drawing uses: text, line ends, erasing a line, moving up. Anything else fails."""

    def __init__(self) -> None:
        self.lines, self.row, self.column = [""], 0, 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|.|\n", text):
            self.take(part)

    def take(self, part: str) -> None:
        if part == "\n":
            self.row, self.column = self.row + 1, 0
            self.lines += [""] * (self.row + 1 - len(self.lines))
        elif part == "\r":
            self.column = 0
        elif part[0] != "\x1b":
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + part + line[self.column + 1 :]
            self.column += 1
        elif part == "\x1b[2K":
            self.lines[self.row] = ""
        elif part == "\x1b[1A":
            self.row -= 1
        else:
            assert re.fullmatch(r"\x1b\[(\?25[lh]|[\d;]*m)", part), repr(part)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip()


def drawn(events, width=40, **how):
    """(the screen at the end, all that was sent to it)."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=20, legacy_windows=False, **how)
    drawing.draw(events, console, TOKENIZER, 10)
    screen = Screen()
    screen.feed(out.getvalue())
    return screen.text, out.getvalue()


STEPS = [
    block(b"a" + bytes([MASK % 256] * 3), masked={1, 2, 3}),
    block(b"abXd", masked={2}, confidence=[1.0, 0.95, 0.0, 0.3]),
    Committed(0, [97, 98, 99, 100], "abcd"),
    Committed(0, [10], "\nmore [b]text[/b]"),
]


def test_what_stays_on_the_screen_is_the_answer_and_nothing_of_the_block():
    screen, sent = drawn(iter(STEPS), color_system="standard")
    assert screen == "abcd\nmore [b]text[/b]"
    assert "░░" in sent and "\x1b[3;32m" in sent and "\x1b[3;31m" in sent


def test_long_answers_and_wide_characters_leave_whole_lines():
    text = ("word " * 30 + "\n你好世界 " * 12 + "end").strip()
    events = [each for c in text for each in (block(c.encode()[:4], masked={0}), Committed(0, [1], c))]
    screen, _ = drawn(iter(events), width=24)
    assert screen.split() == text.split()
    assert all(drawing.Text(line).cell_len < 24 for line in screen.splitlines())


def test_what_was_written_stays_when_the_answer_is_stopped():
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        drawing.draw(interrupted(*STEPS[:3]), Console(file=out, force_terminal=True, width=40), TOKENIZER, 10)
    screen = Screen()
    screen.feed(out.getvalue())
    assert screen.text == "abcd" and out.getvalue().count("\x1b[?25h") == 1  # the cursor is back


def test_no_color_draws_without_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    screen, sent = drawn(iter(STEPS), color_system="standard")
    assert "░░" in sent and not re.search(r"\x1b\[[\d;]*3[0-7]m", sent) and screen == "abcd\nmore [b]text[/b]"


@pytest.mark.parametrize("mode", ["threshold", "verified"])
def test_the_engines_own_events_draw_its_answer(mode):
    """Every step of a real decoding: no slot is drawn that is settled, none of the drawn ones is left over."""
    answer = "déjà vu 你好"
    prompt = [*b"0123456789"]
    model = scripted(writes([*answer.encode(), END], len(prompt), 0.99, VOCAB, END))
    events = list(
        model.stream(prompt, mode=mode, provisional=True, **({"drafts": "plain"} if mode == "verified" else {}))
    )
    assert any(isinstance(each, Provisional) for each in events) and isinstance(events[-1], Finished)
    assert drawn(iter(events))[0] == answer


@pytest.mark.parametrize("mode", ["threshold", "verified"])
def test_every_picture_on_the_way_reads_on_from_what_is_settled(mode):
    """All proposals of this script are right, so the text before the first box always begins the answer."""
    answer, prompt = "a quick brown fox jumps over the dog", [*b"0123456789"]
    model = scripted(writes([*answer.encode(), END], len(prompt), 0.99, VOCAB, END))
    events = model.stream(prompt, mode=mode, provisional=True)
    out, seen = io.StringIO(), []

    def watched():
        for event in events:
            yield event
            screen = Screen()
            screen.feed(out.getvalue())
            seen.append(screen.text)

    drawing.draw(watched(), Console(file=out, force_terminal=True, width=200), TOKENIZER, len(prompt))
    assert sum("░░" in each for each in seen) >= 4
    assert [each for each in seen if not answer.startswith(each.partition("░")[0].rstrip())] == []


# The command


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("chat") / "model"
    save_full(tiny_model(max_position_embeddings=50_000), TOKENIZER, SPEC, place)
    return place


def piped(monkeypatch, text: bytes, *words: object) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    return main(["chat", *map(str, words)])


def test_piped_lines_are_answered_and_nothing_is_drawn(monkeypatch, capsys, directory):
    words = ["--model", directory, "--mode", "threshold", "--max-new-tokens", 12]
    assert piped(monkeypatch, b"\xef\xbb\xbfHello\n\n/clear\nHello\n", *words) == 0
    out, err = capsys.readouterr()
    one = unmask.load(directory).generate(["Hello"], mode="threshold", max_new_tokens=12)[0].text
    assert out == f"{one}\n{one}\n" and err.count("tokens per forward, mode threshold, cut at") == 2
    assert "\x1b" not in err and "> " not in out


def test_wrong_input_ends_with_2(monkeypatch, capsys, directory):
    assert piped(monkeypatch, b"/nothing\n", "--model", directory) == 2
    assert piped(monkeypatch, b"\xff\xfe\n", "--model", directory) == 2
    assert "error: standard input, line 1: is not UTF-8 text" in capsys.readouterr().err
    assert piped(monkeypatch, b"", "--model", directory, "--threshold", "7") == 2


def test_a_model_without_chat_template_is_refused(monkeypatch, capsys, tmp_path):
    save_full(tiny_model(), byte_tokenizer(template=None), SPEC, tmp_path / "m")
    capsys.readouterr()
    assert piped(monkeypatch, b"hi\n", "--model", tmp_path / "m") == 2
    assert "no chat template, so it cannot be talked with; use unmask generate --raw" in capsys.readouterr().err


class Terminal:
    """`unmask chat` in a process of its own, at a terminal of its own."""

    def __init__(self, *words: object, **env: str) -> None:
        self.seen, (self.end, theirs) = "", pty.openpty()
        owns = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from unmask.cli import main; "
        self.process = subprocess.Popen(
            [sys.executable, "-c", owns + "sys.exit(main(sys.argv[1:]))", "chat", *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ
            | {"PYTHONPATH": str(Path(unmask.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
            | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", **env},
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self.end, keys.encode())

    def until(self, pattern: str, seconds: float = 60) -> str:
        """What comes up to the first match, which is taken."""
        limit = time.monotonic() + seconds
        while (found := re.search(pattern, self.seen)) is None:
            ready = select.select([self.end], [], [], max(limit - time.monotonic(), 0))[0]
            assert ready, f"{pattern!r} did not come: {self.seen[-500:]!r}"
            self.seen += os.read(self.end, 65536).decode(errors="replace")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def press(self, key: str, pattern: str) -> str:
        """Press a key until what it does is seen: one that comes while a prompt is being set up is lost."""
        for _ in range(20):
            self.type(key)
            with contextlib.suppress(AssertionError):
                return self.until(pattern, 2)
        pytest.fail(f"{key!r} does nothing: {self.seen[-500:]!r}")

    def ended(self, key: str) -> int:
        """Press a key until the process ends; its exit code."""
        for _ in range(20):
            self.type(key)
            with contextlib.suppress(AssertionError, OSError):
                self.until("never", 2)
            if self.process.poll() is not None:
                break
        return self.process.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.end)


@pytest.mark.slow
def test_at_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_the_chat(directory):
    words = ["--model", directory, "--mode", "threshold", "--max-new-tokens", "20000", "--backbone", "universal"]
    with Terminal(*words) as terminal:
        terminal.until(r"/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends\.")
        terminal.until("> ")
        terminal.type("Hello\n")
        assert "░░" in terminal.until("(░░ .*){8}")
        terminal.press("\x03", "stopped\r\n")
        terminal.until("> ")
        terminal.press("\x03", "Ctrl-D or /quit ends the chat")
        for line in ("/mode ar", "/clear", "Hi"):
            terminal.until("> ")
            terminal.type(line + "\n")
            terminal.until(re.escape(line))
        time.sleep(0.5)
        assert "░░" not in terminal.press("\x03", "stopped\r\n")  # mode ar writes no block
        terminal.until("> ")
        assert terminal.ended("\x04") == 0


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_text(directory):
    with Terminal("--model", directory, "--mode", "threshold", "--max-new-tokens", "12", TERM="dumb") as terminal:
        terminal.until("> ")
        terminal.type("Hello\n")
        sent = terminal.until("cut at --max-new-tokens 12")
        assert "░░" not in sent and "\x1b" not in sent
        assert terminal.ended("/quit\n") == 0


def test_conversation_refuses_what_it_cannot_save(tmp_path):
    with pytest.raises(ConfigError, match="nothing to save"):
        Conversation().save(tmp_path / "f")


def test_the_script_of_these_tests_is_read_per_answer():
    assert torch.argmax(says("b")(0, 5, 0)) == ord("b")


def test_the_page_lists_every_command_and_its_calls_are_accepted():
    page = (Path(__file__).parents[1] / "docs" / "chat.md").read_text()
    named = re.findall(r"^\| `/(\w+)(?: (\w+))?` \|", page, re.MULTILINE)
    assert dict(named) == {name: takes for name, (_, takes, _) in chat.COMMANDS.items()}
    calls = re.findall(r"unmask chat(.*)", "\n".join(re.findall(r"```\n(.*?)```", page, re.DOTALL)))
    assert len(calls) == 4
    for call in calls:
        parser = Parser(prog="chat")
        chat.add_arguments(parser)
        parser.parse_args(shlex.split(call))
