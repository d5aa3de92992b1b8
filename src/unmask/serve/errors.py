"""Errors as clients get them: OpenAI's shape, and the status that says whose fault it was."""

from typing import Any

from unmask.errors import CapacityError, ConfigError, ModelError, RequestError, UnmaskError


class Busy(CapacityError):
    """The queue is full; retry_after: seconds."""

    def __init__(self, problem: str, retry_after: int) -> None:
        super().__init__(problem)
        self.retry_after = retry_after


class Unavailable(UnmaskError):
    """The server is loading, stopping or down."""


class EngineFailed(UnmaskError):
    """The engine ended while it wrote this answer."""


class TimeLimit(UnmaskError):
    """The request took longer than the server allows."""


class Unserved(RequestError):
    """A field of the body that is not served; it is named as it was sent."""


class NoSuchModel(UnmaskError):
    """A name that is not served."""


class Unauthorized(UnmaskError):
    """No API key, or a wrong one."""


class TooLarge(UnmaskError):
    """A body above the limit."""


class TooSlow(UnmaskError):
    """A body that does not come."""


STATUS: dict[type[Exception], tuple[int, str, str | None]] = {
    RequestError: (400, "invalid_request_error", None),
    ConfigError: (400, "invalid_request_error", None),
    Unauthorized: (401, "invalid_request_error", "invalid_api_key"),
    NoSuchModel: (404, "invalid_request_error", "model_not_found"),
    TooSlow: (408, "invalid_request_error", "timeout"),
    TooLarge: (413, "invalid_request_error", "request_too_large"),
    CapacityError: (429, "rate_limit_error", "busy"),
    Unavailable: (503, "server_error", "unavailable"),
    TimeLimit: (504, "server_error", "timeout"),
    ModelError: (500, "server_error", None),
    UnmaskError: (500, "server_error", None),
}
"""Status, type and code by kind of error."""
SOON = 5
"""Seconds after which to try again, where nothing better is known."""
OVERLONG = "context_length_exceeded"
LONGEST = 500
"""Characters of a message; what was sent may be long, and is quoted in it."""
NAMES = {"max_new_tokens": "max_tokens", "prompt_ids": "prompt", "json_schema": "response_format"}
"""Settings that clients know by another name."""


def told(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for an error; one that is not ours says no more than that it happened."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            break
    else:
        return 500, shaped("internal error; the server's log has the details", "server_error"), {}
    status, what, code = STATUS[kind]
    param: str | None = getattr(error, "field", None)
    code = getattr(error, "code", None) or code
    headers = {"retry-after": str(getattr(error, "retry_after", SOON))} if status == 429 else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    text = str(error)
    if not isinstance(error, Unserved):
        text, param = _renamed(text), NAMES.get(param or "", param)
    return status, shaped(text, what, param, code), headers


def _renamed(text: str) -> str:
    """A message with settings named as clients know them."""
    text = text.replace("max_new_tokens", NAMES["max_new_tokens"])
    ours = next((name for name in NAMES if text.startswith(name + " ")), None)
    return text if ours is None else NAMES[ours] + text.removeprefix(ours)


def shaped(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    message = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
