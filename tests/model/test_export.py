"""A checkpoint written in other forms answers as it did: token for token, forward for forward."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from families import SHAPES, family_model
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tiny import MASK, byte_tokenizer, tiny_model
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import unmask
from unmask.config import BlockSpec
from unmask.errors import CheckpointError, ConfigError, UnmaskError, UnsupportedModelError
from unmask.model import export as exporting
from unmask.model import official
from unmask.model.adapters import peft_state
from unmask.model.checkpoint import load_checkpoint, save_adapter, save_full
from unmask.model.export import export

GOLDEN = Path(__file__).parent.parent / "golden"
PROMPTS = ["Hello", "a b c d e f g", "Zürich 你好 " * 3]
ROWS, END = 151_936, 151_645
SMALL: dict[str, Any] = {"vocab_size": ROWS, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 256}


def spec(**changes: Any) -> BlockSpec:
    return BlockSpec(**{"block_size": 8, "sub_block_size": 4, "mask_id": MASK, **changes})


def network(family: str = "qwen2", **changes: Any) -> Any:
    """A random network, the same at every call, whose text is not all one token."""
    if family == "qwen2":
        return tiny_model(**changes)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPES | changes)).eval()
    model.lm_head.weight.data *= 10
    return model


def low_rank(directory: Path, model: Any, contract: BlockSpec | None, tokenizer: Any = None, mask: bool = True) -> Path:
    """A random adapter, with a mask's vector that would win every prediction if the head were tied to it."""
    model.save_pretrained(directory / "base")
    (tokenizer or byte_tokenizer(eos_token="<end>")).save_pretrained(directory / "base")
    torch.manual_seed(5)
    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.1)
    vector = 20 * torch.randn(model.config.hidden_size) if mask else None
    save_adapter(*peft_state(wrapped), vector, contract, str(directory / "base"), directory / "adapter")
    return directory / "adapter"


def answers(ref: Path, backbone: str = "universal", **how: Any) -> list[tuple[list[int], dict[str, int], str | None]]:
    model = unmask.load(ref, backbone=backbone)
    modes = ["ar", *(["threshold"] if model.spec else [])]
    if model.spec and model.spec.context == "causal":
        modes.append("verified")
    found = []
    for mode in modes:
        plain: dict[str, Any] = {"drafts": "plain"} if mode == "verified" else {}
        settings = {"mode": mode, "max_new_tokens": 24, "threshold": 0.3} | plain | how
        got = model.generate(PROMPTS, raw=True, **(settings if mode == "threshold" else settings | {"threshold": 0.9}))
        assert all(answer.error is None for answer in got)
        found += [(answer.token_ids, answer.forwards_by_kind, answer.text) for answer in got]
    assert len({tuple(ids) for ids, *_ in found}) > len(PROMPTS) / 2
    return found


def generated(ref: Path) -> list[list[int]]:
    """What transformers alone writes greedily, the end token left out."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(ref), AutoTokenizer.from_pretrained(ref)
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        ends = model.generation_config.eos_token_id or []
        found.append(
            [t for t in out[0, ids.shape[1] :].tolist() if t not in ([ends] if isinstance(ends, int) else ends)]
        )
    return found


each_shape = pytest.mark.parametrize(
    "family,tied,context",
    [("qwen2", True, "block"), ("qwen2", False, "causal"), ("llama", True, "causal"), ("llama", False, "block")],
)


@each_shape
@pytest.mark.parametrize("backbone", ["universal", "native"])
def test_merged_answers_as_base_and_adapter_did(tmp_path, family, tied, context, backbone):
    source = low_rank(tmp_path, network(family, tie_word_embeddings=tied), spec(context=context))
    export(source, "merged", tmp_path / "out")
    assert answers(tmp_path / "out", backbone) == answers(source, backbone)
    there = load_checkpoint(tmp_path / "out")
    assert there.adapter is None and there.mask_vector is None
    assert there.spec == spec(context=context, stop_ids=(256,))


@each_shape
def test_merged_is_a_model_that_transformers_alone_runs(tmp_path, family, tied, context):
    """Greedily it writes what mode ar writes, and never the mask, whatever its row of a tied head would say."""
    source = low_rank(tmp_path, network(family, tie_word_embeddings=tied), spec(context=context))
    export(source, "merged", tmp_path / "out")
    if context == "causal":
        assert generated(tmp_path / "out") == [ids for ids, *_ in answers(source)[: len(PROMPTS)]]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    if tied:
        ids = torch.randint(256, (1, 200), generator=torch.Generator().manual_seed(0))
        says_mask = (model(ids).logits[0].argmax(-1) == MASK).nonzero()
        ids = ids[:, : int(says_mask[0]) + 1]
        written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
        ours = unmask.load(source).generate([ids[0].tolist()], mode="ar", max_new_tokens=3)[0].token_ids
        assert written[0, ids.shape[1] :].tolist() == ours
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_the_masks_vector_is_its_row_of_the_embedding_and_nothing_else_of_it(tmp_path):
    model = network()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    source = low_rank(tmp_path, model, spec())
    export(source, "merged", tmp_path / "out")
    after, vector = load_file(tmp_path / "out" / "model.safetensors"), load_checkpoint(source).mask_vector
    rows = after["model.embed_tokens.weight"]
    assert vector is not None and torch.equal(rows[MASK], vector)
    assert torch.equal(rows[:MASK], before["model.embed_tokens.weight"][:MASK])
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    for name in ("model.norm.weight", "model.layers.0.self_attn.q_proj.bias"):
        assert torch.equal(after[name], before[name])
    assert not torch.equal(after["model.layers.0.mlp.up_proj.weight"], before["model.layers.0.mlp.up_proj.weight"])


@pytest.mark.parametrize("tied", [True, False])
def test_a_mask_beyond_the_vocabulary_gets_a_row_of_its_own(tmp_path, tied):
    source = low_rank(tmp_path, network(tie_word_embeddings=tied), spec(mask_id=261, context="causal"))
    export(source, "merged", tmp_path / "out")
    there = load_checkpoint(tmp_path / "out")
    assert there.config.vocab_size == 262 == there.model.get_output_embeddings().weight.shape[0]
    assert answers(tmp_path / "out") == answers(source)
    assert generated(tmp_path / "out") == [ids for ids, *_ in answers(source)[: len(PROMPTS)]]


@pytest.mark.parametrize("form", ["hf", "merged"])
@each_shape
def test_a_whole_model_stays_itself(tmp_path, form, family, tied, context):
    model = network(family, tie_word_embeddings=tied)
    save_full(model, byte_tokenizer(eos_token="<end>"), spec(context=context), tmp_path / "full")
    export(tmp_path / "full", form, tmp_path / "out")
    assert answers(tmp_path / "out") == answers(tmp_path / "full")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(t, theirs.state_dict()[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("scope,context", [("draft", "causal"), ("all", "block")])
def test_hf_leaves_an_adapter_an_adapter(tmp_path, scope, context):
    source = low_rank(tmp_path, network(), spec(context=context, adapter_scope=scope))
    export(source, "hf", tmp_path / "out")
    assert answers(tmp_path / "out") == answers(source)
    theirs, ours = (PeftModel.from_pretrained(network(), each).state_dict() for each in (tmp_path / "out", source))
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == len(byte_tokenizer())


def test_a_base_named_beside_its_adapter_is_found_from_where_the_export_lies(tmp_path):
    source = low_rank(tmp_path, network(), spec())
    for name, key in (("adapter_config.json", "base_model_name_or_path"), ("block_spec.json", "base")):
        (source / name).write_text(json.dumps(json.loads((source / name).read_text()) | {key: "../base"}))
    export(source, "hf", tmp_path / "far" / "away")
    assert answers(tmp_path / "far" / "away") == answers(source)
    stated = json.loads((tmp_path / "far" / "away" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert Path(stated) == (tmp_path / "base").resolve()


def test_a_plain_adapter_merges_into_a_plain_model(tmp_path):
    source = low_rank(tmp_path, network(), None, mask=False)
    export(source, "merged", tmp_path / "out")
    assert load_checkpoint(tmp_path / "out").spec is None
    assert answers(tmp_path / "out") == answers(source)
    assert generated(tmp_path / "out") == [ids for ids, *_ in answers(source)]


def test_bf16_stays_bf16_and_is_rounded_once(tmp_path):
    source = low_rank(tmp_path, network().bfloat16(), spec(context="causal"))
    export(source, "merged", tmp_path / "out")
    there, here = load_checkpoint(tmp_path / "out").model, load_checkpoint(source).model
    assert {p.dtype for p in there.parameters()} == {torch.bfloat16}
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(there.state_dict()[name], here.state_dict()[name])


def test_a_golden_checkpoint_of_the_official_layout_becomes_an_ordinary_one(tmp_path):
    with pytest.raises(ConfigError, match="give --mask-id"):
        export(GOLDEN / "tiny_tied", "merged", tmp_path / "out")
    export(GOLDEN / "tiny_tied", "merged", tmp_path / "out", mask_id=511)
    there, here = load_checkpoint(tmp_path / "out"), load_checkpoint(GOLDEN / "tiny_tied", mask_id=511)
    assert (
        there.spec == here.spec and json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "qwen2"
    )
    assert set(AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config.eos_token_id) == {509, 510}
    assert torch.equal(there.model.lm_head.weight, here.model.lm_head.weight)


def test_large_models_are_cut_into_files_that_say_where_each_weight_is(tmp_path):
    source = low_rank(tmp_path, network(), spec(context="causal"))
    told: list[Any] = []
    wrote = export(source, "merged", tmp_path / "out", tell=told.append, shard=150_000)
    shards = [file for file in wrote if file.path.suffix == ".safetensors"]
    assert len(shards) > 2 and all(file.size < 160_000 for file in shards)
    assert told[-1].done == told[-1].total == sum(part.numel() * 4 for part in network().state_dict().values())
    assert answers(tmp_path / "out") == answers(source)
    assert generated(tmp_path / "out") == [ids for ids, *_ in answers(source)[: len(PROMPTS)]]


def test_an_untied_head_under_a_tied_config_is_kept_as_it_is_loaded(tmp_path):
    """Such files exist: the config ties, the file holds another head, and transformers takes the file's."""
    save_full(network(), byte_tokenizer(eos_token="<end>"), spec(context="causal"), tmp_path / "full")
    file = tmp_path / "full" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": True}))
    export(tmp_path / "full", "merged", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(load_checkpoint(tmp_path / "out").model.lm_head.weight, network().lm_head.weight)


# The official layout


@pytest.fixture(scope="module")
def qwen():
    """A tokenizer of Qwen2.5's size: one token per byte, many that no text has, 22 special ones, no mask."""
    core = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    core["added_tokens"] = []
    core["model"]["vocab"] |= {f"never{n}": n for n in range(256, 151_643)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(core)))
    named = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *[f"<|{n}|>" for n in range(151_646, official.MASK_ID)]]
    tokenizer.add_special_tokens({"additional_special_tokens": named})
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    assert len(tokenizer) == official.MASK_ID and tokenizer.eos_token_id == END
    return tokenizer


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("method", ["low-rank", "full"])
def test_the_official_layout_loads_back_and_answers_alike(tmp_path, qwen, tied, method):
    contract = spec(mask_id=official.MASK_ID, block_size=32, sub_block_size=8)
    model = network(tie_word_embeddings=tied, **SMALL)
    source = tmp_path / "full"
    if method == "low-rank":
        source = low_rank(tmp_path, model, contract, qwen)
    else:
        save_full(model, qwen, contract, source)
    export(source, "fast-dllm-v2", tmp_path / "out")
    there, here = load_checkpoint(tmp_path / "out"), load_checkpoint(source)
    assert there.spec == here.spec and there.spec.stop_ids == (END,)
    assert there.tokenizer.get_vocab()["|<MASK>|"] == official.MASK_ID
    assert there.tokenizer.encode("a b", add_special_tokens=False) == qwen.encode("a b", add_special_tokens=False)
    few = {"max_new_tokens": 10}
    assert answers(tmp_path / "out", "native", **few) == answers(source, "native", **few)
    check_entries(json.loads((tmp_path / "out" / "config.json").read_text()), tied)
    assert not list((tmp_path / "out").glob("*.py"))


def test_a_sub_block_size_that_the_layout_cannot_state_is_said(tmp_path, qwen):
    save_full(network(**SMALL), qwen, spec(mask_id=official.MASK_ID, sub_block_size=2), tmp_path / "full")
    with pytest.warns(UserWarning, match="this model's is 2, programs that read it take 8 unless told"):
        export(tmp_path / "full", "fast-dllm-v2", tmp_path / "out")
    assert load_checkpoint(tmp_path / "out").spec.sub_block_size == 8


def check_entries(entries: dict[str, Any], tied: bool) -> None:
    """The keys are those of a checkpoint of the official code, and the values that are not sizes are its values."""
    theirs = json.loads((GOLDEN / f"tiny_{'tied' if tied else 'untied1'}" / "config.json").read_text())
    sizes = {key for key in theirs if key.endswith(("_size", "_layers", "_heads", "_token_id", "_embeddings"))}
    assert entries.keys() == theirs.keys()
    same = theirs.keys() - sizes - {"layer_types", "rope_theta", "initializer_range"}
    assert {key: entries[key] for key in same} == {key: theirs[key] for key in same}
    assert entries["tie_word_embeddings"] is tied and entries["bd_size"] == 32 and entries["rope_theta"] == 10_000.0
    assert (entries["eos_token_id"], entries["bos_token_id"], entries["pad_token_id"]) == (END, 151_643, END)


def test_the_tokenizer_has_no_name_that_only_transformers_5_knows(tmp_path, qwen):
    """Programs of this layout build on transformers 4, which fails at both of these."""
    save_full(network(**SMALL), qwen, spec(mask_id=official.MASK_ID, sub_block_size=8), tmp_path / "full")
    about = json.loads((tmp_path / "full" / "tokenizer_config.json").read_text())
    assert about["tokenizer_class"] == "TokenizersBackend" and isinstance(about["extra_special_tokens"], list)
    export(tmp_path / "full", "fast-dllm-v2", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert about["tokenizer_class"] == "PreTrainedTokenizerFast" and "extra_special_tokens" not in about
    assert about["additional_special_tokens"][-1] == "|<MASK>|"


def test_tokenizer_files_of_transformers_4_get_the_mask_in_every_place_that_lists_it(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 1, "content": "a"}]}))
    about = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"1": {}}, "additional_special_tokens": ["a"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": [{"content": "a"}]}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"a": 1}))
    for _ in range(2):  # a second time it finds all of it there
        official.name_the_mask(tmp_path)
        read = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
        assert read["tokenizer_config.json"]["tokenizer_class"] == "Qwen2Tokenizer"
        assert read["tokenizer_config.json"]["additional_special_tokens"] == ["a", "|<MASK>|"]
        assert read["tokenizer_config.json"]["added_tokens_decoder"]["151665"]["special"] is True
        assert read["special_tokens_map.json"]["additional_special_tokens"] == [{"content": "a"}, "|<MASK>|"]
        assert read["added_tokens.json"] == {"a": 1, "|<MASK>|": 151665}
        assert [token["id"] for token in read["tokenizer.json"]["added_tokens"]] == [1, 151665]


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "causal": ({}, {"context": "causal"}, "its context is 'causal'"),
    "mask": ({}, {}, "its mask id is 260, programs of this layout have 151665 built in"),
    "rope": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, {}, "scaling is 'linear'"),
    "window": ({"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1}, {}, "sliding-window layers"),
    "end": (SMALL, {"mask_id": official.MASK_ID}, "its end tokens are 256, programs of this layout stop at 151645"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_layout_cannot_hold_is_refused_with_the_reason(tmp_path, name):
    changes, contract, said = WRONG[name]
    save_full(network(**changes), byte_tokenizer(eos_token="<end>"), spec(**contract), tmp_path / "full")
    refused(tmp_path / "full", "fast-dllm-v2", tmp_path, UnsupportedModelError, said)


def test_other_families_and_plain_models_are_refused(tmp_path):
    save_full(network("llama"), byte_tokenizer(), spec(), tmp_path / "llama")
    refused(tmp_path / "llama", "fast-dllm-v2", tmp_path, UnsupportedModelError, "model type is 'llama', the layout")
    network().save_pretrained(tmp_path / "plain")
    refused(tmp_path / "plain", "fast-dllm-v2", tmp_path, UnsupportedModelError, "plain autoregressive model; adapt")


def test_a_tokenizer_that_cannot_name_the_mask_is_refused(tmp_path):
    contract = spec(mask_id=official.MASK_ID, stop_ids=(END,))
    save_full(network(**SMALL), None, contract, tmp_path / "none")
    refused(tmp_path / "none", "fast-dllm-v2", tmp_path, UnsupportedModelError, "it has no tokenizer")
    save_full(network(**SMALL), byte_tokenizer(), contract, tmp_path / "short")
    refused(tmp_path / "short", "fast-dllm-v2", tmp_path, UnsupportedModelError, "its tokenizer ends at 261")
    save_full(network(**SMALL), byte_tokenizer("|<MASK>|"), contract, tmp_path / "other")
    refused(tmp_path / "other", "fast-dllm-v2", tmp_path, UnsupportedModelError, "has .* as 261, not 151665")


def test_adapters_of_drafts_stay_adapters(tmp_path):
    source = low_rank(tmp_path, network(), spec(context="causal", adapter_scope="draft"))
    refused(source, "merged", tmp_path, UnsupportedModelError, "acts on drafts only.*use --format hf")
    refused(source, "fast-dllm-v2", tmp_path, UnsupportedModelError, "acts on drafts only.*use --format hf")


def test_an_embedding_that_scales_its_rows_cannot_take_the_masks_vector(tmp_path):
    model = family_model("gemma3_text")
    source = low_rank(tmp_path, model, spec(context="causal"))
    refused(source, "merged", tmp_path, UnsupportedModelError, "'gemma3_text' changes its rows.*use --format hf")


# All or nothing


def refused(source: Path, form: str, tmp_path: Path, kind: type[UnmaskError], said: str) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(kind, match=said) as e:
        export(source, form, tmp_path / "out")
    assert "\n" not in str(e.value) and sorted(tmp_path.iterdir()) == before


def test_nothing_is_written_over(tmp_path):
    save_full(network(), byte_tokenizer(), spec(), tmp_path / "full")
    (tmp_path / "out").mkdir()
    export(tmp_path / "full", "merged", tmp_path / "out")  # an empty directory is fine
    kept = {file: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    refused(tmp_path / "full", "hf", tmp_path, ConfigError, "out is not empty; give a directory that is new or empty")
    assert {file: file.read_bytes() for file in (tmp_path / "out").iterdir()} == kept
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("mine")
    refused(tmp_path / "full", "hf", tmp_path, ConfigError, "out is a file")
    assert (tmp_path / "out").read_text() == "mine"


def test_the_directory_that_one_is_in_can_be_filled(tmp_path, monkeypatch):
    save_full(network(), byte_tokenizer(), spec(), tmp_path / "full")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export("../full", "merged", Path("."))
    assert load_checkpoint(tmp_path / "here").spec.mask_id == MASK


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    save_full(network(), byte_tokenizer(), spec(), tmp_path / "full")
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 10**7, 10**7)
    monkeypatch.setattr(exporting.shutil, "disk_usage", lambda place: usage)
    refused(tmp_path / "full", "merged", tmp_path, CheckpointError, "0.00 GB in .*out, 0.01 GB are free")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_what_is_stopped_leaves_nothing_behind(tmp_path, stop):
    save_full(network(), byte_tokenizer(), spec(), tmp_path / "full")

    def tell(part: Any) -> None:
        raise stop

    with pytest.raises(KeyboardInterrupt if stop is KeyboardInterrupt else CheckpointError):
        export(tmp_path / "full", "merged", tmp_path / "out", tell=tell)
    assert [file.name for file in tmp_path.iterdir()] == ["full"]


def test_a_model_larger_than_the_memory_is_exported(tmp_path, monkeypatch):
    save_full(network(), byte_tokenizer(), spec(), tmp_path / "full")
    monkeypatch.setattr("unmask.model.hf.available_memory", lambda device: 10)
    with pytest.raises(UnmaskError, match="GB are free"):
        load_checkpoint(tmp_path / "full")
    assert export(tmp_path / "full", "merged", tmp_path / "out")


def test_the_command_lists_what_it_wrote(tmp_path, capsys):
    from unmask.cli import main

    source = low_rank(tmp_path, network(), spec())
    (tmp_path / "base" / "LICENSE").write_text("terms")
    capsys.readouterr()
    assert main(["export", "--model", str(source), "--format", "merged", "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    listed = dict(reversed(line.split("  ")) for line in out.splitlines())
    assert set(map(Path, listed)) == set((tmp_path / "out").iterdir())
    assert all(hashlib.sha256(Path(file).read_bytes()).hexdigest() == digest for file, digest in listed.items())
    assert {"LICENSE", "tokenizer.json", "chat_template.jinja", "config.json"} <= {Path(file).name for file in listed}
    assert err.startswith(f"saved {tmp_path / 'out'}: ") and err.count("\n") == 1
    assert main(["export", "--model", str(source), "--format", "onnx", "--out", str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err == "error: --format is 'onnx'; allowed: hf, merged, fast-dllm-v2\n"


def test_the_page_names_every_format_and_its_examples_run(tmp_path, monkeypatch, capsys):
    from unmask.cli import Parser
    from unmask.commands.export import add_arguments

    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == list(exporting.FORMATS)
    calls = re.findall(r"^unmask export ([^>\n]*)", page, re.MULTILINE)
    assert len(calls) == 3
    for call in calls:
        parser = Parser(prog="export")
        add_arguments(parser)
        assert parser.parse_args(call.split()).format in exporting.FORMATS
    source = low_rank(tmp_path, network(), spec(context="causal"))
    export(source, "merged", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)  # noqa: S102 - our own page
    ours = unmask.load(source).generate(["Why is the sky blue?"], raw=True, mode="ar", max_new_tokens=16)[0].token_ids
    written = names["answer"][0, names["prompt"]["input_ids"].shape[1] :].tolist()
    assert [token for token in written if token != 256] == ours
