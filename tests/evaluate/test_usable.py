"""Tasks that cannot be run or compared are found out before any work, and names stand for what they say."""

import json

import pytest

from unmask.errors import ConfigError, DataError

pytest.importorskip("lm_eval")

from unmask.evaluate import usable  # noqa: E402
from unmask.evaluate.code import CodeEval  # noqa: E402
from unmask.evaluate.tasks import _made, load_tasks  # noqa: E402
from unmask.evaluate.usable import first_metric, problem  # noqa: E402

PIQA = [{"goal": f"goal {n}", "sol1": "do", "sol2": "do not", "label": n % 2} for n in range(8)]
ARC = {"id": "1", "question": "Hot?", "choices": {"text": ["ice", "fire"], "label": ["A", "B"]}, "answerKey": "B"}


def write(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def data(tmp_path):
    for split, rows in (("validation", PIQA[:4]), ("train", PIQA[4:])):
        write(tmp_path / "baber/piqa" / f"{split}.jsonl", rows)
    for config in ("ARC-Easy", "ARC-Challenge"):
        write(tmp_path / "allenai/ai2_arc" / config / "test.jsonl", [ARC])
    return tmp_path


@pytest.fixture
def mine(data):
    return write(data / "mine.jsonl", [{"prompt": f"Say {n}", "target": f"n{n}"} for n in range(9)])


def test_no_scored_item_becomes_a_worked_example(data, mine):
    loaded = load_tasks(["piqa", str(mine), "reasoning-gym:gcd"], data_dir=data, num_fewshot=2, limit=lambda name: 3)
    assert list(loaded.tasks) == ["piqa"]
    for name in ("mine", "reasoning-gym:gcd"):
        assert loaded.skipped[name].startswith("needs 2 few-shot examples, and outside the split to be scored its data")
    task = loaded.tasks["piqa"]
    for doc in task.eval_docs:
        prompt = task.fewshot_context(doc, num_fewshot=task.config.num_fewshot)
        assert [f"goal {n}\n" in prompt for n in range(4)] == [f"goal {n}" == doc["goal"] for n in range(4)]
        assert sum(f"goal {n}\n" in prompt for n in range(4, 8)) == 2
    assert not load_tasks([str(mine), "piqa", "arc_easy"], data_dir=data, num_fewshot=0).skipped
    with pytest.raises(ConfigError, match="no task can be run: piqa: needs 5 few-shot examples, .* its data has 4"):
        load_tasks(["piqa"], data_dir=data, num_fewshot=5)


SETTINGS = {"task": "t", "test_split": "test", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}", "num_fewshot": 0}


def why(kind: str, metric: str, **more) -> str:
    settings = {**SETTINGS, "output_type": kind, "metric_list": [{"metric": metric}], **more}
    if metric == "p":
        settings["metric_list"] = [{"metric": "p", "aggregation": "mean", "higher_is_better": True}]
    task = _made(settings, [{"q": "how", "a": "so it is"}])
    return problem(task, first_metric(task), CodeEval())


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (("generate_until", "exact_match"), ""),
        (("multiple_choice", "acc", {"doc_to_choice": ["no", "so it is"]}), ""),
        (("loglikelihood", "acc"), ""),
        (("loglikelihood", "perplexity"), "its score, perplexity, is better where it is lower"),
        (("loglikelihood_rolling", "word_perplexity"), "asks how likely a whole text is, which is no score"),
        (("generate_until", "chrf"), "its score, chrf, is not a number from 0 to 1 for each item"),
        (("multiple_choice", "mcc", {"doc_to_choice": ["no", "so it is"]}), "its score, mcc, is not a number"),
        (("generate_until", "exact_match", {"repeats": 3}), "asks for 3 answers to each prompt"),
        (("generate_until", "p", {"process_results": lambda doc, texts: {"p": 100.0 * len(texts[0])}}), "its score, p"),
        (
            ("generate_until", "p", {"process_results": lambda doc, texts: {"p": 1 / len(texts[0])}}),
            "its scoring fails",
        ),
    ],
)
def test_a_score_that_is_none_is_found_out_by_made_up_answers(made, reason):
    kind, metric, *more = made
    found = why(kind, metric, **(more[0] if more else {}))
    assert found.startswith(reason) if reason else found == ""


def test_where_nothing_is_left_the_reasons_are_told(data, tmp_path):
    write(tmp_path / "baber/piqa/validation.jsonl", [])
    write(tmp_path / "baber/piqa/train.jsonl", [])
    with pytest.raises(ConfigError, match="^no task can be run: piqa: its local files hold no row$"):
        load_tasks(["piqa"], data_dir=data)
    write(tmp_path / "baber/piqa/train.jsonl", PIQA)
    with pytest.raises(ConfigError, match="^no task can be run: piqa: its data has no item$"):
        load_tasks(["piqa"], data_dir=data)


def test_half_of_a_surrogate_pair_is_named_with_its_line(tmp_path):
    file = tmp_path / "s.jsonl"
    file.write_text('{"prompt": "ä", "target": "a"}\n{"prompt": "\\ud800", "target": "a"}\n')
    with pytest.raises(DataError, match=r"s\.jsonl.*2.*prompt.*surrogate"):
        load_tasks([str(file)])


def test_own_files_are_called_by_their_stem_and_told_apart_by_their_path(tmp_path):
    files = [
        write(tmp_path / each, [{"prompt": each, "target": "x"}]) for each in ("a/q.jsonl", "b/q.jsonl", "a/r.jsonl")
    ]
    loaded = load_tasks([str(file) for file in files])
    assert list(loaded.tasks) == [str(files[0]), str(files[1]), "r"]
    assert len(set(loaded.digests.values())) == 3 == len(loaded.digests)
    assert loaded.names[str(files[2])] == ["r"]


def test_a_task_is_not_run_under_two_names(data):
    for names in (["ai2_arc", "arc_easy"], ["arc_easy", "ai2_arc"]):
        with pytest.raises(
            ConfigError, match=f"'{names[0]}' and '{names[1]}' both stand for arc_easy; name one of them"
        ):
            load_tasks(names, data_dir=data)


def test_a_part_of_a_group_has_the_same_place_whatever_is_beside_it(data, monkeypatch):
    first = load_tasks(["piqa", "ai2_arc"], data_dir=data)
    assert first.group == {"piqa": ("piqa", 0), "arc_challenge": ("ai2_arc", 0), "arc_easy": ("ai2_arc", 1)}
    monkeypatch.setattr(usable, "problem", lambda task, *_: "broken" if "challenge" in task.config.task else "")
    second = load_tasks(["ai2_arc"], data_dir=data)
    assert list(second.tasks) == ["arc_easy"] and second.group["arc_easy"] == ("ai2_arc", 1)
