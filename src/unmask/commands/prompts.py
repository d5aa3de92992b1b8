"""Prompts from a file or from standard input, each with the place it came from."""

import codecs
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.config import Decoding
from unmask.errors import DataError
from unmask.options import flag_of

FORMS = ("prompt", "messages", "prompt_ids")


@dataclass(frozen=True)
class Prompt:
    """A text, a list of messages or a list of token ids; where: file and line, for error messages."""

    value: Any
    where: str


def prompts_from_file(file: Path) -> list[Prompt]:
    """One prompt per line of JSONL. DataError names file, line and field of the first line that is not one."""
    return _some(_jsonl(_bytes(file), str(file)), str(file))


def prompts_from_stdin() -> list[Prompt]:
    """Lines of text, or JSONL when the first character is `{`."""
    return _either(sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8), "standard input")


def prompts_from(source: str) -> list[Prompt]:
    """Lines of text or JSONL from a file, or from standard input where the source is `-`."""
    return prompts_from_stdin() if source == "-" else _either(_bytes(Path(source)), source)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes().removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        why = getattr(e, "strerror", None) or e
        raise DataError(f"cannot be read: {why}; give a JSONL file of prompts", file=file) from None


def _either(data: bytes, name: str) -> list[Prompt]:
    if data.lstrip()[:1] == b"{":
        return _some(_jsonl(data, name), name)
    lines = [(n, _text(line, name, n)) for n, line in enumerate(data.splitlines(), 1)]
    return _some([Prompt(text, f"{name}, line {n}") for n, text in lines if text.strip()], name)


def _some(prompts: list[Prompt], name: str) -> list[Prompt]:
    if not prompts:
        raise DataError("holds no prompt; give at least one line", file=name)
    return prompts


def _jsonl(data: bytes, name: str) -> list[Prompt]:
    """The prompts of all lines; a key that looks like a setting is warned of, once."""
    prompts: list[Prompt] = []
    warned: set[str] = set()
    for n, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            row = _row(_text(line, name, n), name, n)
            prompts.append(_prompt(row, name, n))
            for key in sorted(set(row) & set(Decoding.__dataclass_fields__) - warned):
                warned.add(key)
                what = f"warning: {name}, line {n}: {key} in a line has no effect; {flag_of(key)} holds for all prompts"
                print(what, file=sys.stderr)
    return prompts


def _text(line: bytes, name: str, n: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text", file=name, line=n) from None


def _row(line: str, name: str, n: int) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise DataError("cannot be read (it is nested too deep)", file=name, line=n) from None
    except ValueError as e:
        raise DataError(
            f"is not JSON ({e}); plain text, a prompt a line, is read from standard input: --prompts - < FILE",
            file=name,
            line=n,
        ) from None


def _prompt(row: Any, name: str, n: int) -> Prompt:
    forms = [form for form in FORMS if isinstance(row, dict) and form in row]
    if len(forms) != 1:
        found = " and ".join(forms) if forms else "none"
        raise DataError(f"must be an object with exactly one of {', '.join(FORMS)}; found {found}", file=name, line=n)
    check, allowed = CHECKS[forms[0]]
    if not check(row[forms[0]]):
        raise DataError(f"must be {allowed}", file=name, line=n, field=forms[0])
    return Prompt(row[forms[0]], f"{name}, line {n}")


def _messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in value
        )
    )


def _ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int and token >= 0 for token in value)


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "prompt": (lambda value: isinstance(value, str), "text"),
    "messages": (_messages, "a list of objects with the texts role and content, at least one"),
    "prompt_ids": (_ids, "a list of token ids, at least one"),
}
