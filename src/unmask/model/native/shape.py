"""Which networks the native runtime runs, and their weights in its terms.

Llama, Qwen 2, Qwen 3 and Mistral are one network: rotary positions, RMS norms, grouped queries, a gated feed-forward;
with or without biases, norms on queries and keys, a window, a head that shares the embedding. They are read from a
config and from tensors by their names in a checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.model.adapters import Adapter
from unmask.model.tensors import FileTensors, ModelTensors
from unmask.model.universal import layer_windows

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
ROPES = ("default", "linear", "llama3", "yarn")
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head"
PROJECTIONS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
NORMS = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
)
Tensors = FileTensors | ModelTensors


@dataclass(frozen=True)
class Shape:
    """Sizes of a network. windows: per layer, keys that a query sees back, itself included; 0 is all of them."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    eps: float
    windows: tuple[int, ...]
    positions: int

    @property
    def position_values(self) -> int:
        """Values of the keys and values of one position of one row."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def values(self) -> int:
        """Number of weights in the matrices of the layers and the head."""
        fused = (self.heads + 2 * self.kv_heads) * self.head_dim
        layer = self.hidden * (fused + self.heads * self.head_dim + 3 * self.ff)
        return self.layers * layer + self.vocab * self.hidden


@dataclass(frozen=True)
class Weight:
    """A matrix Float [out, in], with a bias [out] and a low-rank update `up` [out, rank] times `down` [rank, in] where
    there are such."""

    matrix: Tensor
    bias: Tensor | None = None
    down: Tensor | None = None
    up: Tensor | None = None

    @property
    def update(self) -> tuple[Tensor, Tensor]:
        """The low-rank update (down, up), of rank 0 where there is none."""
        if self.down is None or self.up is None:
            return self.matrix.new_zeros(0, self.matrix.shape[1]), self.matrix.new_zeros(len(self.matrix), 0)
        return self.down, self.up


@dataclass(frozen=True)
class LayerWeights:
    """One layer: the three projections fused into one, gate and up apart (a runtime interleaves them as it likes)."""

    norm_in: Tensor
    norm_mid: Tensor
    norm_q: Tensor | None
    norm_k: Tensor | None
    qkv: Weight
    o: Weight
    gate: Weight
    up: Weight
    down: Weight


def why_not(config: Any, tensors: Tensors, adapter: Adapter | None = None) -> str | None:
    """Why a causal LM (and an adapter on it) is none of these networks; None where it is one."""
    if config.model_type not in FAMILIES:
        return f"model type '{config.model_type}' is not of Llama, Qwen 2, Qwen 3 or Mistral shape"
    rope, head_dim = _rope(config), _head_dim(config)
    checks = {
        f"rope type '{rope}'": rope not in ROPES,
        f"activation '{config.hidden_act}'": config.hidden_act != "silu",
        f"head_dim {head_dim}, which is no multiple of 8": head_dim % 8 != 0,
        "rotation of a part of each head": _partial(config),
        f"{config.num_attention_heads} heads over {config.num_key_value_heads}": config.num_attention_heads
        % config.num_key_value_heads,
        "odd sizes": config.hidden_size % 2 or config.intermediate_size % 2,
        "layers of other types": set(getattr(config, "layer_types", None) or ())
        - {"full_attention", "sliding_attention"},
        "an adapter on its head": adapter is not None and any(".layers." not in name for name in adapter.pairs),
        "weights of other names or shapes": _expected(config, tensors)
        != {name: tensors.shape(name) for name in tensors if not _repeated(config, name)},
        "a head that is not the embedding it is tied to": _untied(config, tensors),
    }
    return next((f"it has {what}" for what, wrong in checks.items() if wrong), None)


def _repeated(config: Any, name: str) -> bool:
    """Whether a tensor only repeats what a checkpoint says elsewhere."""
    return name.endswith("rotary_emb.inv_freq") or (is_tied(config) and name == f"{HEAD}.weight")


def _untied(config: Any, tensors: Tensors) -> bool:
    """Whether a checkpoint ties its head to the embedding and then holds another head, which transformers takes."""
    name = f"{HEAD}.weight"
    if not is_tied(config) or name not in tensors or EMBEDDING not in tensors:
        return False
    return not torch.equal(tensors[name], tensors[EMBEDDING])


def _partial(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or {}
    return (rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0) != 1.0


def _biased(config: Any) -> set[str]:
    """Names of the projections that have a bias."""
    own, ff = getattr(config, "attention_bias", False), getattr(config, "mlp_bias", False)
    found = set(PROJECTIONS["self_attn"]) if own and config.model_type in ("llama", "qwen3") else set()
    found |= {"q_proj", "k_proj", "v_proj"} if config.model_type == "qwen2" else set()
    return found | (set(PROJECTIONS["mlp"]) if ff and config.model_type == "llama" else set())


def _expected(config: Any, tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor by name, as transformers' network of the config has them."""
    hidden, ff, dim = config.hidden_size, config.intermediate_size, _head_dim(config)
    queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    sizes = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (ff, hidden),
        "up_proj": (ff, hidden),
        "down_proj": (hidden, ff),
    }
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), NORM: (hidden,)}
    if not is_tied(config):
        found[f"{HEAD}.weight"] = (config.vocab_size, hidden)
    biased, normed = _biased(config), config.model_type == "qwen3"
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}."
        for name, size in zip(NORMS, (hidden, hidden, dim, dim), strict=True):
            if normed or "self_attn" not in name:
                found[layer + name] = (size,)
        for part, names in PROJECTIONS.items():
            for name in names:
                found[f"{layer}{part}.{name}.weight"] = sizes[name]
                if name in biased:
                    found[f"{layer}{part}.{name}.bias"] = sizes[name][:1]
    return found


def shape_of(config: Any, tensors: Tensors) -> Shape:
    """The sizes of a network that `why_not` has nothing against."""
    return Shape(
        vocab=tensors.shape(EMBEDDING)[0],
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=_head_dim(config),
        ff=config.intermediate_size,
        eps=config.rms_norm_eps,
        windows=_windows(config),
        positions=getattr(config, "max_position_embeddings", None) or 2**31 - 1,
    )


def layer_weights(config: Any, tensors: Tensors, adapter: Adapter | None = None) -> Iterator[LayerWeights]:
    """The layers, one after the other, so that no second copy of all of them is ever held."""
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}."

        def fused(part: str, *names: str, layer: str = layer) -> Weight:
            return _fused(tensors, [f"{layer}{part}.{name}" for name in names], adapter)

        norms = [tensors[layer + name] if layer + name in tensors else None for name in NORMS]
        assert norms[0] is not None and norms[1] is not None
        yield LayerWeights(
            norms[0],
            norms[1],
            norms[2],
            norms[3],
            fused("self_attn", "q_proj", "k_proj", "v_proj"),
            fused("self_attn", "o_proj"),
            fused("mlp", "gate_proj"),
            fused("mlp", "up_proj"),
            fused("mlp", "down_proj"),
        )


def head_weight(config: Any, tensors: Tensors) -> Weight:
    return Weight(tensors[EMBEDDING if is_tied(config) else f"{HEAD}.weight"])


def is_tied(config: Any) -> bool:
    """Whether the head is the embedding."""
    return bool(config.tie_word_embeddings)


def frequencies(config: Any) -> tuple[Tensor, float]:
    """Float [head_dim / 2] of the rope type, and the scaling of cosine and sine that goes with it."""
    kind, dim = _rope(config), _head_dim(config)
    if kind == "default":
        theta = config.rope_parameters["rope_theta"]
        return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    values, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return values.float(), float(scaling)


def rotation(values: Tensor, scaling: float, positions: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, Float [positions, head_dim / 2], of `frequencies`."""
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * values[None]
    return angle.cos() * scaling, angle.sin() * scaling


def _fused(tensors: Tensors, names: list[str], adapter: Adapter | None) -> Weight:
    """Linear layers of one input as one, each with its own low-rank update."""
    each = [tensors[f"{name}.weight"] for name in names]
    matrix, bias = each[0] if len(each) == 1 else torch.cat(each), None
    if any(f"{name}.bias" in tensors for name in names):
        none = [matrix.new_zeros(len(weight)) for weight in each]
        bias = torch.cat(
            [tensors[f"{n}.bias"] if f"{n}.bias" in tensors else zeros for n, zeros in zip(names, none, strict=True)]
        )
    if adapter is None or not any(name in adapter.pairs for name in names):
        return Weight(matrix, bias)
    each_update = [
        (down.float(), adapter.scale * up.float())
        for down, up in (adapter.pairs.get(n, Weight(w).update) for n, w in zip(names, each, strict=True))
    ]
    downs, ups = zip(*each_update, strict=True)
    return Weight(matrix, bias, torch.cat(downs), torch.block_diag(*ups))


def merged(weight: Weight) -> Weight:
    """The same layer with its low-rank update in the matrix: summed in float32, rounded once to the matrix's type."""
    if weight.down is None or weight.up is None:
        return weight
    matrix = (weight.matrix.float() + weight.up @ weight.down).to(weight.matrix.dtype)
    return Weight(matrix, weight.bias)


def _rope(config: Any) -> str:
    return str((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default"))


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _windows(config: Any) -> tuple[int, ...]:
    by_kind = layer_windows(config)
    kinds = getattr(config, "layer_types", None) or ["all"] * config.num_hidden_layers
    return tuple(by_kind[kind] or 0 for kind in kinds)
