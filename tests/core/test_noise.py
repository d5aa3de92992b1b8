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


def test_o1_08_padding_is_neither_noised_nor_learned():
    for draw in range(200):
        rows = []
        for length in (10, 30):
            ids, labelled = torch.arange(length) + 1, torch.arange(length) >= 4
            noise = draw_noise(length, 8, seeded(draw, length), shift=False, full_share=0.0)
            rows.append(noisy_row(ids, labelled, [noise], block_size=8, mask_id=99, causal=False))
        batch = collate(rows, pad_id=77)
        padding = batch.streams.document < 0
        assert not batch.masked[padding].any() and (batch.ids[padding] == 77).all()
        assert not padding.flatten()[batch.source].any()
        assert sorted(batch.target.tolist()) == sorted([*range(5, 11), *range(5, 31)])


def test_prompt_is_never_masked_and_filler_is_never_learned():
    ids, labelled = torch.arange(13) + 1, torch.arange(13) >= 5
    noise = draw_noise(13, 8, seeded(3), shift=False, full_share=1.0)
    row = noisy_row(ids, labelled, [noise], block_size=8, mask_id=99, causal=False)
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
    assert len(row.ids) == 24 + 8
    assert row.source[0] == 15  # block 1 was left out, so the label at 16 is read from the clean stream
