"""From a dataclass of settings to flags, recipes and back. The fields are the only place where a setting is described.

A value may come from a flag (text), from TOML or JSON (already typed) or from Python; whatever its way, it is turned
into the field's type and checked by the field's own check, and an error names the setting as the user wrote it.
"""

import argparse
import dataclasses
import difflib
import functools
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from unmask.config import check_field, shown
from unmask.errors import ConfigError

T = TypeVar("T")
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}


def add_flags(parser: argparse._ActionsContainer, cls: type, *, skip: Iterable[str] = ()) -> None:
    """One flag per field: `--max-new-tokens N`, `--sub-block-cache` and `--no-sub-block-cache`, tuples by repetition.

    A flag that is not given leaves no attribute behind, so that defaults stay in the dataclass alone.
    """
    kinds = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if f.name in skip:
            continue
        flag, inner = flag_of(f.name), _inner(kinds[f.name])
        options: dict[str, Any] = {"dest": f.name, "default": argparse.SUPPRESS, "help": _help(f)}
        if inner is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            element = typing.get_args(inner)[0] if typing.get_origin(inner) is tuple else inner
            options |= {"type": functools.partial(_from_text, element, flag), "metavar": _metavar(f, element)}
            if element is not inner:
                options |= {"action": "extend", "nargs": "+"}
        parser.add_argument(flag, **options)


def given(namespace: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields of `cls` that were given as flags."""
    return {f.name: getattr(namespace, f.name) for f in dataclasses.fields(cls) if hasattr(namespace, f.name)}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def read(
    cls: type[T],
    values: Mapping[str, Any],
    where: str = "",
    *,
    flags: Iterable[str] = (),
    lines: Mapping[str, int] = {},
) -> T:
    """A checked instance of `cls`. ConfigError for an unknown key, a wrong type, a refused value, a missing key.

    where: the file that the values come from. flags: the keys that came from flags and are named so.
    lines: the line of each key in that file, where known.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    kinds = typing.get_type_hints(cls)

    def named(key: str) -> str:
        if key in flags:
            return flag_of(key)
        return f"{where}, line {lines[key]}: {key}" if key in lines else f"{where}: {key}" if where else key

    for key in values:
        if key not in fields:
            raise ConfigError(f"{named(key)} is not a setting; {suggestion(key, fields)}")
    made = {}
    for key, value in values.items():
        made[key] = _typed(kinds[key], value, named(key))
        check_field(fields[key], made[key], named(key))
    missing = [name for name, f in fields.items() if name not in made and _required(f)]
    if missing:
        meaning = fields[missing[0]].metadata.get("help", "required")
        raise ConfigError(f"{where + ': ' if where else ''}{missing[0]} is missing ({meaning})")
    try:
        return cls(**made)
    except ConfigError as e:
        raise ConfigError(f"{where}: {e}" if where else str(e)) from None


def read_toml(cls: type[T], file: Path, overrides: Mapping[str, Any] = {}) -> T:
    """A recipe: the keys of `file`, of which those in `overrides` (given as flags) are replaced."""
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ConfigError(f"{file} cannot be read as TOML: {e}") from None
    lines = {key: n for key in values if (n := _line_of(key, text))}
    return read(cls, {**values, **overrides}, str(file), flags=set(overrides), lines=lines)


def template(cls: type) -> str:
    """A commented recipe with every key; those that have no default value are commented out."""
    kinds, parts = typing.get_type_hints(cls), []
    for f in dataclasses.fields(cls):
        inner, allowed = _inner(kinds[f.name]), f.metadata.get("allowed")
        choices = typing.get_args(inner) if typing.get_origin(inner) is Literal else ()
        needed = "required" if _required(f) else ""
        notes = [needed, f.metadata.get("help", ""), "one of " + ", ".join(choices) if choices else "", allowed or ""]
        parts.append(f"# {'; '.join(note for note in notes if note)}")
        value = None if _required(f) else _default(f)
        if value is None:
            parts.append(f"# {f.name} = {_example(f, inner)}")
        else:
            parts.append(f"{f.name} = {_toml(value)}")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _example(f: dataclasses.Field[Any], inner: Any) -> str:
    """What may stand behind the equals sign of a key that has no default, as TOML."""
    if typing.get_origin(inner) is tuple:
        return '["…"]'
    return '"…"' if inner is str else str(_metavar(f, inner) or WORDS.get(inner, "…"))


def suggestion(key: str, allowed: Iterable[str]) -> str:
    """What to do about an unknown name: the nearest known one, else all of them."""
    names = list(allowed)
    near = difflib.get_close_matches(key, names, n=1)
    return f"did you mean {near[0]}?" if near else f"allowed: {', '.join(names)}"


def _inner(kind: Any) -> Any:
    """The type X of `X | None`; any other type itself."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _help(f: dataclasses.Field[Any]) -> str:
    text = f.metadata.get("help", "")
    default = None if _required(f) else _default(f)
    if default not in (None, (), "") and not isinstance(default, bool):
        text += f" (default: {default})"
    elif isinstance(default, bool):
        text += f" (default: {'on' if default else 'off'})"
    return text.replace("%", "%%")


def _metavar(f: dataclasses.Field[Any], kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "|".join(str(choice) for choice in typing.get_args(kind))
    return f.metadata.get("metavar") or {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _from_text(kind: Any, flag: str, text: str) -> Any:
    """A flag's text in its type; ConfigError names the flag."""
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"{flag} is '{text}'; allowed: {WORDS[kind]}") from None
    return _typed(kind, text, flag)


def _typed(kind: Any, value: Any, name: str) -> Any:
    """`value` as `kind`, where that loses nothing: 1 is a float, "1" is not a number, true is not 1."""
    if value is None and kind is not _inner(kind):
        return None
    inner, table = _inner(kind), next((part for part in typing.get_args(kind) if dataclasses.is_dataclass(part)), None)
    if table is not None and isinstance(value, Mapping):
        return read(table, value, name)  # type: ignore[arg-type]
    if table is not None and isinstance(value, table):  # type: ignore[arg-type]
        return value
    if typing.get_origin(inner) is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {shown(value)}; allowed: a table")
        return {key: _typed(typing.get_args(inner)[1], each, f"{name}.{key}") for key, each in value.items()}
    if typing.get_origin(inner) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} is {shown(value)}; allowed: a list")
        return tuple(_typed(typing.get_args(inner)[0], element, name) for element in value)
    if typing.get_origin(inner) is Literal:
        choices = typing.get_args(inner)
        if value not in choices:
            raise ConfigError(f"{name} is {shown(value)}; allowed: {', '.join(map(str, choices))}")
        return value
    if inner is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{name} has {len(str(abs(value)))} digits; allowed: {WORDS[float]}") from None
    if inner is Path and isinstance(value, str):
        return Path(value)
    if inner in WORDS and (not isinstance(value, inner) or (isinstance(value, bool) and inner is not bool)):
        raise ConfigError(f"{name} is {shown(value)}; allowed: {WORDS[inner]}")
    return value


def _line_of(key: str, text: str) -> int | None:
    pattern = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    return next((n for n, line in enumerate(text.splitlines(), 1) if pattern.match(line)), None)


def _toml(value: Any) -> str:
    """A default in TOML: JSON's notation of numbers, text, lists and Booleans is TOML's too."""
    return json.dumps(list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value)
