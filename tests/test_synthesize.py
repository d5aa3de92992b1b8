"""Training text by the base itself: rows that adapt reads, once per prompt, the same however the work was done."""

import functools
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from scripted import ScriptedBackbone
from tiny import TURN, TURN_END, byte_tokenizer, tiny_model
from training import SHORT, chat, save_base, save_rows

import unmask
from unmask import spread
from unmask.cli import main
from unmask.commands.progress import _print_shares
from unmask.commands.prompts import Prompt, prompts_from
from unmask.commands.synthesize import _line
from unmask.data import load_rows
from unmask.events import Answer
from unmask.model.checkpoint import load_checkpoint
from unmask.synthesize import run as runs
from unmask.synthesize.jobs import Job
from unmask.synthesize.make import Judge, header_of, jobs_to_make
from unmask.synthesize.overlap import Overlap
from unmask.synthesize.settings import Synthesis
from unmask.synthesize.worker import work

DOC = (Path(__file__).parents[1] / "docs" / "synthesize.md").read_text()
QUESTIONS = [f"What is {n} and {n * n}?" + " Tell me." * (n % 5) for n in range(11)]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A random model that ends about every fourth answer within 24 tokens."""
    return save_base(tmp_path_factory.mktemp("synth") / "base", eos_token_id=[10, 90, 200, TURN_END])


@pytest.fixture
def cli(capfd):
    def call(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["synthesize", *map(str, words)])
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def failed(cli):
    """Run the command; it must end with exit code 2 and one line, which is returned."""

    def call(*words: object) -> str:
        code, out, err = cli(*words)
        assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1, err
        return err

    return call


@pytest.fixture
def questions(tmp_path):
    return save_rows(tmp_path / "questions.jsonl", [{"prompt": text} for text in QUESTIONS])


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def about(out: Path) -> dict:
    return json.loads(out.with_name(out.stem + ".about.json").read_text(encoding="utf-8"))


def loading(base: Path, **changes: object) -> dict:
    plain = {"mask_id": None, "dtype": None, "backbone": "auto", "device": "auto", "batch_size": 3}
    return {"ref": str(base), **plain, **changes}


def test_rows_are_the_answers_of_mode_ar_in_the_order_of_the_prompts(base, questions, tmp_path, cli):
    out = tmp_path / "rows.jsonl"
    code, said, told = cli("--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 24)
    assert code == 0 and said == f"saved {out}\n"
    model = unmask.load(base)
    answers = model.generate(QUESTIONS, mode="ar", max_new_tokens=24)
    kept = [(q, a) for q, a in zip(QUESTIONS, answers, strict=True) if (a.text or "").rstrip("\ufffd").strip()]
    rows, ends = lines(out), [a.finish_reason for _, a in kept]
    assert set(ends) == {"stop", "length"}  # else this test shows nothing
    assert [row["messages"][0] for row in rows] == [{"role": "user", "content": q} for q, _ in kept]
    for row, (_, answer) in zip(rows, kept, strict=True):
        text = answer.text if answer.finish_reason == "stop" else answer.text.rstrip("\ufffd")
        assert row["messages"][1:] == [{"role": "assistant", "content": text}]
        assert row.get("ended", True) == (answer.finish_reason == "stop")
    counts = about(out)["counts"]
    assert counts["rows"] == len(rows) and counts["cut"] == ends.count("length") and counts["prompts"] == len(QUESTIONS)
    assert counts["tokens"] == sum(a.completion_tokens for _, a in kept)
    assert f"{len(rows)} rows of 11 prompts, {counts['tokens']} tokens; {counts['cut']} answers cut" in told
    assert re.search(r"\d+ tokens in [\d.]+ s: [\d.]+ tokens/s", told)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["questions.jsonl", "rows.about.json", "rows.jsonl"]


def test_adapt_reads_every_row_as_it_was_asked(base, questions, tmp_path, cli):
    """O2-05, O2-07: the ids up to the answer are those that were asked, a cut answer has no end to learn."""
    out = tmp_path / "rows.jsonl"
    assert cli("--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 24)[0] == 0
    model, rows = unmask.load(base), lines(out)
    stops = model.checkpoint.stop_ids
    loaded = load_rows([str(out)], model.tokenizer, max_length=200, truncation="drop", stop_ids=stops)
    assert loaded.counts == {"kept": len(rows)}
    for row, learned in zip(rows, loaded.rows, strict=True):
        asked = model.encode(row["messages"][:1])
        assert learned.ids[: len(asked)].tolist() == asked and not learned.labelled[: len(asked)].any()
        assert learned.labelled[len(asked) :].all()
        assert (int(learned.ids[-1]) in stops) == row.get("ended", True)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_the_file_does_not_depend_on_the_batch(base, questions, tmp_path, cli, temperature):
    files = []
    for size in (1, 4, 16):
        out = tmp_path / f"{size}.jsonl"
        words = ("--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 12)
        assert cli(*words, "--temperature", temperature, "--batch-size", size)[0] == 0
        files.append(out.read_bytes())
    assert files[0] == files[1] == files[2]
    other = tmp_path / "seed.jsonl"
    words = ("--model", base, "--prompts", questions, "--out", other, "--max-new-tokens", 12, "--seed", 1)
    assert cli(*words, "--temperature", temperature)[0] == 0
    assert (other.read_bytes() == files[0]) == (temperature == 0)


def test_long_prompts_go_first_and_batches_stay_full(base, tmp_path, monkeypatch):
    """9 answers of 6 tokens in 3 rows take about 3 times 6 forwards."""
    fakes = []

    def scripted(checkpoint, wanted, *, int8):
        fakes.append(ScriptedBackbone(lambda *_: torch.eye(261)[97] * 50, vocab_size=261))
        return fakes[-1]

    monkeypatch.setattr(spread, "backbone_for", scripted)
    prompts = [Prompt("y" * n, f"line {n}") for n in range(1, 10)]
    settings = Synthesis(max_new_tokens=6)
    list(runs.synthesize(prompts, tmp_path / "rows.jsonl", settings, loading(base)))
    calls = fakes[0].calls
    first = [len(feed.tokens) for call in calls for _, feed in call if feed.start == 0]
    header = min(first) - 1
    assert [sorted(n - header for n in first[at : at + 3]) for at in (0, 3, 6)] == [[7, 8, 9], [4, 5, 6], [1, 2, 3]]
    assert max(len(call) for call in calls) == 3 and len(calls) <= 3 * 6 + 9


def test_a_killed_run_continues_to_the_same_file(base, questions, tmp_path, cli):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "rows.jsonl"
    words = ["--model", base, "--prompts", questions, "--max-new-tokens", 12, "--temperature", 1, "--batch-size", 2]
    assert cli(*words, "--out", whole)[0] == 0
    prompts = [Prompt(text, "") for text in QUESTIONS]
    settings, how = Synthesis(max_new_tokens=12, temperature=1.0), loading(base, batch_size=2)
    run = runs.synthesize(prompts, out, settings, how)
    for _ in range(4):
        last = next(run)
    run.close()  # as a kill would, but for the half line that follows
    assert (last.done, last.total) == (4, 11)
    partial = tmp_path / "rows.jsonl.partial"
    assert not out.exists() and len(lines(partial)) == 4
    kept = partial.read_bytes()
    partial.write_bytes(kept + b'{"number": 7, "tokens": 3, "row": {"mess')
    answered = {line["number"] for line in map(json.loads, kept.splitlines())}
    run = runs.synthesize(prompts, out, settings, how, resume=True)
    assert [next(run).done, next(run).done] == [5, 6] and len(answered) == 4
    run.close()  # killed again: what is cut off the first time must not stand in the middle now
    events = list(runs.synthesize(prompts, out, settings, how, resume=True))
    assert [event.done for event in events[:-1]] == list(range(7, 12))
    assert out.read_bytes() == whole.read_bytes() and about(out)["counts"] == about(whole)["counts"]
    assert not partial.exists()
    partial.write_bytes(kept)  # killed between the last two steps
    code, _, told = cli(*words, "--out", out, "--resume")
    assert code == 0 and "nothing was left to do" in told and out.read_bytes() == whole.read_bytes()
    assert not partial.exists()


def test_sigkill_at_work_loses_nothing_that_was_done(base, tmp_path, cli):
    file = save_rows(tmp_path / "q.jsonl", [{"prompt": f"Say {n}"} for n in range(120)])
    words = ["--model", base, "--prompts", file, "--max-new-tokens", 60, "--temperature", 1, "--batch-size", 2]
    out, partial = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.partial"
    env = os.environ | {"PYTHONPATH": str(Path(unmask.__file__).parents[1])}
    command = [sys.executable, "-m", "unmask", "synthesize", *map(str, words), "--out", str(out)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if partial.exists() and partial.read_bytes().count(b"\n") >= 5:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = partial.read_bytes().count(b"\n")
    assert 5 <= before < 120 and not out.exists()
    code, _, told = cli(*words, "--out", out, "--resume")
    assert code == 0 and cli(*words, "--out", tmp_path / "whole.jsonl")[0] == 0
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_nothing_is_overwritten_or_resumed_as_another(base, questions, tmp_path, cli, failed):
    out = tmp_path / "rows.jsonl"
    words = ["--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 4]
    out.write_text("precious\n")
    assert "rows.jsonl exists; give --resume" in failed(*words)
    assert "was not written by synthesize: rows.about.json is missing" in failed(*words, "--resume")
    assert out.read_text() == "precious\n"
    out.unlink()
    assert cli(*words)[0] == 0
    rows = out.read_bytes()
    assert "rows.jsonl exists" in failed(*words)
    assert "settings.max_new_tokens is 5" in failed(*words[:-1], 5, "--resume")
    other = save_rows(tmp_path / "other.jsonl", [{"prompt": "else"}])
    assert "prompts.count is 1" in failed("--prompts", other, *words[:2], *words[4:], "--resume")
    assert "model.dtype is 'bfloat16'" in failed(*words, "--dtype", "bf16", "--resume")
    assert out.read_bytes() == rows


def test_two_runs_never_write_one_file(base, questions, tmp_path, cli, failed):
    out = tmp_path / "rows.jsonl"
    prompts, settings = prompts_from(str(questions)), Synthesis(max_new_tokens=4)
    run = runs.synthesize(prompts, out, settings, loading(base))
    next(run)
    words = ["--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 4]
    for more in ([], ["--resume"]):
        assert "rows.jsonl is being written by another process; wait until it ends" in failed(*words, *more)
    run.close()
    assert cli(*words, "--resume")[0] == 0 and len(lines(out)) <= len(QUESTIONS)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("text", ["{}", '{"complete": true}', '{"complete": 1, "counts": {}}', "[", "[1]"])
def test_a_damaged_file_about_a_run_is_one_line(base, questions, tmp_path, failed, text):
    out = tmp_path / "rows.jsonl"
    out.write_text("")
    out.with_name("rows.about.json").write_text(text)
    words = ["--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 4, "--resume"]
    assert "rows.about.json" in failed(*words)


def test_prompts_may_begin_with_a_byte_order_mark(base, tmp_path, cli):
    file, out = tmp_path / "q.jsonl", tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + b'{"prompt": "one"}\n')
    assert cli("--model", base, "--prompts", file, "--out", out, "--max-new-tokens", 4)[0] == 0
    assert lines(out)[0]["messages"][0]["content"] == "one"


def test_a_damaged_journal_is_named(base, questions, tmp_path, failed):
    out = tmp_path / "rows.jsonl"
    run = runs.synthesize([Prompt(q, "") for q in QUESTIONS], out, Synthesis(max_new_tokens=4), loading(base))
    next(run)
    run.close()
    partial = tmp_path / "rows.jsonl.partial"
    partial.write_bytes(b"garbage\n" + partial.read_bytes())
    words = ["--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 4, "--resume"]
    assert "partial is damaged at byte 0" in failed(*words)


def test_the_same_prompt_is_asked_once(base, tmp_path, cli):
    texts = ["one  two", "one two", " one\ttwo\n", "one two three"]
    same = [{"messages": [{"role": "user", "content": "one two"}]}, {"prompt": "One two"}]
    file = save_rows(tmp_path / "q.jsonl", [{"prompt": text} for text in texts] + same)
    out = tmp_path / "rows.jsonl"
    _, _, told = cli("--model", base, "--prompts", file, "--out", out, "--max-new-tokens", 30)
    assert "3 dropped: the same prompt as another" in told
    assert [row["messages"][0]["content"] for row in lines(out)] == ["one  two", "one two three", "One two"]


def test_a_run_without_any_row_is_an_error(base, tmp_path, monkeypatch, cli):
    """Only blanks come out of this network."""
    fake = ScriptedBackbone(lambda *_: torch.eye(261)[32] * 50, vocab_size=261)
    monkeypatch.setattr(spread, "backbone_for", lambda *_, **__: fake)
    file, out = save_rows(tmp_path / "q.jsonl", [{"prompt": "a"}, {"prompt": "b"}]), tmp_path / "rows.jsonl"
    code, said, told = cli("--model", base, "--prompts", file, "--out", out)
    assert code == 2 and said == "" and not out.exists()
    assert "error: no row is left of 2 prompts (2 dropped: the answer is empty)" in told.splitlines()[-1]


def test_want_of_memory_ends_the_run_and_drops_nothing(base, questions, tmp_path, monkeypatch, cli):
    words = ["--model", base, "--prompts", questions, "--out", tmp_path / "rows.jsonl", "--max-new-tokens", 4]
    with monkeypatch.context() as patch:
        patch.setattr("unmask.engine.available_memory", lambda device: 1000)
        code, _, told = cli(*words)
    assert code == 2 and "keys and values of" in told
    assert cli(*words, "--resume")[0] == 0 and "the network" not in str(about(tmp_path / "rows.jsonl")["counts"])


def test_a_network_that_fails_on_one_prompt_answers_the_others(base, tmp_path, monkeypatch):
    def script(who: int, position: int, step: int) -> torch.Tensor:
        return torch.full((261,), torch.nan) if position == 6 else torch.eye(261)[97] * 50

    monkeypatch.setattr(spread, "backbone_for", lambda *_, **__: ScriptedBackbone(script, vocab_size=261))
    prompts = [Prompt(text, "") for text in ("a", "bb", "a long one")]
    *_, summary = runs.synthesize(prompts, tmp_path / "r.jsonl", Synthesis(max_new_tokens=2), loading(base))
    [(reason, number)] = summary.counts["dropped"].items()
    assert reason.startswith("the network returned NaN") and number + summary.counts["rows"] == 3 and number < 3


def test_equal_answers_are_kept_and_counted(base, tmp_path, monkeypatch):
    fake = ScriptedBackbone(lambda *_: torch.eye(261)[97] * 50, vocab_size=261)
    monkeypatch.setattr(spread, "backbone_for", lambda *_, **__: fake)
    prompts = [Prompt(text, "") for text in ("a", "b", "c")]
    *_, summary = runs.synthesize(prompts, tmp_path / "r.jsonl", Synthesis(max_new_tokens=4), loading(base))
    assert summary.counts | {"dropped": {}} == {
        "prompts": 3, "rows": 3, "tokens": 12, "cut": 3, "repeated": 2, "dropped": {}
    }  # fmt: skip


LONG = "the quick brown fox jumps over the lazy dog while seven old cats sleep near the barn"


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        (f"Translate: {LONG.upper()}!", True),
        ("Say: " + " ".join(LONG.split()[2:15]), True),  # 13 words in a row
        (" ".join(LONG.split()[:12]) + " and then " + " ".join(LONG.split()[12:]), False),
        ("please name all nine of the great wide rivers now", True),  # holds a text of 8 words
        ("please name all nine of the great rivers", False),
        ("yes, no", True),
        ("yes no maybe", False),
        ("", False),
    ],
)
def test_overlap_with_excluded_texts(text, hit):
    assert Overlap([LONG, "name all nine of the great wide rivers", "Yes: no?", ""]).hits(text) is hit


def test_prompts_that_share_words_with_evaluation_texts_are_dropped(base, tmp_path, cli):
    tests = save_rows(
        tmp_path / "test.jsonl",
        [{"question": LONG, "answer": "12"}, chat("Name the tallest hill.", "x"), {"prompt": "How far is it?"}],
    )
    plain = tmp_path / "plain.txt"
    plain.write_text("What is seven?\n\nWhat is eight?\n")
    asked = [LONG + " now", "Name the tallest hill", "how far is it", "what is EIGHT", "A question of its own", "x"]
    file, out = save_rows(tmp_path / "q.jsonl", [{"prompt": text} for text in asked]), tmp_path / "rows.jsonl"
    code, _, told = cli("--model", base, "--prompts", file, "--exclude", tests, plain, "--out", out)
    assert code == 0 and "4 dropped: shares words with an excluded text" in told
    assert [row["messages"][0]["content"] for row in lines(out)] == asked[4:]
    assert set(about(out)["made_with"]["excluded"]) == {str(tests), str(plain)}


def test_what_adapt_would_refuse_is_dropped_and_counted(base, tmp_path, cli):
    asked = ["fine", "typed <mask> here", "half \ud800", "z" * 600]
    file, out = save_rows(tmp_path / "q.jsonl", [{"prompt": text} for text in asked]), tmp_path / "rows.jsonl"
    _, _, told = cli("--model", base, "--prompts", file, "--out", out, "--max-new-tokens", 40)
    assert "1 dropped: holds the control token '<mask>' as text; remove it" in told
    assert "1 dropped: holds half of a surrogate pair" in told
    assert "1 dropped: longer than the model takes with its answer" in told
    assert re.search(r"1 rows of 4 prompts, \d+ tokens; [01] answers cut, 0 with the text of another", told)
    assert len(lines(out)) == about(out)["counts"]["rows"] == 1


def test_rows_that_would_begin_otherwise_than_the_prompt_are_dropped(tmp_path, questions, failed):
    """O2-07: a template that says more about a chat once it is answered."""
    save_base(tmp_path / "base")
    odd = "{% if messages|length > 1 %}<turn>s done{% endif %}" + SHORT
    byte_tokenizer(template=odd, eos_token="</turn>").save_pretrained(tmp_path / "base")
    said = failed("--model", tmp_path / "base", "--prompts", questions, "--out", tmp_path / "rows.jsonl")
    assert "11 dropped: a training row would not begin with the tokens of the prompt" in said


def test_chats_plain_lines_and_token_ids(base, tmp_path, cli, monkeypatch):
    talk = [*chat("Hi", "Hello")["messages"], {"role": "user", "content": "And now?"}]
    mixed = save_rows(tmp_path / "q.jsonl", [{"messages": talk}, {"prompt_ids": list(b"def f(")}])
    plain, out = tmp_path / "q.txt", tmp_path / "rows.jsonl"
    plain.write_text("First line\n\nSecond line\n")
    stdin = type("Input", (), {"buffer": io.BytesIO(b"Third, by pipe\n")})
    monkeypatch.setattr(sys, "stdin", stdin)
    words = ["--model", base, "--prompts", mixed, plain, "--out", out, "--max-new-tokens", 30, "--limit", 5]
    assert cli(*words, "-")[0] == 0
    rows = lines(out)
    assert rows[0]["messages"][:-1] == talk and rows[0]["messages"][-1]["role"] == "assistant"
    assert rows[1]["prompt"] == "def f(" and rows[1]["completion"] and "messages" not in rows[1]
    assert [row["messages"][0]["content"] for row in rows[2:]] == ["First line", "Second line", "Third, by pipe"]
    model = unmask.load(base)
    expected = model.generate([list(b"def f("), talk], mode="ar", max_new_tokens=30)
    assert expected[0].text.startswith(rows[1]["completion"].rstrip()[:5])
    assert expected[1].text.startswith(rows[0]["messages"][-1]["content"].rstrip()[:5])


def test_a_base_without_a_chat_template_writes_plain_rows(tmp_path, cli):
    tiny_model().save_pretrained(tmp_path / "base")
    byte_tokenizer(template=None, eos_token="<end>").save_pretrained(tmp_path / "base")
    file, out = save_rows(tmp_path / "q.jsonl", [{"prompt": "def g("}]), tmp_path / "rows.jsonl"
    words = ("--model", tmp_path / "base", "--prompts", file, "--out", out, "--max-new-tokens", 9)
    assert cli(*words)[0] == 0
    [row] = lines(out)
    assert row["prompt"] == "def g(" and row["ended"] is False
    code, said, told = cli("--model", tmp_path / "base", "--make", 3, "--out", tmp_path / "made.jsonl")
    assert code == 2 and "--make needs an instruction-tuned model" in told


def writer(seen: list) -> ScriptedBackbone:
    """Draws words of its alphabet, and ends with probability a tenth; the same law whoever asks."""
    logits = torch.full((261,), -60.0)
    logits[torch.tensor(list(b"abcdefgh  "))] = 0.0
    logits[TURN_END] = 0.0
    logits[97] = 0.1

    def script(who: int, position: int, step: int) -> torch.Tensor:
        seen.append(who)
        return logits

    return ScriptedBackbone(script, vocab_size=261)


def test_the_model_makes_prompts_and_answers_them(base, tmp_path, monkeypatch, cli):
    seen: list = []
    monkeypatch.setattr(spread, "backbone_for", lambda *_, **__: writer(seen))
    words = ["--model", base, "--make", 60, "--temperature", 1, "--max-prompt-tokens", 20, "--max-new-tokens", 30]
    files = []
    for size in (1, 7):
        out = tmp_path / f"{size}.jsonl"
        code, _, told = cli(*words, "--batch-size", size, "--out", out, "--make-top-p", 1)
        assert code == 0
        files.append(out.read_bytes())
    assert files[0] == files[1]
    rows, dropped = lines(out), about(out)["counts"]["dropped"]
    asked = [row["messages"][0]["content"] for row in rows]
    assert len(rows) > 5 and len(set(asked)) == len(asked) and len({row["messages"][1]["content"] for row in rows}) > 3
    assert all(4 <= len(text) + 2 and len(text) <= 20 and set(text) <= set("abcdefgh ") for text in asked)
    assert dropped["made prompt: no end within 20 tokens"] and dropped["made prompt: shorter than 4 tokens"]
    assert len(rows) + sum(dropped.values()) == about(out)["counts"]["prompts"] == 60
    assert "dropped: made prompt: no end within 20 tokens" in told


def test_making_is_resumed_too(base, tmp_path, monkeypatch):
    monkeypatch.setattr(spread, "backbone_for", lambda *_, **__: writer([]))
    settings = Synthesis(make=30, temperature=1.0, max_prompt_tokens=30, max_new_tokens=20)
    files = []
    for stops in ((), (3, 40)):
        out = tmp_path / f"{len(stops)}.jsonl"
        for stop in stops:
            run = runs.synthesize([], out, settings, loading(base), resume=out.with_name(out.name + ".made").exists())
            while (event := next(run)).done < min(stop, 2 if event.doing == "answering" else stop):
                pass
            run.close()
        *_, summary = runs.synthesize([], out, settings, loading(base), resume=bool(stops))
        files.append((out.read_bytes(), summary.counts))
    assert files[0] == files[1] and not list(tmp_path.glob("*.made"))


def test_the_header_is_what_stands_before_a_users_text(base):
    header = header_of(load_checkpoint(base))
    assert header.ids == [TURN, ord("u")] and TURN_END in header.stop_ids


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (list(b"What is it?"), None),
        (list(b"abc"), "shorter than 4"),
        ([*b"What is", 260, *b"it?"], "not text"),
        ([*b"What is", 200, *b"it?"], "not text"),
        (list(b"ha ha ha ha ha ha ha ha ha ha"), "repeats itself"),
        (list(b"     "), "not text"),
    ],
)
def test_filters_of_made_prompts(base, tokens, reason):
    checkpoint = load_checkpoint(base)
    text = checkpoint.tokenizer.decode(tokens, skip_special_tokens=True)
    answer = Answer(text, tokens, "stop", 2, len(tokens), 1, 0.0, "ar", 0.0, {})
    record = Judge(Synthesis(make=1))(checkpoint, Job(0, [1], 0, {}), answer)
    assert record == {"prompt": text} if reason is None else reason in record["dropped"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say once where prompts come from"),
        (["--prompts", "{questions}", "--make", "3"], "say once where prompts come from"),
        (["--prompts", "gone.jsonl"], "gone.jsonl: cannot be read"),
        (["--prompts", "-", "--prompts", "-"], "standard input is given twice"),
        (["--prompts", "{questions}", "--exclude", "gone.jsonl"], "gone.jsonl: cannot be read"),
        (["--prompts", "{questions}", "--exclude", "{empty}"], "empty.jsonl: holds no text"),
        (["--prompts", "{empty}"], "holds no prompt"),
        (["--prompts", "{bad}"], "bad.jsonl, line 2: must be an object with exactly one of"),
        (["--prompts", "{answered}"], "answered.jsonl, line 1: the last message is the assistant's"),
        (["--prompts", "{ids}"], "ids.jsonl, line 1: these prompt_ids do not come back from their text"),
        (["--prompts", "{beyond}"], "beyond.jsonl, line 1: token 999 is outside the vocabulary"),
        (["--prompts", "{long}"], "no prompt is left to answer (1 dropped: longer than the model takes"),
        (["--prompts", "{questions}", "--workers", "0"], "--workers is 0; allowed: from 1 to 10,000"),
        (["--prompts", "{questions}", "--temperature", "-1"], "--temperature is -1.0; allowed: from 0 to 100"),
        (["--prompts", "{questions}", "--mode", "ar"], "does not know --mode"),
        (["--make", "3", "--make-temperature", "0"], "--make-temperature is 0.0; allowed: above 0"),
        (["--make", "3", "--limit", "3"], "limit is for prompts that are read"),
        (["--make", "3", "--max-prompt-tokens", "3"], "no prompt could be kept"),
        (["--make", "3", "--out", "."], "is a directory"),
        (["--make", "99999999999"], "--make is 99999999999; allowed: from 1 to 10,000,000"),
        (["--make", "3", "--batch-size", "999999999"], "--batch-size is 999999999; allowed: from 1 to 65,536"),
        (["--make", "3", "--out", "x" * 300], "--out has a name of 300 letters, too long for a file"),
        (["--make", "3", "--out", "x" * 241], "--out has a name of 241 letters, too long for a file"),
        (["--prompts", "x" * 300], "cannot be read: File name too long"),
        (["--prompts", "{questions}", "--exclude", "x" * 300], "cannot be read: File name too long"),
        (["--prompts", "{deep}"], "deep.jsonl, line 1: cannot be read (it is nested too deep)"),
        (["--prompts", "{digits}"], "digits.jsonl, line 1: is not JSON"),
        (["--make", "3", "--out", "/dev/null/x.jsonl"], "cannot write"),
    ],
)
def test_wrong_input_is_one_line_before_any_work(base, tmp_path, questions, failed, monkeypatch, words, message):
    monkeypatch.setattr(spread, "backbone_for", None)  # nothing comes as far as the network
    rows = {
        "empty": [],
        "bad": [{"prompt": "x"}, {"text": "y"}],
        "answered": [chat("a", "b")],
        "ids": [{"prompt_ids": [257, 117]}],
        "beyond": [{"prompt_ids": [999]}],
        "long": [{"prompt": "z" * 600}],
    }
    files = {name: str(save_rows(tmp_path / f"{name}.jsonl", each)) for name, each in rows.items()}
    for name, value in {"deep": "[" * 100_000, "digits": "7" * 5000}.items():
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": ' + value)
        files[name] = str(tmp_path / f"{name}.jsonl")
    words = [word.format(questions=questions, **files) for word in words]
    assert message in failed("--model", base, "--out", tmp_path / "rows.jsonl", *words)
    assert not list(tmp_path.glob("rows*"))


def test_a_base_without_an_end_token_is_refused(tmp_path, questions, failed):
    tiny_model().save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    said = failed("--model", tmp_path / "base", "--prompts", questions, "--out", tmp_path / "rows.jsonl")
    assert "has no end token, so its answers would be no training text" in said


def test_a_full_disk_is_one_line_and_can_be_resumed(base, questions, tmp_path, cli):
    out = tmp_path / "rows.jsonl"
    words = ["--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 4]
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)); from unmask.cli import main; sys.exit(main())"
    )
    env = os.environ | {"PYTHONPATH": str(Path(unmask.__file__).parents[1])}
    command = [sys.executable, "-c", script, "synthesize", *map(str, words)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 2 and last.startswith("error: cannot write ") and "--resume continues" in last, last
    assert cli(*words, "--resume")[0] == 0 and cli(*words[:4], "--out", tmp_path / "w.jsonl", *words[6:])[0] == 0
    assert out.read_bytes() == (tmp_path / "w.jsonl").read_bytes()


def test_progress_is_told_in_twenty_lines_at_most(capsys):
    for done in range(1, 1001):
        _print_shares(runs.Progress("answering", done, 1000, done * 5, done / 10), _line)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 20 and told[0] == "answering 50/1000, 50 tokens/s" and "1000/1000" in told[-1]


def test_a_bar_is_drawn_where_someone_watches(base, questions, tmp_path, cli, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, told = cli("--model", base, "--prompts", questions, "--out", tmp_path / "r.jsonl", "--max-new-tokens", 3)
    assert code == 0 and "100%" in told and "answering 11/11" in told


def test_more_workers_need_ray(base, questions, tmp_path, failed, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = failed("--model", base, "--prompts", questions, "--out", tmp_path / "rows.jsonl", "--workers", 2)
    assert "this needs 'ray', which is not installed: pip install 'unmask[scale]'" in said


@pytest.fixture(scope="module")
def ray():
    """A cluster of two processors in this process."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, log_to_driver=False, logging_level="error", include_dashboard=False)
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("default")
def test_the_file_does_not_depend_on_the_workers(ray, base, questions, tmp_path, cli):
    words = ["--model", base, "--prompts", questions, "--max-new-tokens", 12, "--temperature", 1, "--batch-size", 2]
    for count in (1, 2, 3):
        assert cli(*words, "--workers", count, "--out", tmp_path / f"{count}.jsonl")[0] == 0
    one, two, three = ((tmp_path / f"{count}.jsonl").read_bytes() for count in (1, 2, 3))
    assert one == two == three


@pytest.mark.filterwarnings("default")
def test_made_prompts_do_not_depend_on_the_workers(ray, base):
    checkpoint, settings = load_checkpoint(base, lightly=True), Synthesis(make=12, max_prompt_tokens=30)
    header, judge, found = header_of(checkpoint), Judge(settings), []
    for count in (1, 2):
        with spread.workers(checkpoint, loading(base), count) as run:
            asked = settings.prompts(header.stop_ids)
            task = functools.partial(
                work, decoding=asked, judge=lambda c, job, answer: judge(c, job, answer) | {"text": answer.text}
            )
            records = run(task, jobs_to_make(header, settings))
            found.append(sorted(records, key=lambda record: record["number"]))
    assert found[0] == found[1] and len({record["text"] for record in found[0]}) > 8


@pytest.mark.filterwarnings("default")
def test_ray_is_started_and_stopped_where_there_is_none(base, questions, tmp_path):
    pytest.importorskip("ray")
    out = tmp_path / "rows.jsonl"
    words = ["--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 4, "--workers", 2]
    command = [sys.executable, "-m", "unmask", "synthesize", *map(str, words)]
    env = os.environ | {"PYTHONPATH": str(Path(unmask.__file__).parents[1])}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout == f"saved {out}\n", ended.stderr
    assert len(ended.stderr.splitlines()) < 20 and "Traceback" not in ended.stderr


@pytest.mark.filterwarnings("default")
def test_errors_come_back_from_workers(ray, base, questions, tmp_path, cli, monkeypatch):
    def failed(*words: object) -> str:
        code, _, err = cli(*words)  # Ray may say more, on both
        assert code == 2, err
        return next(line for line in err.splitlines() if line.startswith("error: "))

    words = ["--model", base, "--prompts", questions, "--out", tmp_path / "rows.jsonl", "--workers", 2]
    assert "dtype int8 needs the native backbone" in failed(*words, "--dtype", "int8", "--backbone", "universal")
    died = type("Died", (spread.Worker,), {"work": lambda self, *_: (yield os._exit(1))})
    monkeypatch.setattr(spread, "Worker", died)
    (tmp_path / "rows.about.json").unlink()
    assert "a worker died, perhaps for want of memory; --resume continues" in failed(*words)


COMMANDS = re.findall(r"^unmask (synthesize .*)$", DOC, re.MULTILINE)


def test_the_documented_commands_run(base, tmp_path, monkeypatch, capfd):
    assert len(COMMANDS) >= 4
    monkeypatch.chdir(tmp_path)
    save_rows(tmp_path / "questions.jsonl", [{"prompt": text} for text in QUESTIONS])
    save_rows(tmp_path / "test.jsonl", [{"question": LONG}])
    (tmp_path / "more.txt").write_text("Another one\n")
    monkeypatch.setattr(spread, "backbone_for", lambda *_, **__: writer([]))
    for command in COMMANDS:
        words = shlex.split(command.partition("#")[0])
        if "--workers" in words:
            continue  # the same with Ray is tested above
        words = [str(base) if before == "--model" else word for before, word in zip(["", *words], words, strict=False)]
        assert main([*words, *([] if "--model" in words else ["--model", str(base)])]) == 0, capfd.readouterr().err
    assert lines(tmp_path / "rows.jsonl")


def test_the_documented_counts_are_those_in_the_file(base, questions, tmp_path, cli):
    out = tmp_path / "rows.jsonl"
    assert cli("--model", base, "--prompts", questions, "--out", out, "--max-new-tokens", 4)[0] == 0
    table = re.findall(r"^\| `(\w+)` \|", DOC, re.MULTILINE)
    assert table == list(about(out)["counts"])
    assert set(about(out)) == {"complete", "counts", "made_with"} and about(out)["complete"] is True
