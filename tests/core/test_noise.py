import pytest
import torch

from unmask.core.blocks import block_start
from unmask.core.noise import hits, seeded, views
from unmask.core.streams import collate, draw_noise, noisy_row

START = block_start(torch.arange(64), 8)


def test_seeded_depends_on_its_parts_alone():
    a, b = torch.rand(4, generator=seeded("noise", 1, 2)), torch.rand(4, generator=seeded("noise", 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, torch.rand(4, generator=seeded("noise", 12)))


def test_levels_are_per_block_and_uniform():
    """Within a block the hits share one level, so block counts spread as a uniform mixture does: variance of the share
    is 1/12 + 1/48 for blocks of 8 (1/12 from the level, E[p(1-p)]/8 from the hits)."""
    share = torch.stack([hits(START, seeded(n)).view(8, 8).float().mean(1) for n in range(600)]).flatten()
    assert abs(share.mean() - 0.5) < 0.01
    assert abs(share.var() - (1 / 12 + 1 / 48)) < 0.005


def test_full_share_hits_whole_blocks():
    whole = torch.stack([hits(START, seeded(n), full_share=0.5).view(8, 8).all(1) for n in range(200)]).float().mean()
    assert 0.55 < whole < 0.66  # half of them on purpose, a ninth of the others by chance
    assert hits(START, seeded(0), full_share=1.0).all()


def test_o6_07_each_answer_token_is_a_target_in_exactly_one_view():
    labelled = torch.arange(64) >= 20
    for n in range(100):
        first, second = views(hits(START, seeded(n)), labelled)
        assert torch.equal(first | second, labelled) and not (first & second).any()


def test_o1_08_rows_stand_one_behind_the_other_and_keep_their_labels():
    """There is no padding that could be noised or learned: as many places as tokens, clean ones first."""
    for draw in range(200):
        rows = []
        for length in (10, 30):
            ids, labelled = torch.arange(length) + 1, torch.arange(length) >= 4
            noise = draw_noise(length, 8, seeded(draw, length), shift=False, full_share=0.0)
            rows.append(noisy_row(ids, labelled, [noise], block_size=8, mask_id=99, causal=False))
        batch = collate(rows)
        streams = batch.streams
        assert batch.ids.shape == (1, sum(len(row.ids) for row in rows)) and streams.document.unique().tolist() == [
            0,
            1,
        ]
        assert (streams.stream[0, : batch.clean] == 0).all() and (streams.stream[0, batch.clean :] > 0).all()
        assert batch.target.tolist() == [*rows[0].target.tolist(), *rows[1].target.tolist()]
        assert sorted(batch.target.tolist()) == sorted([*range(5, 11), *range(5, 31)])
        assert torch.equal(streams.position[0, batch.source], batch.target - 2)  # ids are positions + 1
        assert torch.equal(streams.document[0, batch.source].bool(), torch.arange(len(batch.target)) >= 6)


def test_a_batch_in_which_nothing_is_masked_has_one_slot_of_padding():
    ids, labelled = torch.arange(10), torch.zeros(10).bool()
    noise = draw_noise(10, 8, seeded(1), shift=False, full_share=0.0)
    batch = collate([noisy_row(ids, labelled, [noise], block_size=8, mask_id=99, causal=False, next_token=True)])
    assert batch.ids.shape == (1, 17) and batch.streams.document[0, -1] == -1 and len(batch.target) == 0


@pytest.mark.parametrize("causal", [False, True])
def test_the_clean_stream_ends_where_nobody_looks_any_further(causal):
    ids, labelled = torch.arange(40), (torch.arange(40) >= 9) & (torch.arange(40) < 30)
    noise = draw_noise(40, 8, seeded(2), shift=causal, full_share=1.0)
    layout = {"block_size": 8, "mask_id": 99, "causal": causal}
    row = noisy_row(ids, labelled, [noise], **layout)
    last = int(row.streams.start[row.streams.stream > 0].max())
    assert row.clean == last < 30 and len(row.ar_target) == 0
    whole = noisy_row(ids, labelled, [noise], **layout, next_token=True)
    assert whole.clean == 40 and whole.ar_target.tolist() == list(range(9, 30))
    assert torch.equal(whole.target, row.target) and len(whole.ids) - whole.clean == len(row.ids) - row.clean


def test_prompt_is_never_masked_and_filler_is_never_learned():
    ids, labelled = torch.arange(13) + 1, torch.arange(13) >= 5
    noise = draw_noise(13, 8, seeded(3), shift=False, full_share=1.0)
    row = noisy_row(ids, labelled, [noise], block_size=8, mask_id=99, causal=False, next_token=True)
    noisy = slice(row.clean, None)
    masked, position = row.masked[noisy], row.streams.position[noisy]
    assert row.clean == 16 and sorted(position[masked].tolist()) == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert sorted(row.target.tolist()) == [6, 7, 8, 9, 10, 11, 12, 13]


def test_causal_rows_leave_the_first_slot_of_a_block_to_autoregression():
    ids, labelled = torch.arange(30), torch.arange(30) >= 6
    for n in range(50):
        noise = draw_noise(30, 8, seeded(n), shift=True, full_share=0.3)
        row = noisy_row(ids, labelled, [noise], block_size=8, mask_id=99, causal=True)
        masked = row.masked & (row.streams.position < 30)
        assert (row.streams.position[masked] != row.streams.start[masked]).all()
        assert (row.source >= row.clean).all()  # what is masked has its left neighbour in its own noisy block


def test_views_leave_out_blocks_in_which_nothing_is_masked():
    ids, labelled = torch.arange(24), torch.arange(24) >= 16
    noise = draw_noise(24, 8, seeded(1), shift=False, full_share=1.0)
    row = noisy_row(ids, labelled, [noise], block_size=8, mask_id=99, causal=False)
    assert len(row.ids) == 16 + 8
    assert row.source[0] == 15  # block 1 was left out, so the label at 16 is read from the clean stream
