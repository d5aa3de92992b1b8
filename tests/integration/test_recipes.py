"""The recipes that ship: the paper's figures, and three steps of each on a tiny checkpoint of the same shape."""

from pathlib import Path

import pytest
from test_adapt import train
from tiny import byte_tokenizer, tiny_model
from training import chat, save_rows

import unmask
from unmask.options import read_toml
from unmask.plan import plan
from unmask.recipe import Adapt

RECIPES = Path(__file__).parents[2] / "recipes"
PAPER = {"1.5b": (6000, 2e-5, 3_145_728_000), "7b": (2500, 1e-5, 1_310_720_000)}
KINDS = ["fast-dllm-v2", "ntp-baseline"]
pytestmark = pytest.mark.usefixtures("empty_hub")


def shipped(kind, size, **changes):
    return read_toml(Adapt, RECIPES / f"{kind}-{size}.toml", changes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", PAPER)
def test_the_dry_run_gives_the_papers_figures(kind, size):
    settings = shipped(kind, size)
    made, (steps, rate, tokens) = plan(settings, ["64xA100"], measure=False), PAPER[size]
    assert made.steps == steps and settings.learning_rate == rate and settings.warmup_steps == 500
    assert settings.batch_rows * settings.accumulation == 256 and settings.max_length == 2048
    assert made.tokens_per_step.mean == made.tokens_per_step.largest == 524_288 and made.tokens == tokens
    assert made.parameters == made.learning and made.unread.startswith("there is no directory 'Qwen/Qwen2.5")
    assert settings.method == "full" and settings.dtype == "bf16" and settings.reference_quirks
    if kind == "fast-dllm-v2":
        assert (settings.block_size, settings.sub_block_size) == (32, 8)
        assert settings.padding and settings.complementary and settings.context == "block"
    assert made.estimates[0].fits and 1 < made.estimates[0].seconds / 3600 < 12  # 8 and 12 hours in the paper


@pytest.mark.parametrize("kind", KINDS)
def test_all_names_of_a_recipe_but_its_size_are_shared(kind):
    small, large = (vars(shipped(kind, size)) for size in PAPER)
    assert {key for key in small if small[key] != large[key]} == {"base", "output", "steps", "learning_rate"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", PAPER)
def test_three_steps_on_a_tiny_checkpoint_of_the_same_shape(kind, size, tmp_path):
    tokenizer = byte_tokenizer(eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tiny_model(vocab_size=272, tie_word_embeddings=size == "1.5b").save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    rows = save_rows(
        tmp_path / "rows.jsonl", [chat(f"What is {n}?", "as I said, " * (n % 7) + "so") for n in range(40)]
    )
    settings = shipped(
        kind,
        size,
        base=str(tmp_path / "base"),
        data=[str(rows)],
        output=str(tmp_path / "run"),
        steps=3,
        max_length=128,
        accumulation=2,
    )
    assert plan(settings, ["H100"], measure=False).tokens_per_step.largest == 8 * 128
    steps = train(settings)
    assert [p.step for p in steps] == [1, 2, 3] and all(p.labels > 100 and p.rows == 8 for p in steps)
    model = unmask.load(tmp_path / "run" / "model", device="cpu")
    [answer] = model.generate(["What is 3?"], max_new_tokens=8)
    assert answer.mode == ("threshold" if kind == "fast-dllm-v2" else "ar") and answer.error is None
    assert (model.spec is not None and model.spec.block_size == 32) == (kind == "fast-dllm-v2")


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_recipe_that_ships_is_valid(file):
    assert read_toml(Adapt, file).output.startswith("runs/")
