"""The command line: contract, messages, exit codes."""

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny import MASK, byte_tokenizer, tiny_model

import unmask
import unmask.api
from unmask.cli import COMMANDS, main
from unmask.config import BlockSpec
from unmask.model.checkpoint import save_full
from unmask.model.native import build

GOLDEN = Path(__file__).parent / "golden"
TRACES = [json.loads(line) for line in (GOLDEN / "decode.jsonl").read_text().splitlines()]
KEYS = ["text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens", "forwards", "seconds", "mode"]
SOURCE = Path(unmask.__file__).parent.parent
ENV = os.environ | {"PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def causal(tmp_path_factory):
    """A random checkpoint with byte tokenizer, chat template and context "causal"."""
    directory = tmp_path_factory.mktemp("cli") / "causal"
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal")
    model = tiny_model(max_position_embeddings=100_000)
    save_full(model, byte_tokenizer(eos_token="<end>", bos_token="<turn>"), spec, directory)
    return str(directory)


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cli") / "plain"
    tiny_model().save_pretrained(directory)
    byte_tokenizer(eos_token="<end>").save_pretrained(directory)
    return str(directory)


@pytest.fixture
def cli(capsys):
    """Run in this process; returns (exit code, standard output, standard error)."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


def started(*words: object, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "unmask", *map(str, words)]
    return subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def fails(result: tuple[int, str, str], message: str) -> None:
    """The result is exit code 2 with one line that starts with `error:` and holds the message."""
    code, out, err = result
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err, err


def golden_words(trace, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt_ids": trace["prompt_ids"]}) + "\n")
    words = [
        "generate",
        "--model",
        GOLDEN / trace["checkpoint"],
        "--mask-id",
        511,
        "--prompts",
        prompts,
        "--json",
        "--mode",
        "threshold",
        "--threshold",
        trace["threshold"],
        "--block-size",
        trace["block_size"],
        "--sub-block-size",
        trace["sub_block_size"],
        "--stop-ids",
        trace["stop_id"],
        "--max-new-tokens",
        len(trace["token_ids"]),
    ]
    return words + ([] if trace["sub_block_cache"] else ["--no-sub-block-cache"])


def check_golden(row, trace):
    assert list(row) == KEYS and row["text"] is None and row["mode"] == "threshold"
    wrote = row["token_ids"] + ([trace["stop_id"]] if row["finish_reason"] == "stop" else [])
    assert wrote == trace["token_ids"] and row["forwards"] == trace["forwards"]
    assert row["completion_tokens"] == len(row["token_ids"]) and row["prompt_tokens"] == len(trace["prompt_ids"])


@pytest.mark.parametrize("trace", TRACES[::25], ids=str)
def test_golden_traces_through_the_command_line(cli, tmp_path, trace):
    code, out, err = cli(*golden_words(trace, tmp_path))
    assert (code, err) == (0, "")
    check_golden(json.loads(out), trace)


def test_a_golden_trace_through_a_process_of_its_own(tmp_path):
    with started(*golden_words(TRACES[1], tmp_path)) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    check_golden(json.loads(out), TRACES[1])


def test_one_prompt_is_streamed_and_figures_go_to_standard_error(cli, causal):
    words = ("generate", "--model", causal, "--prompt", "hi", "--mode", "ar", "--max-new-tokens", 12)
    code, out, err = cli(*words)
    assert code == 0 and out.endswith("\n")
    assert err.startswith("12 tokens in ") and "12 forwards, 1.00 tokens per forward, mode ar" in err
    _, as_json, _ = cli(*words, "--json")
    assert json.loads(as_json)["text"] == out[:-1]


def test_auto_is_verified_where_the_checkpoint_can_and_equals_ar(cli, causal):
    words = ("generate", "--model", causal, "--prompt", "hi", "--max-new-tokens", 20, "--json")
    verified, ar = (json.loads(cli(*words, *more)[1]) for more in ([], ["--mode", "ar"]))
    assert (verified["mode"], ar["mode"]) == ("verified", "ar")
    assert verified["token_ids"] == ar["token_ids"] and verified["forwards"] != ar["forwards"]


def test_many_prompts_come_in_their_order_with_the_time_of_the_batch(cli, causal, tmp_path):
    rows = [
        {"prompt": "a much longer prompt than the others", "kind": "x"},
        {"prompt_ids": [65]},
        {"messages": [{"role": "user", "content": "b"}]},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    words = ("generate", "--model", causal, "--max-new-tokens", 9, "--prompts", tmp_path / "p.jsonl")
    code, out, err = cli(*words, "--json", "--batch-size", 2)
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [row["prompt_tokens"] for row in found][1] == 1 and found[0]["prompt_tokens"] > found[2]["prompt_tokens"] > 1
    assert all(list(row) == [*KEYS, "batch_seconds"] for row in found)
    assert max(row["batch_seconds"] for row in found) >= max(row["seconds"] for row in found)
    code, out, err = cli(*words)
    assert code == 0 and "[1]\n" in out and "[3]\n" in out and err.startswith("2")


def test_raw_leaves_the_chat_template_out(cli, causal):
    words = ("generate", "--model", causal, "--prompt", "abc", "--max-new-tokens", 1, "--json")
    raw, chat = (json.loads(cli(*words, *more)[1])["prompt_tokens"] for more in (["--raw"], []))
    assert raw in (3, 4) and chat > 10


def standard_input(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


@pytest.mark.parametrize("text", [b"one\n\ntwo\n", b' {"prompt": "one"}\n{"prompt": "two"}\n'])
def test_standard_input_is_lines_or_jsonl(cli, causal, monkeypatch, text):
    standard_input(monkeypatch, text)
    code, out, _ = cli("generate", "--model", causal, "--max-new-tokens", 2, "--json", "--stop-ids", 5, "-")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) == 2 and rows[0]["prompt_tokens"] == rows[1]["prompt_tokens"]


def test_a_plain_model_answers_in_ar_mode_only(cli, plain):
    code, out, _ = cli("generate", "--model", plain, "--prompt", "a", "--max-new-tokens", 2, "--json")
    assert code == 0 and json.loads(out)["mode"] == "ar"
    fails(cli("generate", "--model", plain, "--prompt", "a", "--mode", "threshold"), "plain autoregressive model")
    fails(cli("generate", "--model", plain, "--prompt", "a", "--mask-id", 5), "plain autoregressive model")


def test_a_plain_model_without_tokenizer_or_unused_id_writes_what_transformers_writes(cli, tmp_path):
    """No id is banned: the network's favourite is the id that a mask would take."""
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[MASK] *= 3
    model.save_pretrained(tmp_path / "m")
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt_ids": [1, 2, 3]}))
    code, out, err = cli(
        "generate", "--model", tmp_path / "m", "--prompts", tmp_path / "p.jsonl", "--max-new-tokens", 12, "--json"
    )
    ids = torch.tensor([[1, 2, 3]])
    theirs = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    assert code == 0 and json.loads(out)["token_ids"] == theirs[0, 3:].tolist()
    assert MASK in json.loads(out)["token_ids"]


@pytest.mark.parametrize(
    ("words", "warnings"),
    [
        (
            ["--threshold", "0.5", "--rule", "top-k:2", "--mode", "threshold"],
            ["--threshold has no effect with rule top-k"],
        ),
        (
            ["--top-p", "0.5", "--seed", "1"],
            ["--top-p has no effect at temperature 0", "--seed has no effect at temperature 0"],
        ),
        (
            ["--mode", "ar", "--rule", "factor", "--no-sub-block-cache", "--block-size", "4"],
            [f"--{name} has no effect in mode ar" for name in ("rule", "no-sub-block-cache", "block-size")],
        ),
        (
            ["--threshold", "0.5", "--sub-block-size", "2"],
            ["--threshold has no effect in mode verified", "--sub-block-size has no effect in mode verified"],
        ),
        (["--mode", "threshold", "--temperature", "1", "--top-p", "0.5", "--seed", "1", "--threshold", "0.5"], []),
        (["--mode", "verified", "--block-size", "4"], []),
    ],
)
def test_a_setting_without_effect_warns(cli, causal, words, warnings):
    code, _, err = cli("generate", "--model", causal, "--prompt", "a", "--max-new-tokens", 2, "--json", *words)
    assert code == 0 and err.splitlines() == [f"warning: {line}" for line in warnings]


def test_tokens_per_second_are_those_of_the_wall_clock(cli, causal, tmp_path):
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt_ids": [n]}) for n in range(4)))
    words = ("generate", "--model", causal, "--mode", "ar", "--max-new-tokens", 40, "--batch-size", 1)
    began = time.perf_counter()
    code, _, err = cli(*words, "--prompts", tmp_path / "p.jsonl")
    wall = time.perf_counter() - began
    tokens, seconds, rate = (
        float(found) for found in re.match(r"(\d+) tokens in (\S+) s: (\S+) tokens/s", err).groups()
    )
    rows = [json.loads(line) for line in cli(*words, "--prompts", tmp_path / "p.jsonl", "--json")[1].splitlines()]
    assert code == 0 and seconds <= wall and rate == pytest.approx(tokens / seconds, rel=0.2)
    alone = [row["seconds"] for row in rows]
    assert rows[-1]["batch_seconds"] >= sum(alone) * 0.99 and sum(row["completion_tokens"] for row in rows) == tokens
    assert seconds > 1.5 * max(alone)


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["--prompt", "-"], None),
        (["--prompt", "a", "--stop", "-"], None),
        (["--prompt", "a", "--stop", "x", "--stop", "-"], None),
        (["--json", "-"], b"a\n"),
        (["--stop", "x", "-"], b"a\n"),
        (["--stop", "-", "-"], b"a\n"),
        (["-", "--stop", "-"], b"a\n"),
    ],
)
def test_a_dash_behind_a_flag_is_its_value(cli, causal, monkeypatch, words, stdin):
    asked = []
    monkeypatch.setattr(unmask.api.Model, "run", lambda self, requests: asked.extend(requests) or iter(()))
    monkeypatch.setattr("unmask.commands.generate.figures", lambda answers, why: "")
    standard_input(monkeypatch, stdin or b"from standard input")
    assert cli("generate", "--model", causal, "--raw", *words)[0] == 0
    assert bytes(asked[0].prompt_ids[-1:]) == (b"-" if words == ["--prompt", "-"] else b"a")
    assert ("-" in asked[0].decoding.stop) == (["--stop", "-"] in [words[i : i + 2] for i in range(len(words))])


@pytest.mark.parametrize("device", ["foo", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_device_that_is_not_there_is_named(cli, device):
    fails(cli("generate", "--model", "./none", "--device", device, "--prompt", "a"), f"device is '{device}'")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["fly"],
            f"unmask has no command 'fly'; there are {', '.join(COMMANDS)}",
        ),
        (["generate", "--prompt", "a", "--thresold", "1"], "does not know --thresold; did you mean --threshold?"),
        (["generate", "--prompt", "a", "--threshold", "1.7"], "--threshold is 1.7; allowed: from 0 to 1"),
        (["generate", "--prompt", "a", "--threshold", "nan"], "--threshold is nan"),
        (["generate", "--prompt", "a", "--mode", "fast"], "--mode is 'fast'; allowed: ar, threshold, verified, auto"),
        (["generate", "--prompt", "a", "--rule", "best"], "rule is 'best'"),
        (["generate", "--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens is 0; allowed: at least 1"),
        (["generate", "--prompt", "a", "--dtype", "int4"], "--dtype is 'int4'"),
        (["generate", "--prompt"], "expected one argument"),
        (["generate"], "give the prompts once"),
        (["generate", "--prompt", "a", "-"], "give the prompts once"),
        (["generate", "what is this"], "'what is this' is not understood"),
        (["generate", "--prompts", "none.jsonl"], "none.jsonl: cannot be read: No such file or directory"),
        (["generate", "--prompt", "a", "--model", "./none"], "there is no directory ./none"),
        (["generate", "--prompt", "a", "--batch-size", "0"], "--batch-size is 0; allowed: from 1 to 65,536"),
        (["adapt"], "give a recipe"),
        (["adapt", "none.toml"], "there is no file none.toml"),
        (["doctor", "--model", "./none"], "there is no directory ./none"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(cli, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*words)
    fails((code, "" if words[0] == "doctor" else out, err), message)


def test_a_block_size_that_does_not_divide_names_flag_and_trained_size(cli, causal):
    words = ("generate", "--model", causal, "--prompt", "a", "--mode", "threshold", "--block-size", 3)
    fails(cli(*words), "--block-size 3 does not divide 8")


def test_a_mask_id_that_contradicts_the_checkpoint_names_both(cli, causal):
    fails(cli("generate", "--model", causal, "--prompt", "a", "--mask-id", 9), "--mask-id 9 contradicts")


def test_a_checkpoint_without_mask_id_and_tokenizer_says_what_to_give(cli):
    fails(cli("generate", "--model", GOLDEN / "tiny_tied", "--prompt", "a"), "give --mask-id N")
    fails(cli("generate", "--model", GOLDEN / "tiny_tied", "--mask-id", 511, "--prompt", "a"), "no tokenizer")


def test_logprobs_come_with_json_and_are_natural_logarithms(cli, causal):
    words = ("generate", "--model", causal, "--prompt", "a", "--max-new-tokens", 5, "--logprobs", 2)
    code, out, err = cli(*words, "--json")
    answer = json.loads(out)
    assert code == 0 and [each["token_id"] for each in answer["logprobs"]] == answer["token_ids"]
    for each in answer["logprobs"]:
        assert len(each["likeliest"]) == 2 and each["logprob"] <= 0
        assert each["likeliest"][0] == {"token_id": each["token_id"], "logprob": pytest.approx(each["logprob"])}, (
            "greedy"
        )
    assert "warning: --logprobs shows with --json only" in cli(*words)[2]
    fails(cli(*words, "--mode", "threshold"), "--logprobs is 2, but mode threshold")


def test_the_last_line_says_what_auto_took_and_why(cli, causal):
    assert (
        "mode verified (ar's text; unmask bench has not measured here how much sooner)"
        in cli("generate", "--model", causal, "--prompt", "a", "--max-new-tokens", 2)[2]
    )
    assert cli("generate", "--model", causal, "--prompt", "a", "--max-new-tokens", 2, "--mode", "ar")[2].endswith(
        "mode ar\n"
    )


def test_sampled_text_is_the_same_in_modes_ar_and_verified(cli, causal):
    words = ("generate", "--model", causal, "--prompt", "a", "--temperature", 0.9, "--max-new-tokens", 20, "--json")
    one, two, other = (
        json.loads(cli(*words, "--mode", mode, "--seed", seed)[1])["token_ids"]
        for mode, seed in (("ar", 3), ("verified", 3), ("verified", 4))
    )
    assert one == two != other


def test_a_setting_in_a_line_is_warned_of_once(cli, causal, tmp_path):
    file = tmp_path / "p.jsonl"
    rows = [{"prompt": "a", "id": 3, "max_new_tokens": 2}, {"prompt": "b", "seed": 1}, {"prompt": "c", "seed": 2}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = cli("generate", "--model", causal, "--prompts", file, "--max-new-tokens", 3, "--json")
    assert code == 0 and len(out.splitlines()) == 3
    assert f"warning: {file}, line 1: max_new_tokens in a line has no effect; --max-new-tokens holds for all" in err
    assert err.count("seed in a line") == 1 and "line 2: seed" in err and "id in a line" not in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "a"', "line 7: is not JSON"),
        (b'{"text": "a"}', "line 7: must be an object with exactly one of prompt, messages, prompt_ids; found none"),
        (b'{"prompt": "a", "prompt_ids": [1]}', "found prompt and prompt_ids"),
        (b'{"prompt": 3}', "line 7, field 'prompt': must be text"),
        (b'{"prompt_ids": []}', "line 7, field 'prompt_ids'"),
        (b'{"prompt_ids": [1, -1]}', "line 7, field 'prompt_ids'"),
        (b'{"prompt_ids": [true]}', "line 7, field 'prompt_ids'"),
        (b'{"messages": [{"role": "user"}]}', "line 7, field 'messages'"),
        (b'{"prompt": "\xff"}', "line 7: is not UTF-8"),
        (b"[1]", "found none"),
    ],
)
def test_a_broken_line_is_named_before_a_model_is_loaded(cli, tmp_path, line, message):
    (tmp_path / "p.jsonl").write_bytes(b'{"prompt": "fine"}\n' * 6 + line + b"\n")
    fails(cli("generate", "--model", "./none", "--prompts", tmp_path / "p.jsonl"), message)


def test_an_empty_prompts_file_is_an_error(cli, tmp_path):
    (tmp_path / "p.jsonl").write_text("\n")
    fails(cli("generate", "--prompts", tmp_path / "p.jsonl"), "holds no prompt")


def test_a_prompt_that_is_too_long_does_not_take_its_neighbours_with_it(cli, tmp_path):
    rows = [{"prompt_ids": [1, 2]}, {"prompt_ids": [3] * 40_000}, {"prompt_ids": [4]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, out, err = cli(
        "generate",
        "--model",
        GOLDEN / "tiny_tied",
        "--mask-id",
        511,
        "--max-new-tokens",
        3,
        "--prompts",
        tmp_path / "p.jsonl",
        "--json",
    )
    assert code == 2 and [json.loads(line)["prompt_tokens"] for line in out.splitlines()] == [2, 1]
    assert err.startswith("error: ") and "line 2" in err and "40000" in err and "32768" in err


@pytest.mark.parametrize("words", [[], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=str)
def test_help_reads_and_ends_well(cli, words):
    code, out, err = cli(*words)
    assert code == 0 and err == "" and "usage: unmask" in out and "examples:" in out
    assert all(len(line) <= 120 for line in out.splitlines())


def test_version(cli):
    assert cli("--version") == (0, f"unmask {unmask.__version__}\n", "")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from unmask.cli import main; main(['generate', '--help']); import unmask;"
        "heavy = {'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_template_is_printed(cli):
    code, out, err = cli("adapt", "--template")
    assert (code, err) == (0, "") and '# base = "…"' in out and "block_size = 32" in out


def test_adapting_through_the_command_line_and_decoding_the_result(cli, plain, tmp_path):
    rows = [{"messages": [{"role": "user", "content": c}, {"role": "assistant", "content": c * 20}]} for c in "abcd"]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'base = "{plain}"\ndata = ["{tmp_path}/rows.jsonl"]\noutput = "{tmp_path}/run"\nsteps = 9\n'
        'context = "causal"\nadapter_scope = "draft"\nblock_size = 8\nsub_block_size = 4\nrank = 2\n'
    )
    code, out, err = cli("adapt", recipe, "--steps", 2, "--batch-rows", 2)
    assert (code, out) == (0, f"saved {tmp_path}/run/model\n"), err
    assert err.splitlines()[-1].startswith("step 2/2 loss ")
    fails(cli("adapt", recipe, "--steps", 2, "--batch-rows", 2), "--resume")
    fails(cli("adapt", recipe, "--rnak", 2), "did you mean --rank?")
    words = ("generate", "--model", tmp_path / "run" / "model", "--prompt", "a", "--max-new-tokens", 12, "--json")
    verified, ar = (json.loads(cli(*words, "--mode", mode)[1]) for mode in ("verified", "ar"))
    assert verified["token_ids"] == ar["token_ids"]
    base = json.loads(cli("generate", "--model", plain, *words[3:])[1])
    assert ar["token_ids"] == base["token_ids"]


def test_the_papers_form_through_the_command_line(cli, plain, tmp_path):
    row = {"prompt": "ab", "completion": "cd" * 9}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "r.toml").write_text(f'base = "{plain}"\ndata = ["{tmp_path}/rows.jsonl"]\noutput = "{tmp_path}/run"\n')
    code, _, err = cli("adapt", tmp_path / "r.toml", "--method", "full", "--steps", 2, "--block-size", 16)
    assert code == 0, err
    words = ("generate", "--model", tmp_path / "run" / "model", "--prompt", "ab", "--raw", "--max-new-tokens", 20)
    row = json.loads(cli(*words, "--json")[1])
    assert row["mode"] == "threshold" and row["finish_reason"] in ("stop", "length")
    fails(cli(*words, "--mode", "verified"), "context 'causal'")


def test_doctor_tells_about_machine_and_model(cli, causal):
    code, out, err = cli("doctor", "--model", causal)
    assert (code, err) == (0, "")
    for word in ("cores", "memory free", "torch", "demo base", "qwen2", "fits            yes", "native backbone ready"):
        assert word in out


def test_without_a_compiler_doctor_says_so_and_models_run_on_the_universal_backbone(cli, causal, monkeypatch, tmp_path):
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    build.library.cache_clear()
    code, out, _ = cli("doctor")
    assert code == 0 and "native backbone no: there is no C compiler (gcc, cc); install one, or set CC" in out
    words = ("generate", "--model", causal, "--prompt", "hi", "--max-new-tokens", "5", "--mode", "ar")
    code, out, err = cli(*words, "--backbone", "native")
    assert code == 0 and err.startswith("note: backbone universal, since there is no C compiler")
    fails(cli(*words, "--dtype", "int8"), "dtype int8 needs the native backbone, which cannot run this model here")
    monkeypatch.undo()
    assert cli(*words)[:2] == (0, out)  # the same text from the native one


def test_threads_are_those_that_were_asked_for(cli, causal, monkeypatch):
    before, taken = torch.get_num_threads(), []
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    original = unmask.engine.Engine.step
    monkeypatch.setattr(
        unmask.engine.Engine, "step", lambda self: (taken.append(torch.get_num_threads()), original(self))[1]
    )
    try:
        words = ("generate", "--model", causal, "--prompt", "Hello", "--max-new-tokens", 2, "--threads")
        assert cli(*words, 1)[0] == 0 and set(taken) == {1} and os.environ["OMP_NUM_THREADS"] == "1"
        assert cli(*words, 3)[0] == 0 and taken[-1] == 3
        fails(cli(*words, 0), "--threads is 0; allowed: from 1 to ")
    finally:
        torch.set_num_threads(before)


def test_our_own_fault_is_exit_code_1_with_a_hint(cli, monkeypatch):
    monkeypatch.setattr("unmask.commands.doctor._machine", lambda: 1 / 0)
    code, _, err = cli("doctor")
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("internal error: ZeroDivisionError: division by zero (run again with --debug")
    code, _, err = cli("doctor", "--debug")
    assert code == 1 and "Traceback" in err and "division by zero" in err


ENDLESS = ("--prompt", "hi", "--mode", "ar", "--max-new-tokens", 50_000, "--stop-ids", 300)


def test_interrupted_generation_is_130_and_what_was_written_stays(causal):
    with started("generate", "--model", causal, *ENDLESS) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "interrupted\n")


def test_a_reader_that_goes_away_is_no_error(causal):
    with started("generate", "--model", causal, *ENDLESS) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait(timeout=60) == 0


def test_python_interface_streams_and_generates(causal):
    model = unmask.load(causal)
    events = list(model.stream("hi", mode="verified", max_new_tokens=10))
    answer = model.generate(["hi", [1, 2, 3], [{"role": "user", "content": "x"}]], mode="verified", max_new_tokens=10)
    assert isinstance(events[-1], unmask.Finished)
    settled = [event for event in events if isinstance(event, unmask.Committed)]
    assert "".join(event.text for event in settled) == events[-1].answer.text == answer[0].text
    assert [a.prompt_tokens for a in answer][1] == 3
    with pytest.raises(unmask.UnmaskError, match="thresold is not a setting; did you mean threshold"):
        model.generate(["hi"], thresold=0.5)
    with pytest.raises(unmask.UnmaskError, match="block_size 3 does not divide 8"):
        model.generate(["hi"], mode="threshold", block_size=3)
    one, bad, two = model.generate(["hi", [], [1, 2, 3]], mode="verified", max_new_tokens=10)
    assert (one.token_ids, two.token_ids) == (answer[0].token_ids, answer[1].token_ids)
    assert "messages is empty" in str(bad.error) and (bad.finish_reason, bad.text, bad.token_ids) == ("error", "", [])
    with pytest.raises(unmask.UnmaskError, match="backbone is 'fast'; allowed: auto, native, universal"):
        unmask.load(causal, backbone="fast")


def test_two_streams_can_be_read_in_turn(causal):
    model = unmask.load(causal)
    texts = ["", ""]
    alone = [answer.text for answer in (model.generate([p], mode="ar", max_new_tokens=12)[0] for p in ("one", "two"))]
    pair = [model.stream(p, mode="ar", max_new_tokens=12) for p in ("one", "two")]
    for events in zip(*pair, strict=False):
        for n, event in enumerate(events):
            texts[n] += getattr(event, "text", None) or ""
    assert texts == alone


def test_every_public_name_is_there_and_the_list_is_right():
    assert set(unmask.__all__) == {
        "__version__",
        "load",
        "Model",
        "adapt",
        "Answer",
        "Committed",
        "Finished",
        "Provisional",
        "BlockSpec",
        "Decoding",
        "UnmaskError",
    }
    for name in unmask.__all__:
        assert getattr(unmask, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        unmask.nothing  # noqa: B018


def test_the_training_module_does_not_hide_the_function():
    importlib.import_module("unmask.adapt")
    assert callable(unmask.adapt) and unmask.adapt.__module__ == "unmask.api"


def test_an_interrupted_line_is_ended(capsys):
    from unmask.commands.generate import _print_answers
    from unmask.events import Committed

    def events():
        yield Committed(0, [1], "half a sen")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _print_answers(events(), [], alone=True, as_json=False, advance=lambda: None)
    assert capsys.readouterr().out == "half a sen\n"
