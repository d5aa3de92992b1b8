"""Answers that are JSON by construction: whatever the network says, and the same in modes ar and verified."""

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedBackbone, sure
from tiny import END, MASK, VOCAB, byte_tokenizer, native, tiny_model

import unmask
from unmask import guide
from unmask.cli import main
from unmask.config import BlockSpec, Decoding
from unmask.core.pace import Costs
from unmask.engine import Engine, Request
from unmask.errors import MissingExtraError, RequestError
from unmask.events import Committed, Finished
from unmask.guide import guided
from unmask.model.checkpoint import save_full
from unmask.model.universal import UniversalBackbone

SPEC = BlockSpec(block_size=8, sub_block_size=4, mask_id=MASK, stop_ids=(END,), context="causal")
MODELS = [tiny_model(seed) for seed in range(3)]
BACKBONES = [UniversalBackbone(model, mask_id=MASK) for model in MODELS]
NATIVE = [native(model, mask=model.get_input_embeddings().weight[MASK].detach()) for model in MODELS]
BYTES = byte_tokenizer()
FREE = Costs(((1, 1.0), (101, 1.0)), ((1, 0.1), (101, 0.1)), 2.0)


def fixed(**properties):
    rules = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return json.dumps(rules)


SCHEMAS = {
    "person": fixed(name={"type": "string", "maxLength": 8}, size={"type": "number", "minimum": 0, "maximum": 9}),
    "enum": json.dumps({"enum": ["red", "green", "blue", 7, None, {"a": [1]}]}),
    "nested": json.dumps(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        }
    ),
    "object": "{}",
    "bounds": fixed(age={"type": "integer", "minimum": -20, "maximum": 150}),
}


def answered(requests, batch_size=1, backbone=BACKBONES[0], tokenizer=BYTES):
    return Engine(backbone, SPEC, tokenizer, batch_size=batch_size, costs=FREE).generate(requests)


def told(answer):
    assert answer.error is None
    return answer.text, answer.token_ids, answer.finish_reason


def keeps(answer, schema):
    """The answer was cut by the limit, or is valid; whether it is complete."""
    if answer.finish_reason == "length":
        return False
    value = json.loads(answer.text)
    assert jsonschema_rs.is_valid(json.loads(schema), value) and (schema != "{}" or isinstance(value, dict))
    return True


@pytest.mark.parametrize("name", SCHEMAS)
def test_finished_answers_are_valid_and_verified_is_ar(name):
    wanted, complete = Decoding(json_schema=SCHEMAS[name], max_new_tokens=90), 0
    for seed, backbone in enumerate(NATIVE):
        for temperature in (0.0, 9.0):
            asked = replace(wanted, temperature=temperature, seed=seed, top_p=0.9 if seed else 1.0)
            ar, verified = (
                answered([Request([seed, 2], replace(asked, mode=mode))], backbone=backbone)[0]
                for mode in ("ar", "verified")
            )
            assert told(ar) == told(verified)
            complete += keeps(ar, SCHEMAS[name])
    assert complete >= 2


@settings(max_examples=int(os.environ.get("UNMASK_CASES", "40")), deadline=None)
@given(st.data())
def test_any_batch_and_any_stream_gives_the_answer_alone(data):
    """Rows with and without a schema, in all modes, share a batch; each is what it is alone in mode ar."""
    draw = data.draw
    backbone = draw(st.sampled_from(NATIVE))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        asked = Decoding(
            mode="ar",
            json_schema=draw(st.sampled_from([None, *SCHEMAS.values()])),
            max_new_tokens=draw(st.integers(1, 40)),
            temperature=draw(st.sampled_from([0.0, 1.0, 5.0])),
            top_p=draw(st.sampled_from([1.0, 0.8])),
            seed=draw(st.integers(0, 99)),
            logprobs=draw(st.sampled_from([None, 2])),
            drafts=draw(st.sampled_from(["paced", "plain"])),
        )
        rows.append((draw(st.lists(st.integers(0, 250), min_size=1, max_size=20)), asked))
    alone = [answered([Request(prompt, asked)], backbone=backbone)[0] for prompt, asked in rows]
    together = [Request(p, replace(d, mode=draw(st.sampled_from(["ar", "verified"])))) for p, d in rows]
    together.append(Request([1, 2], Decoding(mode="threshold", max_new_tokens=9)))
    events = list(Engine(backbone, SPEC, BYTES, batch_size=draw(st.integers(1, 5)), costs=FREE).run(together))
    finished = {event.index: event.answer for event in events if isinstance(event, Finished)}
    for index, (one, (_, asked)) in enumerate(zip(alone, rows, strict=True)):
        parts = [event.text for event in events if isinstance(event, Committed) and event.index == index]
        assert told(finished[index]) == told(one) and "".join(parts) == one.text
        if asked.json_schema is not None:
            keeps(one, asked.json_schema)
        for (a, _), (b, _) in zip(one.logprobs or [], finished[index].logprobs or [], strict=True):
            assert a == pytest.approx(b, abs=1e-3)


def bytes_after(text, schema, stop_ids=(END,), guess=b""):
    """The sets of tokens that may come after a text and after each byte of a guess that is allowed."""
    found = guided(schema, stop_ids, BYTES, VOCAB).along(list(text), list(guess))
    return [set(row.nonzero().flatten().tolist()) for row in found]


def test_the_end_comes_exactly_where_the_answer_is_complete():
    assert bytes_after(b'{"a":1', '{"type":"object"}')[0].isdisjoint({END, MASK})
    assert bytes_after(b'{"a":1}', '{"type":"object"}') == [{END}]
    assert bytes_after(b"15", '{"type":"integer","maximum":199}')[0] == {END, *b"0123456789"}
    assert bytes_after(b'"', '{"type":"string"}')[0].isdisjoint(range(256, VOCAB)), "special tokens are no text"


def test_an_end_token_that_is_a_letter_is_no_letter_of_the_answer():
    found = bytes_after(b'"', '{"type":"string"}', stop_ids=(ord("x"), 7))[0]
    assert ord("y") in found and ord("x") not in found
    assert bytes_after(b'"y"', '{"type":"string"}', stop_ids=(ord("x"), 7)) == [{ord("x"), 7}]


def test_a_guess_is_followed_as_far_as_it_is_allowed_and_leaves_nothing_behind():
    made = guided(SCHEMAS["bounds"], (END,), BYTES, VOCAB)
    for guess, followed in ((b'{"age":7}', 9), (b'{"agx":7}', 4), (b"nothing", 0), (b"", 0)):
        assert len(made.along([], list(guess))) == followed + 1
    assert len(made.along(list(b'{"age":7'), [ord("}"), END, 5])) == 2, "nothing is asked behind an end token"
    assert made.along(list(b'{"age":7}')).nonzero().tolist() == [[0, END]]


def test_tokens_of_the_model_that_the_tokenizer_lacks_are_never_allowed():
    found = guided("{}", (END,), BYTES, 320).along(list(b'{"a":1}'))
    assert found.shape == (1, 320) and found[0].nonzero().flatten().tolist() == [END]


def test_any_object_means_no_other_value_and_no_endless_white_space():
    assert bytes_after(b"", "{}") == [{ord("{")}]
    assert bytes_after(b"", "{}", guess=b"{ ")[-1] == {*b'"}'}
    assert len(bytes_after(b"", "{}", guess=b"{\n" + b" " * 50)) == 2 + 32 + 1


@pytest.mark.parametrize("place", ["{%s}", '{"type":"array","items":{"type":"array",%s}}'])
def test_a_schema_cannot_change_how_it_is_read(place):
    with pytest.raises(RequestError, match='Unimplemented keys: ."uniqueItems".'):
        guided(place % '"uniqueItems":true,"x-guidance":{"lenient":true}', (END,), BYTES, VOCAB)
    ways = '"x-guidance":{"item_separator":";","key_separator":"=","whitespace_pattern":"x+"}'
    assert ord("x") not in bytes_after(b"", place % ways)[0]
    inner = '{"type":"array","items":{"type":"null",' + ways + "}}"
    assert bytes_after(b"", inner, guess=b"[null,")[-1] == {*b" \nn"}


REFUSED = {
    "{": "json_schema is not JSON: Expecting",
    "": "json_schema is not JSON: Expecting value",
    "[" * 60_000: "json_schema is not JSON: nested too deeply",
    "[]": r"json_schema is \[\]; allowed: an object",
    "true": "json_schema is true; allowed: an object",
    " " * 70_000: "json_schema has 70,000 characters; allowed: at most 65,536",
    '{"type":"strang"}': "json_schema is refused: Invalid type: strang",
    '{"type":"array","uniqueItems":true}': "Unimplemented keys: .*uniqueItems",
    '{"not":{"type":"string"}}': 'Unimplemented keys: ."not"',
    '{"if":{"type":"string"}}': 'Unimplemented keys: ."if"',
    '{"type":"object","dependentRequired":{"a":["b"]}}': 'Unimplemented keys: ."dependentRequired"',
    '{"$ref":"http://example.com/a.json"}': "http://example.com/a.json",
    '{"$ref":"file:///etc/passwd"}': "file:///etc/passwd",
    '{"$ref":"#/nowhere"}': "nowhere",
    '{"type":"string","format":"nonsense"}': "Unknown format: nonsense",
    '{"type":"string","pattern":"(a"}': "regex parse error: .* unclosed group",
    '{"type":"integer","minimum":3,"maximum":2}': "Unsatisfiable schema",
    '{"properties":' * 200 + "{}" + "}" * 200: "recursion limit exceeded",
    '{"const":"\\ud800"}': "json_schema is refused",
}


@pytest.mark.parametrize("schema", REFUSED, ids=lambda schema: schema[:30])
def test_a_bad_schema_is_refused_by_name_before_any_work(schema):
    backbone = ScriptedBackbone(lambda who, position, step: sure(1, vocab=VOCAB), vocab_size=VOCAB)
    engine = Engine(backbone, SPEC, BYTES)
    with pytest.raises(RequestError, match=REFUSED[schema]) as problem:
        engine.submit(Request([1], Decoding(mode="ar", json_schema=schema)))
    assert problem.value.field == "json_schema" and "\n" not in str(problem.value)
    good, bad = Decoding(mode="ar", max_new_tokens=2), Decoding(mode="ar", json_schema=schema)
    answers = engine.generate([Request([1], bad), Request([1], good)])
    assert answers[0].error is not None and answers[1].error is None
    assert all(who == 1 and len(feed.tokens) == 1 for call in backbone.calls for who, feed in call)


@pytest.mark.parametrize(
    "schema",
    [
        '{"type":"integer","multipleOf":99999999}',
        json.dumps({"allOf": [{"type": "string", "pattern": f"a.{{{n}}}b"} for n in range(1, 30)]}),
    ],
)
def test_a_schema_that_would_take_for_ever_is_refused(schema, monkeypatch):
    monkeypatch.setattr(guide, "PATIENCE", 0.4)
    with pytest.raises(RequestError, match="refused: it takes more than 0.4 seconds to read"):
        guided(schema.replace('"pattern"', '"p\\u0061ttern"'), (END,), BYTES, VOCAB)  # the same keyword


def test_a_schema_that_turns_out_too_costly_ends_its_own_answer_only(monkeypatch):
    monkeypatch.setitem(guide.LIMITS, "step_lexer_fuel", 1000)
    costly = '{"type":"string","pattern":".*a.{60}$"}'
    asked = [Request([1], Decoding(mode="ar", json_schema=costly)), Request([2], Decoding(mode="ar", max_new_tokens=3))]
    spent, fine = answered(asked, batch_size=2)
    assert spent.forwards == 1 and spent.error.field == "json_schema", "the quote was written, what follows was not"
    assert (
        str(spent.error) == "json_schema cannot be followed to the end: lexer error: too many expressions constructed"
    )
    assert fine.error is None and fine.completion_tokens == 3


def test_what_the_guide_did_not_allow_ends_the_answer_with_an_error():
    made = guided("{}", (END,), BYTES, VOCAB)
    with pytest.raises(RequestError, match="json_schema cannot be followed to the end"):
        made.along(list(b'{"a" ]'))


def test_models_that_cannot_follow_a_schema_say_so():
    with pytest.raises(RequestError, match="json_schema needs a tokenizer"):
        answered_alone = Engine(BACKBONES[0], SPEC, None)
        answered_alone.submit(Request([1], Decoding(mode="ar", json_schema="{}")))
    for stop_ids in ((), (VOCAB,)):
        with pytest.raises(RequestError, match="json_schema needs an end token"):
            guided("{}", stop_ids, BYTES, VOCAB)


def test_mode_threshold_refuses_a_schema_and_auto_takes_another(tmp_path):
    asked = Decoding(json_schema='{"type":\n"object"}')
    with pytest.raises(RequestError, match="^json_schema is {.*but mode threshold .* use mode ar or verified$") as e:
        answered_one(replace(asked, mode="threshold"), SPEC)
    assert e.value.field == "json_schema"
    block = replace(SPEC, context="block")
    assert answered_one(asked, SPEC).mode == "verified" and answered_one(asked, block).mode == "ar"
    lossy = replace(asked, max_loss=5.0)
    assert answered_one(lossy, SPEC).mode == "verified" and answered_one(lossy, block).mode == "ar"


def answered_one(decoding, spec):
    engine = Engine(BACKBONES[0], spec, BYTES)
    engine.submit(Request([1], replace(decoding, max_new_tokens=2)))
    return next(e.answer for _ in range(9) for e in engine.step() if isinstance(e, Finished))


def test_limit_and_stop_string_cut_as_ever():
    asked = Decoding(mode="ar", json_schema='{"enum":["abcdefgh"]}', max_new_tokens=6)
    assert told(answered([Request([1], asked)])[0]) == ('"abcde', list(b'"abcde'), "length")
    whole = replace(asked, max_new_tokens=11)
    assert told(answered([Request([1], whole)])[0]) == ('"abcdefgh"', list(b'"abcdefgh"'), "stop")
    assert told(answered([Request([1], replace(whole, stop=("cd",)))])[0]) == ('"ab', list(b'"ab'), "stop")


def test_probabilities_are_those_among_what_is_allowed():
    """Two letters are possible, however unlikely the network holds both."""
    law = torch.zeros(VOCAB)
    law[ord("a")], law[ord("b")] = -20.0, -21.0
    backbone = ScriptedBackbone(lambda who, position, step: law, vocab_size=VOCAB)
    asked = Decoding(mode="ar", json_schema='{"enum":["a","b"]}', logprobs=3, max_new_tokens=9)
    answer = answered([Request([1], asked)], backbone=backbone)[0]
    assert answer.text == '"a"'
    quote, letter, *_ = answer.logprobs
    assert quote == (0.0, ((ord('"'), 0.0),))
    share = torch.tensor([0.0, -1.0]).log_softmax(-1).tolist()
    assert letter[0] == pytest.approx(share[0])
    assert letter[1] == ((ord("a"), pytest.approx(share[0])), (ord("b"), pytest.approx(share[1])))


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match=r"'llguidance'.*unmask\[serve\]"):
        guided("{}", (END,), byte_tokenizer(), VOCAB)


def test_a_schema_is_a_flag_and_an_argument(tmp_path, capsys):
    save_full(tiny_model(), byte_tokenizer(eos_token="<end>"), SPEC, tmp_path / "m")
    words = ["generate", "--model", str(tmp_path / "m"), "--prompt", "a", "--max-new-tokens", "90", "--json-schema"]
    assert main([*words, SCHEMAS["enum"]]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown in json.loads(SCHEMAS["enum"])["enum"]
    assert main([*words, '{"not":{}}']) == 2
    assert capsys.readouterr().err.startswith("error: --json-schema is refused: Unimplemented keys")
    page = (Path(__file__).parents[1] / "docs" / "modes.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("unmask generate") and "--json-schema" in line)
    assert main([*shlex.split(line, comments=True)[1:], "--model", str(tmp_path / "m")]) == 0
    assert json.loads(capsys.readouterr().out) in ("red", "green")
    model = unmask.load(tmp_path / "m")
    assert json.loads(model.generate(["a"], json_schema=SCHEMAS["enum"])[0].text) == shown
    with pytest.raises(RequestError, match="json_schema is refused"):
        model.generate(["a"], json_schema='{"not":{}}')


@pytest.mark.weights
@pytest.mark.slow
def test_the_demo_writes_valid_json_in_both_modes():
    """Real tokens of several letters, over 49,152 of them."""
    model = unmask.load("demo")
    complete = 0
    for name, schema in SCHEMAS.items():
        for how in ({}, {"temperature": 1.0, "seed": 5}):
            question = f"Describe a house as JSON ({name})."
            ar, verified = (
                model.generate([question], json_schema=schema, max_new_tokens=60, mode=mode, **how)[0]
                for mode in ("ar", "verified")
            )
            assert told(ar) == told(verified)
            complete += keeps(ar, schema)
    assert complete >= 8
