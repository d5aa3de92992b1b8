"""A server in a thread of the test, over a tiny network or a scripted one."""

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import torch
import uvicorn
from scripted import ScriptedBackbone, sure
from tiny import MASK, TURN_END, VOCAB, byte_tokenizer, native, tiny_model

from unmask.api import Model
from unmask.config import BlockSpec
from unmask.serve.app import Service, app_for
from unmask.serve.run import Server, configured
from unmask.serve.settings import Serving

CAUSAL = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(TURN_END,), context="causal")
BLOCK = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(TURN_END,), context="block")


class Unmeasured(Model):
    """A model that no bench and no gate has seen; its costs are not known."""

    admissible = measured = costs = None  # type: ignore[assignment]


def model_of(backbone: Any, spec: Any = CAUSAL, rows: int = 4) -> Model:
    backbone.prepare = getattr(backbone, "prepare", lambda: None)
    stops = () if spec is None else spec.stop_ids
    checkpoint = SimpleNamespace(
        spec=spec, tokenizer=byte_tokenizer(), ref="tiny", path=None, chain=None, stop_ids=stops
    )
    return Unmeasured(checkpoint, backbone, rows)


def tiny(spec: Any = CAUSAL, rows: int = 4) -> Model:
    return model_of(native(tiny_model(), mask=torch.zeros(64)), spec, rows)


class Spelling(ScriptedBackbone):
    """Spells a text, byte by byte, behind every prompt; then it ends the turn. While `going` is cleared, forwards wait.

    `at(place)` is called with the place of every token that is proposed; it may raise, or return other logits.
    """

    ragged = True

    def __init__(self, text: str = "abcdefghij" * 20, seconds: float = 0.0) -> None:
        super().__init__(self._script, VOCAB)
        self.text, self.seconds, self.going = text.encode(), seconds, threading.Event()
        self.going.set()
        self.ends: dict[int, int] = {}
        self.at: Any = lambda place: None

    def _script(self, who: int, position: int, step: int) -> Any:
        place = position - self.ends.get(who, 0)
        token = self.text[place] if 0 <= place < len(self.text) else TURN_END
        found = self.at(place)
        return sure(token, vocab=VOCAB) if found is None else found

    def forward(self, cache: Any, rows: list[int], feeds: Any) -> Any:
        assert self.going.wait(20)
        time.sleep(self.seconds)
        for feed in feeds:
            if feed.start == 0:
                self.ends[feed.tokens[0]] = len(feed.tokens)
        return super().forward(cache, rows, feeds)


class _Threaded(Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def running(model: Any, wait: bool = True, **settings: Any) -> Iterator[Any]:
    """A server with `.url`, `.service`, and `.http`, a client of its own. model: a `Model`, or what makes one."""
    chosen = Serving(**{"port": 0, "context": 256, "grace": 3.0, **settings})
    service = Service(model if callable(model) else lambda: model, "tiny", chosen)
    how = {**configured(chosen), "log_level": "error", "timeout_graceful_shutdown": 3}
    config = uvicorn.Config(app_for(service), port=0, **how)
    server = _Threaded(config, service)
    service.worker.start()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    if wait:
        assert service.worker.ready.wait(20) and service.worker.state == "ok", service.worker.error
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=20) as http:
            yield SimpleNamespace(url=url, port=port, service=service, server=server, http=http)
    finally:
        service.worker.stop(0.0)
        server.should_exit = True
        thread.join(10)
        assert service.worker.join(10)


def until(true: Any, seconds: float = 10.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def body(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 24, **more}
