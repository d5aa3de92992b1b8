"""Memory and operations of training, from the sizes of the network and of what is fed.

All formulas count what this project's training loop does: float32 weights, AdamW, autocast for bf16.
"""

from dataclasses import dataclass

import torch

from unmask.core.loss import CHUNK
from unmask.core.masks import CLEAN
from unmask.core.streams import NoisyRow
from unmask.plan.network import Network
from unmask.recipe import Adapt


@dataclass(frozen=True)
class Fed:
    """What some rows put into the network: positions of the clean stream and of the noisy ones, pairs of a query and a
    key that it sees in each, masked labels, and labels of the next token."""

    clean: float = 0
    noisy: float = 0
    clean_pairs: float = 0
    noisy_pairs: float = 0
    labels: float = 0
    following: float = 0

    @property
    def positions(self) -> float:
        return self.clean + self.noisy

    def times(self, factor: float) -> "Fed":
        return Fed(*(factor * value for value in vars(self).values()))

    def __add__(self, other: "Fed") -> "Fed":
        return Fed(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


def fed(row: NoisyRow, block_size: int, causal: bool) -> Fed:
    """What one row puts in. A clean query sees the clean tokens up to itself or to its block's end, a noisy one the
    clean tokens before its block and the block."""
    clean = row.streams.stream == CLEAN
    position, start = row.streams.position, row.streams.start
    seen = position + 1 if causal else torch.clamp(start + block_size, max=row.clean)
    behind = torch.clamp(start, min=0, max=row.clean) + block_size
    pairs = int(seen[clean].sum()), int(behind[~clean].sum())
    return Fed(row.clean, len(row.ids) - row.clean, *pairs, len(row.target), len(row.ar_target))


@dataclass(frozen=True)
class Memory:
    """Bytes on a device: weights (float32, with bf16 copies of the matrices where the products are in bf16), gradients
    and AdamW's two moments of what learns, activations and logits of one forward."""

    weights: float
    gradients: float
    moments: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.moments + self.activations

    def divided(self, devices: int) -> float:
        """Bytes on each of several devices that divide all but the activations (FSDP2, ZeRO-3)."""
        return (self.total - self.activations) / devices + self.activations


def learning(network: Network, recipe: Adapt) -> int:
    """Values that learn: all of them, or the adapters and the mask's embedding, the chain, or the chain alone."""
    if recipe.method == "full":
        return network.parameters
    chain = 2 * recipe.chain * network.hidden
    if recipe.chain_only:
        return chain
    return network.adapters(recipe.rank) + network.hidden * (recipe.objective == "diffusion") + chain


def memory(network: Network, recipe: Adapt, forward: Fed) -> Memory:
    """Memory per device for a forward over `forward`.

    weights 4 P, and 2 bytes of each matrix in bf16; gradients 4 T; moments 8 T, for P parameters of which T learn.
    Activations: `kept` values per position and layer; with checkpointing a layer's input for each layer, and all of one
    layer. In draft scope the clean stream keeps its keys and values alone. Logits: three float32 copies for up to CHUNK
    labels of a loss at once.
    """
    learned, size = learning(network, recipe), 2 if recipe.dtype == "bf16" else 4
    copies = 2 * (network.matrices + network.vocab * network.hidden) if recipe.dtype == "bf16" else 0
    draft = recipe.adapter_scope == "draft"
    positions = forward.noisy if draft else forward.positions
    layer = positions * kept(network, recipe)
    if recipe.checkpointing:
        inside = layer + 4 * positions * network.hidden * network.layers
    else:
        inside = layer * network.layers
    if draft:
        inside += 2 * size * forward.clean * network.keys * network.layers
    if recipe.chain_only:
        inside = 0
    inside += 4 * forward.labels * network.hidden if recipe.chain else 0  # the embedding of what stands before
    labels = min(forward.labels, CHUNK) + (min(forward.following, CHUNK) if recipe.ar_weight else 0)
    labels += min(forward.labels, CHUNK) * (bool(recipe.distill) + (bool(recipe.chain) and not recipe.chain_only))
    logits = 3 * 4 * labels * network.vocab
    return Memory(4.0 * network.parameters + copies, 4.0 * learned, 8.0 * learned, inside + logits)


def kept(network: Network, recipe: Adapt) -> float:
    """Bytes that a layer keeps for its backward pass, per position.

    Float32: each of the two norms its input and, where its weight learns, what it multiplies (h each); attention its
    queries, keys and values (q + 2 k). Of the type of the products: the inputs of the matrices, which are h for two
    groups of them and q for one, and four stages of the feed-forward (4 ff); adapters a rank for each of 7 matrices.
    In bf16 each of the five matrices that reads h keeps a cast of its own, and attention its result in float32.
    """
    h, q, k, ff = network.hidden, network.queries, network.keys, network.ff
    full, bf16 = recipe.method == "full", recipe.dtype == "bf16"
    norms, readers, ranks = 2 + 2 * full, 5 if bf16 else 2, 0 if full else 7 * recipe.rank
    return 4 * (norms * h + (1 + bf16) * q + 2 * k) + (2 if bf16 else 4) * (readers * h + q + 4 * ff + ranks)


def operations(network: Network, recipe: Adapt, step: Fed) -> float:
    """Floating-point operations of a step; a multiplication and an addition are two.

    Forward: 2 per matrix value and position, 4 per query width and seen pair and layer, 2 per value of the head and
    label. Backward: as much for the inputs' gradients and, where all weights learn, as much again for theirs; attention
    twice its forward. Low-rank adapters add 6 per value and position. Checkpointing repeats the layers' forward but for
    its last product: a layer's last matrix or, behind it, the second half of its adapter. More than CHUNK labels repeat
    the head's. Distilling makes the logits of the masked labels once more, and the teacher's, which have no backward.
    In draft scope the clean stream runs forward only, and where the chain alone learns all of the network does. A chain
    adds 10 per value of one of its two matrices and label, and the logits of the masked labels once more.
    """
    size = network.vocab * network.hidden
    logits = 2 * size * _logits(recipe, step) + 10 * recipe.chain * network.hidden * step.labels
    if recipe.chain_only:
        attention = 4 * network.queries * network.layers * (step.clean_pairs + step.noisy_pairs)
        adapters = (
            2 * network.adapters(recipe.rank) * (step.noisy if recipe.adapter_scope == "draft" else step.positions)
        )
        return 2 * network.matrices * step.positions + attention + adapters + logits
    full, again = recipe.method == "full", int(recipe.checkpointing)
    draft = recipe.adapter_scope == "draft"
    last = network.layers * network.hidden * network.ff if full else 0
    matrices = 2 * ((2 + full + again) * network.matrices - again * last)
    attention = 4 * network.queries * network.layers
    learned = matrices * step.noisy + (3 + again) * attention * step.noisy_pairs
    if draft:
        seen = 2 * network.matrices * step.clean + attention * step.clean_pairs
    else:
        seen = matrices * step.clean + (3 + again) * attention * step.clean_pairs
    values = (6 + 2 * again) * network.adapters(recipe.rank) - 2 * again * network.layers * recipe.rank * network.hidden
    adapters = 0 if full else values * (step.noisy if draft else step.positions)
    return learned + seen + adapters + logits


def _logits(recipe: Adapt, step: Fed) -> float:
    """Rows of logits that are computed, a backward pass counted as what it computes."""

    def times(labels: float) -> float:
        return labels * (2 + (recipe.method == "full") + repeated(labels))

    def repeated(labels: float) -> bool:
        return labels > CHUNK * recipe.accumulation

    taught = times(step.labels) + step.labels * (1 + repeated(step.labels)) if recipe.distill else 0.0
    taught += times(step.labels) if recipe.chain else 0.0
    if recipe.chain_only:
        return step.labels + taught
    return times(step.labels) + taught + (times(step.following) if recipe.ar_weight else 0.0)
