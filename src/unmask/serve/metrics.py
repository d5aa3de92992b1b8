"""What Prometheus reads at `/metrics`."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from unmask.events import Answer

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
RATES = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)


class Metrics:
    """Counters of one server, in a registry of its own. Names begin with `unmask_`."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        named: Any = {"registry": registry, "namespace": "unmask"}
        self.waiting = Gauge("requests_waiting", "Requests that wait for a row", **named)
        self.running = Gauge("requests_running", "Requests that have a row", **named)
        self.requests = Counter("requests", "Requests that ended, by mode and how", ["mode", "outcome"], **named)
        self.prompt = Counter("prompt_tokens", "Tokens of answered prompts", ["mode"], **named)
        self.cached = Counter("cached_tokens", "Prompt tokens whose keys and values were there", ["mode"], **named)
        self.tokens = Counter("tokens", "Tokens of answers", ["mode"], **named)
        self.forwards = Counter("forwards", "Calls of the network per row, by kind", ["mode", "kind"], **named)
        self.guessed = Counter("guessed_tokens", "Tokens that mode verified checked", ["source"], **named)
        self.kept = Counter("accepted_tokens", "Guessed tokens that stood the check", ["source"], **named)
        self.responses = Counter("http_responses", "Responses of HTTP, by status", ["status"], **named)
        self.restarts = Counter("engine_restarts", "Times that the engine failed and was started again", **named)
        timed: Any = {"buckets": SECONDS, **named}
        self.first = Histogram("first_text_seconds", "From the request to its first text", ["mode"], **timed)
        self.waited = Histogram("queue_seconds", "From the request to its row", ["mode"], **timed)
        self.took = Histogram("request_seconds", "From the request to the end of its answer", ["mode"], **timed)
        self.rate = Histogram("tokens_per_forward", "Tokens per forward of an answer", ["mode"], buckets=RATES, **named)

    def answered(self, answer: Answer, seconds: float) -> None:
        """Count a finished answer; seconds: since it was asked for."""
        mode = answer.mode
        self.ended(mode, answer.finish_reason)
        self.prompt.labels(mode).inc(answer.prompt_tokens)
        self.cached.labels(mode).inc(answer.cached_tokens)
        self.tokens.labels(mode).inc(answer.completion_tokens)
        for kind, count in answer.forwards_by_kind.items():
            self.forwards.labels(mode, kind).inc(count)
        for source, guessed, kept in answer.checks:
            self.guessed.labels(source).inc(guessed)
            self.kept.labels(source).inc(kept)
        self.took.labels(mode).observe(seconds)
        self.waited.labels(mode).observe(max(0.0, seconds - answer.seconds))
        if answer.forwards:
            self.rate.labels(mode).observe(answer.completion_tokens / answer.forwards)

    def ended(self, mode: str, outcome: str) -> None:
        """Count a request by how it ended: stop, length, cancelled, or the name of an error."""
        self.requests.labels(mode, outcome).inc()

    def responded(self, status: int) -> None:
        """Count a response, refused ones too."""
        self.responses.labels(str(status)).inc()

    def watch(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Gauges that are read when they are asked for; counts: requests that wait and that run."""
        self.waiting.set_function(lambda: counts()[0])
        self.running.set_function(lambda: counts()[1])

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
