"""Likelihoods are what they are said to be, and none of them has seen its own target."""

import math
import statistics

import pytest
import torch
from scoring import Recorder, chain_rule, complain, every_order, loaded, scores, values
from tiny import END, MASK, VOCAB, byte_tokenizer, low_rank, native, on_gpu, tiny_model

from unmask import row as row_module
from unmask.config import BlockSpec
from unmask.core.noise import seeded
from unmask.errors import ConfigError, RequestError
from unmask.evaluate import terms
from unmask.evaluate.likelihood import score, score_rolling
from unmask.evaluate.pairs import encode_pair, windows
from unmask.evaluate.terms import passes
from unmask.model.adapters import merged
from unmask.model.universal import UniversalBackbone

CONTEXTS = ["block", "causal"]
PROMPT = [7, 8, 9, 10, 11]
PAIRS = [
    (PROMPT, [20, 21, 22, 23, 24, 25, 26]),
    (PROMPT, [30, 31]),
    (PROMPT, [40]),
    ([1, 2, 3, 4, 5, 6], [50, 51, 52, 53]),
    ([1], [60, 61, 62, 63, 64, 65, 66, 67, 68]),
]


def spec(context="causal", size=6, part=3, **more):
    return BlockSpec(block_size=size, sub_block_size=part, mask_id=MASK, context=context, **more)


def both(model, contract):
    """The model on either backbone."""
    mask = model.get_input_embeddings().weight.detach()[MASK]
    return [loaded(model, contract), loaded(model, contract, backbone=native(model, mask=mask))]


# --- mode ar ------------------------------------------------------------------------------------------------------


def test_ar_is_the_chain_rule_on_both_backbones(model):
    wanted = [chain_rule(model, *pair, banned=MASK) for pair in PAIRS]
    for each in both(model, spec()):
        for mode in ("ar", "verified"):
            torch.testing.assert_close(values(each, PAIRS, mode=mode), torch.tensor(wanted), atol=1e-4, rtol=0)


def test_a_plain_model_has_nothing_banned(model):
    wanted = [chain_rule(model, *pair, banned=None) for pair in PAIRS]
    for mode in ("ar", "auto"):
        torch.testing.assert_close(values(loaded(model), PAIRS, mode=mode), torch.tensor(wanted), atol=1e-4, rtol=0)


def test_greedy_is_what_decoding_writes(model):
    plain = loaded(model)
    [answer] = plain.generate([PROMPT], max_new_tokens=5)
    right = answer.token_ids
    wrong = [*right[:3], (right[3] + 1) % 200, right[4]]
    assert [each.greedy for each in scores(plain, [(PROMPT, right), (PROMPT, wrong), (PROMPT, right[:1])])] == [
        True,
        False,
        True,
    ]


def test_long_inputs_go_in_pieces(model, monkeypatch):
    pairs = [(list(range(1, 50)), list(range(100, 120))), (list(range(1, 30)), [3])]
    for mode in ("ar", "threshold"):
        for context in CONTEXTS:
            whole = values(loaded(model, spec(context)), pairs, mode=mode)
            with monkeypatch.context() as patch:
                patch.setattr(row_module, "PIECE", 16)
                patch.setattr(terms, "READS", 5)
                recorder = Recorder(UniversalBackbone(model, mask_id=MASK))
                pieces = values(loaded(model, spec(context), backbone=recorder), pairs, mode=mode)
            assert max(len(feed.tokens) for feed, _ in recorder.calls) <= 16
            assert max(len(feed.read) for feed, _ in recorder.calls) <= 5
            torch.testing.assert_close(pieces, whole, atol=1e-4, rtol=0)


def test_answers_of_one_question_share_its_context(model):
    context = list(range(1, 101))
    pairs = [(context, [150 + i, 160]) for i in range(4)] + [([*context[:80], 7, 8], [9])]
    recorder = Recorder(UniversalBackbone(model, mask_id=None))
    found = scores(loaded(model, backbone=recorder), pairs, batch_size=1)
    assert sum(len(feed.tokens) for feed, _ in recorder.calls) == 101 + 3 * 2 + 2
    assert [each.forwards for each in found] == [1] * 5
    alone = [float(values(loaded(model), [pair])) for pair in pairs]
    assert [each.log_probability for each in found] == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("mode", ["ar", "threshold"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_what_a_lane_holds_is_used_only_where_it_is_right(model, context, mode):
    """Neither drafted blocks, nor a block of which only the beginning is shared, serve the next pair."""
    text = list(range(1, 31))
    pairs = [
        (text[:5], text[5:20]),
        (text[:20], text[20:24]),
        ([*text[:15], 99, *text[16:20]], [7]),
        (text[:20], text[20:24]),
        (text[:3], [50, 51, 52]),
    ]
    each = loaded(model, spec(context))
    alone = [float(values(each, [pair], mode=mode)) for pair in pairs]
    assert values(each, pairs, mode=mode, batch_size=1).tolist() == pytest.approx(alone, abs=1e-4)


# --- mode threshold -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("size, part", [(3, 3), (6, 3), (5, 5), (4, 1), (2, 2)])
def test_the_expectation_is_the_mean_over_all_orders(model, context, size, part):
    contract = spec(context, size, part)
    wanted = torch.tensor([every_order(model, contract, *pair) for pair in PAIRS[:4]])
    for each in both(model, contract):
        found = scores(each, PAIRS[:4], mode="threshold", samples=20)
        assert [s.standard_error for s in found] == [0.0] * 4  # so many samples take every set of masked slots
        assert [s.greedy for s in found] == [None] * 4 and [s.tokens for s in found] == [7, 2, 1, 4]
        torch.testing.assert_close(torch.tensor([s.log_probability for s in found]), wanted, atol=2e-4, rtol=0)


def test_forwards_are_counted(model):
    """One that commits, and one per set of masked slots: 3 of two slots, 7 of three; else one per size."""
    found = scores(loaded(model, spec()), PAIRS[:3], mode="threshold", samples=3)
    assert [each.forwards for each in found] == [1 + 3 + 7, 1 + 1, 1]
    found = scores(loaded(model, spec()), PAIRS[:3], mode="threshold", samples=1)
    assert [each.forwards for each in found] == [1 + 2 + 3, 1 + 1, 1]


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_tiny_vocabulary_and_a_block_of_three(context):
    model = tiny_model(vocab_size=8, initializer_range=0.03)
    contract = BlockSpec(block_size=3, sub_block_size=3, mask_id=7, context=context)
    each = loaded(model, contract)
    pairs = [([1, 2, 3], [4, 5, 6]), ([1, 2, 3, 4], [5, 6]), ([1], [2, 3])]
    found = values(each, pairs, mode="threshold", samples=3)
    wanted = [every_order(model, contract, *pair) for pair in pairs]
    assert found.tolist() == pytest.approx(wanted, abs=1e-4)
    left_to_right = values(each, pairs, mode="threshold", decoding={"sub_block_size": 1})
    assert not torch.allclose(found, left_to_right, atol=1e-3)
    every = [([1], [a, b, c]) for a in range(7) for b in range(7) for c in range(7)]
    law = values(each, every, mode="threshold", decoding={"sub_block_size": 1}, batch_size=64).exp().sum()
    assert float(law) == pytest.approx(1, abs=1e-4)  # along one order it is a law, the mean over orders a bound
    assert 0.5 < float(values(each, every, mode="threshold", batch_size=64).exp().sum()) < 1


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_draws_are_unbiased_and_their_error_is_honest(n):
    def worth(places):  # any function of the masked set
        return math.sin(sum(3.7**place for place in places)) * len(places) - len(places)

    def estimates(samples, seed):
        draws, exact = passes(n, samples, seeded(seed))
        return [sum(weight * worth(places) for places, weight in draw.items()) for draw in draws], exact

    [exact], complete = estimates(100, 0)
    assert complete
    runs = [estimates(3 if n > 3 else 1, seed) for seed in range(1500)]
    assert all(complete == (n <= (1 if n <= 3 else 2)) for _, complete in runs)
    means = [statistics.fmean(run) for run, _ in runs]
    spread = statistics.stdev(means) if n > 1 else 0.0
    assert statistics.fmean(means) == pytest.approx(exact, abs=4 * spread / math.sqrt(len(runs)) + 1e-9)
    if n > 3:
        said = math.sqrt(statistics.fmean(statistics.variance(run) / len(run) for run, _ in runs))
        assert said == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("context", CONTEXTS)
def test_o7_03_block_size_one_is_mode_ar(model, context):
    for contract in (spec(context, 1, 1), spec(context)):
        for each in both(model, contract):
            found = scores(each, PAIRS, mode="threshold", decoding={"block_size": 1}, samples=1)
            assert [s.standard_error for s in found] == [0.0] * len(PAIRS)
            torch.testing.assert_close(
                torch.tensor([s.log_probability for s in found]), values(each, PAIRS, mode="ar"), atol=1e-4, rtol=0
            )


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("mode", ["ar", "threshold"])
def test_o7_03_an_untrained_model_finds_every_token_as_likely(context, mode):
    model = tiny_model(initializer_range=0.002)
    for each in both(model, spec(context)):
        for found in scores(each, PAIRS, mode=mode):
            assert found.log_probability == pytest.approx(-found.tokens * math.log(VOCAB - 1), rel=0.05)


@pytest.mark.parametrize("context", CONTEXTS)
def test_o7_03_the_same_seed_gives_the_same_number(model, context):
    for each in both(model, spec(context, 8, 8)):

        def drawn(each=each, **how):
            return scores(each, PAIRS, **{"mode": "threshold", "samples": 2, **how})

        exact = each.backbone.ragged  # such a backbone computes the same bits in any company
        first = drawn(batch_size=1)
        assert first[0].standard_error > 0
        for found in (drawn(batch_size=2), drawn(batch_size=5)):
            for a, b in zip(first, found, strict=True):
                assert b.log_probability == pytest.approx(a.log_probability, abs=0 if exact else 1e-4)
                assert b.standard_error == pytest.approx(a.standard_error, abs=0 if exact else 1e-4)
        [alone] = scores(each, PAIRS[4:], mode="threshold", samples=2)  # nor do the other pairs matter
        assert alone.log_probability == pytest.approx(first[4].log_probability, abs=1e-4)
        other = drawn(seed=1)
        assert abs(other[4].log_probability - first[4].log_probability) > 1e-3
        single = drawn(samples=1)
        assert single[0].standard_error is None and single[2].standard_error == 0.0


def hidden_reads(model, contract, pair, changed, mode):
    """What is read while slot `changed` of the text is out of sight: (where, logits), in order."""
    recorder = Recorder(UniversalBackbone(model, mask_id=MASK))
    scores(loaded(model, contract, backbone=recorder), [pair], mode=mode, samples=2)
    for feed, logits in recorder.calls:
        at = changed - feed.start
        for read, row in zip(feed.read, logits, strict=True):
            shown = changed < feed.ends[read] and not (0 <= at < len(feed.tokens) and feed.masked[at])
            target = feed.start + read + 1
            if not shown or target == changed:
                yield (feed.start, read, tuple(feed.masked)), row


def check_nothing_leaks(model, contract, mode):
    """No number whose slot, or any slot that is said to be hidden from it, changes moves."""
    for context, continuation in (PAIRS[0], PAIRS[1], PAIRS[3]):
        for place in range(len(continuation)):
            changed = len(context) + place
            other = [*continuation]
            other[place] = (other[place] + 77) % 200
            seen = list(hidden_reads(model, contract, (context, continuation), changed, mode))
            again = list(hidden_reads(model, contract, (context, other), changed, mode))
            assert [where for where, _ in seen] == [where for where, _ in again]
            assert any(start + read + 1 == changed for (start, read, _), _ in seen), "the slot itself is never scored"
            for (where, a), (_, b) in zip(seen, again, strict=True):
                assert torch.allclose(a, b, atol=1e-5), (where, changed)


LEAKS = [("block", "threshold"), ("causal", "threshold"), ("causal", "ar")]


@pytest.mark.parametrize("context, mode", LEAKS)
@pytest.mark.parametrize("size, part", [(6, 3), (4, 4)])
def test_o7_03_no_score_sees_its_target(model, context, mode, size, part):
    check_nothing_leaks(model, spec(context, size, part), mode)


@pytest.mark.parametrize("context, mode", LEAKS)
def test_o7_03_a_score_that_does_is_found_out(model, context, mode, monkeypatch):
    """The control: a draft that shows a slot that it is asked for, and a causal feed that looks one token ahead."""
    draft, causal = terms.draft, row_module.Row.causal

    def shows(row, start, hidden, wanted):
        return draft(row, start, [slot for slot in hidden if slot != wanted[-1]], wanted)

    def ahead(row, kind, tokens, start, read=(-1,)):
        step = causal(row, kind, tokens, start, read)
        step.feed.ends[:-1] = step.feed.ends[1:]
        return step

    monkeypatch.setattr(*((terms, "draft", shows) if mode == "threshold" else (row_module.Row, "causal", ahead)))
    with pytest.raises(AssertionError, match=r"\(\(\d+, \d+, \("):
        check_nothing_leaks(model, spec(context), mode)


def test_adapters_act_on_drafts_only(model):
    adapter = low_rank(model)
    contract = spec(adapter_scope="draft")
    drafting = merged(model, adapter)
    mask = model.get_input_embeddings().weight.detach()[MASK]
    backbones = [
        UniversalBackbone(model, drafting, mask_id=MASK),
        native(model, mask=mask, adapter=adapter),
        on_gpu(model, mask=mask, adapter=adapter),
    ]
    bare = loaded(model, contract)
    for backbone in backbones:
        each = loaded(model, contract, backbone=backbone)
        torch.testing.assert_close(values(each, PAIRS, mode="ar"), values(bare, PAIRS, mode="ar"), atol=1e-4, rtol=0)
    a, b, c = (values(loaded(model, contract, backbone=backbone), PAIRS, mode="threshold") for backbone in backbones)
    torch.testing.assert_close(a, b, atol=2e-4, rtol=0)
    torch.testing.assert_close(a, c, atol=2e-4, rtol=0)
    drafts = a - values(bare, PAIRS, mode="threshold")
    assert drafts[2].abs() < 1e-4  # one token: it comes from the commit before
    assert (drafts[[0, 1, 3, 4]].abs() > 1e-2).all()


# --- what is asked for --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ar", "threshold"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_o7_03_an_empty_context_is_the_prefix_token(model, mode, context):
    tokenizer = byte_tokenizer(eos_token="<end>")
    each = loaded(model, spec(context), tokenizer)
    empty, given = values(each, [([], [20, 21, 22]), ([END], [20, 21, 22])], mode=mode).tolist()
    assert empty == pytest.approx(given, abs=1e-5) and empty < -1
    assert encode_pair(each.checkpoint, "", "ab") == ([END], [97, 98])
    assert encode_pair(each.checkpoint, "", "<end>ab") == ([END], [97, 98])
    with pytest.raises(RequestError, match="context is empty"):
        score(loaded(model, spec(context)), [([], [20])], mode=mode)


def test_an_empty_continuation_is_certain(model):
    for mode in ("ar", "threshold"):
        [found] = scores(loaded(model, spec()), [(PROMPT, [])], mode=mode)
        assert (found.log_probability, found.standard_error, found.tokens, found.forwards) == (0.0, 0.0, 0, 0)


def test_nothing_to_score(model):
    assert scores(loaded(model), []) == []
    assert list(score_rolling(loaded(model, None, byte_tokenizer(eos_token="<end>")), [[]]))[0][1].tokens == 0


def test_the_mask_id_is_impossible(model):
    for mode in ("ar", "threshold"):
        found = scores(loaded(model, spec()), [(PROMPT, [20, MASK]), (PROMPT, [20, 21])], mode=mode)
        assert found[0].log_probability == -math.inf and found[0].greedy is False
        assert math.isfinite(found[1].log_probability)


def test_o7_03_settings_of_decoding_without_effect_are_named(model):
    lines = []
    wanted = {"threshold": 0.5, "sub_block_cache": False, "block_size": 3, "sub_block_size": 3}
    list(score(loaded(model, spec()), PAIRS[:1], mode="threshold", decoding=wanted, say=lines.append))
    assert lines == ["warning: threshold, sub_block_cache changes no likelihood in mode threshold: nothing is decoded"]
    lines.clear()
    list(score(loaded(model, spec()), PAIRS[:1], mode="ar", decoding={"block_size": 3}, say=lines.append))
    assert lines == ["warning: block_size changes no likelihood in mode ar: nothing is decoded"]
    lines.clear()
    tokenizer = byte_tokenizer(eos_token="<end>")
    list(score_rolling(loaded(model, None, tokenizer), [[1, 2]], decoding={"threshold": 1.0}, say=lines.append))
    assert len(lines) == 1


@pytest.mark.parametrize("mode, limit", [("ar", 512), ("threshold", 511)])
def test_a_long_context_is_cut_on_the_left_once_said(model, mode, limit):
    long = [1 + i % 200 for i in range(600)]
    lines = []
    each = loaded(model, spec())
    found = dict(score(each, [(long, [5, 6]), (long, [7]), (PROMPT, [8])], mode=mode, say=lines.append))
    kept = [limit - 1, limit]
    assert [found[i].cut for i in range(3)] == [600 - kept[0], 600 - kept[1], 0]
    assert len(lines) == 1 and f"2 of 3 contexts are cut on the left, {1200 - sum(kept)} tokens" in lines[0]
    short = values(each, [(long[-kept[0] :], [5, 6]), (long[-kept[1] :], [7])], mode=mode)
    assert [found[0].log_probability, found[1].log_probability] == pytest.approx(short.tolist(), abs=1e-4)
    with pytest.raises(RequestError, match=f"continuation has 600 tokens but the model takes {limit}"):
        score(each, [(PROMPT, long)], mode=mode)


def test_what_cannot_be_scored_is_refused_before_any_work(model):
    each = loaded(model, spec())
    with pytest.raises(RequestError, match="plain autoregressive model"):
        score(loaded(model), PAIRS, mode="threshold")
    with pytest.raises(RequestError, match="token 261 is outside the vocabulary"):
        score(each, [(PROMPT, [261])], mode="ar")
    with pytest.raises(ConfigError, match="samples is 0"):
        score(each, PAIRS, mode="threshold", samples=0)
    with pytest.raises(ConfigError, match="batch_size is 0"):
        score(each, PAIRS, batch_size=0)
    with pytest.raises(RequestError, match="block_size 4 does not divide"):
        score(each, PAIRS, mode="threshold", decoding={"block_size": 4})
    with pytest.raises(ConfigError, match="not a setting"):
        score(each, PAIRS, decoding={"tau": 4})


def test_nan_is_an_error_not_a_number():
    broken = tiny_model()
    with torch.no_grad():
        broken.lm_head.weight[3] = torch.nan
    with pytest.raises(RequestError, match="NaN"):
        scores(loaded(broken), PAIRS)


# --- whole texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ar", "threshold"])
def test_a_text_longer_than_the_model_is_scored_once_over(mode):
    model = tiny_model(max_position_embeddings=16)
    each = loaded(model, spec(), byte_tokenizer(eos_token="<end>"))
    texts = [[1 + (7 * i) % 200 for i in range(n)] for n in (40, 3, 16)]
    longest = 16 if mode == "ar" else 15
    found = dict(score_rolling(each, texts, mode=mode, say=complain))
    assert [found[i].tokens for i in range(3)] == [40, 3, 16]
    for number, text in enumerate(texts):
        pairs = list(windows(text, END, longest))
        assert [token for _, part in pairs for token in part] == text
        assert max(len(a) + len(b) for a, b in pairs) <= longest + 1
        assert found[number].log_probability == pytest.approx(float(values(each, pairs, mode=mode).sum()), abs=1e-3)
