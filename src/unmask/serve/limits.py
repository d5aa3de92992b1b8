"""What every request passes before it reaches a route: slashes, the key, the size of its body, security headers."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse

from unmask.serve.errors import TooLarge, TooSlow, Unauthorized, told
from unmask.serve.settings import Serving

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Limits:
    """ASGI middleware. A body is read whole before a route sees it, so that one above the limit costs no more."""

    def __init__(self, app: Any, settings: Serving, responded: Callable[[int], None]) -> None:
        self.responded = responded
        self.app, self.most, self.patience = app, int(settings.max_body * 1e6), settings.slow_reader
        self.key = None if settings.key is None else settings.key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = "/" + "/".join(part for part in scope["path"].split("/") if part)
        scope = {**scope, "path": path, "raw_path": path.encode()}
        try:
            if path.startswith("/v1") and scope["method"] != "OPTIONS":
                self._check_key(scope)
            receive = await self._whole_body(scope, receive)
        except (TooLarge, TooSlow, Unauthorized) as error:
            status, body, headers = told(error)
            await JSONResponse(body, status, headers)(scope, receive, self._seen(send))
            return
        await self.app(scope, receive, self._seen(send))

    def _seen(self, send: Send) -> Send:
        """Add headers, and count the status."""

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.responded(message["status"])
                there = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in there]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        return sending

    def _check_key(self, scope: Scope) -> None:
        if self.key is None:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, key = given.partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self.key):
            what = "wrong API key" if given else "no API key"
            raise Unauthorized(f"{what}; send the server's as 'Authorization: Bearer KEY'")

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return receive
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self.most:
            raise TooLarge(f"the body has {int(announced)} bytes; allowed: at most {self.most}")
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            try:
                message = await asyncio.wait_for(receive(), self.patience)
            except TimeoutError:
                raise TooSlow(f"the body did not come within {self.patience:g} s") from None
            if message["type"] == "http.disconnect":
                return _replay([message], receive)
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > self.most:
                raise TooLarge(f"the body has more than {self.most} bytes, the most that is allowed")
        return _replay([{"type": "http.request", "body": b"".join(parts), "more_body": False}], receive)


def _replay(messages: list[Any], receive: Receive) -> Receive:
    """Give out these messages first."""

    async def next_message() -> MutableMapping[str, Any]:
        return messages.pop(0) if messages else await receive()

    return next_message
