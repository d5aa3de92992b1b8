"""The plain next-token fine-tune: transformers' own loss, the loop as it is, and a plain model at its end."""

import json
from dataclasses import replace

import pytest
import torch
from test_adapt import train
from training import log, recipe, save_rows

import unmask
from unmask.adapt import adapt
from unmask.core.streams import collate
from unmask.data import Row, load_rows
from unmask.errors import CheckpointError, ConfigError
from unmask.model.learner import Learner
from unmask.noising import noised
from unmask.plan import plan
from unmask.recipe import Source

PLAIN = {"objective": "next-token"}


def test_the_loss_is_that_of_transformers(base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", method="full", **PLAIN)
    learner = Learner(settings)
    rows = load_rows(
        settings.data, learner.tokenizer, max_length=512, truncation="keep", stop_ids=learner.spec.stop_ids
    ).rows
    assert len({len(row.ids) for row in rows}) > 3
    theirs = []
    for row in rows:
        labels = torch.where(row.labelled, row.ids, -100)
        with torch.no_grad():
            theirs.append(learner.model(input_ids=row.ids[None], labels=labels[None]).loss * row.labelled.sum())
    for chosen in (rows[:1], rows):  # alone, and one behind the other in one forward
        batch = collate([noisy for row in chosen for noisy in noised(settings, row, 0, 1, 0, 0)])
        assert len(batch.target) == sum(int(row.labelled.sum()) for row in chosen)
        ours = learner(batch)
        assert ours[0].item() == pytest.approx(float(sum(theirs[: len(chosen)])), rel=1e-6)
        assert ours[1:].tolist() == [0.0] * 3


def test_packed_documents_are_one_text_as_in_the_paper(base, data, tmp_path):
    """A label at the first position of a row has nothing to its left and is never predicted."""
    settings = recipe(base, data, tmp_path / "run", method="full", **PLAIN)
    learner = Learner(settings)
    row = Row(torch.randint(0, 250, (64,)), torch.rand(64) < 0.5)
    row.labelled[0] = True
    with torch.no_grad():
        labels = torch.where(row.labelled, row.ids, -100)[None]
        theirs = learner.model(input_ids=row.ids[None], labels=labels).loss * row.labelled[1:].sum()
        ours = learner(collate(noised(settings, row, 0, 1, 0, 0)))[0]
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.parametrize("method", ["full", "low-rank"])
def test_it_learns_and_the_result_is_a_plain_model(method, base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", method=method, steps=30, save_every=20, **PLAIN)
    steps = train(settings)
    assert sum(p.loss for p in steps[-5:]) < 0.9 * sum(p.loss for p in steps[:5])
    place = tmp_path / "run" / "model"
    model = unmask.load(place, device="cpu", backbone="universal")
    assert model.spec is None
    [answer] = model.generate(["What is 3 and 3?"], max_new_tokens=12)
    assert answer.mode == "ar" and answer.error is None
    learner = Learner(settings)
    assert learner.mask_vector is None
    loaded = model.checkpoint.model(input_ids=torch.arange(40)[None]).logits
    untrained = learner.model(input_ids=torch.arange(40)[None]).logits
    assert (loaded - untrained).abs().max() > 0.1
    with pytest.raises(ConfigError, match="mask id means nothing"):
        unmask.load(place, mask_id=260)
    longer = type(settings)(**vars(settings) | {"steps": 32})
    assert [p.step for p in train(longer, resume=True)] == [31, 32]


def test_an_adapter_that_peft_wrote_is_loaded_with_its_base(base, data, tmp_path):
    learner = Learner(recipe(base, data, tmp_path / "run", **PLAIN))
    for name, parameter in learner.trainable().items():
        parameter.data.normal_(std=0.1 if "lora_B" in name else 1.0)
    learner.peft.save_pretrained(tmp_path / "theirs")
    config = tmp_path / "theirs" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(base)}))
    learner.save(tmp_path / "ours")
    ids = torch.arange(40)[None]
    wanted = learner.model(input_ids=ids).logits
    for name, close in (("theirs", 1e-3), ("ours", 5e-2)):  # ours is in float16
        loaded = unmask.load(tmp_path / name, device="cpu", backbone="universal").checkpoint
        assert loaded.spec is None and loaded.draft_model is None
        assert (loaded.model(input_ids=ids).logits - wanted).abs().max() < close * wanted.abs().max()
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": None}))
    with pytest.raises(CheckpointError, match="adapter_config.json names no base; .*base_model_name_or_path"):
        unmask.load(tmp_path / "theirs")


def test_sources_with_weights_in_forwards_of_so_many_tokens_resume_exactly(base, data, tmp_path):
    """Order, weights and the log of a run that was stopped are those of one that was not."""
    more = save_rows(tmp_path / "more.jsonl", [{"question": f"{n}?", "answer": "yes " * n} for n in range(9)])
    sources = (str(data), Source(path=str(more), weight=1.5))
    first = recipe(base, data, tmp_path / "straight", batch_tokens=150, steps=14, save_every=5)
    straight = replace(first, data=sources)
    broken = replace(straight, output=str(tmp_path / "broken"))
    assert len({progress.rows for progress in train(straight)}) > 2
    for progress in adapt(broken):
        if progress.step == 5:
            break
    assert [progress.step for progress in train(broken, resume=True)] == list(range(6, 15))
    assert log(tmp_path / "broken") == log(tmp_path / "straight")
    about = json.loads((tmp_path / "broken" / "rows.json").read_text())
    assert about["sources"][str(more)] == {"kept": 9, "read as question, answer": 9, "added: again, by weight": 4}
    assert set(about["sha256"]) == {str(data), str(more)}
    changed = replace(broken, data=(str(data), Source(path=str(more), weight=1.4)))
    with pytest.raises(CheckpointError, match="data is .* resume with the same recipe"):
        train(changed, resume=True)


IDLE = {
    "context": "causal",
    "layout": "shared",
    "complementary": False,
    "draws": 2,
    "full_share": 0.5,
    "noise": "late",
    "block_sizes": (4, 8),
    "mask_id": 7,
}


@pytest.mark.parametrize("key", IDLE)
def test_a_setting_without_effect_is_said(key, base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", steps=1, **PLAIN, **{key: IDLE[key]})
    for start in (lambda: train(settings), lambda: plan(settings, measure=False)):
        with pytest.warns(UserWarning, match=f"^{key}: no effect with objective 'next-token'; leave it out"):
            start()


def test_the_papers_packing_says_what_it_ignores_and_asks_for_nothing_without_effect(base, data, tmp_path, recwarn):
    packed = {"method": "full", "reference_quirks": True}
    settings = recipe(base, data, tmp_path / "run", truncation="drop", max_length=64, **packed)
    assert settings.idle() == ["truncation"]
    unfilled = recipe(base, data, tmp_path / "run", padding=False, max_length=60, **packed, **PLAIN)
    assert unfilled.idle() == [] and replace(unfilled, mask_id=7).idle() == ["mask_id"]
    assert replace(unfilled, max_length=64, padding=True, mask_id=7).idle() == []
    for wrong in ({"objective": "diffusion"}, {"padding": True}):
        with pytest.raises(ConfigError, match="max_length that is a multiple of block_size 8, not 60"):
            replace(unfilled, **wrong)
    train(recipe(base, data, tmp_path / "run", steps=1, **PLAIN))
    assert not [w for w in recwarn if "no effect" in str(w.message)]
