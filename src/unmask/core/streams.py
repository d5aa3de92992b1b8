"""From a row with labels to what the network is fed in training: one clean stream and the noisy blocks over it.

The reference runs [x_t ; x_0] once per complementary view, 4L positions. Here all views of a row share one clean
stream, and a noisy stream holds only blocks in which something is masked, which gives the same loss and gradient at
L + 2R positions. A label's logit is read one position to its left (token shift). Where that position lies in a noisy
block that was left out, the block would have equalled its clean copy, so the clean stream's logit is the same number.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.blocks import block_start, filler
from unmask.core.masks import CLEAN, NOBODY, Streams
from unmask.core.noise import hits, views


@dataclass(frozen=True)
class NoisyRow:
    """One row ready to be fed. Clean tokens come first; `source` counts through clean, then noisy tokens.

    ids, masked, streams: [token]; clean: how many of them are clean
    source, target: Long [label]: where the logit of each masked label is read, and the label
    ar_source, ar_target: the same for the next-token loss on the clean stream
    """

    ids: Tensor
    masked: Tensor
    streams: Streams
    clean: int
    source: Tensor
    target: Tensor
    ar_source: Tensor
    ar_target: Tensor


@dataclass(frozen=True)
class Draw:
    """One draw of noise over a row: the grid's origin and the hit slots, Bool [position] (filler included)."""

    origin: int
    hit: Tensor


def draw_noise(length: int, block_size: int, generator: torch.Generator, *, shift: bool, full_share: float) -> Draw:
    """Levels and hits for a row of `length` tokens; `shift` cuts its blocks at a random place."""
    origin = int(torch.randint(block_size, (1,), generator=generator)) - block_size if shift else 0
    positions = torch.arange(length + filler(length, block_size, origin))
    return Draw(origin, hits(block_start(positions, block_size, origin), generator, full_share))


def noisy_row(
    ids: Tensor,
    labelled: Tensor,
    draws: list[Draw],
    *,
    block_size: int,
    mask_id: int,
    causal: bool,
    complementary: bool = True,
) -> NoisyRow:
    """Lay out ids, Long [token], of which `labelled`, Bool [token], are learned.

    causal: the first slot of a block is never masked, since decoding knows it from the clean stream. In block context
    the clean stream is filled up to whole blocks with masks, as the published recipe pads.
    """
    fill = 0 if causal else filler(len(ids), block_size)
    clean_ids = torch.cat([ids, ids.new_full((fill,), mask_id)])
    clean_masked = torch.arange(len(clean_ids)) >= len(ids)
    position = torch.arange(len(clean_ids))
    parts = [(clean_ids, clean_masked, torch.full_like(position, CLEAN), block_start(position, block_size), position)]
    sources, targets, offset, number = [], [], len(clean_ids), CLEAN
    for draw in draws:
        full, start, maskable = extend(ids, labelled, draw, block_size, causal)
        filling = torch.arange(len(start)) >= len(ids)
        for masked in views(draw.hit, maskable, complementary):
            number += 1
            kept = torch.isin(start, start[masked])
            place = torch.cumsum(kept, 0) - 1 + offset
            label = masked[1:].nonzero().squeeze(1) + 1  # nothing stands to the left of position 0
            sources.append(torch.where(kept[label - 1], place[label - 1], label - 1))
            targets.append(full[label])
            at = kept.nonzero().squeeze(1)
            parts.append((full[at], (masked | filling)[at], torch.full_like(at, number), start[at], at))
            offset += len(at)
    ids_, masked_, stream, start, position = (torch.cat(column) for column in zip(*parts, strict=True))
    label = labelled[1:].nonzero().squeeze(1) + 1
    return NoisyRow(
        ids_,
        masked_,
        Streams(stream, start, position, torch.zeros_like(position)),
        len(clean_ids),
        torch.cat(sources),
        torch.cat(targets),
        label - 1,
        ids[label],
    )


def extend(ids: Tensor, labelled: Tensor, draw: Draw, block_size: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """ids filled up to the draw's last block, each position's block start, and which slots may be masked."""
    fill = len(draw.hit) - len(ids)
    full = torch.cat([ids, ids.new_zeros(fill)])
    maskable = torch.cat([labelled, labelled.new_zeros(fill)])
    position = torch.arange(len(full))
    start = block_start(position, block_size, draw.origin)
    return full, start, maskable & (position != start) if causal else maskable


@dataclass(frozen=True)
class StreamBatch:
    """Rows padded to common widths: clean tokens [row, clean], noisy tokens [row, noisy].

    `source` and `ar_source` index the flattened [row, clean + noisy] positions.
    """

    ids: Tensor
    masked: Tensor
    streams: Streams
    clean: int
    source: Tensor
    target: Tensor
    ar_source: Tensor
    ar_target: Tensor

    def to(self, device: torch.device) -> "StreamBatch":
        streams = Streams(*(getattr(self.streams, name).to(device) for name in Streams.__dataclass_fields__))
        return StreamBatch(
            self.ids.to(device),
            self.masked.to(device),
            streams,
            self.clean,
            self.source.to(device),
            self.target.to(device),
            self.ar_source.to(device),
            self.ar_target.to(device),
        )


def collate(rows: list[NoisyRow], pad_id: int = 0) -> StreamBatch:
    """Pad rows to one width each for the clean and the noisy part; padding belongs to NOBODY.

    Where nothing is masked, the noisy part is one slot of padding: networks cannot be fed no token at all.
    """
    clean = max(row.clean for row in rows)
    noisy = max(1, *(len(row.ids) - row.clean for row in rows))
    width = clean + noisy
    ids = torch.full((len(rows), width), pad_id)
    masked = torch.zeros(len(rows), width, dtype=torch.bool)
    fields = [torch.full((len(rows), width), value) for value in (CLEAN, 0, 0, NOBODY)]
    shifted: dict[str, list[Tensor]] = {"source": [], "ar_source": []}
    for n, row in enumerate(rows):
        at = torch.cat([torch.arange(row.clean), clean + torch.arange(len(row.ids) - row.clean)])
        ids[n, at], masked[n, at] = row.ids, row.masked
        for field, name in zip(fields, Streams.__dataclass_fields__, strict=True):
            field[n, at] = getattr(row.streams, name)
        for name, found in shifted.items():
            found.append(at[getattr(row, name)] + n * width)
    return StreamBatch(
        ids,
        masked,
        Streams(*fields),
        clean,
        torch.cat(shifted["source"]),
        torch.cat([row.target for row in rows]),
        torch.cat(shifted["ar_source"]),
        torch.cat([row.ar_target for row in rows]),
    )
