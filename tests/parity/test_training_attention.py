"""The attention that training uses, against transformers' own under the dense mask; and the switches that must not
change a gradient."""

import contextlib
import warnings
from dataclasses import replace

import pytest
import torch
from families import family_model
from tiny import MASK
from training import many_rows, recipe, save_base, save_rows

from unmask.core.loss import label_loss, teacher_loss
from unmask.core.noise import seeded
from unmask.core.streams import collate, draw_noise, noisy_row
from unmask.data import load_rows
from unmask.model import attention
from unmask.model.attention import keeps_own_attention, use_our_attention
from unmask.model.learner import Learner
from unmask.model.training import joint, split
from unmask.model.universal import head
from unmask.noising import block_size_at, noised

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "olmo2", "gemma3_text", "phi3", "mistral-window", "qwen2-window"]


def batch_of(causal, lengths=(37, 20, 50)):
    rows = []
    for n, length in enumerate(lengths):
        draws = [draw_noise(length, 8, seeded(n, k), shift=causal, full_share=0.3) for k in range(2)]
        labelled = torch.arange(length) >= 9
        ids = torch.randint(0, 200, (length,), generator=seeded("ids", n))
        rows.append(noisy_row(ids, labelled, draws, block_size=8, mask_id=MASK, causal=causal))
    return collate(rows)


def gradients(model, batch, form):
    model.zero_grad()
    if form == "split":
        options = {"mask_id": MASK, "mask_vector": None, "adapters_off": contextlib.nullcontext}
        hidden = split(model, batch, **options)[0]
    else:
        hidden = joint(model, batch, mask_id=MASK, mask_vector=None, causal=form == "causal")[0]
    loss = label_loss(hidden[batch.source], batch.target, lambda h: head(model, h))
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("form", ["block", "causal", "split"])
@pytest.mark.parametrize("family", FAMILIES)
def test_our_attention_gives_the_gradient_of_the_dense_mask(family, form):
    model, batch = family_model(family), batch_of(form != "block")
    expected, wanted = gradients(model, batch, form)
    use_our_attention(model)
    assert not keeps_own_attention(model)
    loss, found = gradients(model, batch, form)
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6, name


@pytest.mark.parametrize("form", ["block", "causal", "split"])
def test_flex_attention_computes_the_same(form, monkeypatch):
    """What runs on a GPU, forward and uncompiled: on a CPU flex attention has no backward pass."""
    from torch.nn.attention.flex_attention import flex_attention

    model, batch = family_model("qwen2-window"), batch_of(form != "block")
    use_our_attention(model)

    def hidden():
        if form == "split":
            options = {"mask_id": MASK, "mask_vector": None, "adapters_off": contextlib.nullcontext}
            return split(model, batch, **options)
        return joint(model, batch, mask_id=MASK, mask_vector=None, causal=form == "causal")

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        expected = hidden()
        monkeypatch.setattr(attention, "_takes_flex", lambda device: True)
        monkeypatch.setattr(attention, "_compiled", lambda: flex_attention)
        found = hidden()
    assert torch.allclose(found, expected, atol=1e-4) and not torch.equal(found, expected)


def test_a_call_without_our_mask_is_transformers_own():
    model, ids = family_model("mistral-window"), torch.arange(40)[None]
    expected = model(input_ids=ids).logits
    use_our_attention(model)
    assert torch.allclose(model(input_ids=ids).logits, expected, atol=1e-5)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("switches")
    return save_base(place / "base"), save_rows(place / "rows.jsonl", many_rows(6)), place / "run"


def loss_and_gradient(made, **fields):
    settings = recipe(*made, **fields)
    learner = Learner(settings)
    for number, (name, parameter) in enumerate(learner.trainable().items()):
        if "lora_B" in name:  # B starts as 0, which would hide the gradient of A
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=seeded("b", number)))
    stops = learner.spec.stop_ids
    rows = load_rows(list(settings.data), learner.tokenizer, max_length=512, truncation="keep", stop_ids=stops).rows
    laid = [part for n, row in enumerate(rows) for part in noised(settings, row, learner.spec.mask_id, 1, 0, n)]
    losses = learner(collate(laid))
    losses.sum().backward()
    return losses.detach(), torch.cat([p.grad.flatten() for p in learner.trainable().values()]), collate(laid)


@pytest.mark.parametrize("form", [{}, {"context": "causal", "adapter_scope": "draft"}])
def test_layouts_and_checkpointing_change_no_gradient(made, form):
    losses, gradient, lean = loss_and_gradient(made, **form)
    assert gradient.norm() > 0
    tokens = {}
    for switch in ({"layout": "shared"}, {"layout": "reference"}, {"checkpointing": True}):
        other, found, batch = loss_and_gradient(made, **form, **switch)
        tokens[str(switch)] = batch.ids.numel()
        assert torch.allclose(other, losses, rtol=1e-5), switch
        assert (found - gradient).norm() <= 1e-5 * gradient.norm(), switch
    shared, reference, same = tokens.values()
    assert lean.ids.numel() == same < shared < reference


@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointing_computes_layers_again(made, checkpointing):
    settings = recipe(*made, checkpointing=checkpointing)
    learner, ran = Learner(settings), []
    learner.model.get_decoder().layers[1].self_attn.register_forward_hook(
        lambda *_: ran.append(torch.is_grad_enabled())
    )
    learner(batch_of(False)).sum().backward()
    assert len(ran) == 1 + checkpointing


@pytest.mark.parametrize("scope", ["all", "draft"])
def test_the_teacher_is_the_clean_streams_law_of_each_label(made, scope):
    """The divergence, from transformers' plain forward over the clean row."""
    form = {"context": "causal", "adapter_scope": scope, "distill": 1.0}
    settings = recipe(*made, **form)
    learner = Learner(settings)
    stops = learner.spec.stop_ids
    [row, *_] = load_rows(
        list(settings.data), learner.tokenizer, max_length=512, truncation="keep", stop_ids=stops
    ).rows
    [laid] = noised(settings, row, learner.spec.mask_id, 1, 0, 0)
    batch = collate([laid])
    with torch.no_grad():
        losses = learner(batch)
        law = learner.model(input_ids=row.ids[None]).logits[0].log_softmax(-1)
        position = laid.streams.position[laid.source]
        assert torch.equal(row.ids[position + 1], batch.target)
        hidden = split(
            learner.model,
            batch,
            mask_id=learner.spec.mask_id,
            mask_vector=learner.mask_vector,
            adapters_off=learner.peft.disable_adapter,
        )[0]
        draft = head(learner.model, hidden[batch.source]).log_softmax(-1)
    expected = (law[position].exp() * (law[position] - draft)).sum()
    assert losses[2].item() == pytest.approx(expected.item(), rel=1e-4) and losses[2] > 0


@pytest.mark.parametrize("scope", ["all", "draft"])
def test_slot_decay_weighs_each_label_by_its_place_in_its_block(made, scope):
    """Labels that stand second among a block's maskable slots count half, third a quarter; the noise is the same."""
    form = {"context": "causal", "adapter_scope": scope, "full_share": 0.5}
    plain, weighed = (Learner(recipe(*made, slot_decay=decay, **form)) for decay in (1.0, 0.5))
    how = {"max_length": 512, "truncation": "keep", "stop_ids": plain.spec.stop_ids}
    row = load_rows(list(plain.recipe.data), plain.tokenizer, **how).rows[0]
    laid = noised(weighed.recipe, row, weighed.spec.mask_id, 1, 0, 0)[0]
    batch, place = collate([laid]), []
    for source, target in zip(laid.source.tolist(), laid.target.tolist(), strict=True):
        slot = int(laid.streams.position[source] - laid.streams.start[source]) + 1
        assert int(row.ids[laid.streams.position[source] + 1]) == target and 1 <= slot < 8
        place.append(slot - 1)
    assert max(place) > 1
    with torch.no_grad():
        one_by_one = []
        for n in range(len(place)):
            alone = replace(batch, source=batch.source[n : n + 1], target=batch.target[n : n + 1])
            one_by_one.append(plain(alone)[0].item())
        total = weighed(batch)[0].item()
    assert total == pytest.approx(sum(x * 0.5**k for x, k in zip(one_by_one, place, strict=True)), rel=1e-4)
    assert total < 0.95 * sum(one_by_one)


def test_the_divergence_is_zero_from_itself_and_chunked_as_whole(monkeypatch):
    hidden, other = (torch.randn(10, 16, generator=seeded("h", n)).requires_grad_() for n in range(2))
    matrix = torch.randn(16, 50, generator=seeded("m"))
    whole = teacher_loss(hidden, other, lambda h: h @ matrix)
    assert teacher_loss(hidden, hidden, lambda h: h @ matrix).item() == pytest.approx(0, abs=1e-5)
    monkeypatch.setattr("unmask.core.loss.CHUNK", 3)
    chunked = teacher_loss(hidden, other, lambda h: h @ matrix)
    chunked.backward()
    assert chunked.item() == pytest.approx(whole.item(), rel=1e-6)
    assert hidden.grad.norm() > 0 and other.grad is None


def test_late_noise_masks_later_slots_more_often(made):
    start = torch.arange(8000) // 8 * 8
    from unmask.core.noise import hits

    share = hits(start, seeded("late"), late=True).float().view(-1, 8).mean(0)
    assert (share.diff() > 0).all() and share[0] < 0.25 and share[-1] > 0.6
    assert share.mean() == pytest.approx(0.5, abs=0.05)
    assert hits(start, seeded("even")).float().view(-1, 8).mean(0).std() < 0.03


def test_a_curriculum_gives_each_size_an_equal_share(made):
    settings = recipe(*made, block_sizes=(2, 4, 8), steps=9)
    assert [block_size_at(settings, step) for step in range(1, 10)] == [2, 2, 2, 4, 4, 4, 8, 8, 8]
    assert block_size_at(recipe(*made), 5) == 8
