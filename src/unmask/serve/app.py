"""The routes: from an HTTP request to the worker and back."""

import functools
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import anyio
import anyio.to_thread
from fastapi import FastAPI
from fastapi import Request as Http
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect

import unmask
from unmask.api import Model
from unmask.engine import Engine
from unmask.events import Event, Finished, Request
from unmask.serve.asking import Asker, Plan
from unmask.serve.errors import NoSuchModel, Unavailable
from unmask.serve.handlers import add_errors
from unmask.serve.limits import Limits
from unmask.serve.metrics import Metrics
from unmask.serve.replies import FAILURES, ChatReply, CompletionReply, Health, Models
from unmask.serve.schema import Asked, ChatAsked, CompletionAsked
from unmask.serve.settings import Serving
from unmask.serve.stream import GONE, EventStream, answers, asked, opened, unless_gone
from unmask.serve.telling import Teller
from unmask.serve.worker import Worker

PAGE = files("unmask") / "serve" / "page"


class Service:
    """One served model: its worker, and what is known once it is loaded."""

    def __init__(self, load: Callable[[], Model], name: str, settings: Serving) -> None:
        self.name, self.settings, self.created = name, settings, int(time.time())
        self.metrics = Metrics()
        self.worker = Worker(
            lambda: self._loaded(load()),
            lambda model: engine_for(model, settings),
            self.metrics,
            queue_limit=settings.queue,
            timeout=settings.timeout,
        )
        self.metrics.watch(lambda: self.worker.counts)
        self._asker: Asker | None = None
        self.cut: Callable[[Any], None] = lambda client: None  # ends a connection at once; the server knows how

    def _loaded(self, model: Model) -> Model:
        self._asker = Asker(model, self.settings)
        return model

    @property
    def asker(self) -> Asker:
        """Makes plans of requests; Unavailable until the model is loaded."""
        if self._asker is None:
            raise Unavailable(f"the model is {self.worker.state}; try again later")
        return self._asker

    def check_name(self, name: str | None) -> None:
        """NoSuchModel unless the request names the model that is served."""
        if name != self.name:
            what = f"'{name}' is not served here" if name else "the request names no model"
            raise NoSuchModel(f"{what}; served: '{self.name}'")

    def described(self) -> dict[str, Any]:
        """The model as `/v1/models` lists it."""
        model = {"id": self.name, "object": "model", "created": self.created, "owned_by": "unmask"}
        ready = self.worker.model is not None and self.worker.ready.is_set()
        return model | {"unmask": capabilities(self.asker)} if ready else model


def capabilities(asker: Asker) -> dict[str, Any]:
    """What a model can do here."""
    model, spec = asker.model, asker.model.spec
    modes = ["ar"] if spec is None else ["ar", "threshold"]
    if spec is not None and spec.context == "causal":
        modes.insert(1, "verified")
    return {
        "modes": modes,
        "context": None if spec is None else spec.context,
        "block_size": None if spec is None else spec.block_size,
        "sub_block_size": None if spec is None else spec.sub_block_size,
        "max_context": asker.context,
        "default_mode": model.decoding().mode,
    }


def engine_for(model: Model, settings: Serving) -> Engine:
    """An engine of fixed capacity, warmed up, so that the first client waits for nothing that others do not."""
    size = 1 if model.spec is None else model.spec.block_size
    capacity = min(settings.context, model.backbone.max_positions) + size
    engine = model.engine(capacity=capacity, piece=settings.prefill, reuse=True)
    for mode in dict.fromkeys(["ar", model.decoding().mode]):
        engine.submit(Request([0], model.decoding(mode=mode, max_new_tokens=min(8, settings.context - 1))))
        while engine.live or engine.waiting:
            _check(engine.step())
    return engine


def _check(events: list[Event]) -> None:
    """Raise what went wrong with an answer."""
    for event in events:
        if isinstance(event, Finished) and event.answer.error is not None:
            raise event.answer.error


def app_for(service: Service) -> FastAPI:
    """The ASGI application. The worker is started and stopped by whoever serves it (`run`)."""
    app = FastAPI(title="unmask", version=unmask.__version__, description=__doc__, redoc_url=None, docs_url=None)
    app.add_middleware(Limits, settings=service.settings, responded=service.metrics.responded)
    if service.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients in browsers send headers of their own
            expose_headers=["retry-after"],
        )
    add_errors(app)
    _add_status(app, service)
    _add_api(app, service)
    app.add_api_route("/", _page, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=str(PAGE)), name="page")
    return app


async def _page() -> FileResponse:
    return FileResponse(str(PAGE / "index.html"), headers={"cache-control": "no-cache"})


def _add_api(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", responses=FAILURES, response_model=Models)
    async def models() -> Any:
        """The one model that is served."""
        return JSONResponse({"object": "list", "data": [service.described()]})

    @app.get("/v1/models/{name:path}", responses=FAILURES)
    async def model(name: str) -> Any:
        """The model of this name."""
        service.check_name(name)
        return JSONResponse(service.described())

    @app.post("/v1/chat/completions", responses=FAILURES, response_model=ChatReply)
    async def chat(http: Http, body: ChatAsked) -> Any:
        """Answer a chat, whole or as server-sent events."""
        service.check_name(body.model)
        return await _answer(http, service, body, await _planned(service.asker.chat, body), "chat")

    @app.post("/v1/completions", responses=FAILURES, response_model=CompletionReply)
    async def completions(http: Http, body: CompletionAsked) -> Any:
        """Continue raw prompts, whole or as server-sent events."""
        service.check_name(body.model)
        return await _answer(http, service, body, await _planned(service.asker.completion, body), "completion")


async def _planned(make: Callable[[Any], Plan], body: Asked) -> Plan:
    """A plan, made beside the event loop. Schemas take their time, and only each other's."""
    limiter = None if body.response_format is None else _schemas()
    return await anyio.to_thread.run_sync(make, body, limiter=limiter)


@functools.cache
def _schemas() -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(2)


async def _answer(http: Http, service: Service, body: Asked, plan: Plan, kind: str) -> Response:
    logprobs = body.logprobs_asked is not None
    teller = Teller(service.asker.tokenizer, service.name, plan, kind, usage=body.usage_asked, logprobs=logprobs)
    try:
        if body.stream:
            chunks = await opened(service.worker, teller, plan.requests, http.receive)
            return EventStream(chunks, service.settings.slow_reader, service.cut)
        async with asked(service.worker, plan.requests) as items:
            found = await unless_gone(answers(items, len(plan.requests)), http.receive)
        return JSONResponse(teller.whole(found))
    except ClientDisconnect:
        return Response(status_code=GONE)


def _add_status(app: FastAPI, service: Service) -> None:
    worker = service.worker

    def state(well: bool) -> JSONResponse:
        waiting, running = worker.counts
        body = {"status": worker.state, "model": service.name, "running": running, "waiting": waiting}
        body |= {"restarts": worker.restarts, "last_error": worker.error}
        return JSONResponse(body, 200 if well else 503)

    @app.get("/health", responses={503: {"model": Health}}, response_model=Health)
    async def health() -> Any:
        """Whether the engine works: 200, or 503 while it loads, starts again, stops, or is down."""
        return state(worker.state == "ok")

    @app.get("/ready", responses={503: {"model": Health}}, response_model=Health)
    async def ready() -> Any:
        """Whether a request would be taken now: 200, or 503 also where the queue is full."""
        return state(worker.state == "ok" and sum(worker.counts) < worker.rows + worker.queue_limit)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counts and times for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def name_of(ref: str) -> str:
    """What clients call a model: the last part of its reference."""
    return PurePath(ref).name.removesuffix(".gguf") or ref
