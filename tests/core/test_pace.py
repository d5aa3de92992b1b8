"""The arithmetic of how far to draft, on costs and luck made by hand."""

import random

import pytest

from unmask.core.pace import PATIENCE, Costs, Guess, Pace, between, drafted, looked_up

FREE = Costs(((1, 1.0), (100, 1.0)), ((1, 0.1), (100, 0.1)))
"""More positions cost nothing and drafts little, as on a large GPU."""
LINEAR = Costs(((1, 1.0), (2, 2.0)), ((1, 1.0), (2, 2.0)))
"""Every position costs as much as a forward, as in a full batch on a CPU."""
MIXED = Costs(((1, 1.0), (9, 1.8)), ((1, 0.5), (9, 0.9)))
"""A position of a check costs a tenth of a forward."""


@pytest.mark.parametrize("x, y", [(1, 2.0), (3, 2.5), (5, 3.0), (7, 5.0), (9, 7.0), (18, 14.0)])
def test_costs_between_and_beyond_the_measured_ones(x, y):
    assert between(((1, 2.0), (5, 3.0), (9, 7.0)), x) == pytest.approx(y)


def test_a_row_pays_its_share_of_a_forward():
    assert MIXED.check(1, 1) == 1.0 and MIXED.check(1, 5) == pytest.approx(1.4 / 5)
    assert MIXED.drafting(3, 3) == pytest.approx(0.9 / 3)


def test_a_lone_draft_keeps_all_others_waiting():
    """A step of five rows takes 1.4 and writes 5 tokens; a draft over six slots takes 0.75."""
    pace = Pace(MIXED)
    pace.rows, pace.drafters = 5, 1
    assert pace.drafting(6) == pytest.approx(0.75 / (1.4 / 5))
    pace.drafters = 5
    assert pace.drafting(6) == pytest.approx((0.9 / 9 * 30 / 5) / (1.4 / 5))


def test_where_positions_are_free_all_is_checked_and_where_they_are_not_nothing():
    guess = drafted([1, 2, 3], [0.9, 0.5, 0.3])
    assert Pace(FREE).worth(guess)[1] == 3
    assert Pace(LINEAR).worth(guess)[1] == 0
    assert Pace(FREE).drafts(6, Pace(FREE).worth(Guess())[0])
    assert not Pace(LINEAR).drafts(6, Pace(LINEAR).worth(Guess())[0])


def test_as_much_is_checked_as_is_likely_enough():
    """Chances 0.9375, 0.5625, 0.1875: the third would be right once in ten times, as often as pays, less than the
    rate of a row that drafts well."""
    guess = drafted([1, 2, 3, 4], [0.9, 0.5, 0.2, 0.9])
    value, n = Pace(MIXED).worth(guess)
    assert n == 2 and value == pytest.approx(1 + 0.9375 + 0.9375 * 0.5625 - 1.2)
    assert Pace(MIXED).worth(Guess()) == (0.0, 0)


def test_a_guess_from_the_text_is_believed_the_more_the_longer_it_matched():
    pace = Pace(MIXED)
    short, long = pace.worth(looked_up(2, [1] * 8)), pace.worth(looked_up(5, [1] * 8))
    assert 0 < short[0] < long[0] and short[1] <= long[1]


def test_chances_follow_what_was_accepted():
    pace, guess = Pace(MIXED), looked_up(3, [1, 2])
    before = pace.chance("text 3 0")
    for _ in range(50):
        pace.learn(guess, 0, 0)
    assert pace.chance("text 3 0") < 0.1 < before and pace.chance("text 3 1") == before, (
        "what was not reached is unknown"
    )
    for _ in range(30):
        pace.learn(guess, 0, 2)
    assert pace.chance("text 3 0") > 0.9 and pace.chance("text 3 1") > 0.9


@pytest.mark.parametrize("easy", [0, 10, 200, 2000])
def test_text_that_stops_repeating_itself_costs_few_checks(easy):
    pace, guess = Pace(MIXED), looked_up(5, [1] * 16)
    for _ in range(easy):
        n = pace.worth(guess)[1]
        pace.learn(guess.first(n), 0, n)
    assert easy == 0 or n == 8, "behind nine positions they cost more"
    lost = 0
    for _ in range(400):
        n = pace.worth(guess)[1]
        lost += n > 0
        pace.learn(guess.first(n), 0, 0)
    assert lost < 25


def test_what_a_draft_leaves_stands_behind_the_corrected_token():
    draft = drafted([10, 11, 12, 13], [0.99, 0.6, 0.4, 0.1])
    left = draft.rest(1, 99)
    assert left.tokens == [12, 13] and left.kinds == ["rest 3", "rest 0"] and not left.drafted
    assert left.rest(0, 12).tokens == [13] and left.rest(0, 12).kinds == ["rest 0"]
    unchecked = draft.rest(1, 11)
    assert unchecked.tokens == [12, 13] and unchecked.kinds == ["draft 3", "draft 0"], "that one was right"
    assert [guess.source for guess in (draft, left, unchecked)] == ["draft", "rest", "rest"], "one draft, one forward"
    assert looked_up(2, [1]).source == "text" and draft.first(0).source == "none"
    assert draft.rest(4, 5).tokens == [] == draft.rest(3, 13).tokens


def drafts_in(luck, steps, costs=MIXED, seed=0):
    """(drafts, tokens, time) of so many steps of a row whose drafts have this chance per slot."""
    pace, random_ = Pace(costs), random.Random(seed)
    count, tokens, time = 0, 0, 0.0
    for _ in range(steps):
        guess, slots = Guess(), 0
        if pace.drafts(6, pace.worth(guess)[0]):
            guess, slots, count = drafted([0] * 5, [luck] * 5), 6, count + 1
        n = pace.worth(guess)[1]
        kept = next((i for i in range(n) if random_.random() >= luck), n)
        pace.learn(guess.first(n), slots, kept)
        tokens += kept + 1
        time += costs.check(n + 1, 1) + (costs.drafting(slots, 1) if slots else 0.0)
    return count, tokens, time


def test_drafts_that_pay_go_on_and_drafts_that_do_not_are_tried_rarely():
    count, tokens, time = drafts_in(0.9, 300)
    assert count > 280 and tokens / time > 1.6
    count, tokens, time = drafts_in(0.02, 300)
    assert 3 < count < 40 and tokens / time > 0.9
    late = drafts_in(0.02, 3000)[0] - drafts_in(0.02, 2000)[0]
    assert 1000 / (2 * PATIENCE[1]) < late < 40, "it is looked again and again whether the text has become easier"


@pytest.mark.parametrize("steps", [30, 3000])
def test_a_row_whose_text_becomes_easy_drafts_again(steps):
    pace = Pace(MIXED)
    hard, easy = drafted([0] * 5, [0.05] * 5), drafted([0] * 5, [0.95] * 5)
    for _ in range(steps):
        if pace.drafts(6, pace.worth(Guess())[0]):
            pace.learn(hard.first(pace.worth(hard)[1]), 6, 0)
        else:
            pace.learn(Guess(), 0, 0)
    late = [pace.drafts(6, pace.worth(Guess())[0])]
    for _ in range(300):
        if pace.drafts(6, pace.worth(Guess())[0]):
            pace.learn(easy, 6, 5)
            late.append(True)
        else:
            pace.learn(Guess(), 0, 0)
            late.append(False)
    assert sum(late[-100:]) == 100


def test_a_full_batch_stops_drafting_at_once():
    pace = Pace(MIXED)
    assert pace.drafts(6, pace.worth(Guess())[0])
    pace.rows = pace.drafters = 64
    for _ in range(60):
        assert not pace.drafts(6, pace.worth(Guess())[0])
        pace.learn(Guess(), 0, 0)
    pace.rows = pace.drafters = 1
    assert pace.drafts(6, pace.worth(Guess())[0]), "what it learnt in company does not hold it back alone"


def test_no_draft_where_no_guess_fits():
    assert not Pace(FREE).drafts(1, -9.0)
