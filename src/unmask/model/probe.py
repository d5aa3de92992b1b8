"""Whether an unmodified network does what block decoding asks of it, asked of the network itself.

The families in `PROVED` are held to these identities by the tests. Any other one is tried on a dozen tokens when it is
loaded: a network that ignores the mask, numbers positions for itself or scales its logits elsewhere would run and write
nonsense.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from unmask.errors import UnsupportedModelError
from unmask.model.backbone import Feed
from unmask.model.universal import UniversalBackbone

PROVED = frozenset({"llama", "qwen2", "qwen3", "mistral", "olmo2", "gemma3_text", "phi3"})
TOKENS, SIZE = 12, 4
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""Relative; half-precision types round each path in its own way, so they get HALF."""
HALF = 5e-2


def probe(backbone: UniversalBackbone) -> None:
    """Raise UnsupportedModelError, naming the identity, for a network that cannot decode blocks.

    The causal path is the model's own; blocks through the cache are one forward over everything; a block is seen whole
    and no later one is.
    """
    if table := _positions(backbone.model):
        raise _unsupported(
            backbone,
            f"it has learned absolute positions ({table}), and a draft may reach beyond the last of them; "
            "use a model with rotary positions",
        )
    tokens = [(7 * n + 3) % backbone.vocab_size for n in range(TOKENS)]
    for identity, holds in IDENTITIES.items():
        try:
            held, why = holds(backbone, tokens), ""
        except Exception as e:  # whatever a network raises at a mask, a cache or positions that it does not expect
            held, why = False, f" ({type(e).__name__}: {' '.join(str(e).split())[:100]})"
        if not held:
            raise _unsupported(
                backbone, f"{identity} does not hold for it{why}; known to work: {', '.join(sorted(PROVED))}"
            )


def _unsupported(backbone: UniversalBackbone, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"model type '{backbone.model.config.model_type}' is not supported: {reason}")


def _positions(model: nn.Module) -> str | None:
    """The name of a table of position embeddings, where the network has one."""
    tables = (name for name, module in model.named_modules() if isinstance(module, nn.Embedding))
    return next((name for name in tables if name.endswith(("wpe", "embed_positions", "position_embeddings"))), None)


def _is_itself(backbone: UniversalBackbone, tokens: list[int]) -> bool:
    with torch.inference_mode():
        own = backbone.model(input_ids=torch.tensor([tokens], device=backbone.device)).logits[0]
    return _close(_fed(backbone, [tokens], 1), own)


def _caches(backbone: UniversalBackbone, tokens: list[int]) -> bool:
    parts = [tokens[first : first + SIZE] for first in range(0, TOKENS, SIZE)]
    return _close(_fed(backbone, parts, SIZE), _fed(backbone, [tokens], SIZE))


def _sees_its_block(backbone: UniversalBackbone, tokens: list[int]) -> bool:
    last = 2 * SIZE - 1  # of the second block
    changed = [*tokens[:last], (tokens[last] + 1) % backbone.vocab_size, *tokens[last + 1 :]]
    before, after = _fed(backbone, [tokens], SIZE), _fed(backbone, [changed], SIZE)
    return bool((before[SIZE] != after[SIZE]).any()) and _close(before[:SIZE], after[:SIZE])


IDENTITIES: dict[str, Callable[[UniversalBackbone, list[int]], bool]] = {
    "that the causal path gives the model's own logits": _is_itself,
    "that blocks through the cache equal one forward": _caches,
    "that a block is seen whole and no later one is": _sees_its_block,
}


def _fed(backbone: UniversalBackbone, parts: list[list[int]], size: int) -> Tensor:
    """Logits [token, vocab] of `parts` fed one after the other, in blocks of `size`."""
    cache, start, found = backbone.new_cache(1, TOKENS), 0, []
    for part in parts:
        ends = [(position // size + 1) * size for position in range(start, start + len(part))]
        feed = Feed(part, start, ends, [False] * len(part), list(range(len(part))))
        found.append(backbone.forward(cache, [0], [feed]))
        start += len(part)
    return torch.cat(found)


def _close(found: Tensor, expected: Tensor) -> bool:
    scale = expected.float().abs().max()
    off = (found.float() - expected.float()).abs().max()
    return bool(off <= TOLERANCE.get(expected.dtype, HALF) * scale)
