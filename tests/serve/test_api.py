"""The API as clients see it: bodies, answers, streams, errors."""

import json
import time

import pytest
from serving import BLOCK, Spelling, body, model_of, running, tiny

CHAT, RAW = "/v1/chat/completions", "/v1/completions"
MODES = ("ar", "verified", "threshold")


def ask(server, **more):
    found = server.http.post(CHAT, json=body(**more))
    assert found.status_code == 200, found.text
    return found.json()


def refused(found, status=400, param=None):
    error = found.json()["error"]
    assert found.status_code == status and set(error) == {"message", "type", "param", "code"}, found.text
    assert error["param"] == param, error
    assert "\n" not in error["message"] and error["message"]
    return error


def events(server, path=CHAT, **more):
    """The data lines of a stream, in their order; the last must be [DONE]."""
    asked = {
        **(body() if path == CHAT else {"model": "tiny", "prompt": "Hi", "max_tokens": 24}),
        "stream": True,
        **more,
    }
    with server.http.stream("POST", path, json=asked) as found:
        assert found.status_code == 200 and found.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in found.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def joined(chunks, place=0):
    deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == place]
    return "".join(delta.get("content", "") for delta in deltas)


# --- bodies ----------------------------------------------------------------------------------------------------------

BROKEN = [
    ('{"model": "tiny", "mess', None),
    ("", None),
    ("[]", None),
    ("null", None),
    ('{"model": "tiny", "messages": "hi"}', "messages"),
    ('{"model": "tiny"}', "messages"),
    ('{"model": "tiny", "messages": []}', "messages"),
    ('{"model": "tiny", "messages": [{"role": "robot", "content": "x"}]}', "messages"),
    ('{"model": "tiny", "messages": [{"role": "user"}]}', "messages"),
    ('{"model": "tiny", "messages": [{"role": "user", "content": null}]}', "messages"),
    ('{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', "messages"),
    ("[" * 5000, None),
]


@pytest.mark.parametrize("text, param", BROKEN)
def test_o5_02_broken_bodies(served, text, param):
    refused(served.http.post(CHAT, content=text, headers={"content-type": "application/json"}), param=param)
    assert ask(served, max_tokens=1)["usage"]["completion_tokens"] <= 1


def test_o5_02_a_body_that_is_not_utf8(served):
    error = refused(served.http.post(CHAT, content=b'{"model": "\xff"}', headers={"content-type": "application/json"}))
    assert "UTF-8" in error["message"]


@pytest.mark.parametrize(
    "field, value, says",
    [
        ("temperature", "hot", 'temperature is "hot"; allowed: a valid number'),
        ("temperature", -1, "temperature is -1; allowed: greater than or equal to 0"),
        ("temperature", True, "temperature is true; allowed: a valid number"),
        ("top_p", 0, "top_p is 0; allowed: greater than 0"),
        ("max_tokens", "ten", 'max_tokens is "ten"; allowed: a valid integer'),
        ("max_tokens", 0, "max_tokens is 0; allowed: greater than or equal to 1"),
        ("max_tokens", -1, "max_tokens is -1; allowed: greater than or equal to 1"),
        ("max_tokens", 1.5, "max_tokens is 1.5; allowed: a valid integer"),
        ("max_tokens", True, "max_tokens is true; allowed: a valid integer"),
        ("max_tokens", "5", 'max_tokens is "5"; allowed: a valid integer'),
        ("max_completion_tokens", 0, "max_completion_tokens is 0; allowed: greater than or equal to 1"),
        ("stop", 5, "stop is 5; allowed: a valid string"),
        ("stop", "", 'stop is ""; allowed: not empty'),
        ("stop", ["x", ""], 'stop.1 is ""; allowed: not empty'),
        ("stream", "yes", 'stream is "yes"; allowed: a valid boolean'),
        ("seed", "x", 'seed is "x"; allowed: a valid integer'),
        ("n", 0, "n is 0; allowed: greater than or equal to 1"),
        ("n", 1000, "n is 1000; allowed: at most 8 answers"),
        ("mode", "fast", "mode is \"fast\"; allowed: 'auto', 'ar', 'threshold' or 'verified'"),
        ("max_loss", 10**400, "max_loss has 401 digits; allowed: a number"),
        ("threshold", 2, "threshold is 2; allowed: less than or equal to 1"),
        (
            "rule",
            "best",
            "rule is 'best'; allowed: threshold, top-k, factor, entropy-bound, each optionally with :value",
        ),
        (
            "block_size",
            5,
            "block_size 5 does not divide 8, the size the checkpoint was trained with; use a divisor of 8",
        ),
        ("top_logprobs", 3, "top_logprobs is allowed with logprobs true only"),
        ("stream_options", {"include_usage": True}, "stream_options is allowed with stream true only"),
        ("provisional", True, "provisional is allowed with stream true only"),
        ("tools", [{"type": "function"}], "tools is not served; leave it out"),
        ("frequency_penalty", 0.5, "frequency_penalty is not served; leave it out"),
        ("logit_bias", {"5": 1}, "logit_bias is not served; leave it out"),
        ("top_k", 5, "top_k is not a field of this API; leave it out"),
        ("max_new_tokens", 5, "max_new_tokens is not a field of this API; leave it out"),
    ],
)
def test_what_is_refused_is_named(served, field, value, says):
    assert refused(served.http.post(CHAT, json=body(**{field: value})), param=field)["message"] == says


NOTHING = {
    "tools": [], "tool_choice": "none", "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "user": "me",
    "metadata": {"a": "b"}, "store": False, "audio": None, "top_k": None, "temperature": None, "max_tokens": None,
    "stop": None, "n": None, "seed": None, "stream": None, "mode": None, "response_format": {"type": "text"},
}  # fmt: skip


def test_fields_that_ask_for_nothing_are_taken(served):
    plain = ask(served, max_tokens=None)
    assert ask(served, **NOTHING)["choices"][0]["message"] == plain["choices"][0]["message"]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"model": "tiny", "messages": [1] * 300_000}),
        json.dumps({"model": "tiny", "messages": [{"role": "user", "content": [{}] * 200_000}]}),
        json.dumps({"prompt": [1.5] * 180_000, "model": "tiny"}),
    ],
    ids=["messages", "parts", "prompt"],
)
def test_a_long_list_of_mistakes_is_one_mistake(served, text):
    """One error each would take the server half a minute and gigabytes."""
    began = time.monotonic()
    path = RAW if "prompt" in text[:10] else CHAT
    found = served.http.post(path, content=text, headers={"content-type": "application/json"})
    refused(found, param="prompt" if path == RAW else "messages")
    assert time.monotonic() - began < 3


def test_messages_quote_no_more_than_fits(served):
    error = refused(served.http.post(CHAT, json=body(n=10**3000)), param="n")
    assert len(error["message"]) == 500


# --- length limits ---------------------------------------------------------------------------------------------------


def test_o5_03_limits(spelling):
    """The smaller of both names counts; what the context cannot hold is cut off; none given is the server's default."""
    used = lambda **more: ask(spelling, **more)["usage"]["completion_tokens"]  # noqa: E731
    assert used(max_tokens=5) == used(max_tokens=None, max_completion_tokens=5) == 5
    assert used(max_tokens=9, max_completion_tokens=5) == used(max_tokens=5, max_completion_tokens=9) == 5
    prompt = ask(spelling)["usage"]["prompt_tokens"]
    assert used(max_tokens=100_000_000) == used(max_tokens=None) == min(200, 256 - prompt)


def test_the_default_limit():
    with running(model_of(Spelling()), max_tokens=7) as server:
        found = ask(server, max_tokens=None)
        assert found["usage"]["completion_tokens"] == 7 and found["choices"][0]["finish_reason"] == "length"


def test_a_prompt_beyond_the_context(served):
    found = served.http.post(CHAT, json=body("x" * 300))
    error = refused(found, param="messages")
    assert error["code"] == "context_length_exceeded" and "the context of this server has 256" in error["message"]


# --- answers ---------------------------------------------------------------------------------------------------------


def test_the_shape_of_an_answer(spelling):
    found = ask(spelling, max_tokens=6, mode="verified")
    [choice] = found["choices"]
    assert found["object"] == "chat.completion" and found["id"].startswith("chatcmpl-") and found["model"] == "tiny"
    assert choice["message"] == {"role": "assistant", "content": "abcdef", "refusal": None}
    assert choice["index"] == 0 and choice["finish_reason"] == "length" and choice["logprobs"] is None
    took = choice["unmask"]
    assert took["mode"] == "verified" and took["completion_tokens"] == 6 and took["forwards"] == 3
    assert took["forwards_by_kind"] == {"prefill": 1, "draft": 1, "check": 1} and took["tokens_per_forward"] == 2
    usage = found["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6


def test_the_end_of_an_answer(spelling):
    found = ask(spelling, max_tokens=None, mode="ar")["choices"][0]
    assert found["finish_reason"] in ("stop", "length")
    assert found["message"]["content"] == ("abcdefghij" * 20)[: found["unmask"]["completion_tokens"]]


def test_o5_04_choices(served):
    warm = ask(served, n=3, temperature=1.0, seed=5)["choices"]
    assert [c["index"] for c in warm] == [0, 1, 2] and len({c["message"]["content"] for c in warm}) == 3
    cold = ask(served, n=3)["choices"]
    assert len({c["message"]["content"] for c in cold}) == 1
    chunks = events(served, n=3, temperature=1.0, seed=5)
    assert [joined(chunks, place) for place in range(3)] == [c["message"]["content"] for c in warm]
    ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert ask(served, temperature=1.0, seed=6)["choices"][0]["message"] == warm[1]["message"]


@pytest.mark.parametrize("mode", MODES)
def test_seeds_repeat_whatever_else_is_served(served, mode):
    once = ask(served, mode=mode, temperature=1.0, seed=3)["choices"][0]["message"]
    crowd = ask(served, mode=mode, temperature=1.0, seed=1, n=4)["choices"]
    assert crowd[2]["message"] == once


def test_verified_is_ar_and_auto_is_verified(served):
    found = {mode: ask(served, mode=mode)["choices"][0] for mode in ("ar", "verified", "auto")}
    assert len({each["message"]["content"] for each in found.values()}) == 1
    assert found["auto"]["unmask"]["mode"] == "verified" and "bench has not measured" in found["auto"]["unmask"]["why"]


# --- log-probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ar", "verified"])
def test_o5_05_logprobs_of_a_chat(served, mode):
    whole = ask(served, mode=mode, logprobs=True, top_logprobs=5)
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == whole["usage"]["completion_tokens"]
    for entry in content:
        top = entry["top_logprobs"]
        assert len(top) == 5 and top[0]["logprob"] == entry["logprob"] <= 0  # greedy
        assert entry["bytes"] is None or bytes(entry["bytes"]).decode() == entry["token"]
    chunks = events(served, mode=mode, logprobs=True, top_logprobs=5)
    parts = [c["logprobs"]["content"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert sum(parts, []) == content


def test_o5_05_minus_infinity_is_a_number():
    """The mask's logit is minus infinity; with the whole vocabulary asked for it must not become -Infinity."""
    import torch

    backbone = Spelling()
    backbone.at = lambda place: torch.tensor([0.0] * 2 + [-torch.inf] * 259)
    with running(model_of(backbone)) as server:
        found = server.http.post(CHAT, json=body(mode="ar", logprobs=True, top_logprobs=20, max_tokens=2))
        assert "Infinity" not in found.text and "NaN" not in found.text
        top = found.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert [round(each["logprob"], 3) for each in top] == [-0.693, -0.693]


def test_o5_05_what_logprobs_cannot_be(served):
    assert (
        "top_logprobs is 99"
        in refused(served.http.post(CHAT, json=body(logprobs=True, top_logprobs=99)), param="top_logprobs")["message"]
    )
    assert (
        "mode threshold"
        in refused(served.http.post(CHAT, json=body(logprobs=True, mode="threshold")), param="logprobs")["message"]
    )


def test_logprobs_of_completions(spelling):
    asked = {"model": "tiny", "prompt": "x", "max_tokens": 3, "logprobs": 2, "mode": "ar"}
    laws = spelling.http.post(RAW, json=asked).json()["choices"][0]["logprobs"]
    assert laws["tokens"] == ["a", "b", "c"] and laws["text_offset"] == [0, 1, 2]
    assert [list(each)[0] for each in laws["top_logprobs"]] == ["a", "b", "c"]
    assert all(-0.02 < value < 0 for value in laws["token_logprobs"])


# --- streams ---------------------------------------------------------------------------------------------------------


def test_o5_06_usage_comes_when_asked(served):
    whole = ask(served)["usage"]
    for options in (None, {"include_usage": False}, {}):
        assert not any(chunk.get("usage") for chunk in events(served, stream_options=options))
    chunks = events(served, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == [] and all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["usage"] | {"prompt_tokens_details": 0} == whole | {"prompt_tokens_details": 0}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stop", [None, "e", ["\x00", "cd", "fgh"]])
def test_o5_13_a_stream_is_the_whole_answer(served, mode, stop):
    how = {"mode": mode, "stop": stop, "max_tokens": 60, "threshold": 0.3}
    whole = ask(served, **how)["choices"][0]
    chunks = events(served, **how)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(chunks) == whole["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == whole["finish_reason"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    last = dict(chunks[-1]["unmask"])
    same = ("mode", "forwards", "forwards_by_kind", "completion_tokens", "prompt_tokens")
    assert {name: last[name] for name in same} == {name: whole["unmask"][name] for name in same}


def test_o5_13_slots_decided_out_of_order_are_shown_in_order():
    """Slot 5 is sure at once, its neighbours come one by one: nothing behind a masked slot is ever sent as text."""
    from scripted import sure

    backbone = Spelling("abcdefgh" * 4)

    def at(place):
        return sure(backbone.text[place], 0.99 if place % 8 in (5, 0) else 0.5, vocab=261) if 0 <= place < 32 else None

    backbone.at = at
    with running(model_of(backbone, BLOCK)) as server:
        asked = body("Hello")  # with the template a whole number of blocks
        chunks = events(server, mode="threshold", provisional=True, max_tokens=20, messages=asked["messages"])
    text, shown = "", []
    for chunk in chunks:
        text += chunk["choices"][0]["delta"].get("content", "")
        block = chunk.get("unmask", {}).get("block")
        if block is not None:
            masked = [slot["masked"] for slot in block["slots"]]
            shown.append(masked)
            assert block["settled"] <= (masked + [True]).index(True)
            assert all(slot["text"] is None and slot["id"] is None for slot in block["slots"] if slot["masked"])
    assert text == ("abcdefgh" * 4)[:20]
    assert any(False in masked[masked.index(True) :] for masked in shown if True in masked), "never out of order"


@pytest.mark.parametrize("mode", MODES)
def test_the_block_being_written(served, mode):
    chunks = events(served, mode=mode, provisional=True, max_tokens=30)
    pictures = [chunk["unmask"] for chunk in chunks if "block" in chunk.get("unmask", {})]
    assert all((picture["block"] is None) == (mode == "ar") for picture in pictures if picture["forwards"] > 1)
    counts = [picture["forwards"] for picture in pictures]
    assert counts == sorted(counts) and counts[-1] == chunks[-1]["unmask"]["forwards"]
    assert joined(chunks) == ask(served, mode=mode, max_tokens=30)["choices"][0]["message"]["content"]
    if mode == "verified":  # what the check refused is never shown as settled
        final = chunks[-1]["unmask"]["completion_tokens"]
        assert all(p["block"]["start"] + p["block"]["settled"] <= final + 1 for p in pictures if p["block"])


def test_completions_stream(spelling):
    chunks = events(spelling, RAW, max_tokens=12, mode="verified")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcdefghijab"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


@pytest.mark.parametrize("stream", [False, True])
def test_places_of_tokens_in_the_text_of_a_completion(stream):
    """Parts of one character share its place; behind it places count characters, not parts."""
    text = "ab€😀cd STOP tail"
    with running(model_of(Spelling(text))) as server:
        asked = {"prompt": "x", "max_tokens": 40, "logprobs": 0, "mode": "ar", "stop": "STOP"}
        if stream:
            laws = [c["choices"][0]["logprobs"] for c in events(server, RAW, **asked)]
            found = sum((law["text_offset"] for law in laws if law), [])
        else:
            found = server.http.post(RAW, json={"model": "tiny", **asked}).json()["choices"][0]["logprobs"][
                "text_offset"
            ]
    assert found == [0, 1, 2, 2, 2, 3, 3, 3, 3, 4, 5, 6]


def test_cached_tokens_count_each_prompt_once():
    with running(tiny(rows=4)) as server:
        asked = {"model": "tiny", "prompt": [list(range(60)), [200, 201]], "max_tokens": 2, "n": 2}
        server.http.post(RAW, json=asked)
        usage = server.http.post(RAW, json=asked).json()["usage"]
    assert usage["prompt_tokens"] == 62 and usage["prompt_tokens_details"]["cached_tokens"] == 59


def test_completions_of_several_prompts(served):
    ids = [10, 20, 30]
    asked = {"model": "tiny", "prompt": [ids, [40, 50]], "max_tokens": 8, "n": 2, "temperature": 1.0, "seed": 0}
    found = served.http.post(RAW, json=asked).json()
    assert [c["index"] for c in found["choices"]] == [0, 1, 2, 3] and found["usage"]["prompt_tokens"] == 5
    alone = served.http.post(RAW, json={**asked, "prompt": ids, "n": 1}).json()["choices"][0]["text"]
    assert found["choices"][0]["text"] == alone
    error = refused(served.http.post(RAW, json={**asked, "prompt": [999]}), param="prompt")
    assert error["message"] == "prompt token 999 is outside the vocabulary; allowed: 0 to 260"


# --- messages --------------------------------------------------------------------------------------------------------


def part(text):
    return {"type": "text", "text": text}


def test_o5_12_parts_are_joined_by_line_breaks(served):
    def usage(content, role="user"):
        messages = [{"role": role, "content": content}, {"role": "user", "content": "x"}]
        return ask(served, messages=messages)["choices"][0]["message"], ask(served, messages=messages)["usage"]

    assert usage([part("one")])[0] == usage("one")[0]
    assert usage([part("one"), part("two")])[0] == usage("one\ntwo")[0]
    assert usage([part("one")], "system")[0] == usage("one", "system")[0] == usage("one", "developer")[0]


@pytest.mark.parametrize(
    "content", [[], [{"type": "image_url", "image_url": {"url": "x"}}], [part("a"), {"type": "sound"}], [{"text": "a"}]]
)
def test_o5_12_other_parts_are_refused(served, content):
    refused(served.http.post(CHAT, json=body(messages=[{"role": "user", "content": content}])), param="messages")


def test_tool_calls_in_the_history_are_refused(served):
    history = [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}, {"role": "user", "content": "y"}]
    assert "tool_calls" in refused(served.http.post(CHAT, json=body(messages=history)), param="messages")["message"]


@pytest.mark.parametrize(
    "stop, text",
    [("d", "abc"), (["d"], "abc"), (["d", "b"], "a"), (["d", "d"], "abc"), (None, "abcdefghij"), ([], "abcdefghij"),
     (["k", "l", "m", "n", "c"], "ab")],
)  # fmt: skip
def test_o5_15_forms_of_stop(spelling, stop, text):
    found = ask(spelling, stop=stop, max_tokens=10)["choices"][0]
    assert found["message"]["content"] == text
    assert found["finish_reason"] == ("length" if len(text) == 10 else "stop")


# --- names, keys, limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nope", "", None])
def test_o5_07_unknown_names(served, name):
    error = refused(served.http.post(CHAT, json=body(model=name)), status=404)
    assert error["code"] == "model_not_found" and "served: 'tiny'" in error["message"]


def test_o5_07_the_listed_name_works_and_double_slashes_too(served):
    [model] = served.http.get(f"{served.url}//v1//models").json()["data"]
    assert ask(served, model=model["id"]) and served.http.get(f"/v1/models/{model['id']}").json() == model
    assert served.http.post(f"{served.url}//v1/chat/completions", json=body()).status_code == 200
    known = {"modes": ["ar", "verified", "threshold"], "context": "causal", "block_size": 8, "sub_block_size": 4}
    assert model["unmask"] == {**known, "max_context": 256, "default_mode": "verified"}


def test_a_context_block_model_refuses_verified():
    with running(tiny(BLOCK)) as server:
        assert server.http.get("/v1/models").json()["data"][0]["unmask"]["modes"] == ["ar", "threshold"]
        error = refused(server.http.post(CHAT, json=body(mode="verified")), param="mode")
        assert "needs a checkpoint with context 'causal'" in error["message"]
        assert ask(server)["choices"][0]["unmask"]["mode"] == "threshold"


def test_a_plain_model():
    with running(tiny(None)) as server:
        assert server.http.get("/v1/models").json()["data"][0]["unmask"]["modes"] == ["ar"]
        assert ask(server)["choices"][0]["unmask"]["mode"] == "ar"


def test_o5_08_keys():
    with running(tiny(), api_key=" secret ") as server:
        for headers, said in ((None, "no API key"), ({"authorization": "Bearer wrong"}, "wrong API key"),
                              ({"authorization": "secret"}, "wrong API key")):  # fmt: skip
            for path in ("/v1/models", "//v1/models"):
                error = refused(server.http.get(server.url + path, headers=headers), status=401)
                assert said in error["message"] and error["code"] == "invalid_api_key" and "secret" not in str(error)
        right = {"authorization": "Bearer secret"}
        assert server.http.get("/v1/models", headers=right).status_code == 200
        assert server.http.post(CHAT, json=body(), headers=right).status_code == 200
        assert server.http.get("/health").status_code == server.http.get("/metrics").status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_have_a_limit(chunked):
    with running(tiny(), max_body=0.01) as server:
        text = json.dumps(body("x" * 20_000)).encode()
        content = iter([text[:9000], text[9000:18000], text[18000:]]) if chunked else text
        error = refused(server.http.post(CHAT, content=content), status=413)
        assert "10000" in error["message"]
        assert ask(server)


def test_cors_is_off_unless_asked(served):
    ask_ = {"origin": "http://other.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in served.http.options(CHAT, headers=ask_).headers
    with running(tiny(), cors=("http://other.example",), api_key="k") as server:
        found = server.http.options(CHAT, headers=ask_)
        assert found.status_code == 200 and found.headers["access-control-allow-origin"] == "http://other.example"
        own = {**ask_, "access-control-request-headers": "authorization, x-stainless-os"}  # as openai's JavaScript
        assert server.http.options(CHAT, headers=own).status_code == 200
        found = server.http.get("/v1/models", headers={"origin": "http://other.example"})
        assert found.status_code == 401 and "access-control-allow-origin" in found.headers


def test_unknown_routes_and_methods(served):
    assert "there is no /v2/models" in refused(served.http.get("/v2/models"), status=404)["message"]
    assert "GET is not allowed" in refused(served.http.get(CHAT), status=405)["message"]


# --- what operators see ----------------------------------------------------------------------------------------------


def test_metrics_count_what_was_served():
    with running(model_of(Spelling())) as server:
        before = server.http.get("/metrics").text
        assert "unmask_requests_total" in before and 'mode="verified"' not in before  # the warm-up is not counted
        ask(server, max_tokens=9, mode="verified")
        events(server, max_tokens=4, mode="ar")
        lines = dict(line.rsplit(" ", 1) for line in server.http.get("/metrics").text.splitlines() if line[0] != "#")
    assert lines['unmask_requests_total{mode="verified",outcome="length"}'] == "1.0"
    assert lines['unmask_tokens_total{mode="verified"}'] == "9.0" and lines['unmask_tokens_total{mode="ar"}'] == "4.0"
    assert lines['unmask_forwards_total{kind="draft",mode="verified"}'] == "1.0"
    assert lines['unmask_guessed_tokens_total{source="draft"}'] == lines['unmask_accepted_tokens_total{source="draft"}']
    assert lines['unmask_first_text_seconds_count{mode="verified"}'] == "1.0"
    assert lines["unmask_requests_running"] == lines["unmask_requests_waiting"] == "0.0"


def test_chats_reuse_their_history():
    with running(tiny()) as server:
        first = ask(server, max_tokens=12)
        history = [*body()["messages"], first["choices"][0]["message"] | {}, {"role": "user", "content": "More"}]
        again = ask(server, messages=[{"role": m["role"], "content": m["content"]} for m in history])
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


def test_the_page_is_served_with_a_policy(served):
    found = served.http.get("/")
    assert found.status_code == 200 and found.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in found.headers["content-security-policy"]
    assert found.headers["x-content-type-options"] == "nosniff"


# --- answers that are JSON -------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("mode", ["ar", "verified", "auto"])
@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_response_format_json(served, mode, kind):
    pytest.importorskip("llguidance")
    form = {"type": kind} | ({"json_schema": {"name": "x", "schema": SCHEMA}} if kind == "json_schema" else {})
    found = ask(served, mode=mode, response_format=form, max_tokens=60, temperature=1.0, seed=1)["choices"][0]
    if kind == "json_schema":
        assert json.loads(found["message"]["content"]) in ({"ok": True}, {"ok": False})
        assert found["finish_reason"] == "stop"
    else:
        assert found["message"]["content"].startswith("{")
    chunks = events(served, mode=mode, response_format=form, max_tokens=60, temperature=1.0, seed=1)
    assert joined(chunks) == found["message"]["content"]


@pytest.mark.parametrize(
    "form, says",
    [
        ({"type": "json_schema"}, "response_format json_schema lacks json_schema"),
        ({"type": "xml"}, "allowed: 'text', 'json_object' or 'json_schema'"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}, "nothing"),
    ],
)
def test_response_formats_that_are_refused(served, form, says):
    pytest.importorskip("llguidance")
    assert says in refused(served.http.post(CHAT, json=body(response_format=form)), param="response_format")["message"]


def test_response_format_in_mode_threshold_is_refused(served):
    asked = body(mode="threshold", response_format={"type": "json_object"})
    assert "mode threshold" in refused(served.http.post(CHAT, json=asked), param="response_format")["message"]
