"""The official training loss and every gradient norm, from the shared clean stream."""

import json
import os
from pathlib import Path

import pytest
import torch

from unmask.core.loss import label_loss
from unmask.core.streams import Draw, collate, noisy_row
from unmask.model.checkpoint import load_checkpoint
from unmask.model.training import joint
from unmask.model.universal import head

GOLDEN = Path(os.environ.get("GOLDEN_DIR", Path(__file__).parent))
TRACES = [json.loads(line) for line in (GOLDEN / "loss.jsonl").read_text().splitlines()]


def loss_of(model, trace):
    rows = []
    for ids, labels, mask in zip(trace["input_ids"], trace["labels"], trace["mask"], strict=True):
        draw = Draw(0, torch.tensor(mask).bool())
        rows.append(
            noisy_row(
                torch.tensor(ids),
                torch.tensor(labels) != -100,
                [draw],
                block_size=trace["block_size"],
                mask_id=trace["mask_id"],
                causal=False,
            )
        )
    batch = collate(rows)
    hidden = joint(model, batch, mask_id=trace["mask_id"], mask_vector=None, causal=False)
    total = label_loss(hidden.flatten(0, 1)[batch.source], batch.target, lambda h: head(model, h))
    return total / len(batch.target), len(batch.target), batch


@pytest.mark.parametrize("number", range(len(TRACES)))
def test_loss_and_gradients_of_the_official_code(number):
    trace = TRACES[number]
    model = load_checkpoint(GOLDEN / trace["checkpoint"], mask_id=trace["mask_id"]).model
    model.get_input_embeddings().padding_idx = model.config.pad_token_id  # the official model's embedding has it
    loss, positions, batch = loss_of(model, trace)
    loss.backward()
    assert positions == trace["loss_positions"]
    assert loss.item() == pytest.approx(trace["loss"], rel=1e-5)
    norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}
    assert set(norms) == set(trace["grad_norms"])
    for name, norm in trace["grad_norms"].items():
        assert norms[name] == pytest.approx(norm, rel=1e-5, abs=1e-7), name
    total = sum(norm**2 for norm in norms.values()) ** 0.5
    assert total == pytest.approx(trace["grad_norm"], rel=1e-5)
    assert batch.ids.numel() < 4 * torch.tensor(trace["input_ids"]).numel()


def test_no_loss_is_missing():
    """Of those that belong to this repository; another folder has as many as it likes."""
    assert len(TRACES) == 8 or (TRACES and "GOLDEN_DIR" in os.environ)
