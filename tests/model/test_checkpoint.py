"""Loading and saving whole checkpoints."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import MASK, byte_tokenizer, tiny_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

import unmask
from unmask.config import BlockSpec
from unmask.errors import CapacityError, CheckpointError, ConfigError, UnsupportedModelError
from unmask.model import files, hf
from unmask.model.checkpoint import load_checkpoint, save_full
from unmask.model.masktoken import choose_mask_id, prepare_mask

GOLDEN = Path(__file__).parent.parent / "golden"
SPEC = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal")
TOKENS = torch.arange(40)[None] % 200
SMALL: dict[str, Any] = {
    "vocab_size": 261,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def logits(model: Any, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens).logits.float()


def edit(directory: Path, **entries: Any) -> Path:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    return directory


@pytest.fixture
def plain(tmp_path):
    tiny_model().save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


def test_saved_checkpoint_comes_back_with_its_spec(tmp_path):
    model, tokenizer = tiny_model(), byte_tokenizer(eos_token="<end>")
    save_full(model, tokenizer, SPEC, tmp_path / "full")
    loaded = load_checkpoint(tmp_path / "full")
    assert (loaded.spec.block_size, loaded.spec.mask_id, loaded.spec.context) == (8, MASK, "causal")
    assert loaded.spec.stop_ids == loaded.stop_ids == (256,)
    assert torch.equal(logits(model), logits(loaded.model))
    assert loaded.tokenizer.chat_template == tokenizer.chat_template
    assert loaded.draft_model is None and loaded.mask_vector is None


def test_plain_model_has_no_spec(plain):
    assert load_checkpoint(plain).spec is None


def test_a_tokenizer_is_what_its_files_say_whatever_the_model_type(plain):
    byte_tokenizer().save_pretrained(plain)
    loaded = load_checkpoint(plain)
    assert len(loaded.tokenizer) == 261 and loaded.tokenizer.eos_token is None and loaded.stop_ids == ()
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("aé 你\n1 2")) == "aé 你\n1 2"


def test_an_end_token_that_the_network_cannot_write_ends_nothing(plain):
    byte_tokenizer("<beyond>", eos_token="<beyond>").save_pretrained(plain)
    assert load_checkpoint(plain).stop_ids == ()


@pytest.mark.parametrize("name", ["tiny_untied1", "tiny_tied"])
def test_official_layout_is_read_as_qwen2(name):
    loaded = load_checkpoint(GOLDEN / name, mask_id=511)
    assert loaded.spec == BlockSpec(block_size=32, sub_block_size=8, mask_id=511, stop_ids=(509, 510), context="block")
    assert type(loaded.model).__name__ == "Qwen2ForCausalLM"


def test_official_layout_takes_the_mask_id_of_its_tokenizer(tmp_path):
    shutil.copytree(GOLDEN / "tiny_tied", tmp_path / "official")
    byte_tokenizer("|<MASK>|").save_pretrained(tmp_path / "official")
    assert load_checkpoint(tmp_path / "official").spec.mask_id == 261
    with pytest.raises(ConfigError, match="--mask-id 511 contradicts .* mask id is 261"):
        load_checkpoint(tmp_path / "official", mask_id=511)


def test_official_layout_without_tokenizer_asks_for_the_mask_id():
    with pytest.raises(ConfigError, match="give --mask-id"):
        load_checkpoint(GOLDEN / "tiny_tied")


def test_a_mask_id_that_is_no_row_is_refused():
    with pytest.raises(ConfigError, match="mask id 512 .* 0 to 511"):
        load_checkpoint(GOLDEN / "tiny_tied", mask_id=512)


def test_a_mask_id_that_contradicts_the_saved_one_names_both(tmp_path):
    save_full(tiny_model(), None, SPEC, tmp_path / "full")
    with pytest.raises(ConfigError, match="--mask-id 5 contradicts .* mask id is 260"):
        load_checkpoint(tmp_path / "full", mask_id=5)


def test_o3_01_tied_head_is_the_embedding_after_load_save_load(tmp_path):
    model = tiny_model(tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "a")
    assert "lm_head.weight" not in load_file(tmp_path / "a" / "model.safetensors")
    first = load_checkpoint(tmp_path / "a").model
    save_full(first, None, SPEC, tmp_path / "b")
    for loaded in (first, load_checkpoint(tmp_path / "b").model):
        assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
        assert torch.equal(logits(loaded), logits(model))


def test_o3_02_mask_token_in_a_padded_vocabulary_keeps_every_row(tmp_path):
    model, tokenizer = tiny_model(vocab_size=384), byte_tokenizer(*[f"<extra{n}>" for n in range(39)])
    tokenizer_without_mask = tokenizer.get_vocab().pop("<mask>")
    assert tokenizer_without_mask == MASK and len(tokenizer) == 300
    before = model.get_input_embeddings().weight.detach().clone()
    named = choose_mask_id(model.config, tokenizer)
    assert named == (MASK, False)
    unnamed = _without_mask_name(tokenizer)
    mask_id = prepare_mask(model, unnamed)
    save_full(model, tokenizer, BlockSpec(mask_id=mask_id), tmp_path / "padded")
    loaded = load_checkpoint(tmp_path / "padded")
    assert mask_id == 300 == loaded.spec.mask_id
    assert torch.equal(loaded.model.get_input_embeddings().weight, before)
    assert json.loads((tmp_path / "padded" / "config.json").read_text())["vocab_size"] == 384


class _without_mask_name:
    """A tokenizer whose mask has an ordinary name."""

    eos_token_id = None

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def get_vocab(self) -> dict[str, int]:
        return {"<ordinary>" if name == "<mask>" else name: n for name, n in self.tokenizer.get_vocab().items()}


@pytest.mark.parametrize("tied", [True, False])
def test_o3_02_a_full_vocabulary_gets_one_more_row(tmp_path, tied):
    model, tokenizer = tiny_model(tie_word_embeddings=tied), _without_mask_name(byte_tokenizer())
    before = model.get_input_embeddings().weight.detach().clone()
    assert choose_mask_id(model.config, tokenizer) == (261, True)
    assert prepare_mask(model, tokenizer) == 261
    save_full(model, None, BlockSpec(mask_id=261), tmp_path / "grown")
    loaded = load_checkpoint(tmp_path / "grown").model
    rows = loaded.get_input_embeddings().weight
    assert rows.shape[0] == loaded.get_output_embeddings().weight.shape[0] == loaded.config.vocab_size == 262
    assert torch.equal(rows[:261], before)
    assert torch.allclose(rows[261], before.mean(0), atol=1e-6)


def test_a_wanted_mask_id_is_checked():
    config, tokenizer = tiny_model().config, byte_tokenizer(eos_token="<end>")
    assert choose_mask_id(config, tokenizer, 7) == (7, False)
    with pytest.raises(ConfigError, match="mask id 261 .* 0 to 260"):
        choose_mask_id(config, tokenizer, 261)
    with pytest.raises(ConfigError, match="256 is an end token"):
        choose_mask_id(config, tokenizer, 256)
    with pytest.raises(ConfigError, match="give --mask-id"):
        choose_mask_id(config, None)


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 4.0, **LLAMA3},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
    ],
)
def test_o3_03_rope_scaling_is_applied(tmp_path, rope):
    model = tiny_model(max_position_embeddings=256, rope_parameters=rope | {"rope_theta": 10000.0})
    model.save_pretrained(tmp_path / "rope")
    tokens = torch.arange(200)[None]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "rope").eval()
    ours = load_checkpoint(tmp_path / "rope").model
    assert torch.allclose(logits(ours, tokens), logits(theirs, tokens), atol=1e-4)
    unscaled = tiny_model(max_position_embeddings=256)
    assert torch.equal(logits(ours, tokens), logits(unscaled, tokens)) == (rope["rope_type"] == "default")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "factor": 2.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_o3_03_frequencies_that_change_with_length_are_refused(plain, rope):
    edit(plain, rope_parameters=rope | {"rope_theta": 10000.0})
    with pytest.raises(UnsupportedModelError, match=f"'{rope['rope_type']}' changes its frequencies"):
        load_checkpoint(plain)


def test_o3_04_missing_shard_is_named_before_anything_is_loaded(tmp_path):
    tiny_model().save_pretrained(tmp_path / "shards", max_shard_size="150KB")
    shards = sorted((tmp_path / "shards").glob("model-*.safetensors"))
    assert len(shards) >= 3
    assert load_checkpoint(tmp_path / "shards").model is not None
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=shards[1].name):
        load_checkpoint(tmp_path / "shards")


@pytest.mark.parametrize("keep", [4, 500, -100])
def test_o3_04_a_file_cut_short_is_named(plain, keep):
    file = plain / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="model.safetensors is damaged"):
        load_checkpoint(plain)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_o3_05_pickled_weights_are_refused_unread(plain, tmp_path, name):
    (plain / "model.safetensors").unlink()
    (plain / name).write_bytes(pickle.dumps(Bomb(tmp_path / "marker")))
    with pytest.raises(CheckpointError, match=f"{name}, a pickle"):
        load_checkpoint(plain)
    assert not (tmp_path / "marker").exists()


def test_o3_05_pickles_beside_safe_weights_are_never_read(plain, tmp_path):
    for name in ("pytorch_model.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (plain / name).write_bytes(pickle.dumps(Bomb(tmp_path / "marker")))
    assert load_checkpoint(plain).model is not None
    assert not (tmp_path / "marker").exists()


def _with_code(directory: Path, marker: Path, **entries: Any) -> Path:
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    for module in ("modeling_own", "configuration_own", "tokenization_own"):
        (directory / f"{module}.py").write_text(code)
    own = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    edit(directory, auto_map=own, **entries)
    if (file := directory / "tokenizer_config.json").is_file():
        table = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
        file.write_text(json.dumps(json.loads(file.read_text()) | table))
    return directory


def test_o3_06_code_of_a_known_family_is_not_run(tmp_path):
    model = tiny_model()
    save_full(model, byte_tokenizer(), SPEC, tmp_path / "own")
    _with_code(tmp_path / "own", tmp_path / "marker")
    loaded = load_checkpoint(tmp_path / "own")
    assert torch.equal(logits(loaded.model), logits(model))
    assert loaded.tokenizer.encode("ab") == [97, 98]
    assert not (tmp_path / "marker").exists()
    assert not hasattr(loaded.model.config, "auto_map")


def test_o3_06_code_of_an_unknown_family_is_not_run_and_said_so(plain, tmp_path):
    _with_code(plain, tmp_path / "marker", model_type="own")
    with pytest.raises(UnsupportedModelError, match="'own' and its own code .* is not run"):
        load_checkpoint(plain)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("switch", [False, True])
def test_o3_07_sliding_windows_are_those_of_transformers(tmp_path, switch):
    model = tiny_model(sliding_window=16, use_sliding_window=switch, max_window_layers=1)
    model.save_pretrained(tmp_path / "window")
    loaded = load_checkpoint(tmp_path / "window").model
    kinds = ["full_attention", "sliding_attention" if switch else "full_attention"]
    assert loaded.config.layer_types == kinds
    assert torch.allclose(logits(loaded), logits(model), atol=1e-5)
    assert torch.allclose(logits(loaded), logits(tiny_model()), atol=1e-5) != switch


FAMILIES = {
    "qwen2": lambda: tiny_model(),
    "llama_bias": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, attention_bias=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_o3_08_biases_and_norms_are_loaded(tmp_path, family):
    torch.manual_seed(1)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.normal_(1.0, 0.5)
    model.save_pretrained(tmp_path / family)
    assert torch.allclose(logits(load_checkpoint(tmp_path / family).model), logits(model), atol=1e-4)


def test_o3_08_missing_and_unexpected_weights_are_errors(plain):
    file = plain / "model.safetensors"
    weights = load_file(file)
    bias = weights.pop("model.layers.1.self_attn.q_proj.bias")
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="missing weight model.layers.1.self_attn.q_proj.bias"):
        load_checkpoint(plain)
    name = "model.layers.1.self_attn.q_proj.bias"
    save_file(weights | {name: bias, "model.extra": bias.clone()}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="unexpected weight model.extra"):
        load_checkpoint(plain)
    save_file(weights | {name: bias[:3].clone()}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="mismatched weight model.layers.1.self_attn.q_proj.bias"):
        load_checkpoint(plain)


def test_o3_09_every_declared_end_token_counts(tmp_path):
    save_full(tiny_model(eos_token_id=11), byte_tokenizer(eos_token="<end>"), SPEC, tmp_path / "stops")
    generation = {"eos_token_id": [256, 12], "temperature": 0.5, "do_sample": True}
    (tmp_path / "stops" / "generation_config.json").write_text(json.dumps(generation))
    loaded = load_checkpoint(tmp_path / "stops")
    assert loaded.stop_ids == loaded.spec.stop_ids == (11, 12, 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_o3_10_the_number_type_is_the_checkpoints_own(tmp_path, dtype):
    tiny_model().to(dtype).save_pretrained(tmp_path / "typed")
    loaded = load_checkpoint(tmp_path / "typed")
    assert loaded.dtype == dtype and {p.dtype for p in loaded.model.parameters()} == {dtype}
    save_full(loaded.model, None, SPEC, tmp_path / "again")
    assert {t.dtype for t in load_file(tmp_path / "again" / "model.safetensors").values()} == {dtype}
    assert load_checkpoint(tmp_path / "again", dtype="fp32").dtype == torch.float32


def test_o3_10_float32_master_weights_of_a_bf16_model_are_saved_as_bf16(tmp_path):
    model = tiny_model(tie_word_embeddings=True)
    save_full(model, None, SPEC, tmp_path / "half", dtype=torch.bfloat16)
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert {t.dtype for t in stored.values()} == {torch.bfloat16} and "lm_head.weight" not in stored
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert model.dtype == torch.float32


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"model_type": "mamba"}, "running state"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"model_type": "bert"}, "bidirectional encoder"),
        ({"model_type": "gemma3n_text"}, "looks tokens up by id"),
        ({"model_type": "xglm", "is_decoder": True}, "scaled_dot_product_attention|position ids"),
        ({"model_type": "bloom"}, "ALiBi|scaled_dot_product"),
        ({"model_type": "granite", "logits_scaling": 4.0}, "logits are scaled"),
        ({"model_type": "gemma2"}, "scaled_dot_product_attention"),
        ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, "layers of type conv"),
        ({"model_type": "never-heard-of"}, "does not know the model type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq weights"),
    ],
)
def test_families_that_cannot_be_right_are_refused_with_the_reason(plain, entries, reason):
    (plain / "config.json").write_text(json.dumps({"model_type": "qwen2", "num_hidden_layers": 2} | entries))
    with pytest.raises(UnsupportedModelError, match=reason):
        load_checkpoint(plain)


def test_a_model_larger_than_memory_is_refused_with_both_numbers(plain, monkeypatch):
    monkeypatch.setattr(hf, "available_memory", lambda device: 100_000)
    with pytest.raises(CapacityError, match=r"needs 0\.0 GB .* 0\.0 GB are free on cpu"):
        load_checkpoint(plain)
    values = files.inspect_weights(plain).values
    monkeypatch.setattr(hf, "available_memory", lambda device: 2 * values)
    with pytest.raises(CapacityError, match=r"weights in float32.*--dtype bf16 or int8"):
        unmask.load(plain)
    with pytest.raises(CapacityError, match=r"weights in float32"):
        unmask.load(plain, dtype="fp16")  # a CPU holds it as float32
    assert unmask.load(plain, dtype="int8").backbone.kind == "int8"  # a byte each fits
    monkeypatch.setattr(hf, "available_memory", lambda device: values - 1)
    with pytest.raises(CapacityError, match=r"weights in int8.* use a smaller model"):
        unmask.load(plain, dtype="int8")
    monkeypatch.undo()
    needed = values * 4
    assert files.available_memory(torch.device("cpu")) > needed


@pytest.mark.parametrize("spec", [{"block_size": 8}, {"mask_id": 1, "colour": 2}, {"mask_id": 1, "block_size": 9}, [1]])
def test_a_damaged_block_spec_is_an_error_that_names_the_file(tmp_path, spec):
    save_full(tiny_model(), None, SPEC, tmp_path / "full")
    edit(tmp_path / "full", block_spec=spec)
    with pytest.raises(CheckpointError, match="config.json"):
        load_checkpoint(tmp_path / "full")


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_damaged_config_is_an_error_that_names_the_file(plain, content):
    (plain / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match="config.json"):
        load_checkpoint(plain)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from tiny import tiny_model
from unmask.config import BlockSpec
from unmask.errors import CheckpointError
from unmask.model.checkpoint import save_full
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_full(tiny_model(seed=1), None, BlockSpec(mask_id=260), Path({target!r}))
except CheckpointError as e:
    print(e)
"""


def test_a_full_disk_is_one_error_and_the_old_checkpoint_stays(tmp_path):
    target = tmp_path / "full"
    save_full(tiny_model(), None, SPEC, target)
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    code = FULL_DISK.format(paths=[str(Path(__file__).parent.parent), *sys.path], target=str(target))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot save to" in done.stdout and "untouched" in done.stdout and len(done.stdout.splitlines()) == 1
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_process_killed_between_the_two_renames_loses_nothing(tmp_path):
    target = tmp_path / "full"
    save_full(tiny_model(), None, SPEC, target)
    target.rename(tmp_path / ".full.old")
    assert load_checkpoint(target).spec.block_size == 8
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_reader_between_the_two_renames_does_not_stop_the_writer(tmp_path, monkeypatch):
    target = tmp_path / "full"
    save_full(tiny_model(), None, SPEC, target)
    replace, came, read = os.replace, [], []

    def watched(source, destination):
        if Path(destination) == target and not came:
            came.append(source)
            read.append(load_checkpoint(target).spec.mask_id)
        replace(source, destination)

    monkeypatch.setattr(files.os, "replace", watched)
    save_full(tiny_model(), None, BlockSpec(mask_id=7), target)
    monkeypatch.undo()
    assert read == [MASK] and load_checkpoint(target).spec.mask_id == 7
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_mask_id_for_a_plain_model_is_refused(plain):
    with pytest.raises(ConfigError, match=r"plain autoregressive model.*mode ar.*adapt"):
        load_checkpoint(plain, mask_id=5)
    edit(plain, bd_size=16)
    loaded = load_checkpoint(plain, mask_id=5).spec
    assert (loaded.block_size, loaded.mask_id, loaded.context) == (16, 5, "block")


@pytest.mark.parametrize(
    "device", ["foo", "cuda:99", "meta", "cpu:x", *([] if torch.cuda.is_available() else ["cuda"])]
)
def test_a_device_that_is_not_there_is_an_error_before_anything_is_loaded(device):
    with pytest.raises(ConfigError, match=f"device is '{device}'"):
        load_checkpoint("./none", device=device)


def test_loading_says_nothing(plain, capfd):
    load_checkpoint(plain)
    assert capfd.readouterr() == ("", "")
