"""Which checkpoints the native backbone takes, and adapters that reach a part of the network only."""

import json

import pytest
import torch
from families import family_model
from safetensors.torch import load_file, save_file
from tiny import MASK, byte_tokenizer, low_rank, native, tiny_model

import unmask
from unmask.errors import CheckpointError, ConfigError, UnsupportedModelError
from unmask.model.adapters import Adapter, merged
from unmask.model.backbone import Feed
from unmask.model.native.shape import PROJECTIONS, why_not
from unmask.model.tensors import ModelTensors
from unmask.model.universal import UniversalBackbone

NAMES = [name for names in PROJECTIONS.values() for name in names]
TEXT = torch.randint(0, 250, (20,), generator=torch.Generator().manual_seed(0)).tolist()


def draft(backbone):
    feed = Feed(TEXT, 0, [20] * 20, [False] * 20, list(range(20)), True)
    return backbone.forward(backbone.new_cache(1, 20), [0], [feed])


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_on_a_single_projection_acts(name, everywhere):
    model = family_model("llama")
    whole = low_rank(model)
    adapter = Adapter({key: pair for key, pair in whole.pairs.items() if key.endswith(name)}, whole.scale, None)
    expected = draft(UniversalBackbone(model, merged(model, adapter), mask_id=MASK))
    assert torch.allclose(draft(native(model, adapter=adapter, everywhere=everywhere)), expected, atol=1e-4)
    assert not torch.allclose(draft(native(model)), expected, atol=1e-2)


@pytest.fixture
def saved(tmp_path):
    def save(model, config=None, **weights):
        model.save_pretrained(tmp_path / "m")
        byte_tokenizer().save_pretrained(tmp_path / "m")
        held = load_file(tmp_path / "m" / "model.safetensors") | weights
        save_file({k: v for k, v in held.items() if v is not None}, tmp_path / "m" / "model.safetensors")
        file = tmp_path / "m" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | (config or {})))
        return tmp_path / "m"

    return save


BIAS = "model.layers.1.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("family", "config", "weights", "said"),
    [
        ("qwen2", {}, {BIAS: None}, f"missing weight {BIAS}"),
        ("llama", {}, {BIAS: None}, f"missing weight {BIAS}"),
        ("mistral", {}, {BIAS: torch.zeros(64)}, f"unexpected weight {BIAS}"),
        ("qwen3", {}, {"model.layers.0.self_attn.k_norm.weight": None}, "missing weight .*k_norm"),
        ("qwen2", {"vocab_size": 200}, {}, "mismatched weight"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_config_is_refused(saved, family, config, weights, said):
    with pytest.raises(CheckpointError, match=said):
        unmask.load(saved(family_model(family), config, **weights))


def test_a_head_that_differs_from_the_embedding_it_is_tied_to_is_used(saved):
    head = torch.randn(261, 64, generator=torch.Generator().manual_seed(1))
    model = family_model("llama-tied")
    assert unmask.load(saved(model)).backbone.name == "native"
    loaded = unmask.load(saved(model, **{"lm_head.weight": head}))
    assert loaded.backbone.name == "universal"
    model.lm_head.weight = torch.nn.Parameter(head)
    expected = UniversalBackbone(model, mask_id=None)
    assert torch.allclose(draft(loaded.backbone), draft(expected), atol=1e-4)


def test_an_old_rope_scaling_beside_the_new_entries_counts(saved):
    path = saved(family_model("llama"), {"rope_scaling": {"type": "linear", "factor": 4.0}})
    found, expected = (unmask.load(path, backbone=name).backbone for name in ("native", "universal"))
    assert found.name == "native" and torch.allclose(draft(found), draft(expected), atol=1e-4)
    assert not torch.allclose(draft(found), draft(native(family_model("llama"))), atol=1e-2)


@pytest.mark.parametrize(
    ("config", "kind", "said"),
    [
        ({"layer_types": ["full_attention"]}, CheckpointError, "is not valid"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": "1e4"}},
            UnsupportedModelError,
            "'1e4', not a number",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "factor": 2.0,
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
            UnsupportedModelError,
            "rope scaling 'linear' of a part of each head",
        ),
    ],
)
def test_a_config_that_means_nothing_is_one_line(saved, config, kind, said):
    with pytest.raises(kind, match=said):
        unmask.load(saved(family_model("qwen2"), config))


def test_int8_with_the_universal_backbone_says_which_to_leave_out(saved):
    with pytest.raises(ConfigError, match="leave out backbone universal"):
        unmask.load(saved(family_model("llama")), dtype="int8", backbone="universal")
    with pytest.raises(ConfigError, match="dtype is 'int4'; allowed: fp32, bf16, fp16, int8"):
        unmask.load(saved(family_model("llama")), dtype="int4")


def test_an_untied_embedding_stays_as_it_is_stored(saved):
    model = family_model("llama")
    kinds = {torch.bfloat16: torch.bfloat16, torch.float16: torch.float32, torch.float32: torch.float32}
    for stored, held in kinds.items():
        loaded = unmask.load(saved(model.to(stored)), dtype="int8")
        assert loaded.backbone.network.parts.embedding.dtype == held
    exact = native(model.to(torch.bfloat16).float(), kind="bf16")
    half = unmask.load(saved(model.to(torch.bfloat16))).backbone
    assert half.kind == "bf16" and torch.equal(draft(half), draft(exact))


def test_weights_in_float64_run_on_the_universal_backbone(saved, capsys):
    loaded = unmask.load(saved(tiny_model().double()))
    assert loaded.backbone.name == "universal" and "its weights are float64" in capsys.readouterr().err
    assert unmask.load(loaded.checkpoint.path, dtype="fp32").backbone.name == "native"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "rotation of a part of each head",
        ),
        ({"num_key_value_heads": 3}, "4 heads over 3"),
        ({"head_dim": 12}, "head_dim 12"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
    ],
)
def test_shapes_that_the_kernel_would_get_wrong_are_named(config, said):
    model = family_model("llama")
    for name, value in config.items():
        setattr(model.config, name, value)
    assert said in why_not(model.config, ModelTensors(model))
