"""A user's own task: a JSONL file of prompts and targets, scored exactly, by number or by a regular expression."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.errors import ConfigError, DataError

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def exact(text: str, target: str) -> bool:
    """The whole answer equals the target, but for white space around it."""
    return text.strip() == target.strip()


def number(text: str, target: str) -> bool:
    """The last number in the answer equals the target; commas between digits are dropped."""
    found = NUMBER.findall(text)
    return bool(found) and float(found[-1].replace(",", "")) == float(target.replace(",", ""))


def regex(text: str, target: str) -> bool:
    """The target, a regular expression, is found in the answer."""
    return re.search(target, text) is not None


SCORERS = {"exact": exact, "number": number, "regex": regex}


def score(doc: Mapping[str, Any], results: list[str]) -> dict[str, float]:
    return {"correct": float(SCORERS[doc["score"]](results[0], doc["target"]))}


def checked(row: Any, file: Path, line: int, scorer: str) -> dict[str, str]:
    """{"prompt", "target", "score"} of one row; DataError names file, line and field of what is wrong."""
    if not isinstance(row, dict):
        raise DataError("not a JSON object", file=file, line=line)
    if ("prompt" in row) == ("messages" in row):
        raise DataError("one of 'prompt' and 'messages' is needed", file=file, line=line)
    prompt = row["prompt"] if "prompt" in row else _single(row["messages"], file, line)
    if not isinstance(prompt, str):
        raise DataError("not a text", file=file, line=line, field="prompt")
    if not isinstance(row.get("target"), (str, int, float)) or isinstance(row.get("target"), bool):
        raise DataError("a text or a number is needed", file=file, line=line, field="target")
    target, rule = str(row["target"]), row.get("score", scorer)
    for name, text in (("prompt", prompt), ("target", target)):
        if not text.isascii() and not _writable(text):
            raise DataError("holds half of a surrogate pair, which is no text", file=file, line=line, field=name)
    if rule not in SCORERS:
        raise DataError(f"is '{rule}'; allowed: {', '.join(SCORERS)}", file=file, line=line, field="score")
    try:
        SCORERS[rule]("0", target)
    except (ValueError, re.error) as error:
        raise DataError(f"cannot be scored by '{rule}': {error}", file=file, line=line, field="target") from None
    return {"prompt": prompt, "target": target, "score": rule}


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _single(messages: Any, file: Path, line: int) -> str:
    """The text of a single user message, which is all that a harness task can carry."""
    if not (isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict)):
        raise DataError("one message, of the user, is needed", file=file, line=line, field="messages")
    if messages[0].get("role") != "user" or not isinstance(messages[0].get("content"), str):
        raise DataError("one message, of the user, with a text, is needed", file=file, line=line, field="messages")
    content: str = messages[0]["content"]
    return content


def config(
    name: str, rows: list[tuple[int, Any]], file: Path, scorer: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An lm-eval task's configuration and its rows. rows: (line, row) of the file; scorer: for rows that name none."""
    if scorer not in SCORERS:
        raise ConfigError(f"score is '{scorer}'; allowed: {', '.join(SCORERS)}")
    made = [checked(row, file, line, scorer) for line, row in rows]
    if not made:
        raise DataError("holds no row", file=file)
    settings = {
        "task": name,
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{target}}",
        "process_results": score,
        "metric_list": [{"metric": "correct", "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {"until": [], "do_sample": False},
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    return settings, made
