"""A real server process, and the clients that people use: openai's, huggingface_hub's, curl."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import httpx
import pytest
from serving import CAUSAL, body
from tiny import byte_tokenizer, tiny_model

from unmask.model.checkpoint import save_full

WORDS = [sys.executable, "-m", "unmask", "serve", "--port", "0"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served") / "tiny"
    save_full(tiny_model(), byte_tokenizer(), CAUSAL, directory)
    return directory


@contextlib.contextmanager
def process(*flags, **environment):
    """A server process and its address, once it says that it serves."""
    how = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    child = subprocess.Popen([*WORDS, *map(str, flags)], stderr=subprocess.PIPE, text=True, env=how)
    try:
        said = ""
        for line in child.stderr:
            said += line
            if found := re.search(r"at (http://\S+)/v1", line):
                child.url, child.said = found[1], said
                break
        else:
            raise AssertionError(f"it ended: {said}")
        yield child
    finally:
        child.kill()
        child.wait(10)
        child.stderr.close()


@pytest.fixture(scope="module")
def server(checkpoint):
    with process("--model", checkpoint, "--context", 256) as child:
        yield child


def words(text):
    return [{"role": "user", "content": text}]


# --- clients ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openai_answers_and_streams(client):
    how = {"model": "tiny", "messages": words("Hi"), "max_tokens": 24}
    whole = client.chat.completions.create(**how)
    assert whole.choices[0].message.role == "assistant" and whole.usage.completion_tokens == 24
    chunks = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 24 and chunks[-2].choices[0].finish_reason == "length"
    texts = {
        mode: client.chat.completions.create(**how, extra_body={"mode": mode}).choices[0].message.content
        for mode in ("ar", "verified")
    }
    assert texts["ar"] == texts["verified"] == whole.choices[0].message.content


def test_openai_choices_seeds_stops_logprobs(client):
    how = {"model": "tiny", "messages": words("Hi"), "max_tokens": 16, "temperature": 1.0, "seed": 4}
    texts = [[c.message.content for c in client.chat.completions.create(**how, n=3).choices] for _ in range(2)]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3
    whole = client.chat.completions.create(**how).choices[0]
    stop = whole.message.content[5]
    cut = client.chat.completions.create(**how, stop=[stop]).choices[0]
    assert cut.message.content == whole.message.content.partition(stop)[0] and cut.finish_reason == "stop"
    laws = client.chat.completions.create(**how, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(laws) == 16 and all(len(law.top_logprobs) == 3 for law in laws)


def test_openai_errors(client):
    import openai

    with pytest.raises(openai.NotFoundError, match="'gpt-4o' is not served here; served: 'tiny'"):
        client.chat.completions.create(model="gpt-4o", messages=words("Hi"))
    with pytest.raises(openai.BadRequestError, match="temperature is -1") as found:
        client.chat.completions.create(model="tiny", messages=words("Hi"), temperature=-1)
    assert found.value.param == "temperature" and found.value.type == "invalid_request_error"
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_openai_leaves_a_stream(client, server):
    stream = client.chat.completions.create(model="tiny", messages=words("Hi"), max_tokens=200, stream=True)
    next(iter(stream))
    stream.close()
    end = time.monotonic() + 5
    while (health := httpx.get(f"{server.url}/health").json())["running"]:
        assert time.monotonic() < end, health
        time.sleep(0.02)


def test_openai_completions(client):
    found = client.completions.create(model="tiny", prompt="def f(", max_tokens=8, logprobs=2)
    assert len(found.choices[0].logprobs.tokens) == 8 and found.usage.prompt_tokens == 6


def test_huggingface_hub(server, monkeypatch):
    """A client that is not built on openai's."""
    from huggingface_hub import InferenceClient

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # it would forbid this machine, too

    client = InferenceClient(base_url=f"{server.url}/v1", api_key="none")
    how = {"model": "tiny", "messages": words("Hi"), "max_tokens": 12}
    whole = client.chat_completion(**how).choices[0].message.content
    parts = client.chat_completion(**how, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == whole


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server):
    def curl(*more):
        return subprocess.run(["curl", "-sS", "-N", *more], capture_output=True, text=True, timeout=20).stdout

    url, kind = f"{server.url}/v1/chat/completions", ["-H", "content-type: application/json"]
    whole = json.loads(curl(url, *kind, "-d", json.dumps(body())))["choices"][0]["message"]["content"]
    lines = curl(url, *kind, "-d", json.dumps(body(stream=True))).strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == whole
    assert json.loads(curl(url, "-d", "{"))["error"]["type"] == "invalid_request_error"


# --- beginning and end -----------------------------------------------------------------------------------------------


def ended(child, seconds=10):
    return child.wait(seconds)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(checkpoint, sign):
    with process("--model", checkpoint) as child:
        began = time.monotonic()
        child.send_signal(sign)
        assert ended(child) == 0 and time.monotonic() - began < 3


@pytest.mark.parametrize("times", [1, 2])
def test_o5_10_sigterm_under_load(checkpoint, times):
    """An open stream and more requests than rows: all are told, nothing hangs, the exit code is 0."""
    with process(
        "--model", checkpoint, "--batch-size", 1, "--context", 510, "--grace", 0.5 if times == 1 else 60
    ) as child:
        with (
            httpx.Client(base_url=child.url, timeout=20) as http,
            http.stream(
                "POST", "/v1/chat/completions", json=body(max_tokens=400, stream=True, mode="ar", n=8)
            ) as found,
        ):
            lines = found.iter_lines()
            first = next(lines)
            began = time.monotonic()
            for _ in range(times):
                child.send_signal(signal.SIGTERM)
                time.sleep(0.1)
            rest = [line for line in lines if line]
        assert ended(child) == 0 and time.monotonic() - began < 8
        assert first.startswith("data: ")
        last = json.loads(rest[-1][6:]) if rest[-1] != "data: [DONE]" else None
        assert last is not None and last["error"]["code"] == "unavailable"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{child.url}/health")


def test_a_server_that_is_told_to_stop_while_it_loads(checkpoint):
    how = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([*WORDS, "--model", str(checkpoint)], stderr=subprocess.PIPE, text=True, env=how)
    assert "loading tiny" in child.stderr.readline()
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == 0
    child.stderr.close()


def refused(*flags, **environment):
    how = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    found = subprocess.run([*WORDS, *map(str, flags)], capture_output=True, text=True, env=how, timeout=60)
    return found.returncode, found.stderr.strip().splitlines()[-1]


def test_what_cannot_be_served_says_so(checkpoint, tmp_path, server):
    port = server.url.rpartition(":")[2]
    code, line = refused("--model", checkpoint, "--port", port)
    assert code == 2 and f"cannot listen on 127.0.0.1, port {port}: Address already in use" in line
    code, line = refused("--model", tmp_path / "nothing")
    assert code == 2 and line.startswith("error: ")
    code, line = refused("--port", 70000)
    assert code == 2 and "--port is 70000; allowed: from 0 to 65535" in line
    code, line = refused("--host", "no.such.host.example", "--model", checkpoint)
    assert code == 2 and "cannot listen on no.such.host.example" in line


def test_the_key_comes_from_the_environment_and_is_not_shown(checkpoint):
    with process("--model", checkpoint, "--name", "mine", UNMASK_API_KEY="a secret") as child:
        assert httpx.get(f"{child.url}/v1/models").status_code == 401
        found = httpx.get(f"{child.url}/v1/models", headers={"authorization": "Bearer a secret"})
        assert found.json()["data"][0]["id"] == "mine"
        assert "secret" not in child.said


def test_an_open_door_is_pointed_out(checkpoint):
    with process("--model", checkpoint, "--host", "0.0.0.0") as child:
        assert "warning: listening on 0.0.0.0 without an API key" in child.said


@pytest.mark.weights
@pytest.mark.slow
def test_the_demo_model_answers_in_every_mode():
    with process("--batch-size", 4, "--context", 512) as child, httpx.Client(base_url=child.url, timeout=60) as http:
        texts = {}
        for mode in ("ar", "verified", "threshold"):
            asked = body("Name three rivers.", mode=mode, max_tokens=24) | {"model": "demo"}
            texts[mode] = http.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
        assert texts["ar"] == texts["verified"] and len(texts["threshold"]) > 20
