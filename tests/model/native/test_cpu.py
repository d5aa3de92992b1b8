"""The kernel against itself: whatever stands beside a token and in whatever pieces it comes, it gets the same bits."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import low_rank, native, tiny_model

from unmask.model.backbone import Feed
from unmask.model.native import cpu
from unmask.model.native.build import library
from unmask.model.native.panels import KINDS
from unmask.model.universal import UniversalBackbone

MASK, CAPACITY = 260, 300
each_kind = pytest.mark.parametrize("kind", KINDS)


MODEL = family_model("qwen3")
ADAPTER = low_rank(MODEL)
BACKBONES = {
    kind: native(MODEL, kind=kind, mask=MODEL.get_input_embeddings().weight[MASK], adapter=ADAPTER) for kind in KINDS
}


def text(length, seed=0):
    return torch.randint(0, 250, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def causal(tokens, start=0, read=None, draft=False):
    n = len(tokens)
    ends = list(range(start + 1, start + n + 1))
    return Feed(tokens, start, ends, [False] * n, list(range(n)) if read is None else read, draft)


def drafting(size, start, known):
    return Feed([known] + [0] * (size - 1), start, [start + size] * size, [False] + [True] * (size - 1), [0, 1], True)


@each_kind
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_row_gets_the_same_bits_alone_and_beside_others(kind, data):
    """Rows of any length, drafts among them, in one forward; then each of them alone, cut into pieces."""
    backbone = BACKBONES[kind]
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    texts = [text(n, seed) for seed, n in enumerate(lengths)]
    drafts = [data.draw(st.booleans()) for _ in texts]
    together = backbone.new_cache(len(texts), CAPACITY)
    rows = list(range(len(texts)))
    first = backbone.forward(together, rows, [causal(tokens) for tokens in texts])
    feeds = [
        drafting(6, len(tokens), 7) if draft else causal(text(3, 9), len(tokens))
        for tokens, draft in zip(texts, drafts, strict=True)
    ]
    second = backbone.forward(together, rows, feeds)
    at, then = 0, 0
    for tokens, feed in zip(texts, feeds, strict=True):
        alone = backbone.new_cache(1, CAPACITY)
        cut = data.draw(st.integers(0, len(tokens) - 1))
        pieces = [backbone.forward(alone, [0], [causal(tokens[:cut])])] if cut else []
        pieces.append(backbone.forward(alone, [0], [causal(tokens[cut:], cut)]))
        assert torch.equal(torch.cat(pieces), first[at : at + len(tokens)])
        assert torch.equal(backbone.forward(alone, [0], [feed]), second[then : then + len(feed.read)])
        at, then = at + len(tokens), then + len(feed.read)


@each_kind
def test_a_long_row_gets_the_same_bits_in_pieces_of_any_size(kind):
    """Several chunks of keys, shared out between threads or not."""
    tokens, backbone = text(290, 5), BACKBONES[kind]
    whole = backbone.forward(backbone.new_cache(1, CAPACITY), [0], [causal(tokens)])
    for size in (1, 7, 100):
        cache = backbone.new_cache(1, CAPACITY)
        found = [
            backbone.forward(cache, [0], [causal(tokens[at : at + size], at)]) for at in range(0, len(tokens), size)
        ]
        assert torch.equal(torch.cat(found), whole), size


@each_kind
def test_the_number_of_threads_changes_no_bit(kind):
    tokens, backbone, before = text(150, 6), BACKBONES[kind], torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(backbone.forward(backbone.new_cache(1, CAPACITY), [0], [causal(tokens)]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_vectors_of_another_width_give_the_same_numbers(monkeypatch):
    """The form for processors with wider vectors, compiled for this one."""
    wide = library(print, "-DWIDTH=16", "-O1")
    assert wide.unmask_panel() == 32
    monkeypatch.setattr(cpu, "library", lambda: wide)
    tokens = text(150, 7)
    for kind in KINDS:
        other = native(MODEL, kind=kind, mask=None, adapter=ADAPTER)
        assert other.network.panel == 32
        for draft in (False, True):
            feed = causal(tokens, draft=draft)
            found, expected = (b.forward(b.new_cache(1, CAPACITY), [0], [feed]) for b in (other, BACKBONES[kind]))
            assert torch.allclose(found, expected, atol=2e-2 if kind == "int8" else 1e-4), (kind, draft)


@pytest.mark.parametrize("family, windowed", [("mistral-window", [0, 1]), ("qwen2-window", [1])])
def test_chunks_left_of_the_window_are_not_read(family, windowed):
    """Far behind the window the keys may be anything, and the logits stay those of transformers."""
    model, tokens = family_model(family), text(299, 4)
    backbone = native(model)
    expected = model(torch.tensor([tokens])).logits[0]
    cache = backbone.new_cache(1, CAPACITY)
    assert torch.allclose(backbone.forward(cache, [0], [causal(tokens)]), expected, atol=1e-4)
    for buffer in (cache.key, cache.value):
        buffer[windowed, :, :, : 2 * 128 * 16] = float("nan")
    found = backbone.forward(cache, [0], [causal(tokens[270:], 270)])
    assert torch.allclose(found, expected[270:], atol=1e-4)


def test_low_rank_updates_act_on_drafts_as_a_merged_copy_would():
    from unmask.model.adapters import merged

    universal = UniversalBackbone(MODEL, merged(MODEL, ADAPTER), mask_id=MASK)
    tokens, found = text(20, 8), []
    for backbone in (universal, BACKBONES["fp32"]):
        cache = backbone.new_cache(1, CAPACITY)
        backbone.forward(cache, [0], [causal(tokens)])
        found.append(backbone.forward(cache, [0], [drafting(6, 20, 7)]))
    assert torch.allclose(*found, atol=1e-4)
    plain = native(MODEL, kind="fp32", mask=MODEL.get_input_embeddings().weight[MASK])
    cache = plain.new_cache(1, CAPACITY)
    plain.forward(cache, [0], [causal(tokens)])
    assert not torch.allclose(plain.forward(cache, [0], [drafting(6, 20, 7)]), found[1], atol=1e-2)


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_a_draft_that_is_checked_comes_from_a_copy_in_int8(kind):
    backbone, tokens = BACKBONES[kind], text(20, 8)
    cache = backbone.new_cache(1, CAPACITY)
    backbone.forward(cache, [0], [causal(tokens)])
    feed = drafting(6, 20, 7)
    fine = backbone.forward(cache, [0], [feed])
    rough = backbone.forward(cache, [0], [Feed(**{**vars(feed), "checked": True})])
    assert backbone.rough_network.parts.kind == "int8" and backbone.rough_network.nbytes < backbone.network.nbytes
    assert 0 < (fine - rough).abs().max() < 0.2 * fine.abs().max()


@each_kind
def test_a_value_that_is_not_a_number_reaches_the_logits_of_its_own_row_only(kind):
    backbone = native(family_model("llama"), kind=kind)
    cache = backbone.new_cache(2, CAPACITY)
    cache.value[0, 0].fill_(float("nan"))
    feeds = [causal(text(5, 1), 3), causal(text(5, 2), 0)]
    found = backbone.forward(cache, [0, 1], feeds)
    assert not found[:5].isfinite().any() and found[5:].isfinite().all()
    cache.clear(0)
    assert backbone.forward(cache, [0], [causal(text(5, 1))]).isfinite().all()


def test_threads_may_call_it_at_once():
    backbone, texts = BACKBONES["fp32"], [text(n, n) for n in (3, 40, 7, 21)]

    def often(tokens):
        cache = backbone.new_cache(1, CAPACITY)
        return [backbone.forward(cache, [0], [causal(tokens)]) for _ in range(30)]

    alone = [often(tokens)[0] for tokens in texts]
    with ThreadPoolExecutor(4) as pool:
        for expected, found in zip(alone, pool.map(often, texts), strict=True):
            assert all(torch.equal(logits, expected) for logits in found)


def test_a_position_beyond_the_cache_is_our_own_mistake_and_writes_nothing():
    cache = BACKBONES["fp32"].new_cache(1, 128)
    with pytest.raises(AssertionError, match="position 129 is beyond the cache's 128"):
        BACKBONES["fp32"].forward(cache, [0], [causal([1, 2], 127)])
    assert not cache.key.any()


def test_activations_keep_their_levels_in_wide_layers():
    """int8 with weights that bytes hold exactly differs from float32 by the rounding of activations alone."""
    torch.manual_seed(0)
    model = tiny_model(intermediate_size=10000, num_hidden_layers=1)
    with torch.no_grad():
        for layer in [m for m in model.modules() if isinstance(m, torch.nn.Linear)]:
            layer.weight.copy_(torch.randint(-127, 128, layer.weight.shape) / 1270)
            layer.weight[:, 0] = 0.1
    tokens = text(30, 1)
    logits = [b.forward(b.new_cache(1, 64), [0], [causal(tokens)]) for b in (native(model), native(model, kind="int8"))]
    assert (logits[0] - logits[1]).abs().max() < 8e-4 * logits[0].abs().max()


def test_kinds_differ_by_their_rounding_and_take_the_memory_they_promise():
    tokens = text(60, 3)
    logits = {kind: b.forward(b.new_cache(1, CAPACITY), [0], [causal(tokens)]) for kind, b in BACKBONES.items()}
    scale = logits["fp32"].abs().max()
    assert 0 < (logits["bf16"] - logits["fp32"]).abs().max() < 0.02 * scale
    assert 0 < (logits["int8"] - logits["fp32"]).abs().max() < 0.1 * scale
    values = BACKBONES["fp32"].network.parts.shape.values
    for kind, each in {"fp32": 4, "bf16": 2, "int8": 1}.items():
        plain = native(MODEL, kind=kind).network
        assert sum(p.weight.nbytes for p in plain._matrices()) >= each * values
        assert sum(p.weight.nbytes for p in plain._matrices()) < 1.1 * each * values + 2**16


def test_a_masked_slot_needs_a_vector():
    """The kernel would read it from nowhere."""
    backbone = native(MODEL)
    with pytest.raises(AssertionError, match="a masked slot without a vector"):
        backbone.forward(backbone.new_cache(1, 64), [0], [drafting(8, 0, 5)])
