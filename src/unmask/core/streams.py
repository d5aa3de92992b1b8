"""From a row with labels to what the network is fed in training: one clean stream and the noisy blocks over it.

The reference runs [x_t ; x_0] once per complementary view, 4L positions. Here all views of a row share one clean
stream, a noisy stream holds only blocks in which something is masked, and the clean stream ends where nobody looks any
further, which gives the same loss and gradient at less than L + 2R positions. A label's logit is read one position to
its left (token shift). Where that position lies in a noisy block that was left out, the block would have equalled its
clean copy, so the clean stream's logit is the same number.
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
    teacher: Long [label], where the clean stream gives its own law of each masked label; empty where it was cut short
    """

    ids: Tensor
    masked: Tensor
    streams: Streams
    clean: int
    source: Tensor
    target: Tensor
    ar_source: Tensor
    ar_target: Tensor
    teacher: Tensor


@dataclass(frozen=True)
class Draw:
    """One draw of noise over a row: the grid's origin and the hit slots, Bool [position] (filler included)."""

    origin: int
    hit: Tensor


def draw_noise(
    length: int, block_size: int, generator: torch.Generator, *, shift: bool, full_share: float, late: bool = False
) -> Draw:
    """Levels and hits for a row of `length` tokens; `shift` cuts its blocks at a random place."""
    origin = int(torch.randint(block_size, (1,), generator=generator)) - block_size if shift else 0
    positions = torch.arange(length + filler(length, block_size, origin))
    return Draw(origin, hits(block_start(positions, block_size, origin), generator, full_share, late=late))


def noisy_row(
    ids: Tensor,
    labelled: Tensor,
    draws: list[Draw],
    *,
    block_size: int,
    mask_id: int,
    causal: bool,
    complementary: bool = True,
    next_token: bool = False,
    every_block: bool = False,
) -> NoisyRow:
    """Lay out ids, Long [token], of which `labelled`, Bool [token], are learned.

    next_token: keep the whole clean stream, for a loss on it; else it ends before the last noisy block, where nobody
    looks at it any more, and the labels of that loss are empty. every_block: keep noisy blocks without a mask too.

    causal: the first slot of a block is never masked, since decoding knows it from the clean stream. In block context
    the clean stream is filled up to whole blocks with masks, as the published recipe pads.
    """
    fill = 0 if causal else filler(len(ids), block_size)
    clean_ids = torch.cat([ids, ids.new_full((fill,), mask_id)])
    clean_masked = torch.arange(len(clean_ids)) >= len(ids)
    position = torch.arange(len(clean_ids))
    parts = [(clean_ids, clean_masked, torch.full_like(position, CLEAN), block_start(position, block_size), position)]
    if not next_token and not every_block:
        seen = max([1, *(_last_start(ids, labelled, draw, block_size, causal, complementary) for draw in draws)])
        ids_, masked_, stream, start, position = (column[:seen] for column in parts[0])
        parts = [(ids_, masked_, stream, start, position)]
    clean = len(parts[0][0])
    sources, targets, teachers, offset, number = [], [], [], clean, CLEAN
    for draw in draws:
        full, start, maskable = extend(ids, labelled, draw, block_size, causal)
        filling = torch.arange(len(start)) >= len(ids)
        for masked in views(draw.hit, maskable, complementary):
            number += 1
            kept = torch.isin(start, start[masked]) | every_block
            place = torch.cumsum(kept, 0) - 1 + offset
            label = masked[1:].nonzero().squeeze(1) + 1  # nothing stands to the left of position 0
            sources.append(torch.where(kept[label - 1], place[label - 1], label - 1))
            targets.append(full[label])
            teachers.append(label[:0] if not next_token else label - 1)
            at = kept.nonzero().squeeze(1)
            parts.append((full[at], (masked | filling)[at], torch.full_like(at, number), start[at], at))
            offset += len(at)
    ids_, masked_, stream, start, position = (torch.cat(column) for column in zip(*parts, strict=True))
    label = labelled[1:].nonzero().squeeze(1) + 1 if next_token else ids.new_zeros(0)
    return NoisyRow(
        ids_,
        masked_,
        Streams(stream, start, position, torch.zeros_like(position)),
        clean,
        torch.cat(sources),
        torch.cat(targets),
        label - 1,
        ids[label],
        torch.cat(teachers),
    )


def plain_row(ids: Tensor, labelled: Tensor) -> NoisyRow:
    """The clean stream alone, for the plain next-token fine-tune: its labels take the masked ones' place."""
    position, nothing = torch.arange(len(ids)), ids.new_zeros(0)
    label = labelled[1:].nonzero().squeeze(1) + 1
    streams = Streams(torch.full_like(position, CLEAN), position, position, torch.zeros_like(position))
    unmasked = torch.zeros_like(labelled)
    return NoisyRow(ids, unmasked, streams, len(ids), label - 1, ids[label], nothing, nothing, nothing)


def _last_start(ids: Tensor, labelled: Tensor, draw: Draw, block_size: int, causal: bool, complementary: bool) -> int:
    """Where the last block starts in which something is masked; 0 where there is none."""
    _, start, maskable = extend(ids, labelled, draw, block_size, causal)
    return max(
        (int(start[masked].max()) for masked in views(draw.hit, maskable, complementary) if masked.any()), default=0
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
    """Rows one behind the other, nothing padded: the clean tokens of all rows, then the noisy ones; [1, token].

    clean: how many are clean; `source`, `target`, `ar_source`, `ar_target` and `teacher` as in `NoisyRow`, [label].
    """

    ids: Tensor
    masked: Tensor
    streams: Streams
    clean: int
    source: Tensor
    target: Tensor
    ar_source: Tensor
    ar_target: Tensor
    teacher: Tensor

    def to(self, device: torch.device) -> "StreamBatch":
        streams = Streams(*(getattr(self.streams, name).to(device) for name in Streams.__dataclass_fields__))
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return StreamBatch(**tensors, streams=streams, clean=self.clean)


def collate(rows: list[NoisyRow]) -> StreamBatch:
    """Lay rows one behind the other, their documents told apart.

    Where nothing is masked, the noisy part is one slot of padding: networks cannot be fed no token at all.
    """
    clean, noisy = sum(row.clean for row in rows), sum(len(row.ids) - row.clean for row in rows)
    places, at, then, documents = [], 0, clean, 0
    parts: dict[str, list[Tensor]] = {name: [] for name in ("stream", "start", "position", "document")}
    for row in rows:
        left, width = row.clean, len(row.ids) - row.clean
        places.append(torch.cat([torch.arange(at, at + left), torch.arange(then, then + width)]))
        for name, column in parts.items():
            column.append(getattr(row.streams, name) + documents * (name == "document"))
        at, then, documents = at + left, then + width, documents + int(row.streams.document.max()) + 1
    order = torch.argsort(torch.cat(places))

    def laid(columns: list[Tensor], fill: int) -> Tensor:
        column = torch.cat(columns)[order]
        return (torch.cat([column, column.new_full((1,), fill)]) if noisy == 0 else column)[None]

    padding = {"stream": CLEAN + 1, "start": 0, "position": 0, "document": NOBODY}
    streams = Streams(**{name: laid(columns, padding[name]) for name, columns in parts.items()})
    pairs = list(zip(rows, places, strict=True))
    return StreamBatch(
        laid([row.ids for row in rows], 0),
        laid([row.masked for row in rows], 0),
        streams,
        clean,
        torch.cat([place[row.source] for row, place in pairs]),
        torch.cat([row.target for row in rows]),
        torch.cat([place[row.ar_source] for row, place in pairs]),
        torch.cat([row.ar_target for row in rows]),
        torch.cat([place[row.teacher] for row, place in pairs]),
    )
