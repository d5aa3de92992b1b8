"""Wrong input through the command line: one clear line, the right exit code, nothing lost."""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from training import chat, many_rows, recipe, save_base, save_rows

import unmask
from unmask.cli import main
from unmask.model.learner import Learner


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    """An adapter for blocks of 8 that has learned nothing yet."""
    place = tmp_path_factory.mktemp("adapted")
    Learner(recipe(base, place / "rows.jsonl", place)).save(place / "model")
    return place / "model"


@pytest.fixture
def toml(base, tmp_path):
    save_rows(tmp_path / "rows.jsonl", many_rows(8))
    file = tmp_path / "recipe.toml"
    file.write_text(
        f'base = "{base}"\ndata = ["{tmp_path}/rows.jsonl"]\noutput = "{tmp_path}/run"\nmethod = "full"\n'
        "block_size = 8\nsub_block_size = 4\nsteps = 4\nbatch_rows = 4\nsave_every = 2\n"
    )
    return file


@pytest.fixture
def failed(capfd):
    """Run the command line; it must fail with one `error:` line and nothing else, which is returned."""

    def run(*words):
        capfd.readouterr()
        assert main([str(word) for word in words]) == 2
        out, err = capfd.readouterr()
        lines = [line for line in err.splitlines() if not line.startswith("step ")]
        assert out == "" and len(lines) == 1 and lines[0].startswith("error: "), err
        return lines[0]

    return run


def test_a_missing_data_file(toml, tmp_path, failed):
    gone = tmp_path / "gone.jsonl"
    assert failed("adapt", toml, "--data", gone) == f"error: {gone}: there is no such file"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": [', "line 7: is not JSON (Expecting value at column 15)"),
        (
            '{"messages": [{"role": "user", "content": "x"}]}',
            "line 7, field 'messages': holds no assistant turn: a row needs an answer",
        ),
        ('{"prompt": "x", "completion": ""}', "line 7, field 'completion': is empty: a row needs an answer"),
    ],
)
def test_a_bad_row_on_line_7(toml, tmp_path, failed, line, message):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in many_rows(6)) + line + "\n")
    assert failed("adapt", toml) == f"error: {rows}, {message}"


def test_data_of_which_nothing_is_left(toml, tmp_path, failed):
    rows = save_rows(tmp_path / "rows.jsonl", [chat("q" * 100, "a")])
    assert failed("adapt", toml, "--max-length", 64) == (
        f"error: no row with an answer is left of {rows} (1 dropped: the answer begins after max_length 64); "
        "raise max_length above 64 or give other data"
    )


def test_an_unknown_key_and_a_refused_value_in_a_recipe(toml, failed):
    text = toml.read_text()
    toml.write_text(text + "packing = true\n")
    assert f"{toml}, line 10: packing is not a setting" in failed("adapt", toml)
    toml.write_text(text.replace("steps = 4", "steps = 0"))
    assert f"{toml}, line 7: steps is 0; allowed: from 1 to 1000000000" in failed("adapt", toml)


def test_a_missing_base_and_a_missing_recipe(toml, tmp_path, failed):
    assert failed("adapt", toml, "--base", tmp_path / "nobase") == f"error: there is no directory {tmp_path}/nobase"
    assert failed("adapt", tmp_path / "none.toml") == f"error: there is no file {tmp_path}/none.toml"


def test_a_prompt_beyond_the_context(base, failed):
    message = failed("generate", "--model", base, "--mode", "ar", "--raw", "--prompt", "x" * 5000)
    assert "5000" in message and "4096" in message


def test_a_threshold_of_1_7(adapted, failed):
    message = failed("generate", "--model", adapted, "--prompt", "x", "--threshold", "1.7")
    assert message == "error: --threshold is 1.7; allowed: from 0 to 1"


def test_a_block_size_that_contradicts_the_checkpoint(adapted, failed):
    message = failed("generate", "--model", adapted, "--prompt", "x", "--block-size", "12")
    assert message.startswith("error: --block-size 12 does not divide 8, the size the checkpoint was trained with")


@contextmanager
def full_disk(room):
    """No file can grow beyond `room` bytes: the write fails in the middle, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_while_saving_loses_nothing(toml, tmp_path, failed, capfd):
    output = tmp_path / "run"
    assert main(["adapt", str(toml)]) == 0
    before = {
        file: file.read_bytes() for file in sorted(output.rglob("*")) if file.name != "recipe.json" and file.is_file()
    }
    capfd.readouterr()
    with full_disk(50_000):
        message = failed("adapt", toml, "--resume", "--steps", 8)
    assert message.startswith(f"error: cannot save to {output}/state-0000006: ") and "untouched" in message
    assert not [path for path in output.rglob("*") if path.name.endswith(".tmp")]
    for file, content in before.items():
        assert file.read_bytes().startswith(content), file  # the log has grown
    assert unmask.load(output / "model", device="cpu").generate(["x"], max_new_tokens=4)[0].error is None
    assert main(["adapt", str(toml), "--resume", "--steps", "8"]) == 0
    assert unmask.load(output / "model", device="cpu").spec.block_size == 8


def test_a_full_disk_while_logging_is_one_line(toml, failed):
    with full_disk(2000):
        message = failed("adapt", toml, "--steps", 12, "--save-every", 100)
    assert message.startswith("error: cannot write to ") and "the last saved state is untouched" in message


def test_ctrl_c_in_generation(base):
    environment = os.environ | {"PYTHONPATH": str(Path(unmask.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "unmask",
            "generate",
            "--model",
            str(base),
            "--mode",
            "ar",
            "--raw",
            "--prompt",
            "abc",
            "--max-new-tokens",
            "4000",
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    begun = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.decode().splitlines() == ["interrupted"]
    assert begun and len(out) < 3990
