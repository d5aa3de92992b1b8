"""Scope `draft`: what training computes for a noisy block is what decoding computes for a draft, window or not."""

import pytest
import torch
from training import chat, recipe, save_base, save_rows

import unmask
from unmask.core.noise import seeded
from unmask.core.streams import Draw, collate, noisy_row
from unmask.model.backbone import Feed
from unmask.model.learner import Learner
from unmask.model.training import split
from unmask.model.universal import head

SIZE = 6


@pytest.fixture(params=[{}, {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}])
def trained(request, tmp_path):
    """A learner with random adapters, and the model that decodes with them."""
    base = save_base(tmp_path / "base", **request.param)
    rows = save_rows(tmp_path / "rows.jsonl", [chat("a", "b")])
    form = {
        "method": "low-rank",
        "context": "causal",
        "adapter_scope": "draft",
        "block_size": SIZE,
        "sub_block_size": 3,
    }
    learner = Learner(recipe(base, rows, tmp_path / "run", **form))
    for number, parameter in enumerate(learner.trainable().values()):
        noise = 0.1 * torch.randn(parameter.shape, generator=seeded("adapter", number))
        parameter.data.copy_(noise.half())  # adapters are saved in float16
    learner.save(tmp_path / "model")
    return learner, unmask.load(tmp_path / "model", dtype="fp32")


@pytest.mark.parametrize("origin", [-4, 0, -1])
def test_a_noisy_block_is_a_draft_on_its_clean_prefix(trained, origin):
    learner, model = trained
    ids = torch.randint(0, 200, (26,), generator=seeded("ids", 1))
    fill = (origin - 26) % SIZE
    row = noisy_row(
        ids,
        torch.arange(26) >= 7,
        [Draw(origin, torch.ones(26 + fill, dtype=torch.bool))],
        block_size=SIZE,
        mask_id=learner.spec.mask_id,
        causal=True,
    )
    with torch.no_grad():
        hidden = split(
            learner.model,
            collate([row]),
            mask_id=learner.spec.mask_id,
            mask_vector=learner.mask_vector,
            adapters_off=learner.peft.disable_adapter,
        )[0]
        logits = head(learner.model, hidden)
    starts = sorted(set(row.streams.start[row.clean :].tolist()))
    assert len(starts) >= 3
    for start in starts:
        place = (row.streams.stream > 0) & (row.streams.start == start)
        cache = model.backbone.new_cache(1, 40)
        clean = ids[:start].tolist()
        model.backbone.forward(cache, [0], [Feed(clean, 0, list(range(1, start + 1)), [False] * start, [])])
        slots = [*ids[start : start + SIZE].tolist(), *[0] * SIZE][:SIZE]
        masked = row.masked[place].tolist()
        draft = Feed(slots, start, [start + SIZE] * SIZE, masked, list(range(SIZE)), draft=True)
        found = model.backbone.forward(cache, [0], [draft])
        assert torch.allclose(found, logits[place], atol=2e-3, rtol=1e-4), start


def test_the_clean_stream_is_the_base(trained):
    learner, model = trained
    ids = torch.randint(0, 200, (20,), generator=seeded("ids", 2))
    ends = list(range(1, 21))
    found = model.backbone.forward(
        model.backbone.new_cache(1, 20), [0], [Feed(ids.tolist(), 0, ends, [False] * 20, list(range(20)))]
    )
    with torch.no_grad(), learner.peft.disable_adapter():
        expected = learner.model(input_ids=ids[None]).logits[0]
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
