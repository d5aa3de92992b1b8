import warnings

import pytest
import torch

from unmask.core.blocks import block_start, filler
from unmask.core.masks import CLEAN, Streams, decoding_mask, training_block_mask, training_mask

SIZES = [(length, size) for length in (8, 24, 40, 128, 136) for size in (1, 4, 8, 32) if length % size == 0]


def two_streams(length, size, rows=1):
    """[clean ; noisy] of one document."""
    position = torch.arange(length).repeat(2)
    stream = torch.arange(2).repeat_interleave(length)
    start = block_start(position, size)
    return Streams(*(t.expand(rows, -1) for t in (stream, start, position, torch.zeros_like(position))))


def brute_force(length, size, causal):
    """The written rule, position by position."""
    rows = []
    for q_stream in (0, 1):
        for q in range(length):
            row = []
            for k_stream in (0, 1):
                for k in range(length):
                    qb, kb = q // size, k // size
                    if q_stream == 1 and k_stream == 1:
                        row.append(qb == kb)
                    elif q_stream == 1:
                        row.append(kb < qb)
                    elif k_stream == 1:
                        row.append(False)
                    else:
                        row.append(k <= q if causal else kb <= qb)
            rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("length,size", SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_o1_09_every_mask_builder_agrees_with_the_written_rule(length, size, causal):
    streams = two_streams(length, size)
    expected = brute_force(length, size, causal)
    assert torch.equal(training_mask(streams, streams, causal)[0, 0], expected)
    block_mask = training_block_mask(streams, streams, causal)
    token = torch.arange(2 * length)
    function = torch.stack([block_mask.mask_mod(torch.tensor(0), torch.tensor(0), q, token) for q in token])
    assert torch.equal(function, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_flex_attention_with_the_block_mask_equals_dense_attention(causal):
    from torch.nn.attention.flex_attention import flex_attention

    streams = two_streams(24, 8)
    q, k, v = (torch.randn(1, 2, 48, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=training_mask(streams, streams, causal))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is slow without compilation, once a process
        flex = flex_attention(q, k, v, block_mask=training_block_mask(streams, streams, causal))
    assert torch.allclose(dense, flex, atol=1e-5)


def test_decoding_mask_is_ar_block_causal_and_bidirectional_by_its_ends():
    position = torch.arange(6)[None]
    causal = decoding_mask(position + 1, position, 6)[0, 0]
    assert torch.equal(causal, torch.ones(6, 6).tril().bool())
    block = decoding_mask((position // 3 + 1) * 3, position, 6)[0, 0]
    assert torch.equal(block, torch.tensor([[1, 1, 1, 0, 0, 0]] * 3 + [[1] * 6] * 3).bool())
    assert decoding_mask(torch.full((1, 6), 6), position, 6).all()


def test_a_window_counts_back_from_the_query_and_cuts_nothing_to_its_right():
    position = torch.arange(6)[None]
    windowed = decoding_mask(position + 1, position, 6, window=2)[0, 0]
    assert torch.equal(windowed, torch.ones(6, 6).tril().bool() & ~torch.ones(6, 6).tril(-2).bool())
    inside = decoding_mask(torch.full((1, 6), 6), position, 6, window=2)[0, 0]
    assert inside[0].all() and torch.equal(inside[5], torch.tensor([0, 0, 0, 0, 1, 1]).bool())


def test_documents_of_a_row_do_not_see_each_other_and_padding_sees_itself():
    position = torch.tensor([[0, 1, 2, 0, 1, 0]])
    document = torch.tensor([[0, 0, 0, 1, 1, -1]])
    streams = Streams(torch.full_like(position, CLEAN), block_start(position, 2), position, document)
    mask = training_mask(streams, streams, causal=False)[0, 0]
    assert not mask[:3, 3:].any() and not mask[3:5, :3].any() and not mask[:5, 5].any()
    assert mask[5].tolist() == [False] * 5 + [True]


def test_a_noisy_block_never_sees_its_own_clean_copy():
    """O1-15, on the rule itself."""
    streams = two_streams(16, 4)
    mask = training_mask(streams[:, 16:], streams[:, :16], causal=False)[0, 0]
    for q in range(16):
        assert mask[q].nonzero().flatten().tolist() == list(range(q // 4 * 4))


def test_block_arithmetic():
    assert [filler(n, 4) for n in range(1, 9)] == [3, 2, 1, 0, 3, 2, 1, 0]
    assert [filler(n, 4, -3) for n in range(1, 6)] == [0, 3, 2, 1, 0]
    assert block_start(torch.arange(6), 4, -3).tolist() == [-3, 1, 1, 1, 1, 5]
