"""The server process: from the command line to the last answer."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import prometheus_client
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.api import Model
from unmask.errors import ConfigError, UnmaskError
from unmask.serve.app import Service, app_for
from unmask.serve.settings import Serving

SPARE = 2.0
"""Seconds beyond the grace time in which the last chunks reach their clients."""


class Server(uvicorn.Server):
    """uvicorn, which on SIGTERM or SIGINT first tells the worker, so that streams end by themselves; a second signal
    ends them at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service, self.signals = service, 0
        service.cut = self.cut

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sign, self.tell)
        try:
            yield
        finally:
            for sign in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(sign)
                signal.signal(sign, signal.SIG_IGN)  # it is ending already

    def cut(self, client: Any) -> None:
        """End a client's connection without waiting for it to take what was sent."""
        for connection in list(self.server_state.connections):
            if getattr(connection, "client", None) == client:
                connection.transport.abort()

    def tell(self) -> None:
        """Begin to stop."""
        self.signals += 1
        self.service.worker.stop(self.service.settings.grace if self.signals == 1 else 0.0)
        self.should_exit = True


class Patient(H11Protocol):
    """A connection that is closed where a request does not come, or not on, for `patience` seconds."""

    def __init__(self, patience: float, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.patience = patience
        self.waiting: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.idle:
            self._wait()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """The time runs from the first byte; further ones do not lengthen it."""
        if self.waiting is None:
            self.waiting = self.loop.call_later(self.patience, self._give_up)

    def _stop(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
        self.waiting = None

    def _give_up(self) -> None:
        if self.idle:
            self.transport.abort()


def serve(load: Callable[[], Model], name: str, settings: Serving) -> None:
    """Serve until a signal says otherwise. Raises what made the model fail to load, ConfigError for the address."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    prometheus_client.disable_created_metrics()
    service = Service(load, name, settings)
    with contextlib.closing(_listening(settings)) as sock:
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        server = Server(uvicorn.Config(app_for(service), **configured(settings)), service)
        asyncio.run(_serve(server, service, sock, f"http://{shown}:{port}"))
    if service.worker.thread.is_alive():  # a library that loads, or a forward, cannot be interrupted
        sys.stderr.flush()
        os._exit(0)
    failed = service.worker.failed
    if isinstance(failed, UnmaskError):
        raise failed
    if failed is not None:
        raise RuntimeError("the engine failed again and again") from failed


async def _serve(server: Server, service: Service, sock: socket.socket, address: str) -> None:
    worker = service.worker
    worker.start()
    watch = asyncio.create_task(_announce(server, service, address))
    await server.serve(sockets=[sock])
    worker.stop(0.0)
    await asyncio.to_thread(worker.join, SPARE)
    watch.cancel()


async def _announce(server: Server, service: Service, address: str) -> None:
    """Say when requests are served; end the server where they never will be."""
    worker = service.worker
    print(f"loading {service.name} …", file=sys.stderr, flush=True)
    while not worker.ready.is_set():
        await asyncio.sleep(0.05)
    if worker.state == "ok":
        print(
            f"serving {service.name} at {address}/v1, the page is {address}/ (Ctrl-C stops)",
            file=sys.stderr,
            flush=True,
        )
    while worker.state != "down":
        await asyncio.sleep(0.25)
    server.should_exit = True


def _listening(settings: Serving) -> socket.socket:
    """A socket at the address; ConfigError where it cannot be had."""
    sock = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {settings.host}, port {settings.port}: {reason}; try another --port (0 takes a free one)"
        ) from None
    return sock


def configured(settings: Serving) -> dict[str, Any]:
    """uvicorn's settings."""
    return {
        "http": functools.partial(Patient, settings.slow_reader),
        "log_level": "warning",
        "access_log": False,
        "lifespan": "off",
        "timeout_graceful_shutdown": int(settings.grace + SPARE),
        "timeout_keep_alive": 30,
        "server_header": False,
        "h11_max_incomplete_event_size": 64 * 1024,
    }
