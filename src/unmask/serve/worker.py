"""The engine in a thread of its own: requests go in from any thread, events come out to whoever asked.

One thread owns the engine. Between two of its steps it takes what was submitted and cancelled, so a client that left
costs at most the forward at hand. Where the engine ends with an error, its requests end with one, and a new engine
takes the next.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from unmask.api import Model
from unmask.engine import Engine
from unmask.errors import UnmaskError
from unmask.events import Committed, Event, Finished, Request
from unmask.serve.errors import Busy, EngineFailed, TimeLimit, Unavailable
from unmask.serve.metrics import Metrics

log = logging.getLogger("unmask")
State = Literal["loading", "ok", "restarting", "down", "stopping", "stopped"]
IDLE, CALM, PATIENCE = 0.25, 30.0, 5
"""Seconds between looks at the clock while nothing runs; seconds without a crash that forgive earlier ones; crashes in
a row, without an answer between them, after which the engine is given up."""


@dataclass(eq=False)
class Ticket:
    """One request on its way. deliver gets its events, or the error that ended it, in the worker's thread."""

    request: Request
    deliver: Callable[[Event | UnmaskError], None]
    deadline: float
    submitted: float = field(default_factory=time.monotonic)
    index: int | None = None
    begun: bool = False


class Worker:
    """Loads a model and serves it.

    load: makes the model; engine: makes an engine for it; queue_limit: how many requests may wait beyond the engine's
    rows; timeout: seconds that a request may take, waiting included.
    """

    def __init__(
        self,
        load: Callable[[], Model],
        engine: Callable[[Model], Engine],
        metrics: Metrics,
        *,
        queue_limit: int,
        timeout: float,
    ) -> None:
        self.load, self.make, self.metrics = load, engine, metrics
        self.queue_limit, self.timeout = queue_limit, timeout
        self.model: Model | None = None
        self.state: State = "loading"
        self.error: str | None = None
        self.failed: BaseException | None = None
        self.restarts = 0
        self.rows = 0
        self.tickets: dict[Ticket, None] = {}
        self.indexed: dict[int, Ticket] = {}
        self.running = 0
        self.inbox: queue.SimpleQueue[tuple[str, Ticket | None]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.until: float | None = None
        self.pace = 1.0
        self.well = False
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # --- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load; `ready` is set once requests are served, or can never be."""
        self.thread.start()

    def submit(self, requests: Sequence[Request], deliver: Callable[[int, Event | UnmaskError], None]) -> list[Ticket]:
        """Queue requests, all of them or none; deliver gets each one's place with what comes of it.

        Raises Busy where they do not fit into the queue, Unavailable where nothing is served.
        """
        with self.lock:
            if self.state != "ok":
                raise Unavailable(f"the server is {self.state}; try again later")
            most = self.rows + self.queue_limit
            if len(self.tickets) + len(requests) > most:
                waits = max(1, min(60, round(self.pace * len(self.tickets) / max(1, self.rows))))
                asks = f" and this one asks for {len(requests)} answers" if len(requests) > 1 else ""
                raise Busy(
                    f"{len(self.tickets)} requests are running or waiting{asks}, the server takes {most}; "
                    f"try again in {waits} s",
                    waits,
                )
            until = time.monotonic() + self.timeout
            made = [Ticket(each, _to(deliver, place), until) for place, each in enumerate(requests)]
            self.tickets |= dict.fromkeys(made)
        for ticket in made:
            self.inbox.put(("submit", ticket))
        return made

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Drop requests that nobody waits for; those that have ended are ignored."""
        for ticket in tickets:
            if ticket in self.tickets:
                self.inbox.put(("cancel", ticket))

    def stop(self, grace: float) -> None:
        """Take nothing new; what runs and waits may end within `grace` seconds, the rest ends with an error. Called
        again, it can only shorten the time."""
        with self.lock:
            until = time.monotonic() + grace
            self.until = until if self.until is None else min(self.until, until)
            self.state = "stopping" if self.state in ("ok", "restarting") else self.state
        self.inbox.put(("wake", None))

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end; whether it has ended."""
        self.thread.join(seconds)
        return not self.thread.is_alive()

    @property
    def counts(self) -> tuple[int, int]:
        """Requests that wait and that run."""
        return max(0, len(self.tickets) - self.running), self.running

    # --- in the worker's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.model = self.load()
        except BaseException as error:
            self._give_up(error)
            return
        crashes, began = 0, time.monotonic()
        while True:
            try:
                self._serve(self._begun(self.model))
                break
            except BaseException as error:  # a panic of a library is no Exception, and would end the thread unseen
                crashes = 1 if self.well or time.monotonic() - began > CALM else crashes + 1
                began, self.well = time.monotonic(), False
                self._crashed(error)
                if crashes >= PATIENCE or not self.ready.is_set():
                    self._give_up(error)
                    return
        self.state = "stopped"

    def _begun(self, model: Model) -> Engine:
        """An engine, from which on requests are taken."""
        engine = self.make(model)
        with self.lock:
            self.rows = engine.rows
            self.state = "ok" if self.until is None else "stopping"
        self.ready.set()
        return engine

    def _serve(self, engine: Engine) -> None:
        """Steps until the worker is told to stop and nothing is left, or no time."""
        while self._take(engine):
            for event in engine.step():
                self._tell(event)

    def _take(self, engine: Engine) -> bool:
        """Take what was submitted and cancelled, waiting for it while nothing runs; False at the end."""
        while True:
            self.running, busy = len(engine.live), bool(engine.live or engine.waiting)
            try:
                what, ticket = self.inbox.get(block=not busy, timeout=None if busy else IDLE)
                if ticket is not None:
                    (self._begin if what == "submit" else self._drop)(engine, ticket)
                continue
            except queue.Empty:
                pass
            self._expire(engine)
            if self.until is not None:
                if time.monotonic() >= self.until:
                    self._end_all(Unavailable("the server is stopping; the answer is not complete"))
                    return False
                if not self.tickets:
                    return False
            if busy:
                return True

    def _begin(self, engine: Engine, ticket: Ticket) -> None:
        if ticket not in self.tickets:
            return
        try:
            ticket.index = engine.submit(ticket.request)
        except UnmaskError as error:
            self._finish(ticket, error)
        else:
            self.indexed[ticket.index] = ticket

    def _drop(self, engine: Engine, ticket: Ticket) -> None:
        if ticket in self.tickets:
            self._leave(engine, ticket)
            self._remove(ticket)
            self.metrics.ended(ticket.request.decoding.mode, "cancelled")

    def _leave(self, engine: Engine, ticket: Ticket) -> None:
        if ticket.index is not None:
            engine.cancel(ticket.index)

    def _remove(self, ticket: Ticket) -> None:
        self.tickets.pop(ticket, None)
        if ticket.index is not None:
            self.indexed.pop(ticket.index, None)

    def _expire(self, engine: Engine) -> None:
        now = time.monotonic()
        for ticket in [ticket for ticket in list(self.tickets) if now > ticket.deadline]:
            self._leave(engine, ticket)
            self._finish(ticket, TimeLimit(f"the request took longer than {self.timeout:g} s, the server's limit"))

    def _tell(self, event: Event) -> None:
        ticket = self.indexed.get(event.index)
        if ticket is None:
            return
        if not isinstance(event, Finished):
            if isinstance(event, Committed) and event.text and not ticket.begun:
                ticket.begun = True
                mode = ticket.request.decoding.mode
                self.metrics.first.labels(mode).observe(time.monotonic() - ticket.submitted)
            ticket.deliver(event)
        elif event.answer.error is not None:
            self._finish(ticket, event.answer.error)
        else:
            self._remove(ticket)
            self.well = True
            self.pace += 0.2 * (event.answer.seconds - self.pace)
            self.metrics.answered(event.answer, time.monotonic() - ticket.submitted)
            ticket.deliver(event)

    def _finish(self, ticket: Ticket, error: UnmaskError) -> None:
        """End a request with an error."""
        self._remove(ticket)
        self.metrics.ended(ticket.request.decoding.mode, type(error).__name__)
        ticket.deliver(error)

    def _end_all(self, error: UnmaskError) -> None:
        for ticket in list(self.tickets):
            self._finish(ticket, error)

    def _crashed(self, error: BaseException) -> None:
        log.error("the engine ended with an error and is started again", exc_info=error)
        with self.lock:
            self.state = "restarting" if self.until is None else "stopping"
            self.error, self.restarts = _line(error), self.restarts + 1
        self.metrics.restarts.inc()
        self.running = 0
        self._end_all(EngineFailed("the engine failed while it wrote this answer; ask again"))

    def _give_up(self, error: BaseException) -> None:
        with self.lock:
            self.state, self.error, self.failed = "down", _line(error), error
        self._end_all(Unavailable("the engine is down"))
        self.ready.set()


def _to(deliver: Callable[[int, Event | UnmaskError], None], place: int) -> Callable[[Event | UnmaskError], None]:
    return lambda item: deliver(place, item)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
