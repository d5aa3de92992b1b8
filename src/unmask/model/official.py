"""The layout of the official Fast-dLLM v2 checkpoints, written: Qwen2 under another name.

A network of this layout is Qwen2's; what differs is config.json (its model type, `bd_size`) and one more token,
`|<MASK>|`. The layout states no mask id and no end token for decoding: programs that read it have 151665 and 151645
built in. Nor does it state a sub-block size, or that committed tokens are causal. What it cannot say is refused here.
"""

import json
from pathlib import Path
from typing import Any

from unmask.config import BlockSpec
from unmask.errors import UnsupportedModelError
from unmask.model.checkpoint import Checkpoint
from unmask.model.files import read_json
from unmask.model.hf import OFFICIAL
from unmask.model.masktoken import OFFICIAL_MASK
from unmask.model.outgoing import Outgoing

MASK_ID, STOP_ID, BOS_ID = 151665, 151645, 151643
MERGED = "use --format merged, which unmask and transformers load"
CLASSES = {
    "AutoConfig": "configuration.Fast_dLLM_QwenConfig",
    "AutoModel": "modeling.Fast_dLLM_QwenModel",
    "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM",
}
KEPT = (
    "attention_dropout",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "max_window_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
)


def check_official(checkpoint: Checkpoint, config: Any) -> None:
    """UnsupportedModelError, in one line with the reason, for what the layout cannot hold. config: transformers'."""
    reason = _spec(checkpoint.spec) or _shape(config) or _tokens(checkpoint)
    if reason is not None:
        raise UnsupportedModelError(f"{checkpoint.ref} cannot be written as fast-dllm-v2: {reason}")


def _spec(spec: BlockSpec | None) -> str | None:
    if spec is None:
        return "it is a plain autoregressive model; adapt it first (unmask adapt), or use --format merged"
    if spec.adapter_scope == "draft":
        return (
            "its adapter acts on drafts only, and the layout has one network for drafts and committed tokens; "
            'use --format hf, or adapt with adapter_scope = "all" and context = "block"'
        )
    if spec.context != "block":
        return (
            f"its context is '{spec.context}', while programs of this layout let committed tokens see their whole "
            f'block; {MERGED}, or adapt with context = "block"'
        )
    return None


def _shape(config: Any) -> str | None:
    if config.model_type != "qwen2":
        return f"its model type is '{config.model_type}', the layout holds Qwen2 shapes only; {MERGED}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        return f"its rope scaling is '{rope['rope_type']}', the layout's is none; {MERGED}"
    if getattr(config, "use_sliding_window", False) or "sliding_attention" in (config.layer_types or ()):
        return f"it has sliding-window layers, the layout has full attention only; {MERGED}"
    whole = config.hidden_size // config.num_attention_heads
    if (getattr(config, "head_dim", None) or whole) != whole:
        return f"its head_dim is {config.head_dim}, the layout's is hidden_size / heads = {whole}; {MERGED}"
    return None


def _tokens(checkpoint: Checkpoint) -> str | None:
    assert checkpoint.spec is not None
    mask_id, tokenizer = checkpoint.spec.mask_id, checkpoint.tokenizer
    if mask_id != MASK_ID:
        return f"its mask id is {mask_id}, programs of this layout have {MASK_ID} built in; {MERGED}"
    if STOP_ID not in checkpoint.stop_ids:
        stops = ", ".join(map(str, checkpoint.stop_ids)) or "none"
        return f"its end tokens are {stops}, programs of this layout stop at {STOP_ID}; {MERGED}"
    if tokenizer is None:
        return f"it has no tokenizer, whose {OFFICIAL_MASK} is the layout's mask; put its files beside the weights"
    vocabulary = tokenizer.get_vocab()
    stated = vocabulary.get(OFFICIAL_MASK)
    if stated is not None and stated != MASK_ID:
        return f"its tokenizer has {OFFICIAL_MASK} as {stated}, not {MASK_ID}; {MERGED}"
    if stated is None and (end := max(vocabulary.values()) + 1) != MASK_ID:
        return f"its tokenizer ends at {end}, so that {OFFICIAL_MASK} cannot become {MASK_ID}; {MERGED}"
    return None


def official_config(config: Any, spec: BlockSpec, out: Outgoing) -> dict[str, Any]:
    """config.json of the layout, key by key as the published ones have it. config: transformers' of a Qwen2."""
    made = {key: getattr(config, key) for key in KEPT}
    made |= {
        "architectures": [CLASSES["AutoModelForCausalLM"].partition(".")[2]],
        "auto_map": CLASSES,
        "bd_size": spec.block_size,
        "bos_token_id": BOS_ID,
        "eos_token_id": STOP_ID,
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "model_type": OFFICIAL,
        "pad_token_id": STOP_ID,
        "rope_scaling": None,
        "rope_theta": float(config.rope_parameters["rope_theta"]),
        "sliding_window": None,
        "tie_word_embeddings": out.tied,
        "torch_dtype": str(out.dtype).removeprefix("torch."),
        "transformers_version": "4.53.1",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": out.rows,
    }
    return dict(sorted(made.items()))


def name_the_mask(directory: Path) -> None:
    """Give the tokenizer files of a directory the layout's mask token, and names that transformers 4 knows too.

    tokenizer.json must be there. transformers 5 writes a class name and a list of special tokens under names of its
    own, at which transformers 4, on which programs of this layout build, fails.
    """
    entry = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    file = directory / "tokenizer.json"
    tokens = read_json(file)
    if all(token["content"] != OFFICIAL_MASK for token in tokens["added_tokens"]):
        tokens["added_tokens"].append({"id": MASK_ID, "content": OFFICIAL_MASK, **entry})
    _write(file, tokens, indent=None)
    about = read_json(directory / "tokenizer_config.json")
    about.pop("backend", None)
    if about.get("tokenizer_class") in (None, "TokenizersBackend"):
        about["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(about.get("extra_special_tokens"), list):
        about["additional_special_tokens"] = about.pop("extra_special_tokens")
    if "added_tokens_decoder" in about:
        about["added_tokens_decoder"][str(MASK_ID)] = {"content": OFFICIAL_MASK, **entry}
    _name(about)
    _write(directory / "tokenizer_config.json", about)
    if (file := directory / "special_tokens_map.json").is_file():
        _write(file, _name(read_json(file)))
    if (file := directory / "added_tokens.json").is_file():
        _write(file, read_json(file) | {OFFICIAL_MASK: MASK_ID})


def _name(entries: dict[str, Any]) -> dict[str, Any]:
    """The same entries with the mask among the special tokens, each of which is a text or an object with one."""
    names = entries.setdefault("additional_special_tokens", [])
    if OFFICIAL_MASK not in [name.get("content") if isinstance(name, dict) else name for name in names]:
        names.append(OFFICIAL_MASK)
    return entries


def _write(file: Path, entries: dict[str, Any], indent: int | None = 2) -> None:
    file.write_text(json.dumps(entries, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
