"""Own files and generated puzzles: how answers are found and scored, and what is said of a wrong row."""

import json

import pytest

from unmask.errors import ConfigError, DataError, MissingExtraError
from unmask.evaluate import own, puzzles
from unmask.evaluate.standins import Files


@pytest.mark.parametrize(
    ("rule", "text", "target", "right"),
    [
        ("exact", " Paris\n", "Paris", True),
        ("exact", "Paris.", "Paris", False),
        ("number", "so 3 + 4 = 7, that is 1,234.50 in all.", "1234.5", True),
        ("number", "7 apples, not 8", "7", False),
        ("number", "It is -3.", "-3", True),
        ("number", "none", "7", False),
        ("regex", "I think YES, sir", "(?i)\\byes\\b", True),
        ("regex", "yesterday", "\\byes\\b", False),
    ],
)
def test_scorers(rule, text, target, right):
    assert own.score({"score": rule, "target": target}, [text]) == {"correct": float(right)}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "line 3: not a JSON object"),
        ('{"target": "x"}', "line 3: one of 'prompt' and 'messages' is needed"),
        ('{"prompt": "x", "messages": [], "target": "x"}', "line 3: one of 'prompt' and 'messages' is needed"),
        ('{"prompt": 4, "target": "x"}', "line 3, field 'prompt': not a text"),
        ('{"prompt": "x"}', "line 3, field 'target': a text or a number is needed"),
        ('{"prompt": "x", "target": true}', "line 3, field 'target': a text or a number is needed"),
        ('{"prompt": "x", "target": "y", "score": "bleu"}', "field 'score': is 'bleu'; allowed: exact, number, regex"),
        ('{"prompt": "x", "target": "seven", "score": "number"}', "field 'target': cannot be scored by 'number'"),
        ('{"prompt": "x", "target": "(", "score": "regex"}', "line 3, field 'target': cannot be scored by 'regex'"),
        ('{"messages": [{"role": "system", "content": "x"}], "target": "y"}', "line 3, field 'messages': one message"),
        ('{"prompt": "x", ', "line 3: not JSON"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named_with_file_line_and_field(tmp_path, line, said):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "a", "target": 1}\n\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        own.config("mine.jsonl", Files(None).numbered(file, "mine.jsonl"), file, "exact")
    assert str(file) in str(caught.value) and said in str(caught.value)


def test_an_empty_file_and_an_unknown_scorer(tmp_path):
    with pytest.raises(DataError, match="holds no row"):
        own.config("x", [], tmp_path / "x.jsonl", "exact")
    with pytest.raises(ConfigError, match="score is 'f1'; allowed: exact, number, regex"):
        own.config("x", [], tmp_path / "x.jsonl", "f1")
    with pytest.raises(DataError, match="cannot be read"):
        Files(None).numbered(tmp_path / "absent.jsonl", "absent.jsonl")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 42", "42"),
        (" 7.", "7"),
        ("**Answer:** 7\nThat was easy.", "7"),
        ("\n  12\n\nQuestion: 13", "12"),
        (" `olleh`", "olleh"),
        (' "grandmother".', "grandmother"),
        ("-3", "-3"),
        ("", ""),
    ],
)
def test_the_answer_in_a_text(text, answer):
    assert puzzles.extract(text) == answer


def test_puzzles_come_from_held_out_seeds_and_their_right_answers_score_one():
    pytest.importorskip("reasoning_gym")
    settings, rows = puzzles.config("reasoning-gym", 3, 24)
    again = puzzles.config("reasoning-gym", 3, 24)[1]
    assert rows == again and rows != puzzles.config("reasoning-gym", 4, 24)[1]
    assert [row["generator"] for row in rows[:11]] == [*puzzles.MIXTURE, next(iter(puzzles.MIXTURE))]
    assert all(row["seed"] >= puzzles.HELD_OUT and row["prompt"].endswith("\nAnswer:") for row in rows)
    assert len({row["prompt"] for row in rows}) == 24
    assert rows[:10] == puzzles.config("reasoning-gym", 3, 10)[1], "a limit takes the first ones"
    for row in rows:
        json.dumps(row)
        assert puzzles.score(row, [f" {row['target']}"]) == {"correct": 1.0, "score": 1.0}, row
        assert puzzles.score(row, [" qqq"])["correct"] == 0.0
        assert puzzles.score(row, [""])["correct"] == 0.0
    for row in rows:
        *shots, last = row["prompt"].split("Question: ")[1:]
        assert len(shots) == 3 and not any(shot.startswith(last) for shot in shots), "no item is its own example"
    only = puzzles.config("reasoning-gym:gcd", 0, 2)
    assert only[0]["task"] == "reasoning-gym:gcd" and {row["generator"] for row in only[1]} == {"gcd"}
    with pytest.raises(ConfigError, match="reasoning-gym has no generator 'chess'"):
        puzzles.config("reasoning-gym:chess", 0, 2)


def test_reasoning_gym_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym.factory", None)
    puzzles.generator.cache_clear()
    with pytest.raises(MissingExtraError, match="reasoning-gym"):
        puzzles.generator("gcd", 0)
