"""Segments are the training mask, piece by piece."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.core import segments as module
from unmask.core.masks import training_mask
from unmask.core.noise import seeded
from unmask.core.segments import segments
from unmask.core.streams import collate, draw_noise, noisy_row


def batch_of(lengths, causal, size, next_token=False):
    rows = []
    for n, length in enumerate(lengths):
        draws = [draw_noise(length, size, seeded(n, k), shift=causal, full_share=0.2) for k in range(1 + n % 2)]
        labelled = torch.arange(length) >= length // 3
        rows.append(
            noisy_row(
                torch.arange(length), labelled, draws, block_size=size, mask_id=0, causal=causal, next_token=next_token
            )
        )
    return collate(rows)


def dense(found, queries, keys):
    """The mask that segments stand for; asserts that every query is in one of them."""
    mask, at = torch.zeros(queries, keys).bool(), 0
    for segment in found:
        assert segment.start == at
        at = segment.stop
        place = torch.cat([torch.arange(start, stop) for start, stop in segment.keys])
        mask[segment.start : segment.stop, place] = segment.mask
    assert at == queries
    return mask


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 90), min_size=1, max_size=4),
    causal=st.booleans(),
    size=st.sampled_from([1, 4, 8, 32]),
    window=st.sampled_from([None, 5, 40]),
    next_token=st.booleans(),
    longest=st.sampled_from([16, 128]),
)
def test_segments_are_the_dense_mask(lengths, causal, size, window, next_token, longest):
    batch = batch_of(lengths, causal, size, next_token)
    streams, cut = batch.streams, batch.clean
    clean, noisy = streams[:, :cut], streams[:, cut:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONGEST", longest)
        for query, key in ((streams, streams), (clean, clean), (noisy, streams)):
            found = segments(query, key, causal, window)
            expected = training_mask(query, key, causal, window)[0, 0]
            assert torch.equal(dense(found, *expected.shape), expected)
            assert all(segment.stop - segment.start <= max(longest, size) for segment in found)


def test_little_is_computed_that_is_masked_out():
    """Rows of 260 tokens in blocks of 32: less than half of what segments compute is masked, 7 parts in 8 of the dense
    mask are."""
    streams = batch_of([260] * 4, False, 32).streams
    found = segments(streams, streams, False)
    computed = sum(segment.mask.numel() for segment in found)
    seen = sum(int(segment.mask.sum()) for segment in found)
    assert seen > 0.5 * computed and computed < streams.stream.numel() ** 2 / 8
