"""Noise: how the slots of a block are masked in training (Fast-dLLM v2, section 3.2; algorithm A.1).

A block draws its level t ~ U(0, 1); every slot of it is hit independently with probability (1 - eps) t + eps. The
first view masks the hit slots that carry a label, the complementary view the others, so that both together mask every
labelled slot exactly once. Slots without a label (prompt, filler) are never touched.
"""

import hashlib

import torch
from torch import Tensor

EPS = 1e-3


def seeded(*parts: int | str) -> torch.Generator:
    """A CPU generator whose stream depends on the parts alone, whatever the process, batch or resume point."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def hits(start: Tensor, generator: torch.Generator, full_share: float = 0.0, *, late: bool = False) -> Tensor:
    """Bool [token]: the slots that noise hits, given the first position of each token's block, Long [token].

    One level per block. `full_share` of the blocks are hit everywhere, which is how a draft begins. late: slot i of n
    is hit with probability 1 - (1 - p)^(2 (i + 1) / (n + 1)), so that the last is hit about twice as readily as the
    middle one and the first hardly ever, as slots are filled from the left.
    """
    _, block, size = torch.unique_consecutive(start, return_inverse=True, return_counts=True)
    level = torch.rand(int(block[-1]) + 1, generator=generator)
    whole = torch.rand(len(level), generator=generator) < full_share
    probability = torch.where(whole, 1.0, (1 - EPS) * level + EPS)
    each = probability[block]
    if late:
        first = torch.cumsum(size, 0) - size
        slot = torch.arange(len(start)) - first[block]
        each = 1 - (1 - each) ** (2 * (slot + 1) / (size[block] + 1))
    return torch.rand(len(start), generator=generator) < each


def views(hit: Tensor, maskable: Tensor, complementary: bool = True) -> list[Tensor]:
    """The masked slots of each view, Bool [token]: the hit ones, then the others; only where `maskable`."""
    return [hit & maskable, ~hit & maskable] if complementary else [hit & maskable]
