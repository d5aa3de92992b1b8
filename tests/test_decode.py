"""Modes on tiny random networks, against transformers, against a decoder without a cache, and against each other."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import END, MASK, PAD, SlowDecoder, full_logits, low_rank, native, on_gpu, tiny_model

from unmask.config import BlockSpec, Decoding
from unmask.core.propose import propose
from unmask.core.rules import RULES
from unmask.engine import Engine, Request
from unmask.errors import RequestError
from unmask.model.adapters import merged
from unmask.model.backbone import Feed
from unmask.model.universal import UniversalBackbone
from unmask.modes import MODES
from unmask.resolve import resolve
from unmask.row import Row

BLOCK = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END,))
CAUSAL = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END,), context="causal")
DRAFT = replace(CAUSAL, adapter_scope="draft")
SPECS = {"block": BLOCK, "causal": CAUSAL}
MODELS = [tiny_model(seed) for seed in range(3)]
ADAPTER = low_rank(MODELS[0])
BACKBONES = [UniversalBackbone(model, mask_id=MASK) for model in MODELS]
TWO = UniversalBackbone(MODELS[0], merged(MODELS[0], ADAPTER), mask_id=MASK)  # drafts have adapters of their own
TWO_NATIVE, TWO_GPU = (
    make(MODELS[0], mask=MODELS[0].get_input_embeddings().weight[MASK], adapter=ADAPTER) for make in (native, on_gpu)
)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(1000 * seed + length).choices(range(256), k=length)


def answers(requests, spec=BLOCK, backbone=BACKBONES[0], batch_size=1):
    found = Engine(backbone, spec, batch_size=batch_size).generate(requests)
    assert all(answer.error is None for answer in found)
    return found


def answer(prompt, spec=BLOCK, backbone=BACKBONES[0], **wanted):
    return answers([Request(prompt, Decoding(**wanted))], spec, backbone)[0]


def with_stop(found) -> list[int]:
    """The tokens with the end token, as the network wrote them (every test here has the one end token)."""
    return found.token_ids + [END] * (found.finish_reason == "stop")


# --- against other decoders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", SPECS)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 24])
def test_o4_01_every_prompt_length_equals_the_decoder_without_cache(context, length):
    for tau, stops in ((0.9, ()), (0.3, (END, 26, 88))):
        slow = SlowDecoder(MODELS[0], block=8, sub=4, tau=tau, causal=context == "causal", stops=stops)
        found = answer(
            prompt_of(length),
            SPECS[context],
            mode="threshold",
            threshold=tau,
            sub_block_cache=False,
            max_new_tokens=21,
            stop_ids=stops,
        )
        expected = slow.answer(prompt_of(length), 21)
        assert found.finish_reason == ("stop" if expected[-1] in stops else "length")
        assert found.token_ids == (expected[:-1] if expected[-1] in stops else expected)


@pytest.mark.parametrize("context", SPECS)
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
@pytest.mark.parametrize("cached", [False, True])
def test_schedule_fused_equals_the_decoder_without_cache_and_saves_a_forward_per_block(context, length, cached):
    """In sub-blocks of the block's size the sub-block cache has nothing to reuse before the block is redone."""
    for tau, stops in ((0.9, ()), (0.3, ()), (0.3, (END, 26, 88))):
        wanted = {"mode": "threshold", "threshold": tau, "sub_block_cache": cached, "max_new_tokens": 29}
        found = answer(prompt_of(length), SPECS[context], **wanted, stop_ids=stops, schedule="fused")
        if not cached:
            slow = SlowDecoder(MODELS[0], block=8, sub=4, tau=tau, causal=context == "causal", stops=stops, fused=True)
            expected = slow.answer(prompt_of(length), 29)
            assert found.token_ids == (expected[:-1] if expected[-1] in stops else expected)
        kinds = found.forwards_by_kind
        assert "commit" not in kinds and (stops or kinds["fused"] >= 2)


def test_schedule_fused_at_block_size_1_is_ar():
    wanted = {"max_new_tokens": 20, "stop_ids": ()}
    for spec in SPECS.values():
        fused = answer(prompt_of(9), spec, mode="threshold", schedule="fused", block_size=1, **wanted)
        assert fused.token_ids == answer(prompt_of(9), spec, mode="ar", **wanted).token_ids
        assert fused.forwards == 20


@pytest.mark.parametrize("backbone", ["cpu", "gpu"])
@pytest.mark.parametrize("cached", [False, True])
def test_schedule_fused_on_drafts_of_their_own_and_beside_other_rows(cached, backbone):
    """Adapters act on the open block of a forward and not on the block that it commits."""
    chosen = {"cpu": TWO_NATIVE, "gpu": TWO_GPU}[backbone]
    single = {"spec": DRAFT, "backbone": chosen}
    requests = [
        Request(
            prompt_of(n), Decoding(mode=mode, schedule=schedule, sub_block_cache=cached, max_new_tokens=23, stop_ids=())
        )
        for n, mode, schedule in (
            (5, "threshold", "fused"),
            (9, "threshold", "reference"),
            (12, "verified", "reference"),
            (17, "threshold", "fused"),
            (3, "ar", "reference"),
        )
    ]
    together = answers(requests, DRAFT, chosen, batch_size=3)
    alone = [answers([request], **single)[0] for request in requests]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert [a.forwards_by_kind for a in together] == [a.forwards_by_kind for a in alone]
    with pytest.raises(RequestError, match="schedule fused needs the native backbone .* this is universal"):
        Engine(TWO, DRAFT).submit(requests[0])
    universal = answers([requests[1], requests[2]], DRAFT, TWO)
    assert [a.token_ids for a in universal] == [a.token_ids for a in alone[1:3]]


class Recorder(UniversalBackbone):
    """Keeps the logits of every forward."""

    def forward(self, cache, rows, feeds):
        logits = super().forward(cache, rows, feeds)
        self.seen.append(logits)
        return logits


@pytest.mark.parametrize("context", SPECS)
@pytest.mark.parametrize("mode", ["ar", "threshold"])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 24])
def test_o4_01_the_first_decision_sees_the_whole_prompt(context, mode, length):
    first = []
    for token in (5, 6):
        recorder = Recorder(MODELS[0], mask_id=MASK)
        recorder.seen = []
        answer([token, *prompt_of(length)[1:]], SPECS[context], recorder, mode=mode, max_new_tokens=2)
        first.append(next(logits for logits in recorder.seen if len(logits)))
    assert (first[0] - first[1]).abs().max() > 1e-3


def generated(model, prompt, limit):
    """transformers' own greedy answer, the end token included."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=limit,
        do_sample=False,
        eos_token_id=END,
        pad_token_id=PAD,
        suppress_tokens=[MASK],
    )
    return out[0, len(prompt) :].tolist()


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2), st.integers(1, 30), st.integers(1, 30), st.sampled_from(["block", "causal"]))
def test_block_size_1_is_ar_is_transformers(which, length, limit, context):
    prompt, spec, backbone = prompt_of(length, which), SPECS[context], BACKBONES[which]
    expected = generated(MODELS[which], prompt, limit)
    ar = answer(prompt, spec, backbone, mode="ar", max_new_tokens=limit)
    one = answer(prompt, spec, backbone, mode="threshold", block_size=1, max_new_tokens=limit)
    assert with_stop(ar) == with_stop(one) == expected
    assert ar.forwards == one.forwards == len(expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2), st.integers(1, 30), st.integers(1, 30), st.sampled_from([1, 2, 4, 8]))
def test_verified_writes_what_ar_writes(which, length, limit, size):
    prompt, backbone = prompt_of(length, which), BACKBONES[which]
    ar = answer(prompt, CAUSAL, backbone, mode="ar", max_new_tokens=limit)
    checked = answer(prompt, CAUSAL, backbone, mode="verified", block_size=size, max_new_tokens=limit)
    assert checked.token_ids == ar.token_ids and checked.finish_reason == ar.finish_reason
    assert checked.forwards <= 2 * ar.forwards


@pytest.mark.parametrize("adapter", [None, ADAPTER])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_verified_writes_what_ar_writes_in_every_number_type(kind, adapter):
    mask = MODELS[0].get_input_embeddings().weight[MASK]
    backbone, spec = native(MODELS[0], kind=kind, mask=mask, adapter=adapter), CAUSAL if adapter is None else DRAFT
    prompts = [prompt_of(length, kind == "int8") for length in (1, 5, 16, 29)]
    ar, checked = (
        answers([Request(p, Decoding(mode=mode, max_new_tokens=40)) for p in prompts], spec, backbone, batch)
        for mode, batch in (("ar", 1), ("verified", 3))
    )
    assert [a.token_ids for a in checked] == [a.token_ids for a in ar]


@pytest.mark.parametrize("length", [1, 8, 19])
def test_the_base_alone_decides_what_verified_and_ar_write(length):
    expected = generated(MODELS[0], prompt_of(length), 25)
    for mode in ("ar", "verified"):
        assert with_stop(answer(prompt_of(length), DRAFT, TWO, mode=mode, max_new_tokens=25)) == expected


# --- batches ------------------------------------------------------------------------------------------------------


def in_every_batch(requests, spec):
    """The answers alone; asserts that pairs, all together and all shuffled give the same."""
    alone = [answers([request], spec)[0] for request in requests]
    order = list(range(len(requests)))
    shuffled = random.Random(3).sample(order, len(order))
    groups = [list(pair) for pair in pairwise(order)] + [order, shuffled]
    for group in groups:
        for batch_size in {2, len(group)}:
            together = answers([requests[i] for i in group], spec, batch_size=batch_size)
            for i, found in zip(group, together, strict=True):
                assert found.token_ids == alone[i].token_ids
                assert found.forwards_by_kind == alone[i].forwards_by_kind
    return alone


@pytest.mark.parametrize("context", SPECS)
@pytest.mark.parametrize("cache", [True, False])
def test_o1_02_alone_and_in_a_batch(context, cache):
    wanted = Decoding(mode="threshold", threshold=0.5, sub_block_cache=cache, max_new_tokens=20)
    in_every_batch([Request(prompt_of(n), wanted) for n in (3, 8, 9, 16, 21)], SPECS[context])


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_o1_02_any_mixture_of_modes_equals_alone(data):
    one = st.builds(
        Decoding,
        mode=st.sampled_from(["ar", "threshold", "verified", "auto"]),
        threshold=st.sampled_from([0.2, 0.9]),
        sub_block_cache=st.booleans(),
        block_size=st.sampled_from([None, 1, 2, 8]),
        max_new_tokens=st.integers(1, 20),
    )
    requests = [
        Request(prompt_of(n), wanted)
        for n, wanted in data.draw(st.lists(st.tuples(st.integers(1, 20), one), min_size=2, max_size=5))
    ]
    together = answers(requests, CAUSAL, batch_size=data.draw(st.integers(2, 4)))
    for request, found in zip(requests, together, strict=True):
        alone = answers([request], CAUSAL)[0]
        assert (found.token_ids, found.forwards_by_kind) == (alone.token_ids, alone.forwards_by_kind)


def test_o1_11_the_pad_id_in_a_prompt_is_text():
    chat = [*prompt_of(5), END, *prompt_of(4), END]
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END,))
    in_every_batch(
        [
            Request(chat, Decoding(max_new_tokens=12)),
            Request([PAD] * 9, Decoding(max_new_tokens=12)),
            Request(prompt_of(30), Decoding(max_new_tokens=12)),
        ],
        spec,
    )


def test_the_mask_id_in_a_prompt_is_text():
    prompt = [MASK, 7, MASK]
    slow = SlowDecoder(MODELS[0], block=8, sub=4, tau=0.9, causal=False)
    found = answer(prompt, mode="threshold", sub_block_cache=False, max_new_tokens=12, stop_ids=())
    assert found.token_ids == slow.answer(prompt, 12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_o4_10_ragged_batches_are_finite_in_half_precision(dtype):
    backbone = Recorder(tiny_model(0).to(dtype), mask_id=MASK)
    backbone.seen = []
    requests = [Request(prompt_of(n), Decoding(max_new_tokens=9)) for n in (1, 8, 30)]
    answers(requests, BLOCK, backbone, batch_size=3)
    assert all(logits.isfinite().all() for logits in backbone.seen)


# --- caches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", SPECS)
def test_o1_12_a_block_on_the_cached_prefix_equals_one_full_forward(context):
    tokens, causal = prompt_of(40), context == "causal"
    ends = [i + 1 if causal else (i // 8 + 1) * 8 for i in range(40)]
    cache = BACKBONES[0].new_cache(1, 40)
    full = full_logits(MODELS[0], tokens, ends)
    for start in range(0, 40, 8):
        feed = Feed(tokens[start : start + 8], start, ends[start : start + 8], [False] * 8, list(range(8)))
        block = BACKBONES[0].forward(cache, [0], [feed])
        assert (block - full[start : start + 8]).abs().max() < 1e-4


@pytest.mark.parametrize("spec, backbone", [(BLOCK, BACKBONES[0]), (CAUSAL, BACKBONES[0]), (DRAFT, TWO)])
@pytest.mark.parametrize("length", [3, 8, 13])
def test_o1_14_the_prefix_comes_from_clean_tokens(spec, backbone, length):
    prompt, causal = prompt_of(length), spec.context == "causal"
    engine = Engine(backbone, spec, batch_size=1)
    wanted = Decoding(mode="threshold", threshold=1.0, max_new_tokens=29, stop_ids=())
    found = engine.generate([Request(prompt, wanted)])
    assert found[0].forwards_by_kind["sub"] > 0
    text = prompt + found[0].token_ids
    final = length + 24 if causal else (len(text) - 1) // 8 * 8  # what lies left of the last, uncommitted block
    ends = [i + 1 if causal else (i // 8 + 1) * 8 for i in range(final)]
    fresh = BACKBONES[0].new_cache(1, engine.cache.capacity)
    BACKBONES[0].forward(fresh, [0], [Feed(text[:final], 0, ends, [False] * final, [final - 1])])
    for layer, buffers in engine.cache.layers.items():
        for used, clean in zip(buffers, fresh.layers[layer], strict=True):
            assert (used[:, :, :final] - clean[:, :, :final]).abs().max() < 1e-4


# --- rules, limits, seeds -----------------------------------------------------------------------------------------


def drive(row: Row, backbone: UniversalBackbone, steps: int) -> list[str]:
    """Run a row's program without an engine, for at most so many steps; returns their kinds."""
    cache, program, found, kinds = backbone.new_cache(1, 128), MODES[row.settings.mode](row), None, []
    for _ in range(steps):
        try:
            step = program.send(found)
        except StopIteration:
            return kinds
        kinds.append(step.kind)
        logits = backbone.forward(cache, [0], [step.feed])
        n = len(logits)
        found = propose(logits, MASK, torch.zeros(n), torch.ones(n), torch.zeros(n), entropy=step.entropy)
    raise AssertionError("the program did not end")


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(
    "name, parameter",
    [
        ("threshold", 0.9),
        ("threshold", 1.0),
        ("threshold", 1.5),
        ("threshold", float("nan")),
        ("top-k", 0.0),
        ("top-k", 3.0),
        ("factor", -1.0),
        ("factor", 1e9),
        ("entropy-bound", -1.0),
        ("entropy-bound", 1e9),
    ],
)
def test_o1_06_every_step_decides_a_slot(cache, name, parameter):
    wanted = Decoding(
        mode="threshold",
        rule=name,
        block_size=8,
        sub_block_size=4,
        sub_block_cache=cache,
        max_new_tokens=25,
        stop_ids=(),
    )
    row = Row(prompt_of(7), resolve(wanted, BLOCK), BLOCK)
    row.rule, row.parameter = RULES[name][0], parameter
    kinds = drive(row, BACKBONES[0], steps=60)
    assert len(row.written) == 25 and MASK not in row.written and row.finish == "length"
    assert sum(kind not in ("prefill", "commit") for kind in kinds) <= 25


def test_a_greedier_rule_needs_fewer_forwards():
    spent = [
        answer(prompt_of(8), mode="threshold", rule=rule, max_new_tokens=33, stop_ids=()).forwards
        for rule in ("top-k:1", "top-k:2", "top-k:4")
    ]
    assert spent == sorted(spent, reverse=True) and len(set(spent)) == 3


@pytest.mark.parametrize(
    "mode, context", [("ar", "block"), ("threshold", "block"), ("threshold", "causal"), ("verified", "causal")]
)
@pytest.mark.parametrize("length", [5, 8, 16])
def test_o4_02_limit_is_exact(mode, context, length):
    longest = answer(prompt_of(length), SPECS[context], mode=mode, max_new_tokens=20, stop_ids=()).token_ids
    for limit in (1, 3, 7, 8, 9, 20):
        found = answer(prompt_of(length), SPECS[context], mode=mode, max_new_tokens=limit, stop_ids=())
        assert found.token_ids == longest[:limit] and len(found.token_ids) == limit == found.completion_tokens
        assert found.finish_reason == "length" and found.prompt_tokens == length


def test_no_commit_that_is_not_needed():
    exact = answer(prompt_of(8), mode="threshold", max_new_tokens=8, stop_ids=())
    assert "commit" not in exact.forwards_by_kind
    more = answer(prompt_of(8), mode="threshold", max_new_tokens=9, stop_ids=())
    assert more.forwards_by_kind["commit"] == 1


@pytest.mark.parametrize("mode", ["ar", "threshold"])
def test_o4_09_a_seed_decides_the_text_whatever_the_neighbours(mode):
    def warm(seed, n=6):
        return Request(
            prompt_of(n), Decoding(mode=mode, temperature=3.0, top_p=0.95, seed=seed, max_new_tokens=20, stop_ids=())
        )

    alone = answers([warm(7)])[0].token_ids
    assert answers([warm(7)])[0].token_ids == alone
    assert answers([warm(None, 3), warm(7), warm(None), warm(None, 9)], batch_size=4)[1].token_ids == alone
    assert answers([warm(1), warm(2, 20), warm(3), warm(7)], batch_size=4)[3].token_ids == alone
    assert answers([warm(8)])[0].token_ids != alone
    unseeded = [tuple(answers([warm(None)])[0].token_ids) for _ in range(5)]
    assert len(set(unseeded)) == 5


def test_a_rows_tail_is_that_of_prompt_and_answer():
    row = Row([1, 2, 3], resolve(Decoding(), BLOCK), BLOCK)
    for _ in range(4):
        whole = row.prompt + row.written
        assert row.length == len(whole)
        assert [row.tail(start) for start in range(8)] == [whole[start:] for start in range(8)]
        row.write([7])


class Counted(list):
    """A prompt that counts how often it is read or copied as a whole."""

    copies = 0

    def __add__(self, other):
        Counted.copies += 1
        return list.__add__(self, other)


def test_autoregression_does_not_copy_the_text_for_every_token():
    row = Row(Counted(prompt_of(9)), resolve(Decoding(mode="ar", max_new_tokens=30, stop_ids=()), CAUSAL), CAUSAL)
    drive(row, BACKBONES[0], steps=40)
    assert len(row.written) == 30 and Counted.copies == 0
