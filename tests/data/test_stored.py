"""Encoded rows in files: what was written is read, memory stays small, and processes share it."""

import hashlib
import json
import os
import resource
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import MASK, byte_tokenizer
from training import SHORT, chat, save_rows

from unmask.data import Chosen, Packing, encode, load_rows, open_rows, rows, stored
from unmask.data.encode import Parts
from unmask.data.stored import TYPES, Row, Stored, Writer, lengths, place, read, size
from unmask.errors import CheckpointError, DataError
from unmask.recipe import Source

TOKENIZER = byte_tokenizer(template=SHORT, eos_token="</turn>")
OPTIONS = {"max_length": 64, "truncation": "keep", "stop_ids": (TOKENIZER.eos_token_id,)}
DOCUMENTS = [([1, 2, 3], [False, True, True]), ([2**31 - 1], [True]), ([5, 6], [False, False])]


def written(directory, documents, numbers=None):
    with Writer(directory) as writer:
        for document in documents:
            writer.add(*document, 3, 70)
        writer.choose(np.arange(len(documents)) if numbers is None else np.array(numbers))
        return writer.finish()


def plain(found):
    return [(row.ids.tolist(), row.labelled.tolist()) for row in found]


@pytest.mark.parametrize("named", [True, False])
def test_what_was_written_is_read(tmp_path, named):
    found = written(tmp_path if named else None, DOCUMENTS, [0, 1, 2, 1, 0])
    assert plain(found) == [DOCUMENTS[n] for n in (0, 1, 2, 1, 0)] and len(found.rows) == 3
    assert size(found) == 5 * 6 + 8 * 4 + 8 * 3 + 8 * 5
    assert place(found[3:], 1) == (3, 70)
    assert found[-1].ids.dtype == torch.long and found[-1].labelled.dtype == torch.bool
    assert plain(found[::2]) == [DOCUMENTS[n] for n in (0, 2, 0)] and plain(found.rows[1:]) == DOCUMENTS[1:]
    for rows_, beyond in ((found, 5), (found.rows, 3)):
        with pytest.raises(IndexError):
            rows_[beyond]
    found[0].ids[0] = found[0].labelled[0] = 1  # a copy
    assert plain(found)[0] == DOCUMENTS[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == (sorted(TYPES) if named else [])
    if named:
        assert plain(read(tmp_path)) == plain(found)


def test_lengths_look_at_no_row():
    class Untouched(Stored):
        def __getitem__(self, n):
            raise AssertionError("a row was looked at")

    made = written(None, DOCUMENTS).rows
    untouched = Untouched(made.ids, made.labelled, made.starts, made.sources, made.lines)
    assert lengths(Chosen(Chosen(untouched, np.array([2, 0, 0])), np.array([1, 0]))).tolist() == [3, 2]
    assert lengths([Row(torch.zeros(n), torch.zeros(n)) for n in (4, 9)]).tolist() == [4, 9]


def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    """40,000 rows of 60 tokens, a few of them dropped: 13 MB on the disk, made in 3 MB; as lists 40 MB."""
    count = 40_000
    (tmp_path / "rows.jsonl").write_text("{}\n" * count)
    monkeypatch.setattr(rows, "parts_of", lambda *_: Parts([]))
    monkeypatch.setattr(
        rows, "tokenised", lambda many, _: (([n % 9] * 60, [n % 64 > 0] * 60) for n in range(len(many)))
    )
    monkeypatch.setattr(stored, "BUFFER", 1 << 16)
    tracemalloc.start()
    found = load_rows([Source(path=str(tmp_path / "rows.jsonl"), weight=1.5)], TOKENIZER, **OPTIONS)
    sums = sum(int(row.ids[0]) for row in found.rows[::1000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    kept = found.counts["kept"]
    assert kept > 0.9 * count and len(found.rows) == kept + round(0.5 * kept) and sums > 0
    assert found.bytes == 5 * 60 * kept + 8 * (kept + 1) + 8 * kept + 8 * len(found.rows) > 12e6
    assert peak < 3e6, peak


def test_processes_share_the_memory_of_one_file(tmp_path):
    """What two processes have read is there once: all pages count as shared, none as their own."""
    if not Path("/proc/self/smaps").exists():
        pytest.skip("the system does not say")
    written(tmp_path, [([7] * 100_000, [True] * 100_000)] * 5)
    (ready, said), (wait, go) = os.pipe(), os.pipe()
    if not (child := os.fork()):
        mine = read(tmp_path)
        os.write(said, str(int(mine.rows.ids.sum())).encode())
        os.read(wait, 1)
        os._exit(0)
    assert os.read(ready, 20) == b"3500000"
    mine = read(tmp_path)
    assert int(mine.rows.ids.sum()) == 3_500_000
    text = Path("/proc/self/smaps").read_text().split(str(tmp_path / "ids"))[1].split("VmFlags")[0]
    pages = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.endswith(" kB")}
    os.write(go, b".")
    os.waitpid(child, 0)
    for end in (ready, said, wait, go):
        os.close(end)
    assert pages["Rss"] == pages["Shared_Clean"] + pages["Shared_Dirty"] >= 1900  # dirty: not yet on the disk
    assert pages["Private_Clean"] == pages["Private_Dirty"] == 0


RECORDS = [
    chat("q", "a"),
    {"prompt": "", "completion": "x"},
    chat("q" * 80, "lost"),
    {"messages": [*chat("é", "👩‍👩‍👧")["messages"], *chat("then", "")["messages"]]},
    {"prompt": "2+2=", "completion": "4", "ended": False},
    {"question": "q", "answer": "long " * 20},
    chat("q", "cut", **{}) | {"ended": False},
]


@pytest.mark.parametrize("together", [1, 2, 3, 512])
@pytest.mark.parametrize("letters", [1, 10**9])
def test_rows_tokenised_together_are_those_tokenised_alone(tmp_path, monkeypatch, together, letters):
    monkeypatch.setattr(rows, "TOGETHER", together)
    monkeypatch.setattr(rows, "LETTERS", letters)
    found = load_rows([str(save_rows(tmp_path / "rows.jsonl", RECORDS * 2))], TOKENIZER, **OPTIONS)
    alone = [encode(rows.as_row(record)[0], TOKENIZER, OPTIONS["stop_ids"]) for record in RECORDS]
    kept = [(ids[:64], labelled[:64]) for ids, labelled in alone if any(labelled[1:64])]
    assert plain(found.rows) == kept * 2 and len(kept) == 6
    assert found.counts == {
        "kept": 12,
        "read as question, answer": 2,
        "cut at max_length 64": 2,
        "dropped: the answer begins after max_length 64": 2,
    }


def test_a_directory_keeps_rows_and_counts(tmp_path):
    (tmp_path / "kept").mkdir()
    file = str(save_rows(tmp_path / "rows.jsonl", RECORDS))
    made = load_rows([file, Source(path=file, weight=2.5)], TOKENIZER, **OPTIONS, directory=tmp_path / "kept")
    found = open_rows(tmp_path / "kept")
    assert plain(found.rows) == plain(made.rows) and len(found.rows) == 6 + 15
    for name in ("counts", "sources", "digests", "bytes"):
        assert getattr(found, name) == getattr(made, name), name
    assert found.bytes == sum((tmp_path / "kept" / name).stat().st_size for name in TYPES)


def test_packing_takes_documents_as_often_as_their_weight_says(tmp_path):
    tokenizer = byte_tokenizer(eos_token="</turn>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    records = [chat("q" * n, "a" * (n % 7)) for n in range(9)]
    first, second = save_rows(tmp_path / "a.jsonl", records), save_rows(tmp_path / "b.jsonl", records[3:])
    whole = save_rows(tmp_path / "c.jsonl", [*records * 2, *records[3:]])
    options = OPTIONS | {"packing": Packing(64, 8, MASK)}
    (tmp_path / "kept").mkdir()
    weighted = [Source(path=str(first), weight=2.0), str(second)]
    found = load_rows(weighted, tokenizer, **options, directory=tmp_path / "kept")
    wanted = load_rows([str(whole)], tokenizer, **options)
    assert plain(found.rows) == plain(wanted.rows) == plain(open_rows(tmp_path / "kept").rows) and len(found.rows) > 20
    assert found.counts["packed rows"] == len(found.rows) == wanted.counts["packed rows"]


@pytest.mark.parametrize("limit", [None, 2])
def test_the_digest_is_that_of_the_whole_file(tmp_path, limit):
    file = save_rows(tmp_path / "rows.jsonl", RECORDS)
    found = load_rows([Source(path=str(file), limit=limit)], TOKENIZER, **OPTIONS)
    assert found.digests == {str(file): hashlib.sha256(file.read_bytes()).hexdigest()}


def test_lines_end_as_text_files_end_them(tmp_path):
    lines = [json.dumps(record) for record in (RECORDS[0], RECORDS[1])]
    (tmp_path / "rows.jsonl").write_bytes("\r\n".join([*lines, "", '{"messages": [']).encode())
    with pytest.raises(DataError, match=r"line 4: is not JSON \(Expecting value at column 15\)"):
        load_rows([str(tmp_path / "rows.jsonl")], TOKENIZER, **OPTIONS)


@pytest.mark.parametrize("named", [True, False])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, named):
    file = save_rows(tmp_path / "rows.jsonl", [chat("q", "a" * 40)] * 200)
    (tmp_path / "place").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "place"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(
            CheckpointError, match="cannot write encoded rows to .*/place: File too large; they"
        ) as full:
            load_rows([str(file)], TOKENIZER, **OPTIONS, directory=tmp_path / "place" if named else None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(full.value) and ("TMPDIR" in str(full.value)) != named
    if not named:
        assert not list((tmp_path / "place").iterdir())
