"""What goes wrong: clients that leave or do not read, networks that break, an engine that ends, a full queue."""

import contextlib
import json
import socket
import threading
import time

import httpx
import pytest
import torch
from serving import Spelling, body, model_of, running, tiny, until
from test_api import CHAT, ask, events, joined, refused


@contextlib.contextmanager
def streaming(server, **more):
    """An open stream and its lines."""
    with server.http.stream("POST", CHAT, json=body(**{"max_tokens": 200, **more}, stream=True)) as found:
        yield found, found.iter_lines()


def counts(server):
    return server.http.get("/health").json()["waiting"], server.http.get("/health").json()["running"]


def in_background(server, **more):
    """A request that is answered some time; returns the thread and where its answer will be."""
    found = []

    def call():
        with httpx.Client(base_url=server.url, timeout=20) as http:
            found.append(http.post(CHAT, json=body(**more)))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, found


def raw(server, **more):
    """A socket on which a request was sent."""
    text = json.dumps(body(**{"max_tokens": 200, **more})).encode()
    sock = socket.create_connection(("127.0.0.1", server.port))
    send(sock, text)
    return sock


def send(sock, text):
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    sock.sendall(head.encode() + text)


# --- clients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_o5_01_a_client_that_leaves_costs_no_more_than_a_step(spelling, stream):
    backbone = spelling.backbone
    backbone.seconds = 0.02
    sock = raw(spelling, stream=stream, mode="ar")
    until(lambda: counts(spelling) == (0, 1))
    sock.close()
    until(lambda: counts(spelling) == (0, 0), seconds=2)
    done = len(backbone.calls)
    time.sleep(0.2)
    assert len(backbone.calls) == done, "somebody still computes for nobody"
    assert ask(spelling, max_tokens=3)["choices"][0]["message"]["content"] == "abc"
    assert 'outcome="cancelled"} 1.0' in spelling.http.get("/metrics").text


def test_a_client_that_leaves_the_queue(spelling):
    spelling.backbone.going.clear()
    socks = [raw(spelling) for _ in range(4)]
    until(lambda: len(spelling.service.worker.tickets) == 4)
    for sock in socks:
        sock.close()
    time.sleep(0.1)
    spelling.backbone.going.set()
    until(lambda: counts(spelling) == (0, 0))
    assert len(spelling.backbone.calls) < 60


def test_200_clients_that_vanish(spelling):
    """Half in a stream, half waiting for a whole answer; rows and queue are free at the end."""
    spelling.backbone.seconds = 0.002
    for at in range(200):
        sock = raw(spelling, stream=at % 2 == 0, mode=("ar", "verified", "threshold")[at % 3])
        if at % 5 == 0:
            sock.recv(100)
        sock.close()
    until(lambda: len(spelling.server.server_state.tasks) == 0 and not spelling.service.worker.tickets)
    until(lambda: counts(spelling) == (0, 0) and not spelling.service.worker.indexed)
    assert ask(spelling, max_tokens=3)["choices"][0]["message"]["content"] == "abc"


def test_a_client_that_does_not_read_is_left():
    """Its row is free long before, its connection after the time that the server waits for a client."""
    model = tiny(rows=1)
    with running(model, slow_reader=0.5, context=508, max_tokens=500) as server:
        for each in server.server.servers[0].sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(("127.0.0.1", server.port))
        how = {"stream": True, "mode": "ar", "logprobs": True, "top_logprobs": 20, "max_tokens": 400}
        send(sock, json.dumps(body(**how)).encode())
        until(lambda: len(server.server.server_state.connections) == 1)
        client = next(iter(server.server.server_state.connections))
        until(lambda: client.flow is not None and client.flow.write_paused)
        until(lambda: client.transport.is_closing() and not server.service.worker.tickets)
        until(lambda: client not in server.server.server_state.connections)
        assert ask(server, max_tokens=2)
        sock.close()


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/chat/co", b"POST /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"]
)
def test_a_request_that_does_not_come_is_not_waited_for(sent):
    with running(tiny(), slow_reader=0.4) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
            sock.sendall(sent)
            said = sock.recv(1000)
        assert said == b"" if not sent.endswith(b"{") else said.startswith(b"HTTP/1.1 408")
        until(lambda: not server.server.server_state.connections)


def test_half_a_second_request_is_not_waited_for():
    with running(tiny(), slow_reader=0.4) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert sock.recv(2000).startswith(b"HTTP/1.1 200")
            sock.sendall(b"GET /hea")
            began = time.monotonic()
            while sock.recv(2000):
                pass
            assert time.monotonic() - began < 3


def test_a_slow_reader_gets_everything():
    with running(model_of(Spelling(), rows=1), slow_reader=5.0) as server:
        text = ""
        with streaming(server, provisional=True) as (_, lines):
            for line in lines:
                time.sleep(0.002)
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        assert text == "abcdefghij" * 20


def test_o5_11_parallel_answers_do_not_mix():
    """16 at once, each with its own word, half of them streaming, in all modes: each equals its single run."""
    with running(tiny(rows=5), queue=16) as server:
        asked = [
            {"text": f"word {n}", "mode": ("ar", "verified", "threshold", "auto")[n % 4], "max_tokens": 5 + 3 * n,
             "temperature": n % 3 / 2, "seed": n}
            for n in range(16)
        ]  # fmt: skip
        single = [ask(server, **each)["choices"][0]["message"]["content"] for each in asked]
        found = [None] * 16

        def call(n):
            with httpx.Client(base_url=server.url, timeout=30) as http:
                own = type("", (), {"http": http})
                found[n] = joined(events(own, **body(**asked[n]))) if n % 2 else (
                    ask(own, **asked[n])["choices"][0]["message"]["content"]
                )  # fmt: skip

        threads = [threading.Thread(target=call, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert found == single


# --- too much --------------------------------------------------------------------------------------------------------


def test_texts_beyond_any_context_are_not_tokenized(spelling, monkeypatch):
    monkeypatch.setattr(spelling.service.asker, "tokenizer", None)  # it would be an error to ask it
    found = spelling.http.post(CHAT, json=body("x" * 500_000))
    assert refused(found, param="messages")["code"] == "context_length_exceeded"
    assert 'unmask_http_responses_total{status="400"}' in spelling.http.get("/metrics").text


def test_a_full_queue_says_when_to_come_back(spelling):
    spelling.backbone.going.clear()
    busy = [in_background(spelling, max_tokens=4) for _ in range(4)]  # two rows, two wait
    until(lambda: len(spelling.service.worker.tickets) == 4)
    found = spelling.http.post(CHAT, json=body())
    error = refused(found, status=429)
    assert "4 requests are running or waiting, the server takes 4" in error["message"] and error["code"] == "busy"
    assert 1 <= int(found.headers["retry-after"]) <= 60
    assert spelling.http.get("/ready").status_code == 503 and spelling.http.get("/health").status_code == 200
    spelling.backbone.going.set()
    for thread, answers in busy:
        thread.join(10)
        assert answers[0].json()["choices"][0]["message"]["content"] == "abcd"
    assert spelling.http.get("/ready").status_code == 200


def test_all_choices_of_a_request_enter_the_queue_or_none(spelling):
    error = refused(spelling.http.post(CHAT, json=body(n=5)), status=429)
    assert "this one asks for 5 answers" in error["message"]
    assert len(ask(spelling, n=4, max_tokens=2)["choices"]) == 4


def test_a_request_has_a_time_limit():
    backbone = Spelling(seconds=0.03)
    with running(model_of(backbone), timeout=0.5) as server:
        error = refused(server.http.post(CHAT, json=body(max_tokens=200, mode="ar")), status=504)
        assert error["code"] == "timeout" and "longer than 0.5 s" in error["message"]
        with streaming(server, mode="ar") as (found, lines):
            assert found.status_code == 200
            text = [line for line in lines if line]
        assert json.loads(text[-1][6:])["error"]["code"] == "timeout" and "data: [DONE]" not in text
        assert counts(server) == (0, 0)


# --- the network and the engine --------------------------------------------------------------------------------------


def broken(place):
    return torch.full((261,), torch.nan)


@pytest.mark.parametrize("stream", [False, True])
def test_o5_09_nothing_but_an_error(spelling, stream):
    spelling.backbone.at = broken
    error = refused(spelling.http.post(CHAT, json=body(stream=stream, mode="ar")), status=500)
    assert "NaN or infinite logits" in error["message"]
    spelling.backbone.at = lambda place: None
    assert ask(spelling, max_tokens=2)


def test_o5_09_an_error_in_the_middle_of_a_stream(spelling):
    spelling.backbone.at = lambda place: broken(place) if place == 12 else None
    with streaming(spelling, mode="ar") as (found, lines):
        assert found.status_code == 200
        text = [json.loads(line[6:]) for line in lines if line]  # no [DONE], or this would fail
    assert joined(text[:-1]) == "abcdefghijab" and "NaN" in text[-1]["error"]["message"]
    assert ask(spelling, max_tokens=2)["choices"][0]["message"]["content"] == "ab"


def fails(place):
    raise RuntimeError("the wires are cut")


def test_an_engine_that_fails_is_started_again(spelling, caplog):
    """Its requests end with an error, also those that waited; /health says what happened; the next one is served."""
    backbone = spelling.backbone
    backbone.at = lambda place: fails(place) if place == 5 else None
    with streaming(spelling, mode="ar") as (_, lines):
        text = [json.loads(line[6:]) for line in lines if line]
    assert joined(text[:-1]) == "abcde" and "the engine failed" in text[-1]["error"]["message"]
    backbone.at = lambda place: None
    until(lambda: spelling.http.get("/health").status_code == 200)
    health = spelling.http.get("/health").json()
    assert health["restarts"] == 1 and health["last_error"] == "RuntimeError: the wires are cut"
    assert "the wires are cut" not in json.dumps(text), "clients are told no details"
    assert ask(spelling, max_tokens=2)["choices"][0]["message"]["content"] == "ab"
    assert "unmask_engine_restarts_total 1.0" in spelling.http.get("/metrics").text


class Panic(BaseException):
    """What libraries in other languages raise."""


def panics(place):
    raise Panic("it is over")


def test_failures_between_good_answers_are_forgiven(spelling):
    for _ in range(7):
        spelling.backbone.at = lambda place: fails(place) if place == 30 else None
        refused(spelling.http.post(CHAT, json=body(mode="ar", max_tokens=50)), status=500)
        spelling.backbone.at = lambda place: None
        until(lambda: spelling.service.worker.state == "ok")
        assert ask(spelling, max_tokens=2)
    assert spelling.service.worker.restarts == 7


def test_a_panic_is_a_failure_like_others(spelling, caplog):
    spelling.backbone.at = lambda place: panics(place) if place == 20 else None
    assert (
        "the engine failed"
        in refused(spelling.http.post(CHAT, json=body(max_tokens=40, mode="ar")), status=500)["message"]
    )
    until(lambda: spelling.service.worker.state == "ok")
    assert ask(spelling, max_tokens=2)


def test_a_network_that_is_broken_from_the_start():
    backbone = Spelling()
    backbone.at = broken
    with pytest.raises(AssertionError, match="NaN or infinite logits"), running(model_of(backbone)):
        pass


def test_hostile_schemas_wait_for_one_another_and_for_nobody_else():
    pytest.importorskip("llguidance")
    with running(tiny()) as server:
        rules = [{"type": "integer", "multipleOf": 99999900 + n} for n in range(6)]
        forms = [{"type": "json_schema", "json_schema": {"name": "x", "schema": each}} for each in rules]
        hostile = [in_background(server, response_format=form) for form in forms]
        time.sleep(0.3)
        began = time.monotonic()
        assert ask(server, max_tokens=2)
        assert time.monotonic() - began < 2
        for thread, found in hostile:
            thread.join(30)
            assert found[0].status_code in (400, 429), found[0].text
            assert (found[0].status_code == 429) == ("retry-after" in found[0].headers)
        assert "more than 3 seconds" in hostile[0][1][0].text or any("more than 3" in f[0].text for _, f in hostile)
        began = time.monotonic()
        refused_ = next(i for i, (_, f) in enumerate(hostile) if f[0].status_code == 400)
        assert server.http.post(CHAT, json=body(response_format=forms[refused_])).status_code == 400
        assert time.monotonic() - began < 1, "a refusal is remembered"


def test_an_engine_that_fails_again_and_again_is_given_up():
    backbone = Spelling()
    with running(model_of(backbone)) as server:
        backbone.at = lambda place: fails(place) if place == 30 else None
        for _ in range(5):  # an engine writes a few tokens before it is believed, so places near 0 would not do
            until(lambda: server.service.worker.state == "ok")
            refused(server.http.post(CHAT, json=body(mode="ar", max_tokens=50)), status=500)
        until(lambda: server.service.worker.state == "down")
        assert server.http.get("/health").status_code == 503
        assert refused(server.http.post(CHAT, json=body()), status=503)["code"] == "unavailable"


# --- beginning and end -----------------------------------------------------------------------------------------------


def test_o5_08_health_while_the_model_loads():
    may, model = threading.Event(), tiny()

    def load():
        assert may.wait(10)
        return model

    with running(load, wait=False) as server:
        assert server.http.get("/health").json()["status"] == "loading"
        assert server.http.get("/health").status_code == server.http.get("/ready").status_code == 503
        assert refused(server.http.post(CHAT, json=body()), status=503)["message"].startswith("the model is loading")
        assert server.http.get("/v1/models").json()["data"][0]["id"] == "tiny"
        may.set()
        until(lambda: server.http.get("/health").status_code == 200)
        assert ask(server, max_tokens=2)


def test_o5_10_what_runs_may_end_within_the_grace_time(spelling):
    backbone = spelling.backbone
    backbone.seconds = 0.01
    with streaming(spelling, mode="ar", max_tokens=30) as (_, lines):
        next(lines)
        spelling.service.worker.stop(5.0)
        refused(spelling.http.post(CHAT, json=body()), status=503)
        text = [line for line in lines if line]
    assert text[-1] == "data: [DONE]"
    assert spelling.service.worker.join(3) and spelling.service.worker.state == "stopped"


def test_o5_10_what_takes_longer_ends_with_an_error(spelling):
    """Streams and whole answers, also one that still waited for a row."""
    spelling.backbone.seconds = 0.05
    waits = [in_background(spelling, mode="ar", max_tokens=200) for _ in range(3)]
    until(lambda: counts(spelling) == (1, 2))
    spelling.service.worker.stop(0.3)
    for thread, answers in waits:
        thread.join(5)
        assert "the server is stopping" in refused(answers[0], status=503)["message"]
    assert spelling.service.worker.join(3)


def test_o5_10_told_twice_nothing_is_waited_for(spelling):
    spelling.backbone.seconds = 0.05
    thread, answers = in_background(spelling, mode="ar", max_tokens=200)
    until(lambda: counts(spelling) == (1, 0) or counts(spelling) == (0, 1))
    began = time.monotonic()
    spelling.service.worker.stop(60.0)
    spelling.service.worker.stop(0.0)
    thread.join(5)
    assert "the server is stopping" in refused(answers[0], status=503)["message"] and time.monotonic() - began < 2
    assert spelling.service.worker.join(3)
