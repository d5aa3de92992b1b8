"""Losses at labels: how often logits are made, and that chunks change nothing."""

import pytest
import torch

from unmask.core import loss
from unmask.core.loss import label_loss, teacher_loss


@pytest.mark.parametrize(("labels", "calls"), [(0, 1), (7, 1), (8, 1), (9, 2), (20, 3)])
def test_logits_are_made_again_only_where_labels_are_more_than_a_chunk(labels, calls, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", 8)
    torch.manual_seed(0)
    weight, hidden = torch.randn(11, 5), torch.randn(labels, 5, requires_grad=True)
    target, made = torch.arange(labels) % 11, []

    def head(part):
        made.append(len(part))
        return part @ weight.T

    found = label_loss(hidden, target, head)
    assert len(made) == calls
    found.backward()
    assert len(made) == calls * (1 if calls == 1 else 2)
    whole = torch.nn.functional.cross_entropy(hidden.detach() @ weight.T, target, reduction="sum")
    assert found.item() == pytest.approx(whole.item(), rel=1e-6) and found.dtype == torch.float32
    assert hidden.grad is not None and hidden.grad.shape == hidden.shape
    assert teacher_loss(hidden, hidden, head).item() == pytest.approx(0, abs=1e-5)


def test_weights_multiply_each_labels_loss_in_chunks_as_in_one(monkeypatch):
    torch.manual_seed(0)
    matrix, hidden, weight = torch.randn(11, 5), torch.randn(20, 5, requires_grad=True), torch.rand(20)
    target = torch.arange(20) % 11
    each = torch.nn.functional.cross_entropy(hidden.detach() @ matrix.T, target, reduction="none")
    for chunk in (64, 8):
        monkeypatch.setattr(loss, "CHUNK", chunk)
        found = label_loss(hidden, target, lambda part: part @ matrix.T, weight)
        assert found.item() == pytest.approx((each * weight).sum().item(), rel=1e-6)
        found.backward()
    assert hidden.grad.norm() > 0
