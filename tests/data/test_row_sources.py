"""Where rows come from: files, data sets, the hub; columns, filters, weights; and the count of what became of them."""

import json
import sys
from types import SimpleNamespace

import pytest
from tiny import byte_tokenizer
from training import SHORT, chat, save_rows

from unmask.data import load_rows
from unmask.data.shapes import as_row
from unmask.data.sources import UnavailableError
from unmask.errors import ConfigError, DataError, MissingExtraError
from unmask.options import read_toml
from unmask.recipe import Adapt, Source

ASKED, SAID = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
TOKENIZER = byte_tokenizer(template=SHORT, eos_token="</turn>")


def load(*sources, **options):
    given = {"max_length": 64, "truncation": "keep", "stop_ids": (TOKENIZER.eos_token_id,), **options}
    return load_rows(sources, TOKENIZER, **given)


def texts(rows):
    return [TOKENIZER.decode(row.ids) for row in rows.rows]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [ASKED, SAID]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversation": [ASKED, SAID]},
        {"prompt": [ASKED], "completion": [SAID]},
        {"input": [ASKED], "output": "a", "reasoning": "off"},
        {"instruction": "q", "input": "", "output": "a"},
        {"instruction": "q", "output": "a"},
        {"question": "q", "answer": "a"},
        {"query": "q", "response": "a"},
        {"instruction": "q", "context": "", "response": "a", "category": "qa"},
    ],
)
def test_common_chat_columns_become_one_chat(record):
    row, form = as_row({**record, "ended": False})
    assert row["messages"] == [ASKED, SAID] and row["ended"] is False
    assert (form == "") == ("messages" in record)


def test_an_instruction_has_its_input_below_it_and_other_speakers_keep_their_names():
    row, _ = as_row({"instruction": "Add", "input": "1 2", "output": "3"})
    assert row["messages"][0]["content"] == "Add\n\n1 2"
    row, form = as_row({"instruction": "Add", "context": "1 2", "response": "3"})  # Dolly
    assert row["messages"][0]["content"] == "Add\n\n1 2" and form == "instruction, context, response"
    row, form = as_row({"instruction": "Add", "input": "1 2", "context": None, "response": "3"})
    assert row["messages"][0]["content"] == "Add\n\n1 2" and form == "instruction, input, response"
    row, _ = as_row({"conversations": [{"from": "system", "value": "s"}, {"from": "tool", "value": "t"}]})
    assert [message["role"] for message in row["messages"]] == ["system", "tool"]


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"instruction": None, "input": "x", "output": "a"}, "instruction"),
        ({"instruction": "q", "input": {"a": 1}, "output": "a"}, "input"),
        ({"instruction": "q", "output": None}, "output"),
        ({"question": ["q"], "answer": "a"}, "question"),
        ({"input": "q", "output": 3}, "output"),
    ],
)
def test_questions_and_answers_are_texts(record, field):
    with pytest.raises(DataError, match=f"field '{field}': must be text"):
        as_row(record)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"question": "q", "answer": "a", "context": "c"}, "context"),
        ({"question": "q", "answer": "a", "choices": ["b", "a"]}, "choices"),
        ({"instruction": "q", "input": "i", "output": "a", "system": "s"}, "system"),
        ({"instruction": "q", "input": "i", "context": "c", "response": "a"}, "context"),
        ({"prompt": "q", "completion": "a", "context": "c"}, "context"),
        ({"conversations": [{"from": "human", "value": "q"}], "system": "s"}, "system"),
        ({"messages": [ASKED, SAID], "tools": [{"name": "f"}]}, "tools"),
    ],
)
def test_a_column_that_changes_the_question_is_not_ignored(record, field):
    with pytest.raises(DataError, match=f"field '{field}': would be ignored beside .*name in columns what is to be"):
        as_row(record)
    assert as_row({**record, field: None})
    used = {"user": "question", "assistant": "answer"} if "question" in record else {"messages": "messages"}
    if set(used.values()) <= set(record):
        assert as_row(record, used)[0]["messages"] == [ASKED, SAID]


def test_columns_are_what_the_source_says():
    record = {"ask": "q", "say": "a", "sys": "s", "turns": [{"from": "human", "value": "q"}]}
    row, _ = as_row(record, {"user": "ask", "assistant": "say", "system": "sys"})
    assert row == {"messages": [{"role": "system", "content": "s"}, ASKED, SAID]}
    assert as_row(record, {"prompt": "ask", "completion": "say"})[0] == {"prompt": "q", "completion": "a"}
    assert as_row(record, {"messages": "turns"})[0] == {"messages": [ASKED]}
    with pytest.raises(DataError, match="field 'columns': has no column 'answer', only"):
        as_row(record, {"user": "ask", "assistant": "answer"})


def test_everything_that_is_dropped_or_changed_is_counted_by_source(tmp_path):
    first = save_rows(tmp_path / "a.jsonl", [chat("q", "a"), chat("q", "x" * 99), {"question": "q", "answer": "b"}])
    mixed = [{**chat("q", "c"), "lang": "en"}, {**chat("q", "d"), "lang": "fr"}, {"messages": [], "lang": "en"}]
    second = save_rows(tmp_path / "b.jsonl", mixed)
    rows = load(str(first), Source(path=str(second), filter={"lang": "en"}, malformed="drop"))
    assert rows.sources == {
        str(first): {"kept": 3, "cut at max_length 64": 1, "read as question, answer": 1},
        str(second): {
            "kept": 1,
            "dropped: lang is not en": 1,
            "dropped: malformed, messages must be a list of at least one message": 1,
        },
    }
    assert rows.counts["kept"] == len(rows.rows) == 4 and len(set(rows.digests.values())) == 2
    with pytest.raises(DataError, match=r"b.jsonl, line 3, field 'messages': must be a list"):
        load(Source(path=str(second)))
    with pytest.raises(DataError, match="b.jsonl, line 1, field 'filter': has no column 'tongue'"):
        load(Source(path=str(second), filter={"tongue": "en"}))


def test_everything_malformed_can_be_dropped(tmp_path):
    """Lines that are no JSON, no object, no text and no row, and rows that cannot be filtered; each is counted."""
    good = [json.dumps(chat("q", str(n)) | {"lang": "en"}).encode() for n in range(3)]
    deep, long = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a": ' + b"7" * 5000 + b"}"
    bad = [b'{"messages": [', b"[1]", b"\xff", deep, long, json.dumps(chat("q", "a")).encode(), b'{"lang": "en"}']
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join([good[0], *bad, *good[1:]]))
    rows = load(Source(path=str(file), filter={"lang": "en"}, malformed="drop"))
    assert [text[-8] for text in texts(rows)] == ["0", "1", "2"] and rows.named([0, 2]) == f"{file} lines 1, 10"
    assert rows.counts == {
        "kept": 3,
        "dropped: malformed, is not JSON (Expecting value at column N)": 1,
        "dropped: malformed, is a JSON list, not an object": 1,
        "dropped: malformed, is not UTF-N text": 1,
        "dropped: malformed, cannot be read (it is nested too deep)": 1,
        "dropped: malformed, cannot be read (a number has too many digits)": 1,
        "dropped: malformed, filter has no column 'lang', only ['messages']": 1,
        "dropped: malformed, has neither 'messages' nor 'prompt' and 'completion', only ['lang']": 1,
    }
    for line in bad[:5]:
        file.write_bytes(good[0] + b"\n" + line)
        with pytest.raises(DataError, match="a.jsonl, line 2: (is|cannot be read)"):
            load(str(file))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(chat("q", "a")).encode())
    assert len(load(str(file)).rows) == 1


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_one_line(name):
    with pytest.raises(DataError, match="cannot be read"):
        load(name)


@pytest.mark.parametrize(
    ("lines", "source", "advice"),
    [
        ([], {}, "(it is empty); give other data"),
        ([chat("q", "a") | {"n": 1}], {"filter": {"n": 2}}, "(1 dropped: n is not 2); give other data"),
        ([chat("q", "a")], {"weight": 0.1}, "(1 kept; 1 dropped: left out by weight); raise weight or give other data"),
        ([chat("q", "", ) | {"ended": False}], {}, "(1 dropped: nothing to learn); give other data"),
        ([chat("q" * 80, "a")], {}, "max_length 64); raise max_length above 64 or give other data"),
    ],
)  # fmt: skip
def test_the_advice_is_what_would_leave_a_row(tmp_path, lines, source, advice):
    file = save_rows(tmp_path / "a.jsonl", lines)
    with pytest.raises(DataError) as none:
        load(Source(path=str(file), **source))
    assert str(none.value).startswith(f"no row with an answer is left of {file} (") and str(none.value).endswith(advice)


@pytest.mark.parametrize("mask", ["e", "<turn>", "</turn>"])
def test_a_mask_that_a_row_holds_is_refused(tmp_path, mask):
    file, mask_id = save_rows(tmp_path / "a.jsonl", [chat("q", "ab"), chat("q", "he")]), TOKENIZER(mask).input_ids[0]
    line = 2 if mask == "e" else 1
    with pytest.raises(DataError, match=f"a.jsonl, line {line}: holds the token {mask_id}, which is the mask"):
        load(str(file), mask_id=mask_id)
    assert len(load(str(file), mask_id=TOKENIZER("z").input_ids[0]).rows) == 2


def test_a_filter_may_allow_several_values_and_a_limit_counts_what_passes(tmp_path):
    file = save_rows(tmp_path / "a.jsonl", [{**chat("q", str(n)), "n": n % 3} for n in range(12)])
    rows = load(Source(path=str(file), filter={"n": [0, 2]}, limit=5))
    assert [text[-8] for text in texts(rows)] == [str(n) for n in (0, 2, 3, 5, 6)]
    assert rows.counts == {"kept": 5, "dropped: n is not 0 or 2": 2}


def test_weights_say_how_often_a_row_comes(tmp_path):
    file = save_rows(tmp_path / "a.jsonl", [chat("q", str(n)) for n in range(10)])
    other = save_rows(tmp_path / "b.jsonl", [chat("q", "b")])
    rows = load(Source(path=str(file), weight=2.5), str(other), seed=1)
    often = sorted(texts(rows).count(text) for text in set(texts(rows)))
    assert often == [1] + [2] * 5 + [3] * 5 and rows.sources[str(file)]["added: again, by weight"] == 15
    assert len(rows.rows) == 26 and len(rows.rows.rows) == 11  # a row is stored once
    half = load(Source(path=str(file), weight=0.5), seed=1)
    assert len(set(texts(half))) == len(half.rows) == 5 and half.counts["dropped: left out by weight"] == 5
    assert texts(half) == texts(load(Source(path=str(file), weight=0.5), seed=1))
    assert texts(half) != texts(load(Source(path=str(file), weight=0.5), seed=2))


def test_a_source_that_comes_twice_is_counted_twice(tmp_path):
    file = str(save_rows(tmp_path / "a.jsonl", [chat("q", "a")]))
    assert list(load(file, file).sources) == [file, f"{file} (2)"]


RECIPE = 'base = "b"\noutput = "o"\n'


def recipe(tmp_path, data):
    (tmp_path / "r.toml").write_text(RECIPE + data)
    return read_toml(Adapt, tmp_path / "r.toml")


def test_a_recipe_names_sources_as_text_or_as_tables(tmp_path):
    found = recipe(
        tmp_path, 'data = ["a.jsonl", { path = "hub:x/y", split = "s", filter = { on = true, n = [1, 2] } }]'
    )
    assert found.data == ("a.jsonl", Source(path="hub:x/y", split="s", filter={"on": True, "n": [1, 2]}))
    assert recipe(tmp_path, '[[data]]\npath = "a"\nweight = 2\n').data == (Source(path="a", weight=2.0),)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("data = [3]", "r.toml, line 3: data is 3; allowed: text"),
        ("data = []", r"data is \[\]; give at least one source"),
        ("data = [{ file = 'a' }]", "line 3: data: file is not a setting; did you mean filter"),
        ("data = [{ split = 'a' }]", "line 3: data: path is missing"),
        ("data = [{ path = 'a', weight = 0 }]", "line 3: data: weight is 0.0; allowed: above 0"),
        ("data = [{ path = 'a', filter = 'x' }]", "line 3: data: filter is 'x'; allowed: a table"),
        ("data = [{ path = 'a', filter = { n = ['x', 2020-01-01] } }]", "filter is .*; allowed: texts, numbers, true"),
        ("data = [{ path = 'a', filter = { n = nan } }]", "filter is .*; allowed: texts, numbers, true"),
        ("data = [{ path = 'a', columns = { answer = 'x' } }]", "columns is .* keys among messages, user"),
        ("data = [{ path = 'a', columns = { user = 1 } }]", "columns.user is 1; allowed: text"),
    ],
)
def test_a_wrong_source_is_named(tmp_path, data, message):
    with pytest.raises(ConfigError, match=message):
        recipe(tmp_path, data)


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package `datasets`, which may not be installed: it says how it was called."""
    calls = []

    def load_dataset(*given, **options):
        calls.append((*given, options))
        if given[0] == "x/gone":
            raise ConnectionError("Couldn't reach 'x/gone' on the Hub\n(offline)")
        return {"train": [chat("q", "a")]} if options["split"] is None else [chat("q", "b")] * 2

    fake = SimpleNamespace(load_dataset=load_dataset, disable_progress_bars=lambda: None)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return calls


def test_a_hub_data_set_is_asked_for_by_name_configuration_and_split(hub):
    rows = load("hub:x/y", Source(path="hub:x/y", config="c", split="s"))
    assert hub == [("x/y", None, {"split": None}), ("x/y", "c", {"split": "s"})]
    assert {name: counts["kept"] for name, counts in rows.sources.items()} == {"hub:x/y": 1, "hub:x/y:c:s": 2}
    again = load("hub:x/y")
    assert again.digests["hub:x/y"] == rows.digests["hub:x/y"] != rows.digests["hub:x/y:c:s"]


def test_what_cannot_be_had_is_one_line(hub, monkeypatch, tmp_path):
    with pytest.raises(
        UnavailableError, match=r"^hub:x/gone: cannot be read as a data set \(Couldn't reach 'x/gone' on"
    ):
        load("hub:x/gone")
    with pytest.raises(DataError, match="no.parquet: there is no such file"):
        load(str(tmp_path / "no.parquet"))
    with pytest.raises(ConfigError, match="is a JSONL file; leave out config and split"):
        load(Source(path="a.jsonl", split="train"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnavailableError, match=r"pip install 'unmask\[train\]'"):
        load("hub:x/y")
    with pytest.raises(MissingExtraError, match=r"pip install 'unmask\[train\]'"):
        load(str(tmp_path))


@pytest.mark.filterwarnings("default")
def test_files_and_directories_that_datasets_reads(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    records = [{"question": "q", "answer": str(n), "keep": n % 2 == 0} for n in range(4)]
    made = datasets.Dataset.from_list(records)
    made.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(records))
    made.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"one": made, "two": made}).save_to_disk(tmp_path / "splits")
    (tmp_path / "folder").mkdir()
    made.to_json(tmp_path / "folder" / "train.jsonl")
    found = [
        load(Source(path=str(tmp_path / name), split=split, filter={"keep": True}))
        for name, split in {"a.parquet": None, "a.json": None, "saved": None, "splits": "two", "folder": None}.items()
    ]
    for rows in found:
        assert texts(rows) == texts(found[0]) and len(rows.rows) == 2
        assert rows.counts["dropped: keep is not True"] == 2
    with pytest.raises(DataError, match="splits: has the splits one, two; name one as split"):
        load(str(tmp_path / "splits"))
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(DataError, match="bad.parquet: cannot be read as a data set"):
        load(str(tmp_path / "bad.parquet"))
    with pytest.raises(UnavailableError, match="hub:nobody/nothing: cannot be read as a data set"):
        load("hub:nobody/nothing")
