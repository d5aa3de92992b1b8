"""Tiny random networks of every family that the universal backbone promises."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SHAPES = {
    "vocab_size": 261,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
FAMILIES = {
    "llama": {"attention_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": None},
    "olmo2": {},
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 16,
        "tie_word_embeddings": True,
    },
    "phi3": {},
    "mistral-window": {"sliding_window": 6},
    "qwen2-window": {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1},
    "llama-linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    "llama-llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 1e4,
        }
    },
    "llama-yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 1e4,
        }
    },
    "llama-tied": {"tie_word_embeddings": True},
}


def family_model(name: str, seed: int = 0):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(name.split("-")[0], **{**SHAPES, **FAMILIES[name]})
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval()
