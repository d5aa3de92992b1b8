"""Validation: rows held out by seed, the same noise each time, and nothing to be gained by copying what is seen."""

import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from training import recipe

from unmask.core.masks import training_mask
from unmask.data import Row
from unmask.errors import ConfigError
from unmask.validation import Validation, validate

VOCAB = 50


def rows(count):
    generator = torch.Generator().manual_seed(1)
    lengths = [9 + 5 * (n % 4) for n in range(count)]
    return [Row(torch.randint(VOCAB, (n,), generator=generator), torch.arange(n) >= 4) for n in lengths]


class Copier:
    """Knows nothing, but is sure of a token that it sees where it has to predict one; else every token is as likely."""

    def __init__(self, causal):
        self.causal, self.copied, self.grad = causal, 0, None

    def __call__(self, batch):
        self.grad = torch.is_grad_enabled()
        seen = training_mask(batch.streams, batch.streams, self.causal, None)[0, 0]
        seen = seen if seen.dtype == torch.bool else seen == 0
        position, document, loss = batch.streams.position[0], batch.streams.document[0], 0.0
        for source, target in zip(batch.source.tolist(), batch.target.tolist(), strict=True):
            there = (position == position[source] + 1) & (document == document[source]) & seen[source]
            shown = batch.ids[0][there & ~batch.masked[0]]
            self.copied += int(target in shown.tolist())
            loss += 0.0 if target in shown.tolist() else math.log(VOCAB)
        return torch.tensor([loss, 0.0, 0.0])


@pytest.mark.parametrize("settings", [{}, {"context": "causal"}, {"layout": "reference"}, {"layout": "shared"}])
def test_o6_06_who_copies_what_it_sees_gains_nothing(tmp_path, settings):
    wanted = recipe(tmp_path, tmp_path, tmp_path, **settings)
    copier = Copier(settings.get("context") == "causal")
    found = validate(wanted, copier, Accelerator(), rows(6), VOCAB, 3, [])
    assert copier.copied == 0 and copier.grad is False
    assert found.loss == pytest.approx(math.log(VOCAB)) and found.levels == pytest.approx(
        dict.fromkeys(["0.25", "0.5", "0.75", "1"], math.log(VOCAB))
    )


def test_o6_06_the_copier_would_gain_if_it_saw_the_clean_copy(tmp_path, monkeypatch):
    """The test above can fail: with the clean stream open to the noisy one, the copier finds every target."""
    everything = lambda query, key, causal, window: torch.ones(1, 1, len(query.stream[0]), len(key.stream[0])) > 0  # noqa: E731
    monkeypatch.setitem(globals(), "training_mask", everything)
    copier = Copier(False)
    wanted = recipe(tmp_path, tmp_path, tmp_path, layout="shared")
    found = validate(wanted, copier, Accelerator(), rows(6), VOCAB, 3, [])
    assert copier.copied > 0 and found.loss < 0.1


def test_a_next_token_fine_tune_is_validated_without_masks(tmp_path):
    fed = []

    def network(batch):
        fed.append(int(batch.masked.sum()))
        return torch.tensor([float(len(batch.target)), 0.0, 0.0])

    wanted = recipe(tmp_path, tmp_path, tmp_path, objective="next-token")
    found = validate(wanted, network, Accelerator(), rows(6), VOCAB, 3, [])
    assert found.loss == 1.0 and found.levels == {} and set(fed) == {0}


def test_the_noise_of_a_validation_is_always_the_same(tmp_path):
    fed = []

    def network(batch):
        fed.append((batch.ids.tolist(), batch.masked.tolist()))
        return torch.tensor([float(len(batch.target)), 0.0, 0.0])

    wanted, accelerator = recipe(tmp_path, tmp_path, tmp_path, batch_rows=2), Accelerator()
    first = validate(wanted, network, accelerator, rows(5), VOCAB, 3, [])
    half = len(fed)
    again = validate(wanted, network, accelerator, rows(5), VOCAB, 6, [first])
    assert fed[:half] == fed[half:] and half == 5 * 3
    assert again == first == Validation(1.0, dict.fromkeys(["0.25", "0.5", "0.75", "1"], 1.0), 1.0, 3)


def test_the_best_is_remembered(tmp_path):
    losses = iter([2.0, 1.0, 3.0])
    wanted, found, now = recipe(tmp_path, tmp_path, tmp_path), [], SimpleNamespace()
    for step in (1, 2, 3):
        now.loss = next(losses)
        network = lambda batch: torch.tensor([now.loss * len(batch.target), 0.0, 0.0])  # noqa: E731
        found.append(validate(wanted, network, Accelerator(), rows(3), VOCAB, step, found))
    last = found[-1]
    assert (last.loss, last.best_loss, last.best_step) == pytest.approx((3.0, 1.0, 2))


def test_settings_of_validation_that_cannot_be(tmp_path):
    with pytest.raises(ConfigError, match="validation_rows is 1.5; allowed: a share"):
        recipe(tmp_path, tmp_path, tmp_path, validation_rows=1.5)
    with pytest.raises(ConfigError, match="give only one of the two"):
        recipe(tmp_path, tmp_path, tmp_path, validation_rows=2.0, validation_data=("x.jsonl",))


def test_a_forward_of_a_validation_holds_as_many_tokens_as_one_of_training(tmp_path):
    held = []

    def network(batch):
        held.append(len({int(document) for document in batch.streams.document[0][: batch.clean]}))
        return torch.tensor([float(len(batch.target)), 0.0, 0.0])

    wanted = recipe(tmp_path, tmp_path, tmp_path, objective="next-token", batch_tokens=40)
    validate(wanted, network, Accelerator(), rows(6), VOCAB, 3, [])  # of 9, 14, 19, 24, 9 and 14 tokens
    assert held == [2, 1, 2, 1]


def test_a_signal_ends_a_validation_before_its_next_forward(tmp_path):
    fed, arrived = [], []

    def network(batch):
        fed.append(len(batch.target))
        arrived.extend([15][: len(fed) // 2])
        return torch.tensor([1.0, 0.0, 0.0])

    wanted = recipe(tmp_path, tmp_path, tmp_path, batch_rows=1)
    assert validate(wanted, network, Accelerator(), rows(6), VOCAB, 3, [], arrived) is None and len(fed) == 2
