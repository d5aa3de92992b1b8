"""Which rows share a forward and which forwards a step, whatever the step that is asked for first."""

from types import SimpleNamespace

import pytest
import torch

from unmask.data import Order, Row, consecutive


def rows(*lengths):
    return [Row(torch.zeros(n, dtype=torch.long), torch.ones(n).bool()) for n in lengths]


def settings(**changes):
    return SimpleNamespace(**{"batch_rows": 4, "batch_tokens": None, "accumulation": 1, "seed": 0, **changes})


MANY = rows(*[(7 * n) % 50 + 2 for n in range(103)])


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("tokens", [None, 120])
def test_an_epoch_has_every_row_once(accumulation, tokens):
    order = Order(MANY, settings(accumulation=accumulation, batch_tokens=tokens))
    seen, epoch, step = {}, 0, 0
    while epoch < 3:
        step += 1
        epoch, window = order.at(step)
        assert 1 <= len(window) <= accumulation
        seen.setdefault(epoch, []).extend(n for part in window for n in part)
    assert all(sorted(seen[n]) == list(range(103)) for n in range(3)) and seen[0] != seen[1]


def test_forwards_over_rows_as_they_come_hold_as_many_as_they_may():
    some = rows(30, 10, 70, 20, 5)
    assert consecutive(some, settings(batch_rows=2)) == [[0, 1], [2, 3], [4]]
    assert consecutive(some, settings(batch_tokens=60)) == [[0, 1], [2], [3, 4]]


@pytest.mark.parametrize("tokens", [None, 50])
def test_a_late_step_is_found_without_counting_from_the_start(tokens, monkeypatch):
    order, made = Order(rows(5, 20, 30, 40, 9), settings(batch_tokens=tokens, batch_rows=2)), []
    ends = [order.at(step) for step in range(1, 3000)]
    end = order.end
    monkeypatch.setattr(order, "end", lambda epoch: made.append(epoch) or end(epoch))
    assert order.at(2998) == ends[2997] and order.at(2999) == ends[2998] and len(made) <= 4


def test_a_forward_holds_as_many_tokens_as_it_may():
    order = Order(MANY, settings(batch_tokens=120))
    first, _ = order.at(1)
    windows = [window for step in range(1, 200) for epoch, window in [order.at(step)] if epoch == first]
    held = [sum(order.lengths[n] for n in part) for window in windows for part in window]
    assert max(held) <= 120 and sum(held) / len(held) > 90  # rows of similar lengths, seldom one more would have fitted
    assert len({len(part) for window in windows for part in window}) > 3


def test_a_row_longer_than_a_forward_is_alone():
    order = Order(rows(5, 200, 5), settings(batch_tokens=50))
    windows = [order.at(step)[1] for step in (1, 2)]
    assert sorted(sorted(part) for window in windows for part in window) == [[0, 2], [1]]


def test_any_step_can_be_asked_for_first():
    straight = Order(MANY, settings(batch_tokens=120, accumulation=2))
    wanted = {step: straight.at(step) for step in range(1, 60)}
    for step in (59, 1, 30):
        assert Order(MANY, settings(batch_tokens=120, accumulation=2)).at(step) == wanted[step]
        assert straight.at(step) == wanted[step]
