"""Decoding settings from flags, checked against a model; and the figures of what came of them."""

import sys
from typing import Any

from unmask.config import Decoding
from unmask.errors import UnmaskError
from unmask.options import flag_of, read
from unmask.resolve import ineffective


def check_settings(model: Any, chosen: dict[str, Any], as_json: bool) -> str:
    """Refuse settings that no prompt can be answered with on this model; warn of those that change nothing. Returns
    why mode auto chose as it did, "" for another mode."""
    try:
        wanted = read(Decoding, chosen)
        settings = model.resolved(wanted)
    except UnmaskError as e:
        raise placed(e) from None
    for name, reason in ineffective(chosen, settings).items():
        flag = flag_of(name if chosen[name] is not False else f"no_{name}")
        print(f"warning: {flag} has no effect {reason}", file=sys.stderr)
    if wanted.logprobs is not None and not as_json:
        print("warning: --logprobs shows with --json only", file=sys.stderr)
    why: str = model.chosen(wanted).why
    return why


def placed(error: UnmaskError, where: str = "") -> UnmaskError:
    """The same error with the flag as typed in the place of the setting's name, and the prompt's place before it."""
    text, setting = str(error), str(getattr(error, "field", None))
    if setting in Decoding.__dataclass_fields__ and text.startswith(setting + " "):
        text = flag_of(setting) + text.removeprefix(setting)
    return type(error)(f"{where}: {text}" if where else text)


def figures(answers: list[Any], why: str) -> str:
    """Tokens, time and forwards of answers that were decoded together, in one line."""
    tokens, forwards = sum(a.completion_tokens for a in answers), sum(a.forwards for a in answers)
    seconds, named = max(a.batch_seconds for a in answers), "token" if tokens == 1 else "tokens"
    return (
        f"{tokens} {named} in {seconds:.2f} s: {tokens / max(seconds, 1e-9):.1f} tokens/s, {forwards} forwards, "
        f"{tokens / max(forwards, 1):.2f} tokens per forward, mode {answers[0].mode}" + (f" ({why})" if why else "")
    )
