"""`unmask evaluate` refuses what cannot be before any answer is written, and counts what failed as failed."""

import json
import math
from types import SimpleNamespace

import pytest
import transformers
from tiny import MASK, TURN_END, byte_tokenizer, tiny_model

from unmask.cli import main
from unmask.config import BlockSpec
from unmask.lock import locked
from unmask.model.checkpoint import load_checkpoint, save_full

pytest.importorskip("lm_eval")

from unmask.evaluate import checks  # noqa: E402
from unmask.evaluate import run as running  # noqa: E402
from unmask.evaluate.items import items_of  # noqa: E402
from unmask.evaluate.outcomes import Contender  # noqa: E402
from unmask.evaluate.records import read_items  # noqa: E402
from unmask.evaluate.run import Progress, file_name  # noqa: E402
from unmask.evaluate.settings import Evaluate  # noqa: E402
from unmask.evaluate.tasks import Loaded  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of lm-eval's own imports


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model with block size 8 and 512 positions, and a plain one without a chat template."""
    directory = tmp_path_factory.mktemp("models")
    spec = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(TURN_END,), context="causal")
    save_full(tiny_model(), byte_tokenizer(), spec, directory / "chat")
    bare = byte_tokenizer()
    bare.chat_template = None
    tiny_model().save_pretrained(directory / "bare")
    bare.save_pretrained(directory / "bare")
    return directory


@pytest.fixture
def evaluate(models, tmp_path, capsys):
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps({"prompt": f"Say {n}", "target": "(?s).*"}) + "\n" for n in range(3)))

    def call(*words: object, tasks: object = questions) -> tuple[int, str]:
        asked = ["--model", models / "chat", "--tasks", tasks, "--scorer", "regex", "--max-new-tokens", 4]
        code = main([str(word) for word in ["evaluate", *asked, "--out", tmp_path / "out", *words]])
        return code, capsys.readouterr().err

    return call


PIQA = [{"goal": f"goal {n}", "sol1": "do", "sol2": "do not", "label": n % 2} for n in range(3)]


@pytest.fixture
def piqa(tmp_path):
    file = tmp_path / "data/baber/piqa/validation.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in PIQA))
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--block-size", 3), "contender 'threshold' on q: block_size 3 does not divide 8"),
        (("--sweep", "block_size=3"), "contender 'threshold block_size=3' on q: block_size 3 does not divide 8"),
        (("--sub-block-size", 5), "sub_block_size 5 does not divide block_size 8"),
        (("--num-fewshot", 1), "no task can be run: q: needs 1 few-shot examples"),
        (("--gate", 0), "--gate is 0; allowed: points above 0, up to 100"),
        (("--gate", "nan"), "--gate is nan; allowed: points above 0, up to 100"),
        (("--gate", 101), "--gate is 101; allowed"),
        (("--modes", "ar", "--gate", 1), "--gate compares modes with mode ar, but only mode ar is run"),
        (("--recommend", "points=-1"), "--recommend is 'points=-1'; allowed: a number above 0"),
        (("--recommend", "speed=inf"), "--recommend is 'speed=inf'; allowed: a number above 0"),
    ],
)
def test_what_cannot_be_is_refused_before_any_answer(evaluate, tmp_path, words, said):
    code, err = evaluate(*words)
    assert code == 2 and said in err and err.count("\n") == 1, err
    assert not (tmp_path / "out").exists()


def test_a_limit_beyond_the_positions_is_refused_before_any_answer(evaluate, models, tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text('{"prompt": "a", "target": "b"}\n')
    words = ["evaluate", "--model", models / "chat", "--tasks", f"reasoning-gym:gcd,{file}", "--limit", 1, "--out"]
    assert main([str(word) for word in [*words, tmp_path / "out"]]) == 0  # 256 tokens fit into 512 positions
    made = SimpleNamespace(
        OUTPUT_TYPE="generate_until", config=SimpleNamespace(generation_kwargs={"max_gen_toks": 512})
    )
    model = SimpleNamespace(spec=None, stop_ids=(), ref="m", positions=load_checkpoint(models / "chat").positions)
    with pytest.raises(checks.ConfigError, match="max_new_tokens is 512 on t, but m has 512 positions"):
        checks.check_settings([(Contender("ar", "m", "ar"), "t")], Loaded(tasks={"t": made}), {"m": model}, 0)


def test_what_is_judged_needs_a_task_in_which_text_is_written(evaluate, piqa):
    for words in (("--gate", 1), ("--recommend", "points=1")):
        code, err = evaluate(*words, "--data", piqa, tasks="piqa")
        assert code == 2 and f"{words[0]} needs a task in which text is written, but there is only piqa" in err


def test_models_that_would_be_asked_differently_are_refused(evaluate, models, piqa, tmp_path):
    code, err = evaluate("--base", models / "bare", "--modes", "ar")
    assert code == 2 and "bare has no chat template and" in err and "give --chat no" in err
    assert "chat is 'yes', but" in evaluate("--base", models / "bare", "--chat", "yes", "--modes", "ar")[1]
    assert evaluate("--base", models / "bare", "--modes", "ar", "--chat", "no")[0] == 0
    ar, base = read_items(tmp_path / "out" / "items.jsonl")
    assert [item.prompt for item in ar.items] == [item.prompt for item in base.items] == ["Say 0", "Say 1", "Say 2"]


def test_one_run_at_a_time_writes_an_output(evaluate, tmp_path):
    with locked(tmp_path / "out"):
        code, err = evaluate("--modes", "ar")
    assert code == 2 and "out is being written by another process" in err
    assert evaluate("--modes", "ar")[0] == 0


def sample(number: int, **more):
    return {"doc_id": number, "filter": "none", "doc": number, "arguments": [("q", {})], "target": "t", **more}


def test_an_answer_that_failed_scores_nothing_and_says_why():
    record = {"text": "", "tokens": 0, "forwards": 0, "seconds": 0.0, "repeated": 0.0}
    records = {
        ("t", 0, 0): {**record, "finish_reason": "error", "error": "too long"},
        ("t", 1, 0): {**record, "finish_reason": "stop", "error": None},
    }
    samples = [sample(n, metrics=["a", "b"], a=1.0, b=0.5) for n in (0, 1)]
    bad, good = items_of(samples, records, "t", "a", "none")
    assert (bad.score, bad.metrics, bad.error) == (0.0, {"a": 0.0, "b": 0.0}, "too long")
    assert (good.score, good.metrics, good.error) == (1.0, {"a": 1.0, "b": 0.5}, "")


@pytest.mark.parametrize(
    ("metric", "answer", "error"),
    [("acc", " x", 0.2), ("acc_norm", " long good answer", 0.1), ("acc_bytes", " ö", 0.3)],
)
def test_the_answer_of_a_choice_is_the_one_that_is_scored(metric, answer, error):
    """By log-probability −5, −4 and −4.5: as it is, by a character, and by a byte where one has two of them."""
    texts = ["long good answer", "x", "ö"] if metric != "acc_bytes" else ["x", "y", "ö"]
    asked = [("q", f" {text}") for text in texts]
    values = [(-5.0, 0.1), (-4.0, 0.2), (-4.5, 0.3)]
    records = {
        ("t", 0, n): {"log_probability": value, "standard_error": spread, "greedy": n == 1}
        for n, (value, spread) in enumerate(values)
    }
    row = sample(0, metrics=[metric], **{metric: 1.0}) | {"arguments": asked, "target": 0}
    [item] = items_of([row], records, "t", metric, "none", lambda doc: texts)
    assert (item.answer, item.standard_error, item.target) == (answer, error, f" {texts[0]}")
    assert item.greedy is (answer == " x")


def test_cut_prompts_are_counted_and_shown_as_asked(evaluate, tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text(
        json.dumps({"prompt": "ab" * 400 + "end", "target": "x"}) + '\n{"prompt": "short", "target": "x"}\n'
    )
    code, err = evaluate("--modes", "ar,verified", "--chat", "no", tasks=file)
    assert code == 0 and err.count("1 of 2 prompts of long lose their beginning: the model has 512 positions") == 1
    for outcome in read_items(tmp_path / "out" / "items.jsonl"):
        assert [len(item.prompt) for item in outcome.items] == [508, 5] and outcome.items[0].prompt.endswith("abend")


def test_sizes_count_for_likelihoods_too(evaluate, piqa, tmp_path):
    """At block size 1 the likelihood of mode threshold is mode ar's."""
    assert evaluate("--modes", "ar,threshold", "--block-size", 1, "--data", piqa, tasks="piqa")[0] == 0
    journals = [(tmp_path / "out/answers" / mode / "piqa.jsonl").read_text() for mode in ("ar", "threshold")]
    one, two = ({r["number"]: r["log_probability"] for r in map(json.loads, text.splitlines())} for text in journals)
    about = json.loads((tmp_path / "out/about.json").read_text())
    assert about["versions"]["transformers"] == transformers.__version__
    assert {"torch", "tokenizers", "numpy", "lm_eval", "reasoning_gym"} < set(about["versions"])
    assert len(one) == 6 and two == pytest.approx(one, abs=1e-4)


def test_the_clock_starts_after_a_discarded_answer(evaluate, monkeypatch, tmp_path):
    asked, kept = [], running.sized

    def watched(model, jobs, *, task, batch_size):
        asked.append([job.decoding.max_new_tokens for job in jobs])
        return kept(model, jobs, task=task, batch_size=batch_size)

    monkeypatch.setattr(running, "sized", watched)
    monkeypatch.setattr(running, "WARM", 2)
    assert evaluate("--modes", "ar,threshold")[0] == 0
    assert asked == [[2], [4, 4, 4]] * 2
    assert len((tmp_path / "out/answers/ar/q.jsonl").read_text().splitlines()) == 3


def test_the_time_left_is_that_of_the_whole_run(models, tmp_path, monkeypatch):
    """Two contenders with three items each: after the n-th of six answers, (6 - n) / n of the time spent is left."""
    file = tmp_path / "q.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}", "target": "x"}) + "\n" for n in range(3)))
    told: list[Progress] = []
    loading = {"dtype": None, "device": "cpu", "mask_id": None, "backbone": "auto", "batch_size": 1}
    settings = Evaluate(tasks=str(file), modes="ar,verified")
    running.evaluate(str(models / "chat"), settings, {"max_new_tokens": 3}, loading, tmp_path / "out", tell=told.append)
    assert len(told) == 6
    spent = [told[n].seconds if n < 3 else told[2].seconds + told[n].seconds for n in range(6)]
    for n, step in enumerate(told, 1):
        assert math.isclose(step.left, (6 - n) / n * spent[n - 1], abs_tol=1e-6)


def test_different_names_have_different_files():
    assert file_name("a1") == "a1" and file_name("ä b/c") == "ä%000020b%00002fc"
    assert file_name("\u2044f") != file_name("\u20440f") and file_name("\u0204" + "4") != file_name("\u2044")
