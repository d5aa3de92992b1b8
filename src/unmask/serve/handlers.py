"""What becomes of an error on its way to a client."""

import json
import logging
from typing import Any

from fastapi import FastAPI
from fastapi import Request as Http
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from unmask.errors import RequestError, UnmaskError
from unmask.serve.errors import shaped, told

log = logging.getLogger("unmask")


def add_errors(app: FastAPI) -> None:
    """Every error has OpenAI's shape, whoever raised it."""

    @app.exception_handler(UnmaskError)
    async def ours(_: Http, error: UnmaskError) -> JSONResponse:
        status, body, headers = told(error)
        return JSONResponse(body, status, headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Http, error: RequestValidationError) -> JSONResponse:
        status, body, headers = told(_first(error))
        return JSONResponse(body, status, headers)

    @app.exception_handler(HTTPException)
    async def no_route(http: Http, error: HTTPException) -> JSONResponse:
        texts = {
            404: f"there is no {http.url.path} here; the API is /v1/chat/completions, /v1/completions and /v1/models",
            405: f"{http.method} is not allowed on {http.url.path}",
            400: "the body cannot be read as JSON in UTF-8",
        }
        text = texts.get(error.status_code, str(error.detail))
        return JSONResponse(shaped(text, "invalid_request_error"), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def fault(http: Http, error: Exception) -> JSONResponse:
        log.error("%s %s failed", http.method, http.url.path, exc_info=error)
        status, body, headers = told(error)
        return JSONResponse(body, status, headers)


def _first(error: RequestValidationError) -> RequestError:
    """What is wrong with a body, in one line; of several allowed forms the one that came nearest."""
    found = max(error.errors(), key=lambda each: len(each["loc"]))
    if found["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {found['ctx']['error']}")
    place = [str(part) for part in found["loc"] if part != "body" and not _is_type(part)]
    field = ".".join(place) or None
    if found["type"] == "missing":
        return RequestError(f"{field or 'a JSON body'} is missing", field=place[0] if place else None)
    if field is None:
        reason = f"{_reason(found)}; send an object of JSON with content-type application/json"
        return RequestError(f"the body cannot be read: {reason}")
    shown = json.dumps(found.get("input"), default=str)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    reason = _reason(found)
    return RequestError(f"{field} is {shown}; {reason}", field=place[0], value=shown)


def _is_type(part: Any) -> bool:
    """Whether a part of an error's place names one of several allowed types, and no field."""
    return isinstance(part, str) and (part in ("str", "int", "float", "bool") or "[" in part)


def _reason(found: Any) -> str:
    if found["type"] in ("string_too_short", "too_short"):
        return "allowed: not empty"
    return str(found["msg"]).removeprefix("Value error, ").replace("Input should be ", "allowed: ")
