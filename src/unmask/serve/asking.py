"""From the body of a request to requests of the engine."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.api import Model
from unmask.config import Decoding
from unmask.errors import ConfigError, RequestError
from unmask.events import Request
from unmask.options import read
from unmask.serve.errors import OVERLONG
from unmask.serve.schema import Asked, ChatAsked, CompletionAsked
from unmask.serve.settings import Serving


@dataclass(frozen=True)
class Plan:
    """One request to the server. requests: `choices` for each prompt; why: of mode auto; prompts: tokens of all of
    them."""

    requests: list[Request]
    why: str
    prompts: int
    choices: int = 1


class Asker:
    """Makes plans. It has a tokenizer of its own: the engine's is in use in another thread."""

    def __init__(self, model: Model, settings: Serving) -> None:
        self.model, self.settings = model, settings
        self.tokenizer = copy.deepcopy(model.tokenizer)
        self.context = min(settings.context, model.backbone.max_positions)
        words = {} if self.tokenizer is None else self.tokenizer.get_vocab()
        self.longest = self.context * max(map(len, words), default=1)

    def chat(self, asked: ChatAsked) -> Plan:
        """A plan for a chat. RequestError for what cannot be served."""
        return self._plan(asked, [[message.plain() for message in asked.messages]], raw=False)

    def completion(self, asked: CompletionAsked) -> Plan:
        """A plan for raw prompts."""
        return self._plan(asked, asked.prompts, raw=True)

    def _plan(self, asked: Asked, prompts: Sequence[Any], raw: bool) -> Plan:
        wanted = _read(settings_of(asked))
        choice = self.model.chosen(wanted)
        count = asked.n or 1
        if count * len(prompts) > self.settings.most_choices:
            what = f"n is {count}" if len(prompts) == 1 else f"{len(prompts)} prompts with n {count} are too many"
            raise RequestError(f"{what}; allowed: at most {self.settings.most_choices} answers", field="n", value=count)
        made, tokens = [], 0
        for prompt in prompts:
            ids = self._encode(prompt, raw)
            tokens += len(ids)
            decoding = replace(choice.decoding, max_new_tokens=self._room(len(ids), asked.limit))
            self.model.resolved(decoding)
            for number in range(count):
                seeded = decoding if decoding.seed is None else replace(decoding, seed=decoding.seed + number)
                made.append(Request(ids, seeded, bool(asked.provisional)))
        return Plan(made, choice.why, tokens, count)

    def _encode(self, prompt: Any, raw: bool) -> list[int]:
        """Token ids. A text that no tokens of the vocabulary could bring into the context is not even tried."""
        said = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt if isinstance(m, dict)]
        if (size := sum(map(len, said))) > self.longest:
            raise self._overlong(f"the prompt has {size} characters", size)
        ids = self.model.encode(prompt, raw, self.tokenizer)
        wrong = next((token for token in ids if not 0 <= token < self.model.backbone.vocab_size), None)
        if wrong is not None:
            most = self.model.backbone.vocab_size - 1
            raise RequestError(f"prompt token {wrong} is outside the vocabulary; allowed: 0 to {most}", field="prompt")
        bos = getattr(self.tokenizer, "bos_token_id", None)
        return ids if ids or bos is None else [bos]

    def _room(self, length: int, limit: int | None) -> int:
        """The length limit of an answer: what was asked for, as far as the context has room."""
        room = self.context - length
        if room < 1:
            raise self._overlong(f"the prompt has {length} tokens", length)
        return min(room, self.settings.max_tokens if limit is None else limit)

    def _overlong(self, what: str, size: int) -> RequestError:
        text = f"{what}, the context of this server has {self.context} tokens with the answer; shorten the prompt"
        error = RequestError(text, field="messages", value=size, limit=self.context)
        error.code = OVERLONG  # type: ignore[attr-defined]
        return error


def _read(given: dict[str, Any]) -> Decoding:
    """Settings; what is refused is named as the field of a request."""
    try:
        return read(Decoding, given)
    except ConfigError as error:
        field = str(error).partition(" ")[0]
        raise RequestError(str(error), field=field if field in given else None) from None


def settings_of(asked: Asked) -> dict[str, Any]:
    """The fields of `Decoding` that a request gives."""
    given = {name: value for name in Asked.OWN if (value := getattr(asked, name)) is not None}
    if asked.stops:
        given["stop"] = asked.stops
    if asked.logprobs_asked is not None:
        given["logprobs"] = asked.logprobs_asked
    form = asked.response_format
    if form is not None and form.type == "json_object":
        given["json_schema"] = "{}"
    elif form is not None and form.type == "json_schema":
        if form.json_schema is None:
            raise RequestError("response_format json_schema lacks json_schema", field="response_format")
        given["json_schema"] = json.dumps(form.json_schema.schema_ or {})
    return given
