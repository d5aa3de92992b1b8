"""Bodies of requests as OpenAI's clients send them, and what of them is refused by name.

Types are strict: "5" is no number and true is not 1. `null` means absent. A field that the API knows and this server
does not serve is refused unless it asks for nothing (`tools: []`, `frequency_penalty: 0`).
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from unmask.errors import RequestError
from unmask.serve.errors import Unserved


def _sayable(value: Any) -> Any:
    """Half of a surrogate pair is no character, and no tokenizer takes it."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("holds a lone surrogate, which is not a character") from None
    return value


Text = Annotated[StrictStr, BeforeValidator(_sayable)]
Number = StrictFloat | StrictInt
Stops = Annotated[
    Annotated[Text, Field(min_length=1, max_length=1000)]
    | Annotated[list[Annotated[Text, Field(min_length=1, max_length=1000)]], Field(max_length=16, fail_fast=True)],
    Field(union_mode="left_to_right"),
]
Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
ROLES = Literal["system", "developer", "user", "assistant"]
EMPTY: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields that are not served, and the values with which they ask for nothing."""
IGNORED = {
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
"""Fields that change no answer."""


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Part(Strict):
    """A piece of a message; only text is served."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One turn. Text parts are joined by line breaks; `developer` is rendered as `system`."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: ROLES
    content: Text | Annotated[list[Part], Field(min_length=1, max_length=1000, fail_fast=True)]

    @model_validator(mode="after")
    def _nothing_else(self) -> "Message":
        for name, value in (self.model_extra or {}).items():
            if value not in (None, [], "") and name != "name":
                raise ValueError(f"'{name}' is not served; allowed: role and content")
        return self

    def plain(self) -> dict[str, str]:
        """Role and text, as a chat template takes them."""
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: StrictBool | None = None


class JsonSchema(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    name: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def _nothing(name: str, value: Any) -> bool:
    """Whether a field that is not served asks for nothing; false is not 0."""
    return any(value == empty and isinstance(value, bool) == isinstance(empty, bool) for empty in EMPTY.get(name, ()))


class Asked(BaseModel):
    """What both kinds of completions take."""

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra={"additionalProperties": False})
    model: Text | None = Field(None, description="a name that /v1/models lists")
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = Field(
        None, description="length limit; what the context leaves no room for is cut off"
    )
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = Field(None, description="0, the default, is greedy")
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    n: Annotated[StrictInt, Field(ge=1)] | None = Field(None, description="choices; the i-th is drawn with seed + i")
    seed: StrictInt | None = Field(None, description="makes sampling repeatable, whatever else is served")
    stop: Stops | None = Field(None, description="text before which the answer ends, or a list of at most 16")
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    mode: Literal["auto", "ar", "threshold", "verified"] | None = Field(None, description="how the answer is written")
    threshold: Annotated[Number, Field(ge=0, le=1)] | None = Field(None, description="confidence of mode threshold")
    rule: Text | None = None
    max_loss: Annotated[Number, Field(ge=0)] | None = None
    block_size: Annotated[StrictInt, Field(ge=1)] | None = None
    sub_block_size: Annotated[StrictInt, Field(ge=1)] | None = None
    drafts: Literal["paced", "plain"] | None = None
    prompt_lookup: StrictBool | None = None
    schedule: Literal["reference", "fused"] | None = None
    response_format: ResponseFormat | None = None
    provisional: StrictBool | None = Field(None, description="with stream: also show the block being written")

    OWN: ClassVar[tuple[str, ...]] = (
        "mode",
        "threshold",
        "rule",
        "max_loss",
        "block_size",
        "sub_block_size",
        "drafts",
        "prompt_lookup",
        "schedule",
        "temperature",
        "top_p",
        "seed",
    )

    @model_validator(mode="after")
    def _only_what_is_served(self) -> "Asked":
        for name, value in (self.model_extra or {}).items():
            if value is None or name in IGNORED or _nothing(name, value):
                continue
            if name in EMPTY:
                raise Unserved(f"{name} is not served; leave it out", field=name)
            raise Unserved(f"{name} is not a field of this API; leave it out", field=name)
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is allowed with stream true only", field="stream_options")
        if self.provisional and not self.stream:
            raise RequestError("provisional is allowed with stream true only", field="provisional")
        return self

    @property
    def limit(self) -> int | None:
        """The asked length limit."""
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings; none where the field is null or an empty list."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def usage_asked(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def logprobs_asked(self) -> int | None:
        """How many likeliest tokens to name beside each token; None for no log-probabilities."""
        return None


class ChatAsked(Asked):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = Field(
        None, description="the newer name of max_tokens; the smaller one counts where both are given"
    )
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _likeliest_with_logprobs(self) -> "ChatAsked":
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs is allowed with logprobs true only", field="top_logprobs")
        return self

    @property
    def limit(self) -> int | None:
        given = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return min(given, default=None)

    @property
    def logprobs_asked(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionAsked(Asked):
    """The body of `/v1/completions`: prompts are taken as they are, without the chat template."""

    prompt: Annotated[
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=128, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=128, fail_fast=True)],
        Field(description="a text, token ids, or a list of either"),
    ]
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None

    @property
    def logprobs_asked(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[Any]:
        """Every prompt, a text or token ids."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)
