"""A small server that speaks the page's side of the contract from a script, so that a test decides every moment."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import unmask
from unmask.serve.limits import POLICY

PAGE = Path(unmask.__file__).parent / "serve" / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MODEL = {
    "modes": ["ar", "verified", "threshold"],
    "context": "causal",
    "block_size": 6,
    "sub_block_size": 3,
    "max_context": 2048,
    "default_mode": "verified",
}


SKY = [
    "Blue",
    " light",
    " is",
    " scattered",
    " more",
    " than",
    " red",
    " light",
    ",",
    " so",
    " the",
    " sky",
    " is",
    " blue",
    ".",
]
ANSWER = "".join(SKY)


@dataclass(frozen=True)
class Hold:
    """The script waits here until the test sets `gate`; then it goes on."""

    gate: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Refuse:
    """An HTTP error in place of an answer."""

    status: int
    message: str = "no"
    headers: tuple[tuple[str, str], ...] = ()


def chunk(delta=None, reason=None, **extra):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "demo",
        "choices": [choice],
    } | extra


def text(content):
    return chunk({"content": content})


def slot(token, confidence=0.9):
    """A slot of the block; None is a masked one."""
    if token is None:
        return {"id": None, "text": None, "masked": True, "confidence": 0.0}
    return {"id": sum(map(ord, token)), "text": token, "masked": False, "confidence": confidence}


def step(block, forwards, tokens, seconds=None):
    seconds = forwards * 0.05 if seconds is None else seconds
    return chunk(unmask={"block": block, "forwards": forwards, "completion_tokens": tokens, "seconds": seconds})


def end(mode, tokens, forwards, seconds=None, why="", reason="stop"):
    seconds = forwards * 0.05 if seconds is None else seconds
    figures = {
        "mode": mode,
        "why": why,
        "forwards": forwards,
        "forwards_by_kind": {"prefill": 1, "draft": forwards - 1},
        "tokens_per_forward": round(tokens / forwards, 3),
        "tokens_per_second": round(tokens / seconds, 2),
        "seconds": seconds,
        "completion_tokens": tokens,
        "prompt_tokens": 31,
        "cached_tokens": 24,
    }
    return chunk(reason=reason, unmask=figures)


def ar(tokens, hold=None):
    """One token per forward. hold: waits before the last token."""
    script = [chunk({"role": "assistant", "content": ""})]
    for n, token in enumerate(tokens, 1):
        script += [hold] if hold and n == len(tokens) else []
        script += [step(None, n, n), text(token)]
    return [*script, end("ar", len(tokens), len(tokens)), "[DONE]"]


ORDER = [0, 2, 1, 4, 3, 3]
SURE = [1.0, 0.91, 0.98, 0.72, 0.95, 0.93]


def threshold(tokens, hold=None):
    """Blocks of six, decided in the order of ORDER. hold: waits after step 3 of the first block."""
    script, forwards = [chunk({"role": "assistant", "content": ""})], 1
    for start in range(0, len(tokens), 6):
        part, sent = tokens[start : start + 6], 0
        for now in range(max(ORDER[: len(part)]) + 1):
            masked = [ORDER[n] > now for n in range(len(part))]
            settled = masked.index(True) if True in masked else len(part)
            slots = [
                slot(None if hidden else t, SURE[n]) for n, (t, hidden) in enumerate(zip(part, masked, strict=True))
            ]
            forwards += 1
            script.append(step({"start": start, "settled": settled, "slots": slots}, forwards, start + settled))
            script += [text("".join(part[sent:settled]))] if settled > sent else []
            sent = settled
            script += [hold] if hold and start == 0 and now == 3 else []
    return [*script, end("threshold", len(tokens), forwards), "[DONE]"]


def verified(tokens, hold=None):
    """Drafts of five behind the last token, of which a check keeps three and writes one more. hold: waits after the
    second draft."""
    script, forwards, written, drafts = [chunk({"role": "assistant", "content": ""}), text(tokens[0])], 1, 1, 0
    while written < len(tokens):
        seam, rest = tokens[written - 1], tokens[written : written + 5]
        guess = [*rest[:3], " wrong", " guess"][: len(rest)]
        for shown in ([None] * len(guess), guess):
            slots = [slot(seam, 1.0), *(slot(token, 0.95 - 0.1 * n) for n, token in enumerate(shown))]
            forwards += 1
            script.append(step({"start": written - 1, "settled": 1, "slots": slots}, forwards, written))
        drafts += 1
        script += [hold] if hold and drafts == 2 else []
        script.append(text("".join(rest[:4])))
        written += len(rest[:4])
    why = "it loses nothing and was the fastest here"
    return [*script, end("verified", len(tokens), forwards, why=why), "[DONE]"]


class PageServer(ThreadingHTTPServer):
    """scripts: what a request of each mode gets (auto stands for any other); requests: the bodies so far;
    left: how many clients went away before the end; piece: bytes per write, 0 for a chunk at a time."""

    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.scripts, self.requests, self.headers = {}, [], []
        self.left, self.piece, self.key, self.health, self.model = 0, 0, None, "ok", MODEL
        self.gone = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request, client_address):
        """A browser that closes its connections is no fault."""

    def close(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        """Quiet."""

    def reply(self, status, body, kind="application/json", headers=()):
        self.send_response(status)
        for name, value in [("Content-Type", kind), ("Content-Length", str(len(body))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, status, value, headers=()):
        self.reply(status, json.dumps(value).encode(), headers=headers)

    def refused(self):
        right = self.server.key is None or self.headers.get("Authorization") == f"Bearer {self.server.key}"
        if not right:
            self.json(
                401, {"error": {"message": "wrong key", "type": "auth", "param": None, "code": "invalid_api_key"}}
            )
        return not right

    def do_GET(self):  # noqa: N802
        if self.path == "/health":
            self.json(200 if self.server.health == "ok" else 503, {"status": self.server.health})
        elif self.path == "/v1/models":
            if not self.refused():
                self.json(
                    200, {"object": "list", "data": [{"id": "demo", "object": "model", "unmask": self.server.model}]}
                )
        else:
            self.file(PAGE / ("index.html" if self.path == "/" else self.path.removeprefix("/page/")))

    def file(self, path):
        if path.parent != PAGE or not path.is_file():
            return self.reply(404, b"", "text/plain")
        self.reply(200, path.read_bytes(), TYPES[path.suffix], [("Content-Security-Policy", POLICY)])

    def do_POST(self):  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        self.server.requests.append(body)
        script = self.server.scripts.get(body["mode"]) or self.server.scripts["auto"]
        if isinstance(script, Refuse):
            error = {"message": script.message, "type": "x", "param": None, "code": None}
            return self.json(script.status, {"error": error}, script.headers)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for item in script:
                self.play(item)
        except (BrokenPipeError, ConnectionResetError):
            self.server.left += 1
            self.server.gone.set()

    def play(self, item):
        if isinstance(item, Hold):
            while not item.gate.wait(0.02):
                self.wfile.write(b": waiting\n\n")
            return
        data = f"data: {item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)}\n\n".encode()
        size = self.server.piece or len(data)
        for n in range(0, len(data), size):
            self.wfile.write(data[n : n + size])
            self.wfile.flush()
