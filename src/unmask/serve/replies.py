"""Shapes of replies, for the OpenAPI document. Replies are built in `telling`; nothing is checked at run time."""

from typing import Any

from pydantic import BaseModel


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """Every error has this shape."""

    error: ErrorBody


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class Took(BaseModel):
    """How an answer was written: its mode, why `auto` chose it, and what it cost."""

    mode: str
    why: str
    forwards: int
    forwards_by_kind: dict[str, int]
    tokens_per_forward: float
    tokens_per_second: float
    seconds: float
    completion_tokens: int
    prompt_tokens: int
    cached_tokens: int


class ReplyMessage(BaseModel):
    role: str
    content: str
    refusal: str | None


class ChatChoice(BaseModel):
    index: int
    message: ReplyMessage
    logprobs: dict[str, Any] | None
    finish_reason: str
    unmask: Took


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str
    unmask: Took


class ChatReply(BaseModel):
    """A whole answer; with `stream` the same in chunks, as server-sent events."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionReply(BaseModel):
    """A whole continuation; with `stream` the same in chunks, as server-sent events."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class Models(BaseModel):
    object: str
    data: list[dict[str, Any]]


class Health(BaseModel):
    status: str
    model: str
    running: int
    waiting: int
    restarts: int
    last_error: str | None


FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": Failure, "description": what}
    for status, what in {
        400: "The request cannot be served as asked",
        401: "No API key, or a wrong one",
        404: "No such model",
        408: "The body does not come",
        413: "The body is too large",
        422: "Not used: a malformed body has status 400",
        429: "Too many requests; retry-after says when to try again",
        500: "A fault of the server",
        503: "The server is loading, stopping or down",
        504: "The request took longer than the server allows",
    }.items()
}
