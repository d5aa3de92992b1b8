"""Answers that are JSON by construction: at each place, which tokens a JSON Schema allows (the library llguidance).

A schema comes from anyone who may ask, so it is read with care: its size is bounded, what the library does not know is
refused, and one that could keep the library busy for ever is tried first in a process that can be ended.
"""

import copy
import functools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.errors import CapacityError, MissingExtraError, RequestError

LARGEST = 65_536
"""Characters of a schema, at most."""
PATIENCE = 3.0
"""Seconds that a schema may take to be tried."""
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 50_000,
    "max_lexer_states": 20_000,
    "verbose_errors": False,
}
"""Below the library's own: an answer ends where a place would take more than about 0.1 s, or a schema some 40 MB."""
WAYS: Any = {"whitespace_pattern": r"\x20|\n[\x20\x09]{0,32}", "lenient": False}
"""White space is a blank, or a new line and its indentation: a small model may write it for ever. Unknown keywords are
errors."""
RISKY = re.compile(r'"(pattern|patternProperties|multipleOf|allOf|anyOf|oneOf|format|\$ref)"')
"""Keywords that set regular expressions or grammars against each other, which nothing in the library bounds."""
TRIAL = """
import sys
from llguidance import LLMatcher, LLTokenizer
LLMatcher(LLTokenizer("byte"), sys.stdin.read(), log_level=0).compute_bitmask()
"""
ENDING = "<|the answer may end here|>"
WAIT = 1.0
"""Seconds that a schema waits for the one before it."""
trials = Lock()


class Guide:
    """What one row may write. vocab_size: of the logits; stop_ids: tokens that are allowed exactly where the JSON is
    complete, and nowhere else, whatever they stand for."""

    def __init__(self, matcher: Any, ending: int, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self.matcher, self.ending, self.vocab_size = matcher, ending, vocab_size
        self.stop_ids = [token for token in stop_ids if 0 <= token < vocab_size]
        self.taken = 0

    def along(self, written: Sequence[int], guess: Sequence[int] = ()) -> Tensor:
        """Bool[1 + n, vocab]: the tokens that may come after `written`, and after each of the first n guesses.

        n is as far as the guesses themselves are allowed; an end token is not followed. `written` grows from call to
        call. RequestError where the schema turns out to be too costly, or no token of the model can go on.
        """
        self.matcher.consume_tokens(list(written[self.taken :]))
        self.taken = len(written)
        found = [self._allowed(self.matcher)]
        ahead = self.matcher.deep_copy() if guess else self.matcher
        for token in guess:
            if token in self.stop_ids or not found[-1][token]:
                break
            ahead.consume_token(token)
            found.append(self._allowed(ahead))
        return torch.from_numpy(np.stack(found))

    def _allowed(self, matcher: Any) -> np.ndarray:
        """Bool[vocab], of which one at least is True."""
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=self.vocab_size, bitorder="little").view(bool)
        allowed[self.ending :] = False
        allowed[self.stop_ids] = matcher.is_accepting()
        if matcher.is_error() or not allowed.any():
            reason = _line(matcher.get_error()) or "no token of this model can go on"
            raise RequestError(f"json_schema cannot be followed to the end: {reason}", field="json_schema")
        return allowed


def guided(schema: str | None, stop_ids: Sequence[int], tokenizer: Any, vocab_size: int) -> Guide | None:
    """A row's guide; None where no schema is asked for.

    RequestError for a schema that cannot be used, and for a model that cannot follow one; MissingExtraError without
    llguidance. What it takes to read a schema is spent once.
    """
    if schema is None:
        return None
    if tokenizer is None or getattr(tokenizer, "backend_tokenizer", None) is None:
        raise RequestError(
            "json_schema needs a tokenizer of the library tokenizers, which this checkpoint lacks; leave it out",
            field="json_schema",
        )
    if not any(0 <= token < vocab_size for token in stop_ids):
        raise RequestError(
            "json_schema needs an end token, and this request has none; give stop_ids", field="json_schema"
        )
    matcher, ending = _matcher(tokenizer, vocab_size, schema)
    if isinstance(matcher, str):
        raise RequestError(f"json_schema is refused: {matcher}; change the schema", field="json_schema")
    guide = Guide(matcher.deep_copy(), ending, vocab_size, stop_ids)
    guide.along(())  # what fails at the first place fails before any work
    return guide


def _read(schema: str) -> str:
    """The schema as the library takes it; RequestError for what is no JSON Schema or too long."""
    if len(schema) > LARGEST:
        raise RequestError(
            f"json_schema has {len(schema):,} characters; allowed: at most {LARGEST:,}",
            field="json_schema",
            value=len(schema),
            limit=LARGEST,
        )
    try:
        rules = json.loads(schema)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else _line(error)
        raise RequestError(f"json_schema is not JSON: {reason}; give a JSON Schema", field="json_schema") from None
    if not isinstance(rules, dict):
        raise RequestError(
            f"json_schema is {json.dumps(rules)[:40]}; allowed: an object of JSON", field="json_schema", value=rules
        )
    rules.pop("x-guidance", None)  # the library's own settings are not the asker's
    return json.dumps(rules or {"type": "object"})


@functools.lru_cache(maxsize=128)
def _matcher(tokenizer: Any, vocab_size: int, schema: str) -> tuple[Any, int]:
    """The matcher at its start, or why the schema is refused, which is remembered too; and the token that it takes for
    the end."""
    words, ending = _words(tokenizer, vocab_size)
    from llguidance import LLMatcher, LLParserLimits

    rules = _read(schema)
    try:
        grammar = LLMatcher.grammar_from_json_schema(rules, overrides=WAYS)
        if RISKY.search(rules):
            _try(grammar)
        matcher = LLMatcher(words, grammar, limits=LLParserLimits(**LIMITS), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
    except ValueError as error:
        return _line(error), ending
    return matcher, ending


@functools.lru_cache(maxsize=4)
def _words(tokenizer: Any, vocab_size: int) -> tuple[Any, int]:
    """The tokenizer as the library sees it, and an end token of its own: those of requests differ from one another."""
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise MissingExtraError("llguidance", "serve") from None
    core = copy.deepcopy(tokenizer.backend_tokenizer)
    core.no_padding()
    core.no_truncation()
    core.add_special_tokens([ENDING])
    end = core.token_to_id(ENDING)
    try:
        words = LLTokenizer(
            core.to_str(), n_vocab=max(vocab_size, end + 1), eos_token=end, slices=LLTokenizer.json_slices()
        )
    except ValueError as error:
        raise RequestError(
            f"json_schema cannot be followed with this model's tokenizer: {_line(error)}", field="json_schema"
        ) from None
    return words, end


def _try(grammar: str) -> None:
    """Read a grammar in a process of its own; one at a time, and not for long. ValueError where that fails,
    CapacityError where others are being read."""
    if not trials.acquire(timeout=WAIT):
        raise CapacityError("other JSON schemas are being read at this moment; try again in a few seconds")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", TRIAL], input=grammar, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"it takes more than {PATIENCE:g} seconds to read") from None
    finally:
        trials.release()
    if done.returncode:
        raise ValueError("it takes more memory than there is")


def _line(problem: object) -> str:
    return " ".join(str(problem).replace("<non-verbose/>", "").split())
