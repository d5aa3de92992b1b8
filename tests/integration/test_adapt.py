"""Adapting a tiny model: it learns, what it saves decodes, and the loop's arithmetic is exact."""

import importlib
import json
import math

import pytest
import torch
from accelerate import Accelerator
from training import chat, log, many_rows, recipe, save_base, save_rows

import unmask
import unmask.model.checkpoint as checkpoint
from unmask.core.noise import seeded
from unmask.core.streams import collate, draw_noise, noisy_row
from unmask.data import load_rows
from unmask.errors import CheckpointError, ConfigError, UnmaskError
from unmask.guard import Guard
from unmask.model.learner import Learner
from unmask.model.training import joint

loop = importlib.import_module("unmask.adapt")  # the name in the package is the function

FORMS = {
    "full-block": {"method": "full"},
    "full-causal-ar": {"method": "full", "context": "causal", "ar_weight": 0.5},
    "low-rank-block": {},
    "low-rank-causal-ar": {"context": "causal", "ar_weight": 0.5, "draws": 2},
    "low-rank-draft": {"context": "causal", "adapter_scope": "draft", "full_share": 0.5, "decay": "linear"},
    "distilled-late": {"context": "causal", "adapter_scope": "draft", "distill": 0.5, "noise": "late"},
    "curriculum": {"block_sizes": (2, 4, 8), "checkpointing": True},
    "published-layout": {"layout": "reference"},
}


def train(settings, **options):
    return list(loop.adapt(settings, **options))


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_falls_and_the_result_decodes(form, base, data, tmp_path, capfd):
    settings = recipe(base, data, tmp_path / "run", steps=30, **FORMS[form])
    steps = train(settings)
    assert [p.step for p in steps] == list(range(1, 31)) and {p.epoch for p in steps} == set(range(10))
    assert sum(p.loss for p in steps[-5:]) < 0.9 * sum(p.loss for p in steps[:5])
    assert all((p.ar_loss is not None) == (settings.ar_weight > 0) for p in steps)
    assert all((p.divergence is not None) == (settings.distill > 0) for p in steps)
    assert log(tmp_path / "run") == [{k: v for k, v in vars(p).items() if k != "seconds"} for p in steps]
    assert json.loads((tmp_path / "run" / "rows.json").read_text())["counts"] == {"kept": 12}
    model = unmask.load(tmp_path / "run" / "model", device="cpu")
    assert (model.spec.block_size, model.spec.context, model.spec.adapter_scope) == (
        8,
        settings.context,
        settings.adapter_scope,
    )
    [answer] = model.generate(["What is 3 and 3?"], max_new_tokens=20)
    assert answer.error is None and answer.mode == ("threshold" if settings.context == "block" else "verified")
    assert 0 < len(answer.token_ids) <= 20 and model.spec.mask_id not in answer.token_ids
    assert capfd.readouterr() == ("", "")


def test_scope_draft_leaves_the_base_as_it_was(base, data, tmp_path):
    plain = unmask.load(base, device="cpu", backbone="universal")
    questions = ["What is 1 and 1?", "Why?"]
    before = [a.token_ids for a in plain.generate(questions, mode="ar", max_new_tokens=24)]
    train(recipe(base, data, tmp_path / "run", **FORMS["low-rank-draft"]))
    adapted = unmask.load(tmp_path / "run" / "model", device="cpu", backbone="universal")
    for mode in ("ar", "verified"):
        assert [a.token_ids for a in adapted.generate(questions, mode=mode, max_new_tokens=24)] == before
    weights = plain.checkpoint.model.state_dict()
    same = [torch.equal(weights[name], tensor) for name, tensor in adapted.checkpoint.model.state_dict().items()]
    drafting = adapted.checkpoint.draft_model.state_dict()
    assert all(same) and not all(torch.equal(weights[name], tensor) for name, tensor in drafting.items())


class Recorder(torch.optim.SGD):
    """Keeps the gradients that the loop hands to its optimizer."""

    def step(self, closure=None):
        self.seen = torch.cat([p.grad.flatten().clone() for group in self.param_groups for p in group["params"]])


def first_step(settings, rows):
    """Progress and gradient of a run's first step."""
    learner, accelerator = Learner(settings), Accelerator()
    optimizer = Recorder(learner.trainable().values(), lr=1.0)
    encoded = load_rows(
        [str(rows)], learner.tokenizer, max_length=512, truncation="keep", stop_ids=learner.spec.stop_ids
    ).rows
    progress = loop.train_step(
        loop.Run(settings, encoded, learner, optimizer, accelerator, learner, Guard(settings)), 1, []
    )
    return progress, optimizer.seen


@pytest.mark.parametrize("form", ["full-causal-ar", "low-rank-block"])
def test_o6_01_accumulation_equals_the_large_batch(form, base, tmp_path):
    rows = save_rows(tmp_path / "rows.jsonl", [chat("q", "a" * n) for n in (1, 3, 9, 20, 40, 60, 80, 100)])
    found = []
    for size, times in ((8, 1), (2, 4), (1, 8)):
        settings = recipe(base, rows, tmp_path / "run", batch_rows=size, accumulation=times, clip=1e9, **FORMS[form])
        found.append(first_step(settings, rows))
    (whole, gradient), *others = found
    assert gradient.norm() > 0
    for progress, other in others:
        assert progress.loss == pytest.approx(whole.loss, rel=1e-6) and progress.labels == whole.labels
        assert (other - gradient).norm() <= 1e-5 * gradient.norm()
        assert progress.grad_norm == pytest.approx(float(gradient.norm()), rel=1e-5)


def test_o6_02_a_resumed_run_sees_the_rows_in_the_same_order(base, tmp_path, monkeypatch):
    rows, seen, noised = save_rows(tmp_path / "rows.jsonl", many_rows(20)), [], loop.noised
    monkeypatch.setattr(loop, "noised", lambda *given: seen.append(given[-2:]) or noised(*given))
    train(recipe(base, rows, tmp_path / "straight", steps=30, batch_rows=2, save_every=100))
    straight = seen.copy()
    assert [sorted(n for e, n in straight if e == epoch) for epoch in range(3)] == [list(range(20))] * 3
    seen.clear()
    settings = recipe(base, rows, tmp_path / "broken", steps=30, batch_rows=2, save_every=13)
    for progress in loop.adapt(settings):
        if progress.step == 13:
            break
    assert len(train(settings, resume=True)) == 17
    assert seen == straight and log(tmp_path / "broken") == log(tmp_path / "straight")
    for file in ("adapter_model.safetensors", "mask_embedding.safetensors"):
        assert (tmp_path / "broken/model" / file).read_bytes() == (tmp_path / "straight/model" / file).read_bytes()


@pytest.mark.parametrize("causal", [False, True])
def test_o6_06_a_logit_does_not_depend_on_the_target_it_predicts(base, causal):
    model = checkpoint.load_checkpoint(base).model
    ids, labelled = torch.randint(0, 200, (30,), generator=seeded("text")), torch.arange(30) >= 9
    draw = draw_noise(30, 8, seeded(4), shift=causal, full_share=0.2)

    def hidden(tokens):
        row = noisy_row(tokens, labelled, [draw], block_size=8, mask_id=260, causal=causal)
        return row, joint(model, collate([row]), mask_id=260, mask_vector=None, causal=causal)[0]

    row, before = hidden(ids)
    assert torch.equal(before, hidden(ids)[1])
    position = row.streams.position[row.source] + 1
    assert len(set(position.tolist())) == len(row.source) >= 15
    moved = []
    for source, at in zip(row.source.tolist(), position.tolist(), strict=True):
        changed = ids.clone()
        changed[at] = (ids[at] + 1) % 200
        after = hidden(changed)[1]
        assert torch.equal(before[source], after[source]), at
        moved.append(not torch.equal(before, after))
    assert all(moved)


def test_o6_06_training_and_evaluation_mode_give_the_same_loss(base, data, tmp_path):
    learner = Learner(recipe(base, data, tmp_path / "run"))
    row = noisy_row(
        torch.arange(20),
        torch.arange(20) >= 7,
        [draw_noise(20, 8, seeded(1), shift=False, full_share=0.0)],
        block_size=8,
        mask_id=260,
        causal=False,
    )
    batch = collate([row])
    assert torch.equal(learner.train()(batch), learner.eval()(batch))


QUESTIONS = {7: "abcdefg", 8: "abcdefgh", 9: "zyxwvutsr"}
LEARNING = {"block": {}, "causal": {"context": "causal", "ar_weight": 1.0}}


@pytest.fixture(scope="module", params=LEARNING)
def by_heart(request, tmp_path_factory):
    """A model that has learned three rows of 24 tokens by heart, and the first loss."""
    place = tmp_path_factory.mktemp("heart")
    base = save_base(place / "base", plain=True)
    rows = save_rows(place / "rows.jsonl", [{"prompt": q, "completion": answer_to(q)} for q in QUESTIONS.values()])
    settings = recipe(
        base,
        rows,
        place / "run",
        method="full",
        steps=400,
        batch_rows=3,
        full_share=0.3,
        save_every=1000,
        **LEARNING[request.param],
    )
    losses = [progress.loss for progress in train(settings)]
    assert sum(losses[-20:]) / 20 < 0.05
    return unmask.load(place / "run" / "model", device="cpu"), losses[0]


def answer_to(question):
    """Fills a row up to 24 tokens, the end token included."""
    return "The answer is 12345678"[: 23 - len(question) - 2] + question[:2]


def test_o6_09_the_first_loss_is_that_of_a_guess(by_heart):
    assert by_heart[1] == pytest.approx(math.log(261), abs=0.15)


@pytest.mark.parametrize("length", QUESTIONS)
@pytest.mark.parametrize("threshold", [0.9, 1.0])
@pytest.mark.parametrize("cached", [True, False])
def test_o6_09_what_was_learned_by_heart_is_decoded(by_heart, length, threshold, cached):
    model, question = by_heart[0], QUESTIONS[length]
    modes = ["threshold"] if model.spec.context == "block" else ["threshold", "ar", "verified"]
    for mode in modes:
        [answer] = model.generate(
            [question], raw=True, mode=mode, threshold=threshold, sub_block_cache=cached, max_new_tokens=40
        )
        assert answer.text == answer_to(question) and answer.finish_reason == "stop"
        assert mode == "ar" or answer.forwards < 25


@pytest.mark.parametrize("sizes", [{"block_size": 1, "sub_block_size": 1}, {"block_sizes": (1, 8)}])
def test_o6_11_blocks_that_leave_nothing_to_learn_are_refused(sizes, base, data, tmp_path):
    """In context causal a block's first slot is never masked."""
    with pytest.raises(ConfigError, match="blocks of 1 leave nothing to learn in context 'causal'"):
        recipe(base, data, tmp_path / "run", context="causal", **sizes)
    recipe(base, data, tmp_path / "run", **sizes)


def test_o6_11_a_forward_without_a_target_adds_nothing_to_a_step(base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run")
    learner, accelerator = Learner(settings), Accelerator()
    ids = torch.arange(20)
    noise = draw_noise(20, 8, seeded(1), shift=False, full_share=0.0)
    full, empty = (
        collate([noisy_row(ids, labelled, [noise], block_size=8, mask_id=260, causal=False)])
        for labelled in (ids >= 7, ids < 0)
    )
    gradients = []
    for forwards in ([full], [empty, full]):
        learner.zero_grad()
        run = loop.Run(settings, [], learner, None, accelerator, learner, Guard(settings))
        losses = [loop._backward(run, batch, len(full.target), 1) for batch in forwards]
        gradients.append(torch.cat([p.grad.flatten() for p in learner.trainable().values()]))
    assert losses[0].tolist() == [0.0] * 4 and torch.equal(*gradients) and gradients[0].isfinite().all()


def test_an_adapter_is_no_base(base, data, tmp_path):
    Learner(recipe(base, data, tmp_path / "run")).save(tmp_path / "adapter")
    with pytest.raises(ConfigError, match="an adapter; give its base"):
        Learner(recipe(tmp_path / "adapter", data, tmp_path / "run"))


def test_a_run_is_neither_overwritten_nor_continued_with_another_recipe(base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", steps=2)
    train(settings)
    with pytest.raises(CheckpointError, match="holds a run that got to state-0000002; give --resume"):
        train(settings)
    with pytest.raises(CheckpointError, match="weight_decay is 1.0, the run in .* was made with 0.0"):
        train(type(settings)(**vars(settings) | {"weight_decay": 1.0}), resume=True)
    longer = type(settings)(**vars(settings) | {"steps": 4})
    assert [p.step for p in train(longer, resume=True)] == [3, 4]


def test_a_gradient_that_is_not_a_number_stops_before_the_weights(base, tmp_path, monkeypatch):
    rows = save_rows(tmp_path / "rows.jsonl", [chat("q", "an answer")] * 4)
    settings = recipe(base, rows, tmp_path / "run", steps=4, save_every=1, **FORMS["low-rank-block"])
    steps = loop.adapt(settings)
    next(steps), next(steps)
    backward = loop._backward

    def infinite(run, *rest):
        losses = backward(run, *rest)
        next(iter(run.learner.trainable().values())).grad.fill_(float("inf"))
        return losses

    monkeypatch.setattr(loop, "_backward", infinite)
    with pytest.raises(
        UnmaskError, match="norm of the gradient of step 3 is inf, on .*rows.jsonl lines 3, 1, 2, 4; .* last good state"
    ):
        next(steps)
    monkeypatch.setattr(loop, "_backward", backward)
    assert [progress.step for progress in loop.adapt(settings, resume=True)] == [2, 3, 4]


def test_resuming_on_changed_data_is_refused(base, tmp_path):
    rows = save_rows(tmp_path / "rows.jsonl", [chat("q", "an answer")] * 4)
    settings = recipe(base, rows, tmp_path / "run", steps=2, save_every=1, **FORMS["low-rank-block"])
    next(loop.adapt(settings))
    save_rows(rows, [chat("q", "another")] * 4)
    with pytest.raises(CheckpointError, match="sha256 .* resume with the same data"):
        next(loop.adapt(settings, resume=True))
