"""The engine on scripted networks: what is committed when, limits, stops, errors, streams and counters."""

import time

import pytest
import torch
from scripted import ScriptedBackbone, sure, writes
from tiny import MASK as BYTE_MASK
from tiny import byte_tokenizer, native, tiny_model

from unmask import engine as engine_module
from unmask.config import BlockSpec, Decoding
from unmask.engine import Engine
from unmask.errors import ConfigError, RequestError, UnmaskError
from unmask.events import Committed, Finished, Provisional, Request
from unmask.model.universal import UniversalBackbone
from unmask.resolve import resolve

END, MASK, BYTES = 63, 62, 300
SPEC = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END,))
CAUSAL = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END,), context="causal")


def ask(backbone, *requests, spec=SPEC, tokenizer=None, batch_size=4, **how):
    return Engine(backbone, spec, tokenizer, batch_size=batch_size, **how).generate(list(requests))


def ids(**wanted):
    return Decoding(**{"mode": "threshold", "max_new_tokens": 8, **wanted})


# --- sampling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, top_p", [(2, 0.95), (3, 1.0)])
@pytest.mark.parametrize("mode", ["ar", "threshold"])
def test_o1_01_sampling_works_for_every_row(rows, top_p, mode):
    backbone = ScriptedBackbone(lambda who, position, step: sure(10 * who, 1 - 1e-7))
    found = ask(backbone, *[Request([who + 1, 5], ids(mode=mode, temperature=0.7, top_p=top_p)) for who in range(rows)])
    assert [answer.token_ids for answer in found] == [[10 * (who + 1)] * 8 for who in range(rows)]


@pytest.mark.parametrize("mode", ["ar", "threshold"])
def test_o1_10_sampling_settings_are_used(mode):
    def flat(who, position, step):
        return torch.where(torch.arange(64) < 50, 0.0, -torch.inf)

    def texts(**wanted):
        return {
            tuple(ask(ScriptedBackbone(flat), Request([1], ids(mode=mode, seed=seed, **wanted)))[0].token_ids)
            for seed in range(20)
        }

    assert len(texts(temperature=1.0)) >= 15
    assert len(texts(temperature=0.0)) == 1
    assert len(texts(temperature=1.0, top_p=0.01)) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 100.1},
        {"temperature": 1e39},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"threshold": 1.7},
        {"max_new_tokens": 0},
        {"rule": "best"},
        {"rule": "top-k:0.5"},
        {"rule": "threshold:2"},
        {"rule": "factor:x"},
        {"rule": "threshold:0.5", "threshold": 0.7},
    ],
)
def test_o4_06_invalid_settings_name_the_value(wanted):
    with pytest.raises(ConfigError) as caught:
        Decoding(**wanted)
    assert str(list(wanted.values())[0]) in str(caught.value)


@pytest.mark.parametrize("temperature", [1e-45, 1e-6, 9e-6])
def test_o4_06_tiny_temperatures_are_greedy_in_every_mode(temperature):
    assert resolve(Decoding(temperature=temperature), CAUSAL).mode == "verified"
    backbone = ScriptedBackbone(lambda who, position, step: sure(9, 0.3))
    found = ask(backbone, Request([1], ids(mode="verified", temperature=temperature)), spec=CAUSAL)[0]
    assert found.token_ids == [9] * 8


@pytest.mark.parametrize("temperature", [1e-5, 100.0])
def test_o4_06_the_ends_of_the_range_draw_finite_numbers(temperature):
    def peaked(who, position, step):
        return torch.where(torch.arange(64) == 9, 3e38, -3e38)

    found = ask(ScriptedBackbone(peaked), Request([1], ids(mode="ar", temperature=temperature, seed=1)))[0]
    assert found.error is None and found.token_ids == [9] * 8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode, spec", [("ar", SPEC), ("threshold", SPEC), ("threshold", CAUSAL), ("verified", CAUSAL)])
def test_o4_11_the_mask_is_never_chosen(mode, spec, temperature):
    backbone = ScriptedBackbone(lambda who, position, step: sure(MASK))
    found = ask(
        backbone, Request([1] * 8, ids(mode=mode, temperature=temperature, max_new_tokens=30, stop_ids=())), spec=spec
    )[0]
    assert len(found.token_ids) == 30 and MASK not in found.token_ids
    assert found.forwards <= 1 + 2 * 30


# --- order of commits ---------------------------------------------------------------------------------------------


def test_o1_05_only_the_current_sub_block_is_decided():
    def surer_to_the_right(who, position, step):
        return sure(position % 60, 0.99 if position >= 16 else 0.2)

    engine = Engine(ScriptedBackbone(surer_to_the_right), SPEC)
    request = Request([1] * 5, ids(max_new_tokens=32, stop_ids=()), provisional=True)
    seen, answer = [], None
    for event in engine.run([request]):
        if isinstance(event, Provisional):
            seen.append(event)
        if isinstance(event, Finished):
            answer = event.answer
    for event in seen:
        first = event.masked.index(True) if True in event.masked else 8
        assert all(event.masked[(first // 4 + 1) * 4 :]), "a later sub-block was decided too early"
        assert all(token == MASK for token, masked in zip(event.token_ids, event.masked, strict=True) if masked)
    assert [event.start for event in seen] == sorted(event.start for event in seen)
    assert answer.token_ids == [position % 60 for position in range(5, 37)]


def test_o1_07_stop_only_with_everything_before_it_committed():
    word = [11, 12, 13, 14, 15]

    def script(who, position, step):
        if position - 1 == 5:
            return sure(END, 0.95)
        return sure(20, 0.3) if step == 0 else sure(word[min(position - 1, 4)], 0.5)

    spec = BlockSpec(block_size=8, sub_block_size=8, mask_id=MASK, stop_ids=(END,))
    found = ask(ScriptedBackbone(script), Request([1], ids(max_new_tokens=20)), spec=spec)[0]
    assert found.token_ids == word and found.finish_reason == "stop" and found.completion_tokens == 5
    assert found.forwards == 6 and "commit" not in found.forwards_by_kind


@pytest.mark.parametrize("mode, spec", [("ar", SPEC), ("threshold", SPEC), ("threshold", CAUSAL), ("verified", CAUSAL)])
def test_o1_04_a_finished_row_does_not_cut_its_neighbours(mode, spec):
    def script(who, position, step):
        return sure(END if who == 1 and position == 10 else 20 + who)

    backbone = ScriptedBackbone(script)
    short, long = ask(
        backbone,
        Request([1] * 8, ids(mode=mode, max_new_tokens=24)),
        Request([2] * 8, ids(mode=mode, max_new_tokens=24)),
        spec=spec,
    )
    assert (short.token_ids, short.finish_reason) == ([21, 21], "stop")
    assert (long.token_ids, long.finish_reason) == ([22] * 24, "length")
    assert sum(who == 1 for call in backbone.calls for who, _ in call) == short.forwards < long.forwards


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("mode, spec", [("ar", SPEC), ("threshold", SPEC), ("threshold", CAUSAL), ("verified", CAUSAL)])
def test_o4_03_end_token_in_the_middle_of_a_block(mode, spec, batch):
    backbone = ScriptedBackbone(writes([7, 9, END, 4, 4, END, 5], start=8))
    engine = Engine(backbone, spec)
    events = list(engine.run([Request([1] * 8, ids(mode=mode, max_new_tokens=16))] * batch))
    for index in range(batch):
        answer = next(e.answer for e in events if isinstance(e, Finished) and e.index == index)
        streamed = [t for e in events if isinstance(e, Committed) and e.index == index for t in e.token_ids]
        assert answer.token_ids == streamed == [7, 9]
        assert (answer.finish_reason, answer.completion_tokens) == ("stop", 2)


def test_an_end_token_takes_the_last_place_of_the_limit():
    backbone = ScriptedBackbone(writes([7, 9, END], start=8))
    assert ask(backbone, Request([1] * 8, ids(max_new_tokens=3)))[0].finish_reason == "stop"
    assert ask(backbone, Request([1] * 8, ids(max_new_tokens=2)))[0].finish_reason == "length"


def test_stop_ids_of_a_request_replace_the_declared_ones():
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END, 9))
    script = writes([7, 9, END, 8, 5], start=8)
    assert ask(ScriptedBackbone(script), Request([1] * 8, ids()), spec=spec)[0].token_ids == [7]
    assert ask(ScriptedBackbone(script), Request([1] * 8, ids(stop_ids=(8,))), spec=spec)[0].token_ids == [7, 9, END]


# --- what a mode costs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length, kinds", [(16, {"refresh": 4, "sub": 11}), (32, {"refresh": 8, "sub": 22})])
def test_o4_12_the_sub_block_cache_is_used(length, kinds):
    spec = BlockSpec(block_size=16, sub_block_size=4, mask_id=MASK, stop_ids=())

    def script(who, position, step):
        return sure(9, 0.8 - position / 100)

    def spent(cache):
        wanted = ids(threshold=1.0, max_new_tokens=length, sub_block_cache=cache)
        return ask(ScriptedBackbone(script), Request([1] * 16, wanted), spec=spec)[0]

    used, without, blocks = spent(True), spent(False), length // 16
    other = {"prefill": 1} | ({"commit": blocks - 1} if blocks > 1 else {})
    assert used.forwards_by_kind == kinds | other
    assert without.forwards_by_kind == {"denoise": 15 * blocks} | other
    assert used.positions_computed == 16 * (1 + kinds["refresh"] + blocks - 1) + 4 * kinds["sub"]


def test_o4_12_a_masked_first_slot_refreshes():
    spec = BlockSpec(block_size=16, sub_block_size=4, mask_id=MASK, stop_ids=())
    backbone = ScriptedBackbone(lambda who, position, step: sure(9, 0.2 + position / 100))
    found = ask(backbone, Request([1] * 16, ids(threshold=1.0, max_new_tokens=16)), spec=spec)[0]
    assert found.forwards_by_kind == {"prefill": 1, "refresh": 13, "sub": 2}


def test_verified_keeps_whole_blocks_of_right_drafts():
    backbone = ScriptedBackbone(writes([], start=0, filler=9))
    found = ask(backbone, Request([1] * 5, ids(mode="verified", max_new_tokens=33)), spec=CAUSAL)[0]
    assert found.token_ids == [9] * 33
    assert found.forwards_by_kind == {"prefill": 1, "draft": 4, "check": 4}


def test_verified_checks_no_more_than_the_limit_allows():
    backbone = ScriptedBackbone(writes([], start=0, filler=9))
    found = ask(backbone, Request([1] * 5, ids(mode="verified", max_new_tokens=10)), spec=CAUSAL)[0]
    widths = [len(call[0][1].tokens) for call in backbone.calls]
    assert widths == [5, 8, 8, 1] and len(found.token_ids) == 10
    assert found.forwards_by_kind == {"prefill": 1, "draft": 1, "check": 2}


def test_verified_keeps_the_right_beginning_of_a_draft():
    def script(who, position, step):
        """Odd steps are drafts, which go wrong at every fourth position."""
        return sure(50 if step % 2 and position % 4 == 0 else position % 40)

    found = ask(ScriptedBackbone(script), Request([1] * 5, ids(mode="verified", max_new_tokens=20)), spec=CAUSAL)[0]
    assert found.token_ids == [position % 40 for position in range(5, 25)]
    assert found.forwards_by_kind == {"prefill": 1, "draft": 5, "check": 5}


def test_a_drafted_slot_is_shown_filled_with_its_confidence():
    backbone = ScriptedBackbone(writes([], start=0, filler=9, probability=0.75))
    request = Request([1] * 5, ids(mode="verified", max_new_tokens=20), provisional=True)
    seen = [event for event in Engine(backbone, CAUSAL).run([request]) if isinstance(event, Provisional)]
    opened, drafted = seen[0], seen[1]
    assert opened.masked == [False] + [True] * 7 and opened.token_ids == [9] + [MASK] * 7
    assert drafted.masked == [False] * 8 and drafted.token_ids == [9] * 8 and drafted.start == opened.start == 5
    share = 0.75 / (1 - 0.25 / 63)  # the mask takes no part
    assert drafted.confidence == pytest.approx([1.0] + [share] * 7, rel=1e-5)


def test_prompts_of_very_different_lengths_do_not_pad_each_other():
    backbone = ScriptedBackbone(writes([], start=0, filler=9))
    lengths = [3, 400, 5, 4, 300, 2]
    found = ask(backbone, *[Request([n] * n if n < 64 else [7] * n, ids(mode="ar")) for n in lengths], batch_size=6)
    fed = [[len(feed.tokens) for _, feed in call] for call in backbone.calls if call[0][1].start == 0]
    assert sorted(map(sorted, fed)) == [[2, 3, 4, 5], [300, 400]]
    assert all(len(group) * max(group) <= 2 * sum(group) for group in fed)
    assert all(answer.token_ids == [9] * 8 and answer.forwards_by_kind["prefill"] == 1 for answer in found)


@pytest.mark.parametrize("mode, spec", [("ar", SPEC), ("threshold", SPEC), ("threshold", CAUSAL), ("verified", CAUSAL)])
@pytest.mark.parametrize("length", [16, 17, 24, 39, 41])
def test_a_long_prompt_in_pieces_is_the_same_prompt(mode, spec, length, monkeypatch):
    backbone = UniversalBackbone(tiny_model(), mask_id=BYTE_MASK)
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=BYTE_MASK, context=spec.context)
    request = Request([n * 7 % 250 for n in range(length)], ids(mode=mode, max_new_tokens=20))
    whole = ask(backbone, request, spec=spec)[0]
    fed, forward = [], backbone.forward
    monkeypatch.setattr(backbone, "forward", lambda *a: fed.append(len(a[2][0].tokens)) or forward(*a))
    pieces = ask(backbone, request, spec=spec, piece=19)[0]
    assert pieces.token_ids == whole.token_ids and pieces.forwards_by_kind == whole.forwards_by_kind
    assert max(fed) <= 19 and pieces.positions_computed == whole.positions_computed


def test_buffers_that_do_not_fit_into_memory(monkeypatch):
    """A row that cannot fit is refused alone, with both numbers; of rows that can, as many run at once as fit."""
    backbone = ScriptedBackbone(writes([], start=0, filler=9))
    monkeypatch.setattr(backbone, "position_bytes", 10**6)
    monkeypatch.setattr(engine_module, "available_memory", lambda device: 150 * 10**6)
    requests = [Request([who] * 3, ids(mode="ar", max_new_tokens=n)) for who, n in ((1, 4), (2, 500), (3, 4), (4, 4))]
    found = ask(backbone, *requests, batch_size=4)
    assert [len(answer.token_ids) for answer in found] == [4, 0, 4, 4]
    assert "need 0.5 GB, 0.1 GB are free; lower max_new_tokens" in str(found[1].error)
    assert max(len(call) for call in backbone.calls) == 2


def test_a_forward_over_many_long_prompts_is_bounded(monkeypatch):
    backbone = native(tiny_model(), mask=torch.zeros(64))
    requests = [Request([n] * 50, ids(mode="ar", max_new_tokens=5)) for n in range(1, 7)]
    alone = [ask(backbone, request)[0].token_ids for request in requests]
    fed, forward = [], backbone.forward
    monkeypatch.setattr(backbone, "forward", lambda *a: fed.append(sum(len(f.tokens) for f in a[2])) or forward(*a))
    together = ask(backbone, *requests, batch_size=6, piece=19)
    assert [answer.token_ids for answer in together] == alone and 19 < max(fed) <= 38


def test_rows_that_draft_and_check_stay_in_phase():
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal", adapter_scope="draft")
    backbone = ScriptedBackbone(writes([], start=0, filler=9))
    requests = [Request([who] * 5, ids(mode="verified", max_new_tokens=n)) for who, n in ((1, 8), (2, 16), (3, 24))]
    found = ask(backbone, *requests, spec=spec, batch_size=2)
    shared = [call for call in backbone.calls if len(call) == 2]
    assert len(shared) >= 5 and {feed.draft for call in shared for _, feed in call} == {True, False}
    assert [len(answer.token_ids) for answer in found] == [8, 16, 24]


def test_rows_are_admitted_as_others_end():
    backbone = ScriptedBackbone(writes([], start=0, filler=9))
    requests = [Request([who] * 3, ids(mode="ar", max_new_tokens=n)) for who, n in ((1, 2), (2, 9), (3, 3), (4, 3))]
    found = ask(backbone, *requests, batch_size=2)
    assert [len(answer.token_ids) for answer in found] == [2, 9, 3, 3]
    assert max(len(call) for call in backbone.calls) == 2
    assert len(backbone.calls) < sum(answer.forwards for answer in found)


def test_seconds_are_of_the_row_and_batch_seconds_of_all():
    requests = [Request([1], ids(max_new_tokens=n)) for n in (2, 40)]
    found = ask(ScriptedBackbone(writes([], start=0, filler=9)), *requests)
    assert all(0 < answer.seconds <= answer.batch_seconds for answer in found)
    assert found[0].batch_seconds == found[1].batch_seconds and found[0].seconds < found[1].seconds


@pytest.mark.parametrize("as_list", [True, False])
def test_batch_seconds_count_from_the_start_of_the_run(as_list):
    def slow(who, position, step):
        time.sleep(0.005)
        return sure(9)

    requests = [Request([who], ids(mode="ar", max_new_tokens=4)) for who in range(1, 5)]
    began = time.perf_counter()
    engine = Engine(ScriptedBackbone(slow), SPEC, batch_size=1)
    events = list(engine.run(requests if as_list else iter(requests)))
    total = time.perf_counter() - began
    found = [event.answer.batch_seconds for event in events if isinstance(event, Finished)]
    assert found == sorted(found) and total * 0.9 <= found[-1] <= total and found[0] <= total / 2


# --- requests that cannot be served -------------------------------------------------------------------------------


def test_o4_04_empty_prompt():
    backbone = ScriptedBackbone(writes([], start=0, filler=65, vocab=BYTES), vocab_size=BYTES)
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=BYTE_MASK)
    refused = ask(backbone, Request([], ids()), spec=spec)[0]
    assert isinstance(refused.error, RequestError) and "beginning-of-text" in str(refused.error)
    assert refused.finish_reason == "error" and refused.forwards == 0
    served = ask(backbone, Request([], ids()), spec=spec, tokenizer=byte_tokenizer(bos_token="<turn>"))[0]
    assert served.text == "A" * 8 and served.prompt_tokens == 1


@pytest.mark.parametrize("length", [64, 65, 500])
def test_o4_05_prompt_longer_than_the_model_allows(length):
    backbone = ScriptedBackbone(writes([], start=0, filler=9), max_positions=64)
    bad, good = ask(backbone, Request([1] * length, ids()), Request([1] * 56, ids()))
    assert str(length) in str(bad.error) and "64" in str(bad.error) and bad.token_ids == []
    assert good.error is None and good.token_ids == [9] * 8
    assert all(len(feed.tokens) <= 56 for call in backbone.calls for _, feed in call)


def test_o4_05_prompt_plus_answer_longer_than_the_model_allows():
    backbone = ScriptedBackbone(writes([], start=0, filler=9), max_positions=64)
    bad = ask(backbone, Request([1] * 60, ids()))[0]
    assert all(number in str(bad.error) for number in ("60", "8", "64", "at most 4"))
    assert ask(backbone, Request([1] * 60, ids(max_new_tokens=4)))[0].token_ids == [9] * 4


@pytest.mark.parametrize("length, limit", [(1, 4095), (5000, 8), (8, 10**6)])
def test_a_refused_request_does_not_size_the_cache(length, limit):
    backbone = ScriptedBackbone(writes([], start=0, filler=9))
    engine = Engine(backbone, SPEC, batch_size=2)
    bad = Request([64] * length, ids(max_new_tokens=limit))
    answers = engine.generate([bad, Request([1] * 20, ids())])
    assert answers[0].error is not None and answers[1].token_ids == [9] * 8
    assert engine.cache.capacity == 64 == engine.capacity


@pytest.mark.parametrize(
    "request_, message",
    [
        (Request([1, 64], ids()), "prompt token 64 is outside"),
        (Request([1, -1], ids()), "prompt token -1 is outside"),
        (Request([1], ids(block_size=16)), "block_size 16 does not divide 8"),
        (Request([1], ids(sub_block_size=3)), "sub_block_size 3 does not divide block_size 8"),
        (Request([1], ids(block_size=4, sub_block_size=8)), "sub_block_size 8 does not divide block_size 4"),
        (Request([1], ids(mode="verified")), "verified needs a checkpoint with context 'causal'"),
        (Request([1], ids(stop=("x",))), "stop strings need a tokenizer"),
    ],
)
def test_o1_13_what_cannot_be_served_is_named_and_others_go_on(request_, message):
    bad, good = ask(ScriptedBackbone(writes([], start=0, filler=9)), request_, Request([1], ids()))
    assert message in str(bad.error) and "\n" not in str(bad.error)
    assert good.token_ids == [9] * 8


@pytest.mark.parametrize(
    "wanted, spec, expected",
    [
        ({}, SPEC, ("threshold", 8, 4)),
        ({}, CAUSAL, ("verified", 8, 4)),
        ({"temperature": 1.0}, CAUSAL, ("verified", 8, 4)),
        ({"logprobs": 1}, SPEC, ("ar", 8, 4)),
        ({"block_size": 2}, SPEC, ("threshold", 2, 2)),
        ({"block_size": 4}, SPEC, ("threshold", 4, 4)),
        ({"block_size": 1}, SPEC, ("threshold", 1, 1)),
        ({"sub_block_size": 8}, SPEC, ("threshold", 8, 8)),
        ({"block_size": 12}, BlockSpec(block_size=24, sub_block_size=8, mask_id=0), ("threshold", 12, 6)),
    ],
)
def test_open_settings_come_from_the_checkpoint(wanted, spec, expected):
    full = resolve(Decoding(**wanted), spec)
    assert (full.mode, full.block_size, full.sub_block_size) == expected
    assert full.stop_ids == spec.stop_ids


@pytest.mark.parametrize("mode, spec", [("ar", SPEC), ("threshold", SPEC), ("verified", CAUSAL)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_o4_10_nan_logits_fail_that_row_only(mode, spec, bad):
    def script(who, position, step):
        return torch.full((64,), bad) if who == 1 and step >= 2 else sure(9)

    sick, well = ask(
        ScriptedBackbone(script),
        Request([1] * 8, ids(mode=mode, max_new_tokens=30)),
        Request([2] * 8, ids(mode=mode, max_new_tokens=30)),
        spec=spec,
    )
    assert isinstance(sick.error, RequestError) and "NaN" in str(sick.error) and sick.finish_reason == "error"
    assert sick.forwards <= 9 and all(token == 9 for token in sick.token_ids)
    assert well.token_ids == [9] * 30 and well.error is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("mode, context", [("ar", "block"), ("threshold", "block"), ("verified", "causal")])
def test_o4_10_a_broken_row_leaves_nothing_to_the_next_one(mode, context, bad):
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[77] = bad
    backbone = UniversalBackbone(model, mask_id=BYTE_MASK)
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=BYTE_MASK, context=context)
    wanted = ids(mode=mode, max_new_tokens=12)
    healthy = [Request(list(range(n)), wanted) for n in (30, 2)]
    alone = [ask(backbone, request, spec=spec)[0].token_ids for request in healthy]
    assert all(77 not in tokens for tokens in alone)
    sick = Request([5] * 8 + [77] * 12, wanted)
    found = ask(backbone, sick, *healthy, sick, healthy[1], spec=spec, batch_size=2)
    assert [answer.finish_reason for answer in found] == ["error", "length", "length", "error", "length"]
    assert [found[1].token_ids, found[2].token_ids, found[4].token_ids] == [*alone, alone[1]]


# --- a plain model ------------------------------------------------------------------------------------------------


def test_a_plain_model_is_decoded_with_nothing_banned():
    backbone = ScriptedBackbone(writes([MASK, 7, END, 5], start=8))
    engine = Engine(backbone, None, stop_ids=(END,))
    found = engine.generate([Request([1] * 8, Decoding()), Request([1] * 8, ids())])
    assert (found[0].mode, found[0].token_ids, found[0].finish_reason) == ("ar", [MASK, 7], "stop")
    assert "plain autoregressive model" in str(found[1].error)


@pytest.mark.parametrize("mode, spec", [("ar", SPEC), ("threshold", SPEC), ("verified", CAUSAL)])
def test_a_mask_id_beyond_the_vocabulary_bans_nothing_and_0_bans_0(mode, spec):
    backbone = ScriptedBackbone(lambda who, position, step: sure(0))
    for mask_id, expected in ((64, 0), (0, 1)):
        other = BlockSpec(block_size=8, sub_block_size=4, mask_id=mask_id, context=spec.context)
        assert ask(backbone, Request([1] * 8, ids(mode=mode)), spec=other)[0].token_ids == [expected] * 8


# --- streams ------------------------------------------------------------------------------------------------------


def typed(text, start, vocab=BYTES):
    """A network that writes the bytes of `text` from position `start` on."""
    return ScriptedBackbone(writes(list(text.encode()), start, vocab=vocab, filler=122), vocab_size=vocab)


BYTE_SPEC = BlockSpec(block_size=8, sub_block_size=4, mask_id=BYTE_MASK, stop_ids=(256,))
BYTE_CAUSAL = BlockSpec(block_size=8, sub_block_size=4, mask_id=BYTE_MASK, stop_ids=(256,), context="causal")


def streamed(backbone, decoding, spec=BYTE_SPEC, tokenizer=None, prompt=1):
    """The joined text and joined tokens of the events, and the answer."""
    engine = Engine(backbone, spec, tokenizer or byte_tokenizer())
    events = list(engine.run([Request([65] * prompt, decoding)]))
    committed = [event for event in events if isinstance(event, Committed)]
    assert isinstance(events[-1], Finished)
    return "".join(e.text for e in committed), [t for e in committed for t in e.token_ids], events[-1].answer


@pytest.mark.parametrize(
    "mode, spec", [("ar", BYTE_SPEC), ("threshold", BYTE_SPEC), ("threshold", BYTE_CAUSAL), ("verified", BYTE_CAUSAL)]
)
@pytest.mark.parametrize("stops", [("DEFGHIJ",), ("tail", "DEFGHIJ"), ("", "DEFGHIJ")])
def test_o4_07_a_stop_string_across_blocks(mode, spec, stops):
    backbone = typed("abc DEFGHIJ tail and so on for ever and ever", start=1)
    text, tokens, answer = streamed(backbone, ids(mode=mode, stop=stops, max_new_tokens=60), spec)
    assert tokens == answer.token_ids and text == answer.text == "abc " and answer.finish_reason == "stop"
    assert answer.token_ids == list(b"abc ") and answer.completion_tokens == 4
    assert max(feed.start for call in backbone.calls for _, feed in call) < 16


@pytest.mark.parametrize("mode, spec", [("ar", BYTE_SPEC), ("threshold", BYTE_SPEC), ("verified", BYTE_CAUSAL)])
@pytest.mark.parametrize("start", range(1, 9))
def test_o4_08_characters_across_steps_and_blocks(mode, spec, start):
    text = "👩‍👩‍👧 né 漢字!"
    backbone = typed(text, start)
    shown, tokens, answer = streamed(backbone, ids(mode=mode, max_new_tokens=len(text.encode())), spec, prompt=start)
    assert shown == answer.text == text and tokens == answer.token_ids == list(text.encode())
    cut, _, answer = streamed(typed(text, start), ids(mode=mode, max_new_tokens=6), spec, prompt=start)
    assert cut == answer.text == "👩\ufffd" and answer.finish_reason == "length"


@pytest.mark.parametrize("mode, spec", [("ar", BYTE_SPEC), ("threshold", BYTE_SPEC), ("verified", BYTE_CAUSAL)])
@pytest.mark.parametrize("limit", range(1, 18))
def test_o4_07_streamed_tokens_are_the_answers_at_stop_limit_and_error(mode, spec, limit):
    words = "é DEF 漢 DEFGH DEFGHIJ x"

    def script(who, position, step):
        if limit == 17 and position == 12:
            return torch.full((BYTES,), torch.nan)
        return sure(list(words.encode())[min(position - 1, 27)], vocab=BYTES)

    wanted = ids(mode=mode, stop=("DEFGHIJ",), max_new_tokens=2 * limit)
    text, tokens, answer = streamed(ScriptedBackbone(script, BYTES), wanted, spec)
    assert tokens == answer.token_ids and text == answer.text and answer.completion_tokens == len(tokens)
    assert answer.finish_reason == ("error" if limit == 17 else "stop" if 2 * limit >= 24 else "length")
    if answer.finish_reason == "length":
        assert len(tokens) == 2 * limit
    if answer.finish_reason == "stop":
        assert bytes(tokens).decode() == text == "é DEF 漢 DEFGH "


def test_o5_13_out_of_order_commits_are_shown_in_order():
    text = b"hello world, all"

    def surest_last(who, position, step):
        place = position - 8
        return sure(text[place] if place < len(text) else 256, 0.2 + (place % 8) / 10, BYTES)

    engine = Engine(ScriptedBackbone(surest_last, BYTES), BYTE_SPEC, byte_tokenizer())
    wanted = ids(threshold=1.0, max_new_tokens=40)
    events = list(engine.run([Request([65] * 8, wanted, provisional=True)]))
    pieces = [event.text for event in events if isinstance(event, Committed)]
    masked = [event.masked for event in events if isinstance(event, Provisional)]
    assert any(m[1] and not m[3] for m in masked), "the script should decide out of order"
    assert "".join(pieces) == text.decode() == events[-1].answer.text and "<mask>" not in "".join(pieces)
    assert events[-1].answer.finish_reason == "stop"


def test_without_a_tokenizer_text_is_none():
    events = list(Engine(ScriptedBackbone(writes([], 0, filler=9)), SPEC).run([Request([1], ids())]))
    assert all(event.text is None for event in events if isinstance(event, Committed))
    assert events[-1].answer.text is None


# --- the engine over its life -------------------------------------------------------------------------------------


def test_requests_may_come_one_by_one_and_of_any_length():
    backbone = ScriptedBackbone(writes([], start=0, filler=9))
    source = (Request([who] * 2**who, ids(max_new_tokens=3 * who)) for who in range(1, 8))
    found = {e.index: e.answer for e in Engine(backbone, SPEC, batch_size=3).run(source) if isinstance(e, Finished)}
    assert [len(found[i].token_ids) for i in range(7)] == [3 * who for who in range(1, 8)]
    assert list(Engine(backbone, SPEC).run([])) == []


def test_a_server_submits_steps_and_cancels():
    engine = Engine(ScriptedBackbone(writes([], start=0, filler=9)), SPEC, batch_size=2, capacity=256)
    first, second, third = (engine.submit(Request([1 + i], ids(mode="ar", max_new_tokens=20))) for i in range(3))
    with pytest.raises(UnmaskError, match="outside the vocabulary"):
        engine.submit(Request([99], ids()))
    events = engine.step()
    assert {event.index for event in events} == {first, second}
    engine.cancel(first)
    events = [event for _ in range(30) for event in engine.step()]
    assert first not in {event.index for event in events}
    assert {event.index for event in events if isinstance(event, Finished)} == {second, third}
    assert engine.step() == [] and not engine.live and not engine.waiting


def test_a_listener_that_leaves_cancels_what_is_left():
    engine = Engine(ScriptedBackbone(writes([], start=0, filler=9)), SPEC, batch_size=2)
    events = engine.run([Request([1], ids(max_new_tokens=50))] * 3)
    next(events)
    events.close()
    assert not engine.live and not engine.waiting
    assert [len(answer.token_ids) for answer in engine.generate([Request([1], ids())] * 3)] == [8, 8, 8]
