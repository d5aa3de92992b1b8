"""Which rows are held out for validation: by seed alone, and no text is both learned and validated."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from unmask.core.noise import seeded
from unmask.data.stored import Array, Row
from unmask.errors import ConfigError


def held_out(rows: Sequence[Row], wanted: float, seed: int) -> tuple[Array, Array]:
    """Numbers, Int64 [row], of the rows to learn from and of those held out. wanted: below 1 a share, else a number.

    A row that comes again, by weight or by chance, is held out with its like and validated once. Raises ConfigError
    where nothing would be left to learn from. It takes at most 80 bytes a row, whatever the rows' lengths.
    """
    like = np.fromiter(map(_key, rows), dtype=np.int64, count=len(rows))
    first = np.sort(np.unique(like, return_index=True)[1])
    count = max(1, round(wanted * len(first))) if wanted < 1 else int(wanted)
    if count >= len(first):
        raise ConfigError(f"validation_rows is {wanted:g}, but there are {len(first)} rows; leave some to learn from")
    order = torch.randperm(len(first), generator=seeded("validation", seed)).numpy()
    held = np.sort(first[order[:count]])
    return np.flatnonzero(~np.isin(like, like[held])), held


def _key(row: Row) -> int:
    """64 bits that stand for a row's ids, and no two alike in practice."""
    return int.from_bytes(hashlib.blake2b(row.ids.numpy().tobytes(), digest_size=8).digest(), "little", signed=True)
