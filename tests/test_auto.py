"""What mode auto takes, and why: from the checkpoint, the gate's record and the bench's."""

from dataclasses import replace

import pytest

from unmask.auto import Admissible, Measured, choose
from unmask.config import BlockSpec, Decoding
from unmask.core.pace import Costs
from unmask.resolve import resolve

BLOCK = BlockSpec(block_size=8, sub_block_size=4, mask_id=1)
CAUSAL = replace(BLOCK, context="causal")
COSTS = Costs(((1, 1.0),), ((1, 1.0),))
GATED = Admissible(thresholds=(0.8, 0.9), refused=(0.5,), undecided=(), points=1.0, items=900)


def measured(verified=None, threshold=None, ar=40.0):
    rates = {"ar": {1: ar, 16: 200.0}}
    rates |= {"verified": {1: verified, 16: 190.0}} if verified else {}
    rates |= {"threshold 0.8": {1: threshold, 16: 90.0}} if threshold else {}
    return Measured(COSTS, rates, "2026-01-02")


def took(wanted=None, spec=CAUSAL, **known):
    found = choose(wanted or Decoding(), spec, **known)
    return found.decoding.mode, found.why


def test_what_was_asked_for_stays():
    for mode in ("ar", "threshold", "verified"):
        wanted = Decoding(mode=mode, threshold=0.3)
        assert choose(wanted, CAUSAL, admissible=GATED, measured=measured(10.0)).decoding is wanted


def test_without_any_measurement_it_is_what_cannot_lose():
    assert took() == ("verified", "ar's text; unmask bench has not measured here how much sooner")
    assert took(spec=BLOCK)[0] == "threshold" and took(spec=None) == ("ar", "a plain model")
    assert took(Decoding(temperature=0.7))[0] == "verified"
    assert took(Decoding(logprobs=2))[0] == "verified" and took(Decoding(logprobs=2), BLOCK)[0] == "ar"


def test_verified_while_it_pays_and_ar_where_it_does_not():
    assert took(measured=measured(60.0)) == (
        "verified",
        "verified is 1.50 times ar at batch 1 here (bench of 2026-01-02)",
    )
    mode, why = took(measured=measured(36.0))
    assert mode == "ar" and why.startswith("verified is 0.90 times ar at batch 1 here")
    assert took(measured=measured(36.0), batch=16) == (
        "ar", "verified is 0.95 times ar at batch 16 here (bench of 2026-01-02)"
    )  # fmt: skip
    assert took(measured=measured(60.0), batch=16)[0] == "verified", "a batch is not always full"
    assert took(measured=measured())[0] == "verified", "verified was not among the modes measured"


def test_threshold_only_for_a_loss_that_the_gate_allows_and_where_it_is_faster():
    asked = Decoding(max_loss=1.0)
    fast = measured(60.0, threshold=90.0)
    found = choose(asked, CAUSAL, admissible=GATED, measured=fast)
    assert (found.decoding.mode, found.decoding.threshold) == ("threshold", 0.8)
    assert found.why == "threshold 0.8 loses at most 1 points and is 2.25 times ar at batch 1 here"
    assert took(admissible=GATED, measured=fast)[0] == "verified", "nobody asked to lose anything"


@pytest.mark.parametrize(
    "wanted, known, why",
    [
        ({}, {"measured": measured(60.0, 90.0)}, "no gate has measured what threshold loses (unmask evaluate --gate)"),
        (
            {},
            {"admissible": replace(GATED, thresholds=())},
            "the gate was held to 1 points over 900 items, and no threshold passed",
        ),
        ({"max_loss": 0.5}, {"admissible": GATED}, "the gate allowed 1 points, more than 0.5"),
        ({}, {"admissible": GATED}, "bench has not measured threshold 0.8 here"),
        (
            {},
            {"admissible": GATED, "measured": measured(60.0, 50.0)},
            "threshold 0.8 is 1.25 times ar at batch 1 here, verified 1.50",
        ),
        (
            {},
            {"admissible": GATED, "measured": measured(30.0, 38.0)},
            "threshold 0.8 is 0.95 times ar at batch 1 here, verified 0.75",
        ),
        (
            {},
            {"admissible": GATED, "measured": measured(60.0, 90.0), "batch": 16},
            "threshold 0.8 is 0.45 times ar at batch 16 here, verified 0.95",
        ),
        (
            {"threshold": 0.95},
            {"admissible": GATED, "measured": measured(60.0, 90.0)},
            "bench has not measured threshold 0.95 here",
        ),
        ({"rule": "factor:1"}, {"admissible": GATED}, "the gate measured rule threshold, not factor"),
        ({"logprobs": 1}, {"admissible": GATED, "measured": measured(60.0, 90.0)}, "threshold has no logprobs"),
    ],
)
def test_it_says_why_it_does_not_take_threshold(wanted, known, why):
    mode, said = took(Decoding(**{"max_loss": 1.0, **wanted}), **known)
    assert mode in ("verified", "ar") and said.endswith("; " + why)


def test_the_best_of_the_batch_sizes_up_to_ones_own_counts():
    record = Measured(COSTS, {"ar": {1: 40.0, 4: 100.0, 16: 200.0}, "verified": {1: 44.0, 4: 120.0, 16: 150.0}}, "")
    assert record.times_ar("verified", 1) == {1: 1.1} and record.times_ar("verified", 16) == {1: 1.1, 4: 1.2, 16: 0.75}
    assert record.times_ar("threshold 0.9", 4) == {}
    assert took(measured=record, batch=16)[1].startswith("verified is 1.20 times ar at batch 4")
    full = Measured(COSTS, {"ar": {4: 2.0}, "verified": {4: 1.0}}, "")
    assert full.times_ar("verified", 1) == {} and took(measured=full, batch=1)[0] == "verified", "unknown at batch 1"


def test_a_loss_is_held_to_in_context_block_too():
    assert took(Decoding(max_loss=1.0), BLOCK, admissible=GATED)[0] == "threshold"
    assert took(Decoding(max_loss=0.5), BLOCK, admissible=GATED) == ("ar", "the gate allowed 1 points, more than 0.5")
    assert took(Decoding(max_loss=1.0), BLOCK)[0] == "ar"


def test_a_request_that_nobody_settled_is_resolved_alike():
    for wanted, spec in (
        (Decoding(), CAUSAL),
        (Decoding(), BLOCK),
        (Decoding(max_loss=1.0), BLOCK),
        (Decoding(), None),
    ):
        assert resolve(wanted, spec).mode == choose(wanted, spec).decoding.mode
