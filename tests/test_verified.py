"""Mode verified that drafts as far as it pays: whatever it tries, the text is mode ar's, greedy and sampled."""

import math
import os
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedBackbone, sure, writes
from tiny import END, MASK, byte_tokenizer, full_logits, low_rank, native, tiny_model

from unmask import verified
from unmask.config import BlockSpec, Decoding
from unmask.core.pace import Costs
from unmask.engine import Engine, Request
from unmask.errors import RequestError
from unmask.events import Committed, Finished, Provisional
from unmask.model.adapters import merged
from unmask.model.universal import UniversalBackbone

CAUSAL = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END,), context="causal")
DRAFT = replace(CAUSAL, adapter_scope="draft")
MODELS = [tiny_model(seed) for seed in range(3)]
ADAPTER = low_rank(MODELS[0])
UNIVERSAL = [UniversalBackbone(model, mask_id=MASK) for model in MODELS]
TWO = UniversalBackbone(MODELS[0], merged(MODELS[0], ADAPTER), mask_id=MASK)
EMBEDDED = MODELS[0].get_input_embeddings().weight[MASK]
NATIVE = {kind: native(MODELS[0], kind=kind, mask=EMBEDDED, adapter=ADAPTER) for kind in ("fp32", "bf16", "int8")}


def costs(each: float, least: float, slope: float, gain: float = 1.0) -> Costs:
    return Costs(((1, 1.0), (101, 1 + 100 * each)), ((1, least), (101, least + 100 * slope)), gain)


some_costs = st.builds(
    costs,
    st.sampled_from([0.0, 0.02, 0.1, 1.0]),
    st.sampled_from([0.1, 1.0]),
    st.sampled_from([0.0, 0.1]),
    st.just(2.0),
)


BYTES = byte_tokenizer()


def found(requests, spec, backbone, batch_size=1, tokenizer=None, **how):
    answers = Engine(backbone, spec, tokenizer, batch_size=batch_size, **how).generate(requests)
    assert all(answer.error is None for answer in answers)
    return answers


def prompts(data, least=1, most=4):
    """Prompts of few different tokens, so that runs come again."""
    tokens = st.lists(st.integers(0, data.draw(st.sampled_from([3, 250]))), min_size=1, max_size=30)
    return data.draw(st.lists(tokens, min_size=least, max_size=most))


def same_as_ar(data, examples_of):
    """Draw requests, costs and a batch; modes ar (alone) and verified (together) write the same."""
    spec, backbone = data.draw(st.sampled_from(examples_of))
    asked = [
        Decoding(
            max_new_tokens=data.draw(st.integers(1, 40)),
            temperature=data.draw(st.sampled_from([0.0, 0.0, 0.3, 1.0, 5.0])),
            top_p=data.draw(st.sampled_from([1.0, 0.8])),
            seed=data.draw(st.integers(0, 99)),
            block_size=data.draw(st.sampled_from([None, 1, 2, 4])),
            prompt_lookup=data.draw(st.booleans()),
            drafts=data.draw(st.sampled_from(["paced", "paced", "plain"])),
            stop=data.draw(st.sampled_from([(), (), ("a",), ("\x00", "ab")])),
            stop_ids=data.draw(st.sampled_from([(END,), (), (7, 8, 120)])),
            logprobs=data.draw(st.sampled_from([None, 0, 2])),
        )
        for _ in range(4)
    ]
    pairs = list(zip(prompts(data), asked, strict=False))
    alone = [found([Request(p, replace(d, mode="ar"))], spec, backbone, tokenizer=BYTES)[0] for p, d in pairs]
    mixed = [Request(p, replace(d, mode="verified"), data.draw(st.booleans())) for p, d in pairs]
    other = Decoding(mode=data.draw(st.sampled_from(["ar", "threshold"])), max_new_tokens=9)
    fused = "fused" if other.mode == "threshold" and backbone.name != "universal" else "reference"
    mixed.insert(1, Request([1, 2, 3], replace(other, schedule=fused)))
    batch, given_costs = data.draw(st.integers(1, 4)), data.draw(some_costs)
    together = found(mixed, spec, backbone, batch, tokenizer=BYTES, costs=given_costs)
    together.pop(1)
    assert [told(answer) for answer in together] == [told(answer) for answer in alone]
    for one, two in zip(alone, together, strict=True):
        assert (one.logprobs is None) == (two.logprobs is None)
        for a, b in zip(one.logprobs or [], two.logprobs or [], strict=True):
            assert a[0] == pytest.approx(b[0], abs=1e-3) and len(a[1]) == len(b[1])


def told(answer):
    return answer.text, answer.token_ids, answer.finish_reason, answer.completion_tokens


EXACT = [
    *((CAUSAL, backbone) for backbone in UNIVERSAL),
    (DRAFT, TWO),
    *((DRAFT, backbone) for backbone in NATIVE.values()),
]


@settings(max_examples=int(os.environ.get("UNMASK_CASES", "60")), deadline=None)
@given(st.data())
def test_verified_is_ar_greedy_and_sampled_in_any_batch(data):
    """About three rows a case; UNMASK_CASES=700 makes them two thousand."""
    same_as_ar(data, EXACT)


class Fallible(ScriptedBackbone):
    """Writes squares; drafts go wrong at every fourth position, and are right again behind it."""

    def __init__(self):
        super().__init__(self.square)
        self.drafting = False

    def square(self, who, position, step):
        return sure(50 if self.drafting and position % 4 == 0 else (position * position) % 40, 0.9)

    def forward(self, cache, rows, feeds):
        self.drafting = any(feeds[0].masked)
        return super().forward(cache, rows, feeds)


@pytest.mark.parametrize("lookup, expected", [(True, "text"), (False, "rest")])
def test_all_kinds_of_steps_occur_and_are_counted(lookup, expected):
    asked = Decoding(mode="verified", max_new_tokens=90, prompt_lookup=lookup)
    [answer] = found([Request([1] * 5, asked)], SCRIPTED, Fallible(), costs=costs(0.05, 2.5, 0.05, 5.0))
    assert answer.token_ids == [(position * position) % 40 for position in range(5, 95)]
    kinds, sources = answer.forwards_by_kind, Counter(source for source, _, _ in answer.checks)
    assert set(sources) >= {"draft", expected} and kinds.get("ar", 0) == sources["none"]
    assert kinds["check"] == len(answer.checks) - sources["none"]
    assert max(kept for source, _, kept in answer.checks if source == expected) >= 2
    assert sum(kept + 1 for _, _, kept in answer.checks) + 1 == len(answer.token_ids) == 90
    assert all(0 <= kept <= n for _, n, kept in answer.checks)


@pytest.mark.parametrize("drafts", ["plain", "paced"])
def test_a_check_counts_no_more_than_was_written(drafts):
    answer, _ = scripted(writes([9, 9, 9, 63, 9, 9], start=5, filler=9), n=30, drafts=drafts)
    assert answer.token_ids == [9, 9, 9] and answer.finish_reason == "stop"
    assert sum(kept for _, _, kept in answer.checks) <= 3 < sum(n for _, n, _ in answer.checks)


def test_pictures_never_contradict_what_is_settled():
    request = Request([7, 8, 9] * 4, Decoding(mode="verified", max_new_tokens=60, stop_ids=()), provisional=True)
    events = list(Engine(UNIVERSAL[0], CAUSAL, costs=costs(0.05, 0.3, 0.02)).run([request]))
    whole, told, seen = [*request.prompt_ids, *events[-1].answer.token_ids], 12, 0
    for event in events:
        if isinstance(event, Committed):
            told += len(event.token_ids)
        elif isinstance(event, Provisional) and event.token_ids:  # a step of mode ar has no slots
            seen += 1
            assert event.start >= told - 1 and len(event.token_ids) > 1 and event.settled > 0
            settled = slice(event.start, event.start + event.settled)
            assert event.token_ids[: event.settled] == whole[settled] and not any(event.masked[: event.settled])
    assert seen > 10


# --- how far ------------------------------------------------------------------------------------------------------

SCRIPTED = BlockSpec(block_size=8, sub_block_size=4, mask_id=62, stop_ids=(63,), context="causal")


def scripted(script, n=40, spec=SCRIPTED, with_costs=None, **wanted):
    backbone = ScriptedBackbone(script)
    asked = Decoding(**{"mode": "verified", "max_new_tokens": n, "prompt_lookup": False} | wanted)
    return found([Request([1] * 5, asked)], spec, backbone, costs=with_costs or costs(0.1, 0.5, 0.05))[0], backbone


def test_right_drafts_are_checked_whole():
    answer, _ = scripted(writes([], start=0, filler=9), n=33)
    assert answer.token_ids == [9] * 33 and answer.forwards_by_kind == {"prefill": 1, "draft": 4, "check": 4}


def test_a_draft_that_is_not_sure_of_itself_is_not_checked():
    """The network hesitates between 9 and 10 at every place, so that no guess is worth a position."""

    def torn(who, position, step):
        logits = torch.zeros(64)
        logits[9 + position % 2] = 0.5
        return logits

    answer, backbone = scripted(torn)
    assert answer.forwards_by_kind["ar"] > 30 and answer.forwards_by_kind.get("draft", 0) < 8
    widths = [len(feed.tokens) for call in backbone.calls[1:] for _, feed in call if not any(feed.masked)]
    assert max(widths) == 1


def test_text_that_repeats_itself_needs_no_draft():
    def circle(who, position, step):
        return sure(position % 7)

    answer, backbone = scripted(circle, n=80, prompt_lookup=True, with_costs=costs(0.1, 3.0, 1.0))
    assert answer.token_ids == [position % 7 for position in range(5, 85)]
    assert "draft" not in answer.forwards_by_kind and answer.forwards < 30
    assert {source for source, n, _ in answer.checks if n > 4} == {"text"}


def test_drafts_plain_is_the_same_pair_by_pair():
    answer, _ = scripted(writes([], start=0, filler=9), n=33, drafts="plain", with_costs=costs(9.0, 9.0, 9.0))
    assert answer.forwards_by_kind == {"prefill": 1, "draft": 4, "check": 4}


def test_in_a_full_batch_it_is_ar():
    """Each position costs as much as a row: rows alone draft, rows together do not."""
    asked = Decoding(mode="verified", max_new_tokens=30, prompt_lookup=False)
    requests = [Request([who] * 5, asked) for who in range(1, 17)]
    full = Costs(((1, 1.0), (6, 1.2), (16, 4.0), (32, 8.0)), ((1, 0.2), (8, 0.3), (128, 32.0)), 3.0)
    script = writes([], start=0, filler=9)
    alone = found(requests[:1], SCRIPTED, ScriptedBackbone(script), costs=full)[0]
    together = found(requests, SCRIPTED, ScriptedBackbone(script), 16, costs=full)
    assert alone.forwards_by_kind["draft"] >= 4 and all("draft" not in a.forwards_by_kind for a in together)
    assert all(answer.token_ids == alone.token_ids for answer in together)


def test_no_check_reaches_beyond_the_limit():
    for limit in range(1, 20):
        answer, backbone = scripted(writes([], start=0, filler=9), n=limit, prompt_lookup=True)
        assert len(answer.token_ids) == limit
        assert max(feed.start + len(feed.tokens) for call in backbone.calls for _, feed in call) <= 5 + limit


def test_every_token_is_final_when_it_is_sent():
    request = Request([7, 8, 9] * 4, Decoding(mode="verified", max_new_tokens=40, stop_ids=()))
    events = list(Engine(UNIVERSAL[0], CAUSAL, byte_tokenizer(), costs=costs(0.05, 0.3, 0.02)).run([request]))
    sent = [token for event in events if isinstance(event, Committed) for token in event.token_ids]
    answer = next(event.answer for event in events if isinstance(event, Finished))
    ar = found([Request(request.prompt_ids, replace(request.decoding, mode="ar"))], CAUSAL, UNIVERSAL[0])[0]
    assert sent == answer.token_ids == ar.token_ids


# --- the law of sampled text --------------------------------------------------------------------------------------

LAW = BlockSpec(block_size=4, sub_block_size=4, mask_id=5, context="causal")
NEXT = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.6, 0.1, 0.2], [0.25, 0.25, 0.25, 0.25], [0.05, 0.05, 0.1, 0.8]])
"""The law of the next token by the last one."""
GUESSES = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1]])
"""The law that drafts are made from, by slot: another one."""


class Chain:
    """A network whose next token depends on the last one alone; drafts come from GUESSES."""

    name, ragged, gates, vocab_size, max_positions, position_bytes = "chain", True, False, 6, 4096, 0
    device = torch.device("cpu")

    def new_cache(self, rows, capacity):
        self.rows, self.capacity = rows, capacity
        return self

    def clear(self, row):
        """Nothing is kept."""

    def forward(self, cache, rows, feeds):
        out = []
        for feed in feeds:
            for r in feed.read:
                law = GUESSES[r] if any(feed.masked) else NEXT[feed.tokens[r]]
                out.append(torch.cat([law.log(), torch.tensor([-torch.inf, 3.0])]))
        return torch.stack(out)


def sampled(seed: int, n: int = 3000, **wanted):
    """n answers of four tokens."""
    asked = Decoding(mode="verified", max_new_tokens=4, temperature=1.0, stop_ids=(), prompt_lookup=False, **wanted)
    requests = [Request([3], replace(asked, seed=seed * 10**6 + i)) for i in range(n)]
    cheap = Costs(((1, 1.0), (10**6, 1.0)), ((1, 0.01), (10**6, 0.01)), 3.0)
    return found(requests, LAW, Chain(), 50, costs=cheap)


def p_value(answers) -> float:
    """Of their tokens against the joint law of mode ar, by the chi-square test."""
    seen, statistic = Counter(tuple(a.token_ids) for a in answers), 0.0
    for text in product(range(4), repeat=4):
        expected = len(answers) * math.prod(float(NEXT[a][b]) for a, b in zip((3, *text), text, strict=False))
        statistic += (seen[text] - expected) ** 2 / expected
    return float(1 - torch.special.gammainc(torch.tensor((4**4 - 1) / 2), torch.tensor(statistic / 2)))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("drafts", ["paced", "plain"])
def test_sampled_text_has_the_joint_law_of_ar(seed, drafts):
    answers = sampled(seed, drafts=drafts)
    assert {0, 1, 2} <= {kept for a in answers for source, n, kept in a.checks if source == "draft" and n}
    assert p_value(answers) > 1e-3


def test_the_test_of_the_law_finds_a_wrong_rule(monkeypatch):
    """Control: a check that takes a draft for sampled from the network's own law keeps every first guess."""
    right = verified.accepted
    monkeypatch.setattr(verified, "accepted", lambda guess, target: max(right(guess, target), min(1, len(guess))))
    assert p_value(sampled(1)) < 1e-9


def test_a_guess_is_kept_with_its_own_probability():
    """From token 3, the first guess is 1 (GUESSES), which NEXT gives 0.05; from 1 the guess 0 of slot 2 has 0.1."""
    asked = Decoding(mode="verified", drafts="plain", max_new_tokens=5, temperature=1.0, stop_ids=())
    n = 4000
    requests = [Request([1], replace(asked, seed=i)) for i in range(n)]
    answers = found(requests, LAW, Chain(), 50)
    by_first = Counter((a.token_ids[0], a.checks[0][2] > 0) for a in answers)
    for first in range(4):
        tries = by_first[first, True] + by_first[first, False]
        p = float(NEXT[first][1])
        assert abs(by_first[first, True] / tries - p) < 4 * math.sqrt(p * (1 - p) / tries)


# --- log-probabilities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("backbone, spec", [(UNIVERSAL[0], CAUSAL), (NATIVE["fp32"], DRAFT)])
def test_logprobs_are_of_the_networks_own_law_in_both_modes(backbone, spec, temperature):
    prompt = [7, 8, 9, 7, 8]
    asked = Decoding(logprobs=3, max_new_tokens=20, temperature=temperature, seed=4, stop_ids=())
    ar, checked = (
        found([Request(prompt, replace(asked, mode=mode))], spec, backbone, costs=costs(0.05, 0.3, 0.02))[0]
        for mode in ("ar", "verified")
    )
    assert checked.token_ids == ar.token_ids and len(ar.logprobs) == len(checked.logprobs) == 20
    whole = [*prompt, *ar.token_ids]
    logits = full_logits(MODELS[0], whole, list(range(1, len(whole) + 1)))
    logits[:, MASK] = -torch.inf
    expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    for answer in (ar, checked):
        for row, token, (logprob, likeliest) in zip(expected, answer.token_ids, answer.logprobs, strict=True):
            assert logprob == pytest.approx(float(row[token]), abs=1e-3)
            assert [value for _, value in likeliest] == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)


def test_logprobs_of_one_row_do_not_come_to_another():
    requests = [
        Request([5, 6], Decoding(mode="ar", max_new_tokens=4, logprobs=0, stop_ids=())),
        Request([5, 6], Decoding(mode="ar", max_new_tokens=4, stop_ids=())),
        Request([5, 6], Decoding(mode="verified", max_new_tokens=4, logprobs=2, stop_ids=())),
        Request([5, 6], Decoding(mode="threshold", max_new_tokens=4, stop_ids=())),
    ]
    zero, none, two, _ = found(requests, CAUSAL, UNIVERSAL[0], 4, costs=costs(0.05, 0.3, 0.02))
    assert (
        none.logprobs is None
        and [len(law[1]) for law in zero.logprobs] == [0] * 4
        and [len(law[1]) for law in two.logprobs] == [2] * 4
    )
    assert [law[0] for law in zero.logprobs] == pytest.approx([law[0] for law in two.logprobs], abs=1e-5)


def test_logprobs_are_streamed_with_their_tokens():
    request = Request([7, 8, 9] * 3, Decoding(mode="verified", max_new_tokens=12, logprobs=1))
    events = list(Engine(UNIVERSAL[0], CAUSAL, byte_tokenizer(), costs=costs(0.05, 0.3, 0.02)).run([request]))
    sent = [event for event in events if isinstance(event, Committed)]
    answer = events[-1].answer
    assert all(len(event.logprobs) == len(event.token_ids) for event in sent)
    assert [law for event in sent for law in event.logprobs] == list(answer.logprobs) and len(answer.logprobs) == len(
        answer.token_ids
    )


def test_logprobs_of_mode_threshold_are_refused_by_name():
    with pytest.raises(RequestError, match="logprobs is 2, but mode threshold .* use mode ar or verified"):
        Engine(UNIVERSAL[0], CAUSAL).submit(Request([1], Decoding(mode="threshold", logprobs=2)))
