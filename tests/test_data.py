"""Rows of training text: what is learned of them, what is dropped, what is refused, and in which order they come."""

import itertools
import json
import time
from types import SimpleNamespace

import pytest
import torch
from tiny import MASK, TURN_END, byte_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from unmask.core.noise import seeded
from unmask.core.streams import Draw, collate, draw_noise, noisy_row
from unmask.data import Order, Packing, Row, encode, load_rows
from unmask.errors import ConfigError, DataError
from unmask.options import read
from unmask.recipe import Adapt
from unmask.text import render

ASK = "{% if add_generation_prompt %}"
SHORT = "{% for m in messages %}<turn>{{ m.role[0] }}{{ m.content }}</turn>{% endfor %}" + ASK + "<turn>a{% endif %}"
QWEN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + ASK
    + "<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (  # keeps the reasoning of the last answer only, and then always shows a think part
    "{% for m in messages %}{% set text = m.content %}{% set thought = '' %}"
    "{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ text }}<|im_end|>\n{% endfor %}" + ASK + "<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}" + ASK + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}" + ASK + "<start_of_turn>model\n{% endif %}"
)
OPEN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" + ASK + "assistant: {% endif %}"
SYSTEM_AND_TWO_TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
    {"role": "assistant", "content": "Rome."},
]
TWO_TURNS = SYSTEM_AND_TWO_TURNS[1:]


def make(template, end, *special, bos=None):
    names = {"bos_token": bos} if bos else {}
    tokenizer = byte_tokenizer(template=template, eos_token=end, **names)
    tokenizer.add_tokens(list(special), special_tokens=True)
    return tokenizer


FAMILIES = {
    "chatml": lambda: make(byte_tokenizer().chat_template, "</turn>"),
    "qwen": lambda: make(QWEN, "<|im_end|>", "<|im_start|>"),
    "qwen3": lambda: make(QWEN3, "<|im_end|>", "<|im_start|>"),
    "llama3": lambda: make(LLAMA3, "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", bos="<|begin_of_text|>"),
    "gemma": lambda: make(GEMMA, "<end_of_turn>", "<start_of_turn>", bos="<bos>"),
}


def chat(question, answer, **more):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}


def learned(record, tokenizer):
    """The labelled spans of a row as lists of ids, and all ids."""
    ids, labelled = encode(record, tokenizer, (tokenizer.eos_token_id,))
    groups = itertools.groupby(range(len(ids)), key=lambda n: labelled[n])
    return [[ids[n] for n in group] for answer, group in groups if answer], ids


def texts(record, tokenizer):
    return [tokenizer.decode(span) for span in learned(record, tokenizer)[0]]


def load(tmp_path, records, tokenizer, *, max_length=512, truncation="keep"):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return load_rows(
        [str(file)], tokenizer, max_length=max_length, truncation=truncation, stop_ids=(tokenizer.eos_token_id,)
    )


def test_o2_01_the_end_token_is_learned_though_it_is_also_the_padding(tmp_path):
    tokenizer = byte_tokenizer(template=SHORT, eos_token="</turn>", pad_token="</turn>")
    rows = load(tmp_path, [chat("abc", "xyz"), chat("abc", "x" * 21)], tokenizer).rows
    assert [len(row.ids) for row in rows] == [12, 30]
    noise = [Draw(0, draw_noise(len(row.ids), 8, seeded(3), shift=False, full_share=0.0).hit) for row in rows]
    batch = collate(
        [
            noisy_row(row.ids, row.labelled, [draw], block_size=8, mask_id=MASK, causal=False, next_token=True)
            for row, draw in zip(rows, noise, strict=True)
        ]
    )
    for targets in (batch.target, batch.ar_target):
        assert sorted(targets.tolist()) == [*b"x" * 22, *b"yz", TURN_END, TURN_END]
    for place, target in zip(batch.ar_source.tolist(), batch.ar_target.tolist(), strict=True):
        assert batch.ids[0, place + 1] == target


def test_o2_02_the_end_token_is_there_once():
    tokenizer = byte_tokenizer(eos_token="</turn>")
    [span], ids = learned({"prompt": "2+2=", "completion": "4"}, tokenizer)
    assert span == [*b"4", TURN_END] and ids == [*b"2+2=", *span]
    [span], ids = learned(chat("2+2", "4"), tokenizer)  # the template closes a turn with mark and newline
    assert span == [*b"4", TURN_END] and ids[-2:] == span
    [span], ids = learned(
        chat("2+2", "4"), byte_tokenizer(template=OPEN, eos_token="<end>")
    )  # and this one with nothing
    assert span == [*b"4", 256] and ids == [*b"user: 2+2\nassistant: ", *span]


def test_o2_02_an_end_that_cannot_be_told_is_refused():
    with pytest.raises(DataError, match="no end token behind an answer"):
        learned({"messages": TWO_TURNS}, byte_tokenizer(template=OPEN, eos_token="<end>"))


QUESTIONS_END = (
    "{% for m in messages %}{{ '[A]' + m.content + '\n' if m.role == 'assistant' else '[Q]' + m.content + '</turn>' }}"
    "{% endfor %}" + ASK + "[A]{% endif %}"
)
ALL_END = (
    "{% for m in messages %}{{ ('[A]' if m.role == 'assistant' else '[Q]') + m.content | trim }}{% if m.tool_calls %}"
    "{{ m.tool_calls | tojson }}{% endif %}</turn>{% endfor %}" + ASK + "[A]{% endif %}"
)


@pytest.mark.parametrize("template", [QUESTIONS_END, OPEN])
@pytest.mark.parametrize("messages", [TWO_TURNS, TWO_TURNS[:3], [*TWO_TURNS, TWO_TURNS[0]]])
def test_o2_03_what_stands_behind_an_answer_is_not_learned_with_it(template, messages):
    """Here only the user's turns have an end token, or none, so the end of an answer is told by the next question."""
    with pytest.raises(DataError, match="no end token behind (message|an answer)"):
        learned({"messages": messages}, make(template, "</turn>"))
    assert (
        texts({"messages": TWO_TURNS[:2]}, make(template, "</turn>"))[0].removesuffix("\n</turn>").startswith("Paris.")
    )


def test_o2_03_an_answer_is_its_message_but_for_what_a_template_strips_or_adds():
    tokenizer, call = make(ALL_END, "</turn>"), [{"name": "f", "arguments": {"x": "y"}}]
    messages = [TWO_TURNS[0], {"role": "assistant", "content": " I ask. ", "tool_calls": call}, *TWO_TURNS[2:]]
    assert texts({"messages": messages}, tokenizer) == [f"I ask.{json.dumps(call)}</turn>", "Rome.</turn>"]
    with pytest.raises(DataError, match="message 2 has tool_calls, which the chat template does not show"):
        learned({"messages": messages}, make(SHORT, "</turn>"))


@pytest.mark.parametrize("family", FAMILIES)
def test_o2_03_exactly_the_answers_and_their_ends_are_learned(family):
    tokenizer = FAMILIES[family]()
    messages = TWO_TURNS if family == "gemma" else SYSTEM_AND_TWO_TURNS
    end, think = tokenizer.eos_token, "<think>\n\n</think>\n\n" if family == "qwen3" else ""
    assert texts({"messages": messages}, tokenizer) == [f"Paris.{end}", f"{think}Rome.{end}"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.content }}</turn>{% endfor %}", "no generation prompt"),
        (
            "{% for m in messages %}<turn>{{ m.content }}</turn>{% endfor %}" + ASK + "<turn>bot {% endif %}",
            "shows 0 assistant turns for 1",
        ),
        (None, "no chat template"),
        (GEMMA, "System role not supported"),
    ],
)
def test_o2_03_a_template_that_does_not_tell_answers_apart_is_refused(template, message):
    record = {"messages": [{"role": "system", "content": "s"}, *chat("q", "a")["messages"]]}
    with pytest.raises(DataError, match=message):
        learned(record, make(template, "</turn>", bos="<bos>"))


def test_o2_04_a_row_that_loses_its_answer_is_dropped_and_counted(tmp_path):
    tokenizer = byte_tokenizer(template=SHORT, eos_token="</turn>")
    lost, good = chat("q" * 100, "abcd"), chat("q", "abcd")
    rows = load(tmp_path, [good, lost, good, good], tokenizer, max_length=64)
    assert dict(rows.counts) == {"kept": 3, "dropped: the answer begins after max_length 64": 1} and len(rows.rows) == 3
    with pytest.raises(
        DataError, match="no row with an answer is left.*1 dropped: the answer begins after max_length 64"
    ):
        load(tmp_path, [lost], tokenizer, max_length=64)
    with pytest.raises(DataError, match="it is empty"):
        load(tmp_path, ["\n"], tokenizer)


@pytest.mark.parametrize("block_size", [8, 32])
def test_o2_05_a_cut_answer_teaches_no_end(tmp_path, block_size):
    tokenizer = byte_tokenizer(template=SHORT, eos_token="</turn>")
    long = chat("q", "x" * 200)
    rows = load(tmp_path, [long], tokenizer, max_length=61)
    assert rows.counts["cut at max_length 61"] == 1
    [row] = rows.rows
    draw = draw_noise(61, block_size, seeded(0), shift=False, full_share=0.0)
    layout = {"block_size": block_size, "mask_id": MASK, "causal": False, "next_token": True}
    laid = noisy_row(row.ids, row.labelled, [draw], **layout)
    assert laid.target.tolist() == [ord("x")] * (61 - 6) and laid.ar_target.tolist() == laid.target.tolist()
    dropped = load(tmp_path, [long, chat("q", "a")], tokenizer, max_length=61, truncation="drop")
    assert dropped.counts == {"dropped: longer than max_length 61": 1, "kept": 1}


def test_o2_05_an_answer_that_was_cut_before_says_so(tmp_path):
    tokenizer = byte_tokenizer(template=SHORT, eos_token="</turn>")
    assert texts(chat("q", "abc", ended=False), tokenizer) == ["abc"]
    assert texts(chat("q", "abc", ended=True), tokenizer) == ["abc</turn>"]
    rows = load(tmp_path, [chat("q", "", ended=False), chat("q", "a")], tokenizer)
    assert rows.counts == {"dropped: nothing to learn": 1, "kept": 1}


def test_o2_06_packing_is_not_offered():
    with pytest.raises(ConfigError, match="packing is not a setting"):
        read(Adapt, {"base": "b", "data": ["d"], "output": "o", "packing": True})


@pytest.mark.parametrize("family", ["chatml", "qwen", "llama3", "gemma"])
@pytest.mark.parametrize("system", [None, "", "Speak Latin."])
def test_o2_07_an_answer_stands_behind_the_ids_that_serving_would_feed(family, system):
    tokenizer = FAMILIES[family]()
    messages = [*TWO_TURNS, {"role": "user", "content": "Thanks"}, {"role": "assistant", "content": "Bye"}]
    if system is not None and family != "gemma":
        messages = [{"role": "system", "content": system}, *messages]
    ids, labelled = encode({"messages": messages}, tokenizer, (tokenizer.eos_token_id,))
    starts = [n for n in range(1, len(ids)) if labelled[n] and not labelled[n - 1]]
    asked = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    assert len(starts) == len(asked) == 3
    for start, turn in zip(starts, asked, strict=True):
        assert ids[:start] == render(tokenizer, messages[:turn])
    if family == "qwen":
        assert tokenizer.decode(ids).count("You are helpful.") == (system is None)


@pytest.mark.parametrize(
    "message", [{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}, {"role": "assistant"}]
)
def test_o2_08_a_turn_without_text_is_refused_with_its_row(tmp_path, message):
    record = chat("q", "a")
    record["messages"][1:1] = [message, {"role": "tool", "content": "42"}]
    with pytest.raises(DataError, match=r"rows.jsonl, line 2, field 'messages': message 2 has no text in 'content'"):
        load(tmp_path, [chat("q", "a"), record], byte_tokenizer(eos_token="</turn>"))


def test_o2_09_empty_and_repeated_turns_never_shift_the_roles(tmp_path):
    tokenizer = FAMILIES["qwen"]()
    assert texts(chat("", "hello"), tokenizer) == ["hello<|im_end|>"]
    assert texts(chat("hi", ""), tokenizer) == ["<|im_end|>"]
    twice = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "d"},
        ]
    }
    assert texts(twice, tokenizer) == ["c<|im_end|>", "<|im_end|>", "<|im_end|>"]
    assert texts({"messages": [{"role": "assistant", "content": "first"}]}, tokenizer) == ["first<|im_end|>"]


def test_o2_10_labels_come_from_the_final_render():
    tokenizer = FAMILIES["qwen3"]()
    messages = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2"},
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "<think>\nadd again\n</think>\n\n4"},
    ]
    shown = texts({"messages": messages}, tokenizer)
    assert shown == ["2<|im_end|>", "<think>\nadd again\n</think>\n\n4<|im_end|>"]
    final = tokenizer.apply_chat_template(messages, tokenize=False)
    assert all(span in final for span in shown)
    assert texts(chat("1+1", "</think>\n\n2"), tokenizer) == ["<think>\n\n</think>\n\n2<|im_end|>"]


def test_o2_07_a_tokenizer_that_puts_a_blank_before_a_text_puts_none_before_an_answer():
    tokenizer = FAMILIES["qwen"]()
    letters = {**tokenizer.get_vocab(), "▁": 999}
    core = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    blanks = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</turn>")
    blanks.add_tokens(["<turn>"], special_tokens=True)
    blanks.chat_template = SHORT
    ids, labelled = encode({"messages": TWO_TURNS}, blanks, (blanks.eos_token_id,))
    assert ids == blanks(blanks.apply_chat_template(TWO_TURNS, tokenize=False), add_special_tokens=False).input_ids
    starts = [n for n in range(1, len(ids)) if labelled[n] and not labelled[n - 1]]
    assert [ids[:start] for start in starts] == [render(blanks, TWO_TURNS[:1]), render(blanks, TWO_TURNS[:3])]
    [span], _ = learned({"prompt": "say", "completion": " yes"}, blanks)
    assert blanks.convert_ids_to_tokens(span) == ["▁", *"yes", "</turn>"]
    assert blanks(" yes").input_ids == span[:-1] and blanks("yes").input_ids == span[:-1]
    [span], _ = learned({"prompt": "say", "completion": "yes"}, blanks)
    assert blanks.convert_ids_to_tokens(span) == [*"yes", "</turn>"]


def test_o2_07_an_answer_that_would_merge_with_its_header_keeps_tokens_of_its_own():
    tokenizer = byte_tokenizer("\n\n", eos_token="</turn>")
    merged = tokenizer.convert_tokens_to_ids("\n\n")
    ids, labelled = encode(chat("q", "\nA"), tokenizer, (TURN_END,))
    assert merged in tokenizer(tokenizer.apply_chat_template(chat("q", "\nA")["messages"], tokenize=False)).input_ids
    assert [token for token, answer in zip(ids, labelled, strict=True) if answer] == [*b"\nA", TURN_END]
    assert ids[: labelled.index(True)] == render(tokenizer, "q")


@pytest.mark.parametrize("family", ["qwen", "llama3", "gemma"])
def test_o2_11_one_beginning_of_text_at_most(family):
    tokenizer = FAMILIES[family]()
    bos = tokenizer.bos_token_id
    if bos is not None:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, bos)]
        )
    rows = [
        learned(chat("q", "a"), tokenizer)[1],
        learned({"prompt": "q", "completion": "a"}, tokenizer)[1],
        render(tokenizer, "q"),
        render(tokenizer, "q", raw=True),
    ]
    for ids in rows:
        assert ids.count(bos) == (bos is not None)
        assert bos is None or ids[0] == bos


@pytest.mark.parametrize("letter", ["👩‍👩‍👧‍👦", "e\u0301", "𠮷"])
def test_o2_12_characters_of_many_tokens_at_the_edges_of_an_answer(letter):
    tokenizer, answer = FAMILIES["qwen"](), f"{letter} yes {letter}"
    [span], ids = learned(chat(answer, answer), tokenizer)
    assert bytes(span[:-1]) == answer.encode() and span[-1] == tokenizer.eos_token_id
    assert ids[-len(span) :] == span


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (chat("q", "a <mask> b"), "messages"),
        (chat("what is </turn>?", "a"), "messages"),
        ({"prompt": "<turn>", "completion": "a"}, "prompt"),
        ({"prompt": "q", "completion": "a</turn>"}, "completion"),
    ],
)
def test_o2_13_control_tokens_as_text_are_refused(tmp_path, record, field):
    with pytest.raises(DataError, match=f"rows.jsonl, line 2, field '{field}': holds the control token"):
        load(tmp_path, [chat("q", "a"), record], byte_tokenizer(eos_token="</turn>"))


def called(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": arguments}]}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (called({"x": ["<mask>"]}), "the control token '<mask>'"),
        (called('{"x": "</turn>"}'), "the control token '</turn>'"),
        (called({"<end>": 1}), "the control token '<end>'"),
        ({"role": "user</turn><turn>a", "content": "x"}, "the control token '</turn>'"),
        ({"role": "user", "content": "x", "name": "<turn>"}, "the control token '<turn>'"),
        ({"role": "us\ud800er", "content": "x"}, "half of a surrogate pair"),
        (called({"x": "\udc00"}), "half of a surrogate pair"),
        ({"role": "user", "content": "x", "thought": "STOP"}, "the control token 'STOP'"),
    ],
)
@pytest.mark.parametrize("chatml", [False, True])
def test_o2_13_nothing_in_a_message_can_become_a_control_token(tmp_path, message, problem, chatml):
    tokenizer = make(SHORT, "</turn>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_tokens(["STOP"])  # an end token that the tokenizer does not call special
    stop_ids = (tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("STOP"))
    record = {"messages": [message, *chat("q", "a")["messages"]]}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(record))
    if chatml and problem.endswith("'STOP'"):
        return  # the paper's format has one end token
    packing = Packing(64, 8, MASK) if chatml else None
    options = {"max_length": 64, "truncation": "keep", "stop_ids": stop_ids, "packing": packing}
    with pytest.raises(DataError, match=f"line 1, field 'messages': holds {problem}"):
        load_rows([str(file)], tokenizer, **options)


def test_o2_13_a_mask_that_is_ordinary_text_is_learned_as_text():
    tokenizer = byte_tokenizer("|<MASK>|", eos_token="</turn>", template=SHORT)
    mask_id = tokenizer.convert_tokens_to_ids("|<MASK>|")
    [span], ids = learned(chat("|<MASK>|", "a|<MASK>|b"), tokenizer)
    assert span == [ord("a"), mask_id, ord("b"), TURN_END] and ids.count(mask_id) == 2
    row = torch.tensor(ids), torch.tensor([n >= len(ids) - 4 for n in range(len(ids))])
    hit = torch.zeros(len(ids) + 7, dtype=torch.bool)[: -(-len(ids) // 8) * 8]
    laid = noisy_row(*row, [Draw(0, hit)], block_size=8, mask_id=mask_id, causal=False)
    clean = laid.masked[: len(ids)]
    assert not clean.any() and laid.target.tolist() == span


def ordering(size, seed=0):
    return SimpleNamespace(batch_rows=size, batch_tokens=None, accumulation=1, seed=seed)


def test_o2_14_very_long_rows_end_the_epoch_soon(tmp_path):
    tokenizer, began = byte_tokenizer(eos_token="</turn>"), time.perf_counter()
    giant = chat("q", "x" * 200_000)
    with pytest.raises(DataError, match="3 dropped: longer than max_length 64"):
        load(tmp_path, [giant] * 3, tokenizer, max_length=64, truncation="drop")
    rows = load(tmp_path, [*[chat("q", "a")] * 50, giant], tokenizer, max_length=64)
    assert rows.counts == {"kept": 51, "cut at max_length 64": 1} and max(len(row.ids) for row in rows.rows) == 64
    order = Order(rows.rows, ordering(4))
    assert sorted(n for step in range(1, 14) for part in order.at(step)[1] for n in part) == list(range(51))
    assert order.at(14)[0] == 1
    assert time.perf_counter() - began < 60


GOOD = json.dumps(chat("q", "a")) + "\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": [\n', r"line 7: is not JSON \(Expecting value at column 15\)"),
        ("[1]\n", "line 7: is a JSON list, not an object"),
        ('{"text": "x"}\n', r"line 7: has neither 'messages' nor 'prompt' and 'completion', only \['text'\]"),
        ('{"prompt": "x"}\n', "line 7, field 'completion': must be text"),
        ('{"prompt": "x", "completion": ""}\n', "line 7, field 'completion': is empty: a row needs an answer"),
        ('{"prompt": 3, "completion": "x"}\n', "line 7, field 'prompt': must be text"),
        ('{"messages": []}\n', "line 7, field 'messages': must be a list of at least one message"),
        ('{"messages": [{"content": "x"}]}\n', "line 7, field 'messages': message 1 has no 'role'"),
        ('{"messages": [{"role": "user", "content": "x"}]}\n', "line 7, field 'messages': holds no assistant turn"),
        ('{"prompt": "x", "completion": "\\ud800"}\n', "line 7, field 'completion': holds half of a surrogate pair"),
        ('{"prompt": "x", "completion": "y", "ended": "no"}\n', "line 7, field 'ended': must be true or false"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_field(tmp_path, line, message):
    with pytest.raises(DataError, match="rows.jsonl, " + message) as caught:
        load(tmp_path, [*[GOOD] * 5, "\n", line, GOOD], byte_tokenizer(eos_token="</turn>"))
    assert caught.value.line == 7 and "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="gone.jsonl: there is no such file"):
        load_rows([str(tmp_path / "gone.jsonl")], byte_tokenizer(), max_length=9, truncation="keep", stop_ids=(1,))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}\n')
    with pytest.raises(DataError, match="latin.jsonl, line 1: is not UTF-8 text"):
        load_rows([str(tmp_path / "latin.jsonl")], byte_tokenizer(), max_length=9, truncation="keep", stop_ids=(1,))


@pytest.mark.parametrize(
    ("tokenizer", "stop_ids", "message"), [(None, (1,), "no tokenizer"), (object(), (), "no end token")]
)
def test_a_base_that_cannot_be_taught_answers_is_refused(tokenizer, stop_ids, message):
    with pytest.raises(ConfigError, match=message):
        load_rows(["rows.jsonl"], tokenizer, max_length=9, truncation="keep", stop_ids=stop_ids)


def test_an_end_token_that_the_tokenizer_does_not_have_is_passed_over():
    tokenizer = byte_tokenizer(eos_token="</turn>")
    ids, labelled = encode(chat("q", "a"), tokenizer, (TURN_END, 9999))
    assert ids[-2:] == [ord("a"), TURN_END] and labelled[-2:] == [True, True]


def test_batches_depend_on_seed_and_epoch_alone_and_group_similar_lengths():
    rows = [Row(torch.zeros(n % 40 + 2), torch.ones(n % 40 + 2).bool()) for n in range(203)]

    def batches(seed, epoch):
        order = Order(rows, ordering(8, seed))
        return [order.at(26 * epoch + step)[1][0] for step in range(1, 27)]

    epochs = [batches(1, epoch) for epoch in range(2)]
    for order in epochs:
        assert sorted(n for batch in order for n in batch) == list(range(203)) and {len(b) for b in order} <= {8, 3}
    assert epochs[0] != epochs[1] and epochs[0] == batches(1, 0) != batches(2, 0)
    spread = [max(len(rows[n].ids) for n in b) - min(len(rows[n].ids) for n in b) for b in epochs[0]]
    assert sum(spread) / len(spread) < 6  # 36 in random batches
