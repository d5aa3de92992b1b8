"""Which networks the native runtime runs, and their weights in its terms.

Llama, Qwen 2, Qwen 3 and Mistral are one network: rotary positions, RMS norms, grouped queries, a gated feed-forward;
with or without biases, norms on queries and keys, a window, a head that shares the embedding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.model.adapters import Adapter

CLASSES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")


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


def why_not(model: Any, adapter: Adapter | None = None) -> str | None:
    """Why a transformers causal LM (and an adapter that acts on some of its tokens) is none of these networks; None
    where it is one."""
    config = model.config
    if type(model).__name__ not in CLASSES:
        return f"model type '{config.model_type}' is not of Llama, Qwen 2, Qwen 3 or Mistral shape"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    checks = {
        f"rope type '{rope}'": rope not in ROPES,
        f"activation '{config.hidden_act}'": config.hidden_act != "silu",
        "partial rotation": _head_dim(config) != 2 * len(model.model.rotary_emb.inv_freq),
        f"head_dim {_head_dim(config)}, which is no multiple of 8": _head_dim(config) % 8 != 0,
        "odd sizes": config.hidden_size % 2 or config.intermediate_size % 2,
        "an adapter on its head": adapter is not None and any(".layers." not in name for name in adapter.pairs),
    }
    return next((what for what, wrong in checks.items() if wrong), None)


def shape_of(model: Any) -> Shape:
    """The sizes of a model that `why_not` has nothing against."""
    config = model.config
    return Shape(
        vocab=model.get_output_embeddings().weight.shape[0],
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


def layer_weights(model: Any, adapter: Adapter | None = None) -> Iterator[LayerWeights]:
    """The layers, one after the other, so that no second copy of all of them is ever held."""
    for number, layer in enumerate(model.model.layers):
        names = {name: f"model.layers.{number}.{name}" for name, _ in layer.named_modules()}

        def fused(*parts: str, layer: Any = layer, names: dict[str, str] = names) -> Weight:
            return _fused([(layer.get_submodule(part), _update(adapter, names[part])) for part in parts])

        norm_q, norm_k = (getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm"))
        yield LayerWeights(
            layer.input_layernorm.weight.data,
            layer.post_attention_layernorm.weight.data,
            None if norm_q is None else norm_q.weight.data,
            None if norm_k is None else norm_k.weight.data,
            fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            fused("self_attn.o_proj"),
            fused("mlp.gate_proj"),
            fused("mlp.up_proj"),
            fused("mlp.down_proj"),
        )


def head_weight(model: Any) -> Weight:
    return _fused([(model.get_output_embeddings(), None)])


def is_tied(model: Any) -> bool:
    """Whether the head is the embedding."""
    return model.get_output_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()


def rotation(frequencies: Tensor, scaling: float, positions: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, Float [positions, head_dim / 2]; frequencies and scaling are those of the rope type."""
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None]
    return angle.cos() * scaling, angle.sin() * scaling


def _update(adapter: Adapter | None, name: str) -> tuple[Tensor, Tensor] | None:
    """(down, up) of an adapter for a layer, the scale in `up`."""
    pair = None if adapter is None else adapter.pairs.get(name)
    return None if adapter is None or pair is None else (pair[0].float(), adapter.scale * pair[1].float())


def _fused(parts: list[tuple[Any, tuple[Tensor, Tensor] | None]]) -> Weight:
    """Linear layers of one input as one, each with its own low-rank update."""
    layers = [layer for layer, _ in parts]
    matrix = layers[0].weight.data if len(layers) == 1 else torch.cat([layer.weight.data for layer in layers])
    bias = None
    if any(layer.bias is not None for layer in layers):
        bias = torch.cat(
            [matrix.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.data for layer in layers]
        )
    if all(update is None for _, update in parts):
        return Weight(matrix, bias)
    none = [(matrix.new_zeros(0, matrix.shape[1]), matrix.new_zeros(len(layer.weight), 0)) for layer in layers]
    updates = [update or empty for (_, update), empty in zip(parts, none, strict=True)]
    return Weight(matrix, bias, torch.cat([down for down, _ in updates]), torch.block_diag(*(up for _, up in updates)))


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _windows(config: Any) -> tuple[int, ...]:
    window = getattr(config, "sliding_window", None) or 0
    if getattr(config, "use_sliding_window", True) is False:
        window = 0
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
