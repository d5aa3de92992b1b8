"""The columns in which chat data comes, turned into the two forms that are encoded: `messages`, `prompt`/`completion`.

A record of another form becomes a chat. `as_row` says which form it was, so that what was changed can be counted.
"""

from collections.abc import Mapping
from typing import Any

from unmask.errors import DataError

SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""Roles of `from`; another speaker (a tool) keeps its name."""
PAIRS = (("question", "answer"), ("query", "response"), ("input", "output"))
ANSWERS, BELOW = ("output", "response"), ("input", "context")
"""Of an instruction: columns of its answer (Alpaca, Dolly), and of a text that stands below it."""
CHATS = ("messages", "conversations", "conversation")
BESIDE_CHATS = ("system", "system_prompt", "tools")
COMPANIONS = (
    *BESIDE_CHATS,
    *("instruction", "question", "query", "input", "context", "passage", "history", "choices", "options"),
)
"""Columns that change what is asked, beside a chat and beside one question. One that is not used is refused, for the
answer would be learned without it."""


def as_row(record: dict[str, Any], columns: Mapping[str, str] | None = None) -> tuple[dict[str, Any], str]:
    """(a record of `messages` or of `prompt` and `completion`, the form that it had; "" where nothing was changed).

    columns: which column is what, in place of guessing. Raises DataError for a column that is not there, for one of
    `COMPANIONS` that is not used, and for a question or answer that is no text.
    """
    ended = {"ended": record["ended"]} if "ended" in record else {}
    if columns is not None:
        return _mapped(record, columns) | ended, "columns as the source says"
    made, form, used = _guessed(record)
    beside = BESIDE_CHATS if used and used[0] in CHATS else COMPANIONS
    ignored = [name for name in beside if name not in used and record.get(name)]
    if ignored and used:
        raise DataError(
            f"would be ignored beside {', '.join(used)}; put it into their text, or name in columns what is to be read",
            field=ignored[0],
        )
    return (made | ended if form else made), form


def _guessed(record: dict[str, Any]) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """The row, the form that it had, and the columns that were used; none where no form is known."""
    if "messages" in record:
        return record, "", ("messages",)
    for name in CHATS[1:]:
        if name in record:
            return {"messages": _turns(record[name], name)}, f"{name} of from and value", (name,)
    if isinstance(record.get("prompt"), list) and isinstance(record.get("completion"), list):
        both = {"messages": record["prompt"] + record["completion"]}
        return both, "prompt and completion of messages", ("prompt", "completion")
    if "prompt" in record or "completion" in record:
        return record, "", ("prompt", "completion")
    if isinstance(record.get("input"), list) and "output" in record:
        talk = {"messages": [*record["input"], _said("assistant", record["output"])]}
        return talk, "input messages, output", ("input", "output", "system_prompt")  # left out: docs/data.md
    answer = next((name for name in ANSWERS if name in record), "")
    if "instruction" in record and answer:
        below = next((name for name in BELOW if record.get(name)), "input")
        asked, used = _asked(record, below), ("instruction", below, answer)
        return _chat(asked, _text(record, answer)), ", ".join(used), used
    for pair in PAIRS:
        if all(name in record for name in pair):
            return _chat(*(_text(record, name) for name in pair)), ", ".join(pair), pair
    return record, "", ()


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


def _asked(record: dict[str, Any], below: str) -> str:
    """An instruction, with the text of the column `below` under it where there is one."""
    asked = _text(record, "instruction")
    return f"{asked}\n\n{_text(record, below)}" if record.get(below) else asked


def _text(record: dict[str, Any], name: str) -> str:
    if not isinstance(record[name], str):
        raise DataError("must be text", field=name)
    return str(record[name])


def _chat(question: Any, answer: Any) -> dict[str, Any]:
    return {"messages": [_said("user", question), _said("assistant", answer)]}


def _said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}
