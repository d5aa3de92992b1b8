"""Any unmodified Hugging Face causal LM decodes blocks (docs/how-it-works.md): the identities, family by family, and
the same ones for the native backbone, family by family that it runs."""

import pytest
import torch
from families import FAMILIES, family_model
from tiny import native, on_gpu

from unmask.core.noise import seeded
from unmask.model.backbone import Feed
from unmask.model.native.backbone import why_not_native
from unmask.model.tensors import ModelTensors
from unmask.model.universal import UniversalBackbone

MASK, SIZE = 260, 4
NATIVE = [name for name in FAMILIES if name.partition("-")[0] in ("llama", "qwen2", "qwen3", "mistral")]
each_backbone = pytest.mark.parametrize(
    "kind, family",
    [("universal", name) for name in FAMILIES] + [(kind, name) for name in NATIVE for kind in ("native", "gpu")],
)


def decoding(kind, model):
    if kind == "universal":
        return UniversalBackbone(model, mask_id=MASK)
    if kind == "gpu":
        return on_gpu(model, mask=model.get_input_embeddings().weight[MASK])
    return native(model, mask=model.get_input_embeddings().weight[MASK])


def text(length, seed=0):
    return torch.randint(0, 250, (length,), generator=seeded("families", seed)).tolist()


def causal(tokens, start, read):
    return Feed(tokens, start, [start + i + 1 for i in range(len(tokens))], [False] * len(tokens), read)


def block(tokens, start, read, masked=None):
    ends = [(start + i) // SIZE * SIZE + SIZE for i in range(len(tokens))]
    return Feed(tokens, start, ends, masked or [False] * len(tokens), read)


@each_backbone
def test_causal_feeds_equal_the_model_itself_cached_and_ragged(kind, family):
    """O3-03, O3-07, O3-08: rope scaling, windows, biases and norms are transformers' own."""
    model = family_model(family)
    backbone, tokens = decoding(kind, model), text(24)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([tokens])).logits[0]
    cache = backbone.new_cache(2, 32)
    backbone.forward(cache, [1], [causal(tokens[:14], 0, [])])
    found = backbone.forward(cache, [0, 1], [causal(tokens, 0, [0, 23]), causal(tokens[14:], 14, [0, 9])])
    assert torch.allclose(found, expected[[0, 23, 14, 23]], atol=1e-4)


@each_backbone
def test_o1_12_cached_blocks_equal_one_forward_over_everything(kind, family):
    backbone, tokens = decoding(kind, family_model(family)), text(20, 1)
    whole = backbone.forward(backbone.new_cache(1, 20), [0], [block(tokens, 0, list(range(20)))])
    cache = backbone.new_cache(1, 20)
    for first in range(0, 20, SIZE):
        part = tokens[first : first + SIZE]
        backbone.forward(cache, [0], [block(part, first, [], [True] * SIZE)])  # a draft, which the commit overwrites
        found = backbone.forward(cache, [0], [block(part, first, list(range(SIZE)))])
        assert torch.allclose(found, whole[first : first + SIZE], atol=1e-4), first


@each_backbone
def test_o1_16_a_block_is_bidirectional_and_sees_no_later_block(kind, family):
    backbone = decoding(kind, family_model(family))

    def logits(tokens):
        return backbone.forward(backbone.new_cache(1, 12), [0], [block(tokens, 0, list(range(12)))])

    tokens = text(12, 2)
    changed = tokens[:7] + [(tokens[7] + 1) % 250] + tokens[8:]  # the last token of the second block
    difference = (logits(tokens) - logits(changed)).abs().amax(1)
    assert difference[:4].max() == 0
    assert difference[4] > 1e-4


@each_backbone
def test_a_sub_block_patch_equals_the_whole_block_when_nothing_else_changed(kind, family):
    backbone, tokens = decoding(kind, family_model(family)), text(8, 3)
    cache = backbone.new_cache(1, 8)
    masked = [False, False, True, True]
    whole = backbone.forward(cache, [0], [block(tokens[:4], 0, [2, 3], masked)])
    patch = Feed(tokens[2:4], 2, [4, 4], [True, True], [0, 1])
    assert torch.allclose(backbone.forward(cache, [0], [patch]), whole, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_native_backbone_says_which_families_it_runs(family):
    model = family_model(family)
    reason = why_not_native(model.config, ModelTensors(model), None, torch.device("cpu"))
    assert (reason is None) == (family in NATIVE)
    assert reason is None or f"model type '{family}' is not of Llama" in reason


def test_a_network_that_takes_no_mask_by_layer_type_is_refused_with_the_reason():
    from unmask.errors import UnsupportedModelError
    from unmask.model.universal import check_windows

    with pytest.raises(UnsupportedModelError, match="sliding"):
        check_windows({"full_attention": None, "sliding_attention": 8}, takes_mapping=False, family="odd")
