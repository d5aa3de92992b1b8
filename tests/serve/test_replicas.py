"""Replicas behind Ray Serve: spread, streams, a client that leaves, a replica that is killed."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from serving import CAUSAL, body
from test_api import CHAT, events, joined
from tiny import byte_tokenizer, tiny_model

from unmask.model.checkpoint import save_full

pytest.importorskip("ray.serve", reason="ray[serve] is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served") / "tiny"
    save_full(tiny_model(), byte_tokenizer(), CAUSAL, directory)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--model", directory, "--replicas", 2, "--port", port, "--context", 512, "--grace", 3]
    child = subprocess.Popen([sys.executable, "-m", "unmask", *map(str, words)], stderr=subprocess.PIPE, text=True)
    try:
        for line in child.stderr:
            if "at http://" in line:
                break
        else:
            raise AssertionError("it ended")
        child.url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=child.url, timeout=60) as child.http:
            yield child
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait(10)
        child.stderr.close()


def replicas(parent):
    """Process ids of the replicas that descend from a process, through Ray's own processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ServeReplica" in stat.read_bytes():
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def test_answers_and_streams_are_those_of_one_server(served):
    texts = {served.http.post(CHAT, json=body()).json()["choices"][0]["message"]["content"] for _ in range(6)}
    assert texts == {joined(events(served))}
    assert served.http.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert served.http.get("/health").json()["status"] == "ok"
    error = served.http.post(CHAT, json=body(temperature=-1))
    assert error.status_code == 400 and error.json()["error"]["param"] == "temperature"


def test_a_replica_killed_under_load_is_replaced(served):
    """What it was writing fails; everything else is answered, and soon both replicas are there again."""
    before = replicas(served)
    assert len(before) == 2
    right = served.http.post(CHAT, json=body(max_tokens=200)).json()["choices"][0]["message"]["content"]
    found, stop = [], threading.Event()

    def client():
        with httpx.Client(base_url=served.url, timeout=60) as http:
            while not stop.is_set():
                try:
                    answer = http.post(CHAT, json=body(max_tokens=200))
                    found.append((answer.status_code, answer))
                except httpx.HTTPError:
                    found.append((0, None))

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    os.kill(before[0], signal.SIGKILL)
    end = time.monotonic() + 60
    while len(set(replicas(served)) - {before[0]}) < 2 and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(3)
    stop.set()
    for thread in threads:
        thread.join(60)
    good = [a for status, a in found if status == 200]
    failed = [status for status, _ in found if status != 200]
    assert len(failed) <= 8, f"{len(failed)} of {len(found)} failed"
    assert {a.json()["choices"][0]["message"]["content"] for a in good} == {right}
    assert found[-1][0] == 200 and len(set(replicas(served)) - {before[0]}) == 2
    print(f"{len(good)} answered, {len(failed)} failed: {failed}")
