"""The columns in which chat data comes, turned into the two forms that are encoded: `messages`, `prompt`/`completion`.

A record of another form becomes a chat. `as_row` says which form it was, so that what was changed can be counted.
"""

from collections.abc import Mapping
from typing import Any

from unmask.errors import DataError

SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""Roles of `from`; another speaker (a tool) keeps its name."""
PAIRS = (("question", "answer"), ("query", "response"), ("input", "output"), ("instruction", "response"))


def as_row(record: dict[str, Any], columns: Mapping[str, str] | None = None) -> tuple[dict[str, Any], str]:
    """(a record of `messages` or of `prompt` and `completion`, the form that it had; "" where nothing was changed).

    columns: which column is what, in place of guessing. Raises DataError for a column that is not there.
    """
    ended = {"ended": record["ended"]} if "ended" in record else {}
    if columns is not None:
        return _mapped(record, columns) | ended, "columns as the source says"
    if "messages" in record:
        return record, ""
    for name in ("conversations", "conversation"):
        if name in record:
            return {"messages": _turns(record[name], name)} | ended, f"{name} of from and value"
    if isinstance(record.get("prompt"), list) and isinstance(record.get("completion"), list):
        return {"messages": record["prompt"] + record["completion"]} | ended, "prompt and completion of messages"
    if "prompt" in record or "completion" in record:
        return record, ""
    if isinstance(record.get("input"), list) and "output" in record:
        return {"messages": [*record["input"], _said("assistant", record["output"])]} | ended, "input messages, output"
    if "instruction" in record and "output" in record:
        return _chat(_asked(record), record["output"]) | ended, "instruction, input, output"
    for question, answer in PAIRS:
        if question in record and answer in record:
            return _chat(record[question], record[answer]) | ended, f"{question}, {answer}"
    return record, ""


def _mapped(record: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    missing = [column for column in columns.values() if column not in record]
    if missing:
        raise DataError(f"has no column '{missing[0]}', only {sorted(record)}", field="columns")
    found = {role: record[column] for role, column in columns.items()}
    if "messages" in found:
        return {"messages": _turns(found["messages"], columns["messages"])}
    if "prompt" in found or "completion" in found:
        return found
    given = [_said("system", found["system"])] if found.get("system") else []
    asked = found.get("user")
    given += asked if isinstance(asked, list) else [_said("user", asked)]
    return {"messages": [*given, _said("assistant", found.get("assistant"))]}


def _turns(turns: Any, name: str) -> Any:
    """Messages of role and content; those of from and value are renamed."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise DataError("must be a list of turns", field=name)
    return [
        _said(SPEAKERS.get(turn["from"], turn["from"]), turn.get("value"))
        if isinstance(turn.get("from"), str)
        else turn
        for turn in turns
    ]


def _asked(record: dict[str, Any]) -> Any:
    """An instruction, with its input below it where there is one."""
    extra = record.get("input")
    return f"{record['instruction']}\n\n{extra}" if extra else record["instruction"]


def _chat(question: Any, answer: Any) -> dict[str, Any]:
    return {"messages": [_said("user", question), _said("assistant", answer)]}


def _said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}
