"""Position arithmetic of blocks. A grid with origin o cuts positions into blocks [o + nD, o + (n + 1)D)."""

from torch import Tensor


def block_start(position: Tensor, block_size: int, origin: int = 0) -> Tensor:
    """First position of the block that holds `position`, elementwise. Positions before the origin belong to blocks that
    begin before it."""
    return (position - origin) // block_size * block_size + origin


def filler(length: int, block_size: int, origin: int = 0) -> int:
    """How many slots are missing from `length` positions to the end of their last block; 0 to block_size - 1."""
    return (origin - length) % block_size
