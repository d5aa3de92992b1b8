"""Training, saving and decoding with a chain."""

import json

import pytest
import torch
from training import many_rows, recipe, save_base, save_rows

import unmask
from unmask import verified
from unmask.adapt import adapt
from unmask.core import verify
from unmask.core.streams import collate
from unmask.data import load_rows
from unmask.errors import CheckpointError, ConfigError
from unmask.model.learner import Learner
from unmask.model.training import split
from unmask.model.universal import head
from unmask.noising import noised
from unmask.recipe import warn_of_idle

FORM = {"context": "causal", "adapter_scope": "draft", "full_share": 0.6, "chain": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("chain")
    return save_base(place / "base"), save_rows(place / "rows.jsonl", many_rows(6))


@pytest.fixture(scope="module")
def trained(made, tmp_path_factory):
    settings = recipe(*made, tmp_path_factory.mktemp("run") / "run", **FORM | {"steps": 12, "learning_rate": 0.05})
    return settings, list(adapt(settings))


def test_the_loss_is_of_hidden_states_moved_by_the_token_before_where_that_is_masked(made, tmp_path):
    learner = Learner(recipe(*made, tmp_path / "run", **FORM))
    torch.manual_seed(0)
    learner.chain_up.data.normal_()
    how = {"max_length": 512, "truncation": "keep", "stop_ids": learner.spec.stop_ids}
    row = load_rows(list(learner.recipe.data), learner.tokenizer, **how).rows[0]
    laid = noised(learner.recipe, row, learner.spec.mask_id, 1, 0, 0)[0]
    batch, embedding = collate([laid]), learner.model.get_input_embeddings().weight
    with torch.no_grad():
        losses = learner(batch)
        parts = {"mask_id": learner.spec.mask_id, "mask_vector": learner.mask_vector}
        hidden = split(learner.model, batch, **parts, adapters_off=learner.peft.disable_adapter)[0]
        total, moved = 0.0, 0
        for source, target in zip(laid.source.tolist(), laid.target.tolist(), strict=True):
            state, place = hidden[source], int(laid.streams.position[source])
            if laid.masked[source]:
                before, moved = embedding[row.ids[place]], moved + 1
                state = state + learner.chain_up.T @ (learner.chain_down @ before)
            total -= head(learner.model, state[None]).log_softmax(-1)[0, target].item()
    assert 0 < moved < len(laid.source)
    assert losses[3].item() == pytest.approx(total, rel=1e-4) and abs(losses[3] - losses[0]) > 0.1


def test_an_untrained_chain_is_the_plain_loss(made, tmp_path):
    first = next(iter(adapt(recipe(*made, tmp_path / "run", **FORM | {"steps": 1}))))
    assert first.chain_loss == pytest.approx(first.loss, rel=1e-5)


def test_the_loss_falls_and_the_log_and_the_picture_have_it(trained):
    settings, steps = trained
    assert steps[-1].chain_loss < 0.8 * steps[0].chain_loss
    logged = [json.loads(line) for line in open_lines(settings.output, "log.jsonl")]
    assert [line["chain_loss"] for line in logged] == [step.chain_loss for step in steps]
    assert any("chained" in line for line in open_lines(settings.output, "curves.html"))


def open_lines(output, name):
    from pathlib import Path

    return (Path(output) / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("drafts", ["plain", "paced"])
@pytest.mark.parametrize("backbone", ["native", "universal"])
def test_guesses_change_and_texts_do_not(trained, drafts, backbone, monkeypatch):
    """Verified text is mode ar's, with the chain and without, alone and in a batch, which changes no guess either."""
    guesses = []

    def accepted(guess, wanted):
        guesses.append(tuple(guess))
        return verify.accepted(guess, wanted)

    monkeypatch.setattr(verified, "accepted", accepted)
    model = unmask.load(f"{trained[0].output}/model", backbone=backbone)
    assert model.checkpoint.chain.shift.shape == (261, 4)
    questions = [f"What is {n} and {n}?" for n in range(5)]
    ar = model.generate(questions, mode="ar", max_new_tokens=24)
    how = {"mode": "verified", "drafts": drafts, "max_new_tokens": 24}
    alone = [model.generate([question], **how)[0] for question in questions]
    chained = sorted(guesses)
    guesses.clear()
    together = model.generate(questions, **how)
    same = sorted(guesses)
    guesses.clear()
    model.checkpoint.chain = None
    without = model.generate(questions, **how)
    assert [a.token_ids for a in ar] == [a.token_ids for a in alone] == [a.token_ids for a in together]
    assert [a.token_ids for a in ar] == [a.token_ids for a in without]
    if drafts == "plain":
        assert chained == same != sorted(guesses) and len(chained) == len(guesses) > 20


def test_a_chain_alone_leaves_its_adapter_bit_for_bit_and_resumes_exactly(made, tmp_path):
    from safetensors.torch import load_file

    start = tmp_path / "start"
    list(adapt(recipe(*made, start, **FORM | {"chain": 0, "steps": 3, "learning_rate": 0.05})))
    form = FORM | {"chain_only": True, "start_from": f"{start}/model", "learning_rate": 0.05, "save_every": 4}
    settings = recipe(*made, tmp_path / "run", **form | {"steps": 8})
    steps = list(adapt(settings))
    assert set(Learner(settings).trainable()) == {"chain_down", "chain_up"}
    for name in ("adapter_model.safetensors", "mask_embedding.safetensors"):
        before, after = load_file(start / "model" / name), load_file(tmp_path / "run/model" / name)
        assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert steps[0].chain_loss == pytest.approx(steps[0].loss, rel=1e-5)
    assert steps[-1].chain_loss < 0.95 * steps[-1].loss
    cut = recipe(*made, tmp_path / "cut", **form | {"steps": 8})
    run = adapt(cut)
    for _ in range(5):
        next(run)
    run.close()
    list(adapt(cut, resume=True))
    straight, resumed = (load_file(tmp_path / name / "model/chain.safetensors") for name in ("run", "cut"))
    assert all(torch.equal(straight[key], resumed[key]) for key in straight)


def test_it_is_saved_continued_exactly_and_exported(trained, made, tmp_path):
    settings, _ = trained
    saved = f"{settings.output}/model"
    again = Learner(recipe(*made, tmp_path / "again", **FORM, start_from=saved))
    [down, up] = again.chain_down, again.chain_up
    kept = unmask.load(saved).checkpoint.adapter.chain
    assert torch.equal(down.half(), kept[0]) and torch.equal(up.half(), kept[1]) and up.abs().max() > 0
    from unmask.cli import main

    assert main(["export", "--model", saved, "--format", "hf", "--out", str(tmp_path / "out")]) == 0
    assert torch.equal(unmask.load(tmp_path / "out").checkpoint.adapter.chain[1], kept[1])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"context": "block", "adapter_scope": "all"}, "chain is 4; it needs context 'causal' and method 'low-rank'"),
        ({"method": "full", "adapter_scope": "all"}, "chain is 4; it needs context 'causal'"),
        ({"layout": "reference"}, "chain needs layout lean or shared"),
        ({"chain": -1}, "chain is -1; allowed: "),
        ({"chain_only": True}, "chain_only needs a chain to learn, and the adapter that it is for as start_from"),
        ({"chain_only": True, "chain": 0, "start_from": "there"}, "chain_only needs a chain to learn"),
    ],
)
def test_what_makes_no_chain_is_refused(changes, said, made, tmp_path):
    with pytest.raises(ConfigError, match=said):
        recipe(*made, tmp_path / "run", **FORM | changes)


def test_a_teacher_of_an_adapter_that_stays_has_no_effect_and_that_is_said(made, tmp_path):
    form = FORM | {"chain_only": True, "start_from": "there"}
    assert recipe(*made, tmp_path / "run", **form).idle() == []
    with pytest.warns(UserWarning, match="distill: no effect with chain_only; leave it out"):
        warn_of_idle(recipe(*made, tmp_path / "run", **form | {"distill": 0.5}))


def test_another_chain_is_not_gone_on_with(trained, made, tmp_path):
    saved = f"{trained[0].output}/model"
    with pytest.raises(ConfigError, match="has a chain of rank 4, the recipe 8; use the same"):
        Learner(recipe(*made, tmp_path / "run", **FORM | {"chain": 8}, start_from=saved))
    with pytest.raises(ConfigError, match="has a chain of rank 4, the recipe has none; use the same"):
        Learner(recipe(*made, tmp_path / "run", **FORM | {"chain": 0}, start_from=saved))


def test_a_damaged_chain_is_named(trained, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "model"
    shutil.copytree(f"{trained[0].output}/model", broken)
    tensors = load_file(broken / "chain.safetensors")
    save_file({"down": tensors["down"]}, broken / "chain.safetensors")
    with pytest.raises(CheckpointError, match="chain.safetensors holds something other than `down` and `up`"):
        unmask.load(broken)
    save_file({name: t[:, :32].contiguous() for name, t in tensors.items()}, broken / "chain.safetensors")
    with pytest.raises(CheckpointError, match="the adapter's chain is for hidden states of 32, the base's have 64"):
        unmask.load(broken)
