"""Prefix reuse: what a row takes over changes no token, and is what the two prompts share."""

import random

import pytest
import torch
from scripted import ScriptedBackbone, sure
from tiny import MASK, low_rank, native, on_gpu, tiny_model

from unmask.config import BlockSpec, Decoding
from unmask.engine import Engine
from unmask.events import Finished, Request
from unmask.model.universal import UniversalBackbone

MAKERS = {
    "universal": lambda model: UniversalBackbone(model, mask_id=MASK),
    "native": lambda model: native(model, mask=torch.zeros(64)),
    "gpu": lambda model: on_gpu(model, mask=torch.zeros(64)),
}
CAUSAL = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal")
BLOCK = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="block")


def wanted(mode="ar", **more):
    return Decoding(**{"mode": mode, "max_new_tokens": 12, "threshold": 0.3, **more})


def engine(backbone, spec, rows, reuse=True):
    return Engine(backbone, spec, batch_size=rows, capacity=256, reuse=reuse)


def served(made, requests):
    """Answers as a server gets them: all are submitted, and the engine keeps its rows."""
    places = {made.submit(request): place for place, request in enumerate(requests)}
    answers = {}
    while len(answers) < len(requests):
        answers |= {places[e.index]: e.answer for e in made.step() if isinstance(e, Finished)}
    return [answers[place] for place in range(len(requests))]


def one(made, tokens, settings=None):
    return served(made, [Request(tokens, settings or wanted())])[0]


def in_turn(made, requests):
    return [served(made, [request])[0] for request in requests]


def conversations(spec, seed, count=24):
    """Prompts of which many continue an earlier one with its answer, some share its beginning, some nothing."""
    draw = random.Random(seed)
    modes = ["ar", "threshold", "verified"] if spec.context == "causal" else ["ar", "threshold"]
    texts = [[draw.randrange(250) for _ in range(40)]]
    for _ in range(count):
        old = draw.choice([texts[-1], draw.choice(texts)])
        cut = draw.choice([len(old), len(old), draw.randrange(len(old)), 0])
        text = (old[:cut] + [draw.randrange(250) for _ in range(draw.randrange(1, 20))])[:200]
        texts.append(text)
        sizes = {"block_size": draw.choice([8, 4])} if draw.random() < 0.3 else {}
        schedule = {"schedule": "fused"} if draw.random() < 0.2 and spec.adapter_scope == "all" else {}
        yield Request(text, wanted(draw.choice(modes), **sizes, **schedule))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("spec", [CAUSAL, BLOCK], ids=["causal", "block"])
@pytest.mark.parametrize("rows", [1, 3])
def test_reuse_changes_no_token(kind, spec, rows):
    backbone = MAKERS[kind](tiny_model())
    requests = list(conversations(spec, seed=rows))
    plain, reused = engine(backbone, spec, rows, reuse=False), engine(backbone, spec, rows)
    expected = in_turn(plain, requests)
    assert [a.token_ids for a in in_turn(reused, requests)] == [a.token_ids for a in expected]
    together = served(reused, requests)  # rows that are still being written are sources too
    assert [a.token_ids for a in together] == [a.token_ids for a in expected]
    assert sum(a.cached_tokens for a in together) > 0
    assert sum(a.positions_computed for a in together) < sum(a.positions_computed for a in expected)


def test_reuse_under_draft_adapters():
    """Drafts leave keys of another network behind; none of them is taken over."""
    model = tiny_model()
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, context="causal", adapter_scope="draft")
    backbone = native(model, mask=torch.zeros(64), adapter=low_rank(model))
    requests = list(conversations(spec, seed=5))
    expected = in_turn(engine(backbone, spec, 2, reuse=False), requests)
    found = in_turn(engine(backbone, spec, 2), requests)
    assert [a.token_ids for a in found] == [a.token_ids for a in expected]


def test_the_next_turn_of_a_chat_feeds_what_is_new():
    backbone = native(tiny_model(), mask=torch.zeros(64))
    made = engine(backbone, CAUSAL, 2)
    first = one(made, list(range(30)))
    assert first.cached_tokens == 0
    turn = [*range(30), *first.token_ids, 7, 8, 9]
    again = one(made, turn)
    # the last token of an answer was never fed: nothing came after it
    assert again.cached_tokens == 30 + 12 - 1
    assert again.positions_computed == len(turn) - again.cached_tokens + 11


@pytest.mark.parametrize("size, cached", [(8, 32), (4, 36)])
def test_committed_blocks_are_taken_over_whole(size, cached):
    """38 tokens are shared; the last block of the prompt is fed in any case, its logits are needed."""
    backbone = native(tiny_model(), mask=torch.zeros(64))
    made = engine(backbone, BLOCK, 1)
    settings = wanted("threshold", block_size=size)
    one(made, list(range(40)), settings)
    assert one(made, [*range(38), 100, 101, 102], settings).cached_tokens == cached


def test_blocks_of_another_size_or_sight_are_not_taken_over():
    backbone = native(tiny_model(), mask=torch.zeros(64))
    made = engine(backbone, BLOCK, 1)
    for settings in (wanted("threshold"), wanted("threshold", block_size=4), wanted("ar"), wanted("threshold")):
        assert one(made, list(range(40)), settings).cached_tokens == 0


def test_short_beginnings_are_not_worth_it():
    made = engine(native(tiny_model(), mask=torch.zeros(64)), CAUSAL, 1)
    one(made, list(range(15)), wanted())
    assert one(made, [*range(15), 99]).cached_tokens == 0


def test_a_long_chat_keeps_its_row_when_others_share_its_beginning():
    made = engine(native(tiny_model(), mask=torch.zeros(64)), CAUSAL, 2)
    system, chat = list(range(20)), list(range(20, 120))
    one(made, [*system, *chat], wanted())
    other = one(made, [*system, 200, 201])
    assert other.cached_tokens == 20
    assert one(made, [*system, *chat, 202]).cached_tokens >= 119


def test_nothing_is_taken_over_from_a_row_that_broke():
    """A network that returned NaN leaves NaN in the cache."""
    bad = {"now": True}

    def script(who, position, step):
        return torch.full((64,), torch.nan) if bad["now"] else sure(9)

    made = Engine(ScriptedBackbone(script), None, batch_size=1, capacity=256, reuse=True)
    assert one(made, [1] * 40).finish_reason == "error"
    bad["now"] = False
    assert one(made, [1] * 40).cached_tokens == 0
    assert one(made, [1] * 40).cached_tokens == 39


def test_a_cancelled_row_is_a_source_too():
    made = engine(native(tiny_model(), mask=torch.zeros(64)), CAUSAL, 2)
    index = made.submit(Request(list(range(50)), wanted()))
    made.step()
    made.cancel(index)
    made.submit(Request([*range(50), 60], wanted()))
    events = []
    while made.live or made.waiting:
        events += made.step()
    assert next(e for e in events if isinstance(e, Finished)).answer.cached_tokens == 50
