"""Waiting for answers on behalf of a client that may leave, and sending them as they settle."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from unmask.errors import UnmaskError
from unmask.events import Answer, Committed, Event, Finished, Provisional, Request
from unmask.serve.errors import told
from unmask.serve.limits import Receive, Scope, Send
from unmask.serve.telling import Teller
from unmask.serve.worker import Worker

T = TypeVar("T")
Items = asyncio.Queue[tuple[int, Event | UnmaskError]]
GONE = 499
"""Status for a client that has left; nobody reads it."""


@contextlib.asynccontextmanager
async def asked(worker: Worker, requests: Sequence[Request]) -> AsyncIterator[Items]:
    """The queue in which what comes of the requests arrives; whoever leaves the block cancels what is left."""
    loop, items = asyncio.get_running_loop(), Items()

    def deliver(place: int, item: Event | UnmaskError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever asked
            loop.call_soon_threadsafe(items.put_nowait, (place, item))

    tickets = worker.submit(requests, deliver)
    try:
        yield items
    finally:
        worker.cancel(tickets)


async def answers(items: Items, count: int) -> list[Answer]:
    """All answers, in their places; raises the first error."""
    found: dict[int, Answer] = {}
    while len(found) < count:
        place, item = await items.get()
        if isinstance(item, UnmaskError):
            raise item
        if isinstance(item, Finished):
            found[place] = item.answer
    return [found[place] for place in range(count)]


async def unless_gone(work: Awaitable[T], receive: Receive) -> T:
    """The result, or ClientDisconnect as soon as the client has left."""
    doing, watching = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientDisconnect
    finally:
        for task in (doing, watching):
            task.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. The first item is there before the status is sent, so that what fails at once is an HTTP
    error. slow: seconds that a client may leave a write waiting; cut: ends its connection then."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None], slow: float, cut: Callable[[Any], None]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self.chunks, self.slow, self.cut = chunks, slow, cut
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(self._send(send), receive)
        except TimeoutError:
            self.cut(scope["client"])
        except (ClientDisconnect, OSError):
            pass

    async def _send(self, send: Send) -> None:
        async with contextlib.aclosing(self.chunks) as chunks:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in chunks:
                async with asyncio.timeout(self.slow):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def opened(
    worker: Worker, teller: Teller, requests: Sequence[Request], receive: Receive
) -> AsyncGenerator[bytes, None]:
    """A stream whose first item has come. Raises what makes the request fail before any text, and ClientDisconnect."""
    chunks = _chunks(worker, teller, requests)
    try:
        first = await unless_gone(anext(chunks), receive)
    except BaseException:
        await chunks.aclose()
        raise
    return _chained(first, chunks)


async def _chained(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk


async def _chunks(worker: Worker, teller: Teller, requests: Sequence[Request]) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream; an error after the first of them is a data line, and nothing follows it."""
    found: dict[int, Answer] = {}
    begun: set[int] = set()
    async with asked(worker, requests) as items:
        while len(found) < len(requests):
            place, item = await items.get()
            if isinstance(item, UnmaskError):
                if not begun:
                    raise item
                yield _line(told(item)[1])
                return
            if place not in begun:
                begun.add(place)
                if teller.chat:
                    yield _line(teller.first(place))
            if isinstance(item, Committed) and (chunk := teller.committed(place, item)) is not None:
                yield _line(chunk)
            elif isinstance(item, Provisional):
                yield _line(teller.provisional(place, item))
            elif isinstance(item, Finished):
                found[place] = item.answer
                yield _line(teller.last(place, item.answer))
    if teller.usage:
        yield _line(teller.counts([found[place] for place in range(len(requests))]))
    yield b"data: [DONE]\n\n"


def _line(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"
