"""Which families can be decoded and trained correctly, told from a config before any weight is read.

The universal backbone hands a network a mask per layer type, explicit positions and its own key/value buffers. A
network that keeps something other than one key and one value per position, or whose frequencies or biases depend on
more than a position, would run and be wrong. Those are refused here, each with its reason; a family that passes but is
not among those that the tests prove is then tried on its weights (`probe`).
"""

import inspect
from collections.abc import Iterable
from typing import Any

from unmask.errors import UnsupportedModelError

LAYER_TYPES = {"full_attention", "sliding_attention"}
LEARNED_POSITIONS = {"gpt2", "gpt_neo", "gpt_bigcode", "openai-gpt", "opt", "biogpt"}
STATE_SPACE = {"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "recurrent_gemma", "jamba", "bamba", "zamba"}

WHOLE_HEADS = {"llama", "mistral", "qwen2", "qwen3"}
"""Families whose networks rotate whole heads, whatever their config says."""


def check_family(config: Any, model_class: type | None) -> None:
    """Raise UnsupportedModelError, with the reason, for a transformers config that cannot be handled correctly.

    model_class: the causal LM class that transformers has for the config, None where it has none.
    """
    for reason in (_architecture(config, model_class), _attention(config), _rope(config), _head(config)):
        if reason is not None:
            raise UnsupportedModelError(f"model type '{config.model_type}' is not supported: {reason}")


def _architecture(config: Any, model_class: type | None) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder; use a decoder-only causal LM"
    if config.model_type in _encoders():
        return "it is a bidirectional encoder; use a decoder-only causal LM"
    if config.model_type in STATE_SPACE or getattr(model_class, "_is_stateful", False):
        return "its layers carry a running state, not keys and values per position; use an attention-only model"
    if config.model_type in LEARNED_POSITIONS:
        return (
            "it has learned absolute positions, and a draft may reach beyond the last of them; "
            "use a model with rotary positions"
        )
    if model_class is None:
        return "transformers has no causal LM of this type; use a decoder-only causal LM"
    if not getattr(model_class, "_supports_sdpa", False):
        return "its attention does not go through scaled_dot_product_attention, so it would ignore the block mask"
    if "position_ids" not in inspect.signature(model_class.forward).parameters:  # type: ignore[attr-defined]
        return "it takes no position ids, so a block could not be told where it stands"
    return None


def _encoders() -> Iterable[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _attention(config: Any) -> str | None:
    others = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if others:
        return f"it has layers of type {', '.join(others)}; only full and sliding-window attention have a block mask"
    if getattr(config, "alibi", False) or config.model_type in {"bloom", "mpt"}:
        return "its ALiBi bias is built from a causal mask; use a model with rotary positions"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "it caps attention logits, which scaled_dot_product_attention cannot do"
    if getattr(config, "hidden_size_per_layer_input", None):
        return "every layer looks tokens up by id, so a masked slot could not have an embedding of its own"
    return None


def _rope(config: Any) -> str | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    each = [p for p in parameters.values() if isinstance(p, dict)] or [parameters]
    for rope in each:
        kind = rope.get("rope_type", "default")
        if not isinstance(rope.get("rope_theta", 1.0), int | float):
            return f"its rope_theta is {rope['rope_theta']!r}, not a number"
        if kind != "default" and config.model_type in WHOLE_HEADS and (rope.get("partial_rotary_factor") or 1.0) != 1.0:
            return f"rope scaling '{kind}' of a part of each head, which its network does not do"
        if kind == "dynamic" and rope.get("factor", 1.0) != 1.0:
            return "rope scaling 'dynamic' changes its frequencies with the length, so cached keys would be wrong"
        if kind == "longrope":
            original = rope.get("original_max_position_embeddings", config.max_position_embeddings)
            if config.max_position_embeddings > original:
                return (
                    f"rope scaling 'longrope' changes its frequencies beyond {original} positions, so cached keys "
                    f"would be wrong; max_position_embeddings {original} in its config.json avoids that"
                )
    return None


def _head(config: Any) -> str | None:
    for name in ("logit_scale", "logits_scaling"):
        if (getattr(config, name, None) or 1.0) != 1.0:
            return f"its logits are scaled ({name} {getattr(config, name)})"
    return None
