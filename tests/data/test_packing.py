"""The paper's packing against a second writing of it from its description, and documents that do not see each other."""

import random

import pytest
import torch
from tiny import MASK, byte_tokenizer, tiny_model
from training import chat, save_rows

from unmask.core.noise import seeded
from unmask.core.streams import collate, draw_noise, noisy_row
from unmask.data import Packing, load_rows, packing_of
from unmask.data.packing import filled
from unmask.errors import ConfigError, DataError
from unmask.model.training import joint
from unmask.recipe import Adapt

START, END = "<|im_start|>", "<|im_end|>"
PLAIN = {"base": "b", "data": ("d",), "output": "o", "method": "full", "block_size": 8, "sub_block_size": 8}


@pytest.fixture(scope="module")
def tokenizer():
    made = byte_tokenizer(eos_token="</turn>")
    made.add_special_tokens({"additional_special_tokens": [START, END]})
    return made


def packed_by_the_book(chats, tokenizer, length, size, mask_id):
    """Rows of (id, label), a label being None where nothing is learned. size: of a block, None without padding."""
    samples = []
    for messages in chats:
        sample = []
        if messages[0]["role"] != "system":
            sample += [(t, None) for t in tokenizer.encode(f"{START}system\nYou are a helpful assistant.{END}\n")]
        for message in messages:
            learned = message["role"] == "assistant"
            sample += [(t, None) for t in tokenizer.encode(f"{START}{message['role']}\n")]
            sample += [(t, t if learned else None) for t in tokenizer.encode(f"{message['content']}{END}\n")]
        if size is not None:
            sample.append((mask_id, None))
            while len(sample) % size:
                sample.append((mask_id, None))
        samples.append(sample)
    rows = []
    for group in range(0, len(samples), 1000):
        stream = [pair for sample in samples[group : group + 1000] for pair in sample]
        while len(stream) >= length:
            rows.append(stream[:length])
            stream = stream[length:]
    return rows


def conversations(count):
    draw = random.Random(0)
    roles = [["user", "assistant"], ["system", "user", "assistant"], ["user", "assistant", "user", "assistant"]]
    return [[{"role": role, "content": "x" * draw.randrange(40)} for role in draw.choice(roles)] for _ in range(count)]


@pytest.mark.parametrize("padding", [True, False])
def test_rows_are_those_of_the_paper(tmp_path, tokenizer, padding):
    chats = conversations(1100)
    file = save_rows(tmp_path / "rows.jsonl", [{"messages": messages} for messages in chats])
    recipe = Adapt(**PLAIN, reference_quirks=True, max_length=64, padding=padding)
    found = load_rows(
        [str(file)],
        tokenizer,
        max_length=64,
        truncation="drop",
        stop_ids=(tokenizer.eos_token_id,),
        packing=packing_of(recipe, MASK),
    )
    wanted = packed_by_the_book(chats, tokenizer, 64, 8 if padding else None, MASK)
    assert len(found.rows) == len(wanted) == found.counts["packed rows"] > 1000
    for row, pairs in zip(found.rows, wanted, strict=True):
        assert row.ids.tolist() == [token for token, _ in pairs]
        assert row.labelled.tolist() == [label is not None for _, label in pairs]
    assert 0 < found.counts["tokens dropped: the rest of a group"] < 2 * 64 and found.counts["kept"] == 1100


@pytest.mark.parametrize(("length", "count"), [(7, 1), (8, 8), (9, 7), (16, 8)])
def test_padding_is_never_nothing(length, count):
    ids, labelled = filled(([1] * length, [True] * length), 8, MASK)
    assert ids[length:] == [MASK] * count and not any(labelled[length:]) and len(ids) % 8 == 0


def test_a_prompt_with_its_completion_is_a_question_with_its_answer(tmp_path, tokenizer):
    packing = Packing(32, None, MASK)
    rows = [
        load_rows([str(save_rows(tmp_path / "r.jsonl", [record] * 5))], tokenizer, **options).rows
        for record in (chat("why?", "so"), {"prompt": "why?", "completion": "so"})
        for options in [{"max_length": 9, "truncation": "keep", "stop_ids": (1,), "packing": packing}]
    ]
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(*rows, strict=True)) and len(rows[0]) > 1


def test_what_the_packing_cannot_do_is_refused(tmp_path, tokenizer):
    options = {"max_length": 64, "truncation": "keep", "stop_ids": (1,), "packing": Packing(64, 8, MASK)}
    file = save_rows(tmp_path / "rows.jsonl", [chat("q", "a")])
    with pytest.raises(ConfigError, match=r"the base has no token <\|im_start\|>; take a Qwen2.5 base"):
        load_rows([str(file)], byte_tokenizer(), **options)
    with pytest.raises(DataError, match="no row with an answer is left.*lower max_length below 512"):
        load_rows([str(file)], tokenizer, **options | {"max_length": 512, "packing": Packing(512, 8, MASK)})
    for name in ("tool_calls", "reasoning_content"):
        told = {"role": "assistant", "content": "", name: "x"}
        save_rows(file, [{"messages": [told, *chat("q", "a")["messages"]]}])
        with pytest.raises(DataError, match=f"line 1, field 'messages': message 1 has {name}, which the paper's"):
            load_rows([str(file)], tokenizer, **options)
    save_rows(file, [{**chat("q", "a"), "ended": False}])
    with pytest.raises(DataError, match="line 1, field 'ended'"):
        load_rows([str(file)], tokenizer, **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"padding": False}, "padding off needs reference_quirks"),
        ({"reference_quirks": True, "method": "low-rank"}, "needs method 'full' and context 'block'"),
        ({"reference_quirks": True, "context": "causal"}, "needs method 'full' and context 'block'"),
        ({"reference_quirks": True, "max_length": 500}, "a multiple of block_size 8, not 500"),
        ({"objective": "next-token", "ar_weight": 1.0, "context": "causal"}, "leave out adapter_scope, ar_weight"),
    ],
)
def test_settings_that_contradict_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Adapt(**{**PLAIN, **fields})


def test_o2_06_documents_of_one_forward_do_not_see_each_other():
    model, first, second = tiny_model(), torch.arange(20), torch.arange(40, 61)

    def hidden(*documents):
        rows = [
            noisy_row(
                ids,
                torch.arange(len(ids)) >= 5,
                [draw_noise(len(ids), 8, seeded(3), shift=False, full_share=0.0)],
                block_size=8,
                mask_id=MASK,
                causal=False,
                every_block=True,
            )
            for ids in documents
        ]
        batch = collate(rows)
        return batch, joint(model, batch, mask_id=MASK, mask_vector=None, causal=False)[0]

    batch, before = hidden(first, second)
    changed = first.clone()
    changed[3], changed[19] = 99, 98
    other = batch.streams.document[0] == 1
    assert torch.equal(before[other], hidden(changed, second)[1][other])
    assert not torch.equal(before[~other], hidden(changed, second)[1][~other])
    assert int(batch.streams.position[0][other].min()) == 0
    _, packed = hidden(torch.cat([first, first[:4], second]))  # as the paper packs them: one document
    _, moved = hidden(torch.cat([changed, first[:4], second]))
    assert not torch.equal(packed[24 : 24 + 21], moved[24 : 24 + 21])
