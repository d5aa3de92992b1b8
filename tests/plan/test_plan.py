"""What `adapt --dry-run` says, against the paper's figures and against what training then does."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from training import chat, log, many_rows, recipe, save_base, save_rows

from unmask.adapt import adapt
from unmask.cli import main as cli
from unmask.core.masks import learns_from
from unmask.core.streams import collate
from unmask.data import Row
from unmask.errors import CheckpointError, ConfigError, DataError
from unmask.model.learner import Learner
from unmask.noising import noised
from unmask.plan import plan
from unmask.plan.cost import Fed, fed, learning, memory, operations
from unmask.plan.devices import gpus
from unmask.plan.network import KNOWN, network_of
from unmask.plan.run import _longest

WIDE = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, "num_key_value_heads": 2}
FORMS = {
    "full": {"method": "full"},
    "full-bf16": {"method": "full", "dtype": "bf16"},
    "low-rank": {},
    "low-rank-bf16": {"dtype": "bf16"},
    "draft": {"context": "causal", "adapter_scope": "draft"},
    "checkpointing": {"method": "full", "checkpointing": True},
    "low-rank-checkpointing": {"checkpointing": True},
    "draft-checkpointing": {"context": "causal", "adapter_scope": "draft", "checkpointing": True},
    "distilled": {"context": "causal", "distill": 0.5},
    "distilled-draft": {"context": "causal", "adapter_scope": "draft", "distill": 0.5},
    "next-token-loss": {"context": "causal", "ar_weight": 0.5, "method": "full"},
    "chained": {"context": "causal", "adapter_scope": "draft", "chain": 24},
    "chain-only": {"context": "causal", "adapter_scope": "draft", "chain": 24, "chain_only": True},
    "next-token": {"method": "full", "objective": "next-token"},
    "published-layout": {"method": "full", "layout": "reference"},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"), **WIDE)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", many_rows(22))


def test_the_papers_bases_have_the_papers_sizes():
    small, large = KNOWN["Qwen/Qwen2.5-1.5B-Instruct"], KNOWN["Qwen/Qwen2.5-7B-Instruct"]
    assert 2 * large.parameters == 15_231_233_024  # bytes of the published checkpoint
    assert small.parameters == 1_543_714_304


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"plain": True}])
def test_a_directory_with_a_config_alone_is_enough(changes, tmp_path):
    base = save_base(tmp_path / "base", **{**WIDE, **changes})
    learner = Learner(recipe(base, tmp_path / "d", tmp_path / "o", method="full"))
    for file in base.iterdir():
        if file.name != "config.json":
            file.unlink()
    assert network_of(str(base)).parameters == sum(p.numel() for p in learner.parameters())
    made = plan(recipe(base, tmp_path / "d", tmp_path / "o", max_length=64), ["H100"], measure=False)
    assert made.unread == f"{base} has no tokenizer" and made.rows is made.epochs is None
    assert made.tokens_per_step.mean == 4 * 64
    (base / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    with pytest.raises(CheckpointError, match="config.json states no intermediate_size"):
        network_of(str(base))


@pytest.fixture(scope="module", params=FORMS)
def measured(request, base, data, tmp_path_factory):
    """A forward and backward of full rows: recipe, network, what is fed, bytes kept for the backward, operations."""
    form = {"max_length": 256, **FORMS[request.param]}
    if "chain_only" in form:
        form["start_from"] = str(tmp_path_factory.mktemp("start") / "model")
        before = recipe(base, data, tmp_path_factory.mktemp("o"), **form | {"chain_only": False, "start_from": None})
        Learner(before).save(Path(form["start_from"]))
    settings = recipe(base, data, tmp_path_factory.mktemp("o"), **form)
    learner = Learner(settings)
    rows = [noisy for n in range(2) for noisy in noised(settings, _longest(settings), 260, 1, 0, n)]
    own, kept, held = {p.data_ptr() for p in learner.parameters()}, {}, []

    def keep(tensor):
        held.append(tensor)
        if tensor.data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    counter = FlopCounterMode(display=False)
    with counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            losses = learner(collate(rows))
        (
            (1 - settings.distill) * losses[0]
            + settings.ar_weight * losses[1]
            + settings.distill * losses[2]
            + losses[3]
        ).backward()
    causal = settings.context == "causal" or settings.objective == "next-token"
    total = sum((fed(row, settings.block_size, causal) for row in rows), Fed())
    assert total.positions == sum(len(row.ids) for row in rows)
    counted = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "bmm" not in str(op))
    return settings, learner, total, sum(kept.values()), counted


def test_memory_is_what_the_backward_pass_keeps(measured):
    settings, learner, total, kept, _ = measured
    network = network_of(settings.base)
    assert learning(network, settings) == sum(p.numel() for p in learner.trainable().values())
    needed = memory(network, settings, total)
    if settings.checkpointing:  # what one layer makes anew is not kept
        assert kept < needed.activations < kept + memory(network, recipe_of(settings, False), total).activations
        return
    if settings.chain_only:  # logits are all there is: one copy of three is kept
        assert kept == pytest.approx(needed.activations - 8 * total.labels * network.vocab, rel=0.08)
        return
    copies = needed.weights - 4 * network.parameters
    assert kept - copies == pytest.approx(needed.activations, rel=0.08)


def recipe_of(settings, checkpointing):
    return type(settings)(**vars(settings) | {"checkpointing": checkpointing})


def test_operations_are_what_is_computed(measured):
    """Attention, which alone multiplies matrices in batches, is left out on both sides."""
    settings, _, total, _, counted = measured
    matrices = replace(total, clean_pairs=0, noisy_pairs=0)
    assert operations(network_of(settings.base), settings, matrices) == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", ["lean", "reference"])
def test_pairs_are_those_of_the_mask(causal, layout, base, data, tmp_path):
    settings = recipe(base, data, tmp_path, layout=layout, context="causal" if causal else "block")
    row = Row(torch.zeros(45, dtype=torch.long), torch.arange(45) > 20)
    for noisy in noised(settings, row, 260, 1, 0, 0):
        batch = collate([noisy])
        seen = learns_from(batch.streams[0][:, None], batch.streams[0][None, :], causal)
        put = fed(noisy, 8, causal)
        assert put.clean_pairs == int(seen[: batch.clean].sum())
        assert put.noisy_pairs == pytest.approx(int(seen[batch.clean :].sum()), rel=0.05)


def test_rows_tokens_and_labels_are_those_of_the_run(base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", steps=13, accumulation=2, batch_tokens=150)
    made = plan(settings, ["H100"], measure=False)
    epochs = [progress.epoch for progress in adapt(settings)]
    labels = [line["labels"] for line in log(tmp_path / "run")]
    assert made.unread is None and made.rows == 22 and made.sources == {str(data): {"kept": 22}}
    assert made.labels_per_step.mean == pytest.approx(sum(labels) / 13)
    assert made.labels_per_step.largest == max(labels) and made.tokens_per_step.largest <= 300
    assert made.tokens == pytest.approx(13 * made.tokens_per_step.mean)
    assert epochs[-1] < made.epochs <= epochs[-1] + 1


def test_more_devices_take_less_time_and_memory(base, data, tmp_path):
    made = plan(recipe(base, data, tmp_path / "run"), ["H100", "8xh100", "8xA100-40GB"])
    machine, one, eight, other = made.estimates
    assert machine.seconds > 0 and one.devices == "1xH100" and other.devices == "8xA100-40GB"
    assert one.seconds == pytest.approx(8 * eight.seconds) == pytest.approx(made.operations / (989e12 * 0.4))
    assert one.bytes_each == pytest.approx(made.memory.total) and eight.bytes_each < one.bytes_each and one.fits
    assert [(d.count, d.memory) for d in (gpus("H200"), gpus("64xa100"))] == [(1, 141e9), (64, 80e9)]
    for text in ("8xH999", "0xH100", "00xH100", "xH100", "", "9" * 400 + "xH100"):
        with pytest.raises(ConfigError, match="--gpus is .*; allowed: Nx and one of A100-40GB, A100, H100"):
            gpus(text)


def test_faults_of_the_data_are_found_before_training(base, tmp_path):
    with pytest.raises(DataError, match="gone.jsonl: there is no such file"):
        plan(recipe(base, tmp_path / "gone.jsonl", tmp_path / "o"), measure=False)
    file = save_rows(tmp_path / "bad.jsonl", [chat("q", "a"), {"text": "x"}])
    with pytest.raises(DataError, match="bad.jsonl, line 2"):
        plan(recipe(base, file, tmp_path / "o"), measure=False)


def written(tmp_path, settings):
    file = tmp_path / "r.toml"
    plain = {
        "base": settings.base,
        "data": list(settings.data),
        "output": settings.output,
        "steps": 3,
        "max_length": 90,
    }
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in plain.items()))
    return str(file)


def test_the_command_prints_lines_or_json_and_trains_nothing(base, tmp_path, capsys):
    file = save_rows(tmp_path / "rows.jsonl", [*many_rows(8), {"question": "q", "answer": "x" * 99}])
    recipe_file = written(tmp_path, recipe(base, file, tmp_path / "run"))
    assert cli(["adapt", recipe_file, "--dry-run", "--gpus", "2xL40S"]) == 0
    out = capsys.readouterr().out
    for words in (
        f"source       {file}",
        "9 kept",
        "1 cut at max_length 90",
        "1 read as question, answer",
        "rows         9 in an epoch, 1.50 epochs",
        "on this machine's CPU",
        "on 2xL40S",
    ):
        assert words in out
    assert cli(["adapt", recipe_file, "--dry-run", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["rows"] == 9 and made["memory"]["total"] > made["memory"]["weights"] > 0
    assert [e["devices"] for e in made["estimates"]][1:] == ["1xRTX4090", "8xA100", "8xH100", "64xA100"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flag", [["--json"], ["--gpus", "H100"]])
def test_flags_of_the_dry_run_do_not_train(base, data, tmp_path, flag, capsys):
    assert cli(["adapt", written(tmp_path, recipe(base, data, tmp_path / "run")), *flag]) == 2
    assert f"error: {flag[0]} belongs to --dry-run" in capsys.readouterr().err


def test_rows_for_validation_are_not_learned_from(base, data, tmp_path):
    settings = recipe(base, data, tmp_path / "run", steps=6, validation_rows=5.0, validate_every=3)
    made = plan(settings, ["H100"], measure=False)
    assert (made.rows, made.validated) == (17, 5)
    assert [progress.epoch for progress in adapt(settings)][-1] < made.epochs == pytest.approx(1 + 1 / 5)
    assert made.labels_per_step.mean == pytest.approx(sum(line["labels"] for line in log(tmp_path / "run")) / 6)
    with pytest.raises(ConfigError, match="validation_rows is 22, but there are 22 rows"):
        plan(recipe(base, data, tmp_path / "o", validation_rows=22.0), measure=False)
    held = save_rows(tmp_path / "held.jsonl", many_rows(4))
    made = plan(recipe(base, data, tmp_path / "o", validation_data=(str(held),)), measure=False)
    assert (made.rows, made.validated) == (22, 4)
    with pytest.raises(DataError, match="gone.jsonl: there is no such file"):
        plan(recipe(base, data, tmp_path / "o", validation_data=(str(tmp_path / "gone.jsonl"),)), measure=False)


@pytest.mark.parametrize("fields", [{"steps": 10**9}, {"steps": 10**9, "batch_tokens": 150}, {"draws": 256}])
def test_a_plan_of_any_size_is_quick(base, data, tmp_path, fields):
    began = time.perf_counter()
    made = plan(recipe(base, data, tmp_path / "run", **fields), measure=False)
    assert time.perf_counter() - began < 15
    if "steps" in fields:
        few = plan(recipe(base, data, tmp_path / "run", **fields | {"steps": 200}), measure=False)
        assert made.epochs / few.epochs == pytest.approx(10**9 / 200, rel=0.1)
