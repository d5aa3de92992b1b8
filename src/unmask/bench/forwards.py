"""The time of one forward: by new positions, beside transformers and the machine's limits; and by context length.

Both sides read the same prefix from their caches, take the same tokens and give the logits of the last of them.
"""

from functools import partial
from typing import Any

import torch

from unmask.bench.clock import in_turn
from unmask.limits import Limits
from unmask.model.backbone import Feed
from unmask.model.peer import Peer

Row = dict[str, float]


def by_positions(
    backbone: Any, peer: Peer | None, limits: Limits, positions: list[int], prefix: int, rounds: int
) -> list[Row]:
    """Per number of positions: milliseconds of ours, of transformers' faster attention, and of the limit."""
    tokens = _tokens(prefix + max(positions), backbone.vocab_size)
    cache = backbone.new_cache(1, len(tokens))
    backbone.forward(cache, [0], [_feed(tokens, 0, prefix)])
    rows = []
    for n in positions:
        ours = {"unmask": partial(backbone.forward, cache, [0], [_feed(tokens, prefix, n)])}
        theirs = {} if peer is None else peer.forwards(tokens[:prefix], tokens[prefix : prefix + n])
        times = in_turn({**theirs, **ours}, rounds)
        row = {"positions": n, "unmask_ms": times.pop("unmask") * 1e3}
        row["limit_ms"] = 1e3 * limits.of_forward(*cost(backbone, prefix, n))
        if times:
            row["transformers_ms"] = min(times.values()) * 1e3
        rows.append(row)
    return rows


def by_context(backbone: Any, contexts: list[int], rounds: int) -> list[Row]:
    """Per context length: milliseconds of a forward over 1 and over 8 positions behind it.

    The cache is filled with random keys and values: what is in them does not change the time.
    """
    most = min(max(contexts), backbone.max_positions - 8)
    cache = backbone.new_cache(1, most + 8)
    for buffer in (cache.key, cache.value):
        buffer.normal_()
    tokens = _tokens(most + 8, backbone.vocab_size)
    rows = []
    for context in sorted({min(context, most) for context in contexts}):
        works = {f"{n}_ms": partial(backbone.forward, cache, [0], [_feed(tokens, context, n)]) for n in (1, 8)}
        times = in_turn(works, rounds)
        rows.append({"context": context, **{name: taken * 1e3 for name, taken in times.items()}})
    return rows


def cost(backbone: Any, prefix: int, positions: int) -> tuple[float, float]:
    """(bytes, operations) of a forward: weights and the cache's prefix once; two operations per weight and position,
    the head for one of them, and two products per position with what it sees."""
    shape, network = backbone.network.parts.shape, backbone.network
    cache = 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim * (prefix + positions)
    head = shape.vocab * shape.hidden
    products = 2.0 * ((shape.values - head) * positions + head)
    attention = 4.0 * shape.layers * shape.heads * shape.head_dim * (prefix + positions) * positions
    unread = 0 if network.parts.embedding is None else network.parts.embedding.nbytes  # but for a row per position
    return network.nbytes - unread + cache, products + attention


def _feed(tokens: list[int], start: int, n: int) -> Feed:
    return Feed(tokens[start : start + n], start, list(range(start + 1, start + n + 1)), [False] * n, [n - 1])


def _tokens(n: int, vocab: int) -> list[int]:
    found: list[int] = torch.randint(0, vocab, (n,), generator=torch.Generator().manual_seed(0)).tolist()
    return found
