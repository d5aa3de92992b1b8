"""The two-stream forward: what it computes is what decoding computes, and its loss is the reference's."""

import contextlib

import pytest
import torch
from families import family_model
from tiny import MASK

from unmask.core.loss import label_loss
from unmask.core.noise import seeded
from unmask.core.reference import reference_rows
from unmask.core.streams import Draw, collate, draw_noise, noisy_row
from unmask.model.training import joint, split
from unmask.model.universal import UniversalBackbone, head


def text(length, seed=0):
    return torch.randint(0, 200, (length,), generator=seeded("text", seed))


def run(model, batch, causal=False):
    hidden = joint(model, batch, mask_id=MASK, mask_vector=None, causal=causal).flatten(0, 1)
    return label_loss(hidden[batch.source], batch.target, lambda h: head(model, h)) / len(batch.target), hidden


@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3"])
def test_shared_clean_stream_has_the_gradient_of_the_reference_layout(family):
    model = family_model(family)
    ids, labelled = text(40), torch.arange(40) >= 11
    hit = draw_noise(40, 8, seeded(5), shift=False, full_share=0.0).hit
    ours = collate([noisy_row(ids, labelled, [Draw(0, hit)], block_size=8, mask_id=MASK, causal=False)])
    theirs = collate(reference_rows(ids, labelled, [Draw(0, hit)], block_size=8, mask_id=MASK, causal=False))
    assert theirs.ids.shape == (1, 160) and theirs.clean == 80
    gradients = []
    for batch in (ours, theirs):
        model.zero_grad()
        loss, _ = run(model, batch)
        loss.backward()
        gradients.append((loss.item(), {n: p.grad.clone() for n, p in model.named_parameters()}))
    assert gradients[0][0] == pytest.approx(gradients[1][0], rel=1e-5)
    for name, gradient in gradients[0][1].items():
        assert torch.allclose(gradient, gradients[1][1][name], rtol=1e-5, atol=1e-6), name
    assert ours.ids.numel() < theirs.ids.numel() * 0.75


def test_the_split_forward_has_the_gradient_of_the_reference_layout(model):
    """Scope draft: the clean stream carries no gradient, and draws with different cuts share it."""
    ids, labelled = text(37), torch.arange(37) >= 11
    draws = [draw_noise(37, 8, seeded(n), shift=True, full_share=0.3) for n in range(2)]
    layout = {"block_size": 8, "mask_id": MASK, "causal": True}
    ours = collate([noisy_row(ids, labelled, draws, **layout)])
    theirs = collate(reference_rows(ids, labelled, draws, **layout))
    assert len(ours.target) == len(theirs.target) > 40 and ours.ids.numel() < theirs.ids.numel() * 0.6
    gradients = []
    for batch in (ours, theirs):
        model.zero_grad()
        hidden = split(model, batch, mask_id=MASK, mask_vector=None, adapters_off=contextlib.nullcontext).flatten(0, 1)
        label_loss(hidden[batch.source], batch.target, lambda h: head(model, h)).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert (gradient - gradients[1][name]).norm() <= 1e-5 * gradient.norm(), name


def test_o6_08_both_streams_are_numbered_from_zero_and_the_clean_one_is_a_plain_forward(model):
    ids = text(24)
    row = noisy_row(
        ids,
        torch.arange(24) >= 8,
        [draw_noise(24, 8, seeded(1), shift=False, full_share=1.0)],
        block_size=8,
        mask_id=MASK,
        causal=False,
        next_token=True,
    )
    batch = collate([row])
    assert batch.streams.position[0].tolist() == [*range(24), *range(8, 24)]
    _, hidden = run(model, batch)
    backbone = UniversalBackbone(model, mask_id=MASK)
    from unmask.model.backbone import Feed

    ends = [int(p) // 8 * 8 + 8 for p in range(24)]
    logits = backbone.forward(
        backbone.new_cache(1, 32), [0], [Feed(ids.tolist(), 0, ends, [False] * 24, list(range(24)))]
    )
    assert torch.allclose(head(model, hidden[:24]), logits, atol=1e-4)


def test_training_forward_equals_denoising_each_block_on_its_clean_prefix(model):
    from unmask.model.backbone import Feed

    ids, labelled = text(32, 3), torch.arange(32) >= 8
    draw = draw_noise(32, 8, seeded(9), shift=False, full_share=0.0)
    row = noisy_row(ids, labelled, [draw], block_size=8, mask_id=MASK, causal=False, complementary=False)
    _, hidden = run(model, collate([row]))
    backbone, masked = UniversalBackbone(model, mask_id=MASK), draw.hit & labelled
    for first in range(8, 32, 8):
        cache = backbone.new_cache(1, 40)
        prefix_ends = [p // 8 * 8 + 8 for p in range(first)]
        backbone.forward(cache, [0], [Feed(ids[:first].tolist(), 0, prefix_ends, [False] * first, [])])
        block = slice(first, first + 8)
        logits = backbone.forward(
            cache, [0], [Feed(ids[block].tolist(), first, [first + 8] * 8, masked[block].tolist(), list(range(8)))]
        )
        place = ((row.streams.stream > 0) & (row.streams.start == first)).nonzero().flatten()
        if len(place):
            assert torch.allclose(head(model, hidden[place]), logits, atol=1e-4)


def test_o1_15_a_noisy_block_does_not_see_its_own_clean_copy(model):
    ids, labelled = text(32, 4), torch.arange(32) >= 8
    draw = draw_noise(32, 8, seeded(2), shift=False, full_share=1.0)
    changed = ids.clone()
    changed[20] = (ids[20] + 1) % 200
    hidden = []
    for tokens in (ids, changed):
        row = noisy_row(tokens, labelled, [draw], block_size=8, mask_id=MASK, causal=False)
        hidden.append(run(model, collate([row]))[1])
    noisy = row.streams.stream > 0
    difference = (hidden[0] - hidden[1]).abs().amax(-1)
    assert difference[noisy & (row.streams.start <= 16)].max() == 0
    assert difference[noisy & (row.streams.start == 24)].max() > 0


def test_block_size_one_with_a_checkerboard_is_the_causal_language_model_loss(model):
    ids = text(20, 7)
    hit = torch.arange(20) % 2 == 0
    row = noisy_row(ids, torch.ones(20).bool(), [Draw(0, hit)], block_size=1, mask_id=MASK, causal=False)
    batch = collate([row])
    loss, _ = run(model, batch)
    assert loss.item() == pytest.approx(model(input_ids=ids[None], labels=ids[None]).loss.item(), rel=1e-5)


def test_o1_03_rows_beside_each_other_do_not_move_the_loss(model):
    def row(length, seed):
        return noisy_row(
            text(length, seed),
            torch.arange(length) >= 5,
            [draw_noise(length, 8, seeded(seed), shift=False, full_share=0.3)],
            block_size=8,
            mask_id=MASK,
            causal=False,
        )

    short, long = row(20, 1), row(40, 2)
    together = collate([short, long])
    loss, hidden = run(model, together)
    assert torch.isfinite(hidden).all()
    apart = [run(model, collate([r]))[0] * len(r.target) for r in (short, long)]
    assert loss.item() == pytest.approx(sum(x.item() for x in apart) / len(together.target), rel=1e-5)


def test_o6_05_the_head_sees_label_rows_only(model, monkeypatch):
    batch = collate(
        [
            noisy_row(
                text(64),
                torch.arange(64) >= 54,
                [draw_noise(64, 8, seeded(0), shift=False, full_share=0.0)],
                block_size=8,
                mask_id=MASK,
                causal=False,
            )
        ]
    )
    hidden = joint(model, batch, mask_id=MASK, mask_vector=None, causal=False).flatten(0, 1)
    rows = []

    def counted(h):
        rows.append(len(h))
        return head(model, h)

    monkeypatch.setattr("unmask.core.loss.CHUNK", 4)
    chunked = label_loss(hidden[batch.source], batch.target, counted)
    assert max(rows) <= 4 and sum(rows) == 10
    monkeypatch.setattr("unmask.core.loss.CHUNK", 1000)
    assert chunked.item() == pytest.approx(label_loss(hidden[batch.source], batch.target, counted).item(), rel=1e-6)
