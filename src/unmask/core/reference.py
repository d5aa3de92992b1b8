"""The published layout of a training row, kept to compare with: [x_0 ; x_t] once per view, all positions (section 3.2).

It gives the loss and gradient of `streams.noisy_row` at 4L positions for a row of L and a pair of views.
"""

import torch
from torch import Tensor

from unmask.core.blocks import block_start
from unmask.core.masks import CLEAN, Streams
from unmask.core.noise import views
from unmask.core.streams import Draw, NoisyRow, extend


def reference_rows(
    ids: Tensor,
    labelled: Tensor,
    draws: list[Draw],
    *,
    block_size: int,
    mask_id: int,
    causal: bool,
    complementary: bool = True,
) -> list[NoisyRow]:
    """One row per view of each draw. Arguments as for `noisy_row`; next-token labels and teachers are empty."""
    rows, nothing = [], ids.new_zeros(0)
    for draw in draws:
        full, start, maskable = extend(ids, labelled, draw, block_size, causal)
        filling = torch.arange(len(full)) >= len(ids)
        clean = len(ids) if causal else len(full)
        position = torch.cat([torch.arange(clean), torch.arange(len(full))])
        for number, masked in enumerate(views(draw.hit, maskable, complementary), start=1):
            stream = torch.cat([torch.full((clean,), CLEAN), torch.full((len(full),), number)])
            label = masked[1:].nonzero().squeeze(1) + 1
            rows.append(
                NoisyRow(
                    torch.cat([full[:clean], full]),
                    torch.cat([filling[:clean], masked | filling]),
                    Streams(
                        stream,
                        torch.cat([block_start(position[:clean], block_size), start]),
                        position,
                        torch.zeros_like(position),
                    ),
                    clean,
                    label - 1 + clean,
                    full[label],
                    nothing,
                    nothing,
                    nothing,
                )
            )
    return rows
