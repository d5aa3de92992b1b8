"""Draw who sees whom, from the very functions that decoding and training use: `python docs/draw_masks.py`.

Writes docs/images/*.svg: one square per (query, key), filled where the query sees the key.
"""

from pathlib import Path

import torch
from torch import Tensor

from unmask.core.masks import decoding_mask, training_mask
from unmask.core.streams import Draw, collate, noisy_row

OUT = Path(__file__).parent / "images"
CELL, MARGIN = 14, 84
INK = {"clean": "#4878a8", "noisy": "#d9822b", "none": "#e8e8e8"}


def picture(mask: Tensor, rows: list[str], columns: list[str], colours: list[str], title: str) -> str:
    """An SVG of mask, Bool [query, key], with labels; a column's colour tells what kind of key it is."""
    queries, keys = mask.shape
    width, height = MARGIN + keys * CELL + 10, MARGIN + queries * CELL + 10
    cells = [
        f'<rect x="{MARGIN + k * CELL}" y="{MARGIN + q * CELL}" width="{CELL - 1}" height="{CELL - 1}" '
        f'fill="{INK[colours[k]] if mask[q, k] else INK["none"]}"/>'
        for q in range(queries)
        for k in range(keys)
    ]
    left = [
        f'<text x="{MARGIN - 5}" y="{MARGIN + q * CELL + 11}" text-anchor="end">{name}</text>'
        for q, name in enumerate(rows)
    ]
    top = [
        f'<text transform="translate({MARGIN + k * CELL + 11},{MARGIN - 5}) rotate(-90)">{name}</text>'
        for k, name in enumerate(columns)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="monospace" font-size="10"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="6" y="14" font-size="11">{title}</text>' + "".join(cells + left + top) + "</svg>\n"
    )


def decoding(size: int = 4, prefix: int = 8) -> dict[str, str]:
    """The situations of decoding: 8 committed positions, then a block of 4."""
    total, names = prefix + size, [str(n) for n in range(prefix + size)]
    position = torch.arange(prefix, total)[None]
    kinds = ["clean"] * prefix + ["noisy"] * size
    whole = torch.full_like(position, total)
    return {
        "draft": picture(
            decoding_mask(whole, position, total)[0, 0],
            names[prefix:],
            names,
            kinds,
            "draft: the whole block, both ways",
        ),
        "sub-block": picture(
            decoding_mask(whole, position, total)[0, 0, :2],
            names[prefix : prefix + 2],
            names,
            kinds,
            "sub-block step: two slots",
        ),
        "commit-block": picture(
            decoding_mask(whole, position, total)[0, 0],
            names[prefix:],
            names,
            ["clean"] * total,
            "commit, context block",
        ),
        "commit-causal": picture(
            decoding_mask(position + 1, position, total)[0, 0],
            names[prefix:],
            names,
            ["clean"] * total,
            "commit and check, context causal",
        ),
    }


def training(causal: bool, size: int = 4, length: int = 12) -> str:
    """A row of 12 tokens, of which 4 to 11 are labelled, with both complementary views."""
    ids, labelled = torch.arange(length), torch.arange(length) >= 4
    hit = torch.tensor([0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 1]).bool()
    row = noisy_row(ids, labelled, [Draw(0, hit)], block_size=size, mask_id=0, causal=causal, next_token=True)
    batch = collate([row])
    mask = training_mask(batch.streams, batch.streams, causal)[0, 0]
    names = [
        f"{'M' if m else 'x'}{p} view {s}" if s else f"x{p} clean"
        for s, p, m in zip(row.streams.stream.tolist(), row.streams.position.tolist(), row.masked.tolist(), strict=True)
    ]
    kinds = ["noisy" if s else "clean" for s in row.streams.stream.tolist()]
    return picture(mask, names, names, kinds, f"training, context {'causal' if causal else 'block'}")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    pictures = {**decoding(), "training-block": training(False), "training-causal": training(True)}
    for name, svg in pictures.items():
        (OUT / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(OUT / f"{name}.svg")


if __name__ == "__main__":
    main()
