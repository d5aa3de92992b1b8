"""A directory read by transformers: configuration, causal LM, tokenizer. None of a directory's own code is ever run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from unmask.errors import CapacityError, CheckpointError, ConfigError, UnsupportedModelError
from unmask.model.families import check_family
from unmask.model.files import Weights, available_memory, inspect_weights, read_json
from unmask.model.quiet import quiet

OFFICIAL = "Fast_dLLM_Qwen"
COMPLETE = {"TokenizersBackend", "PreTrainedTokenizerFast"}
NUMBERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
WINDOWS: dict[str, set[str]] = {
    "llama": set(),
    "mistral": {"sliding_window"},
    "qwen2": {"sliding_window", "use_sliding_window", "layer_types"},
    "qwen3": {"sliding_window", "use_sliding_window", "layer_types", "head_dim"},
}
"""Keys that say which layers have a window, by family."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def device_named(name: str | torch.device) -> torch.device:
    """The device of a name; `auto` is a GPU where there is one. ConfigError for one that this machine does not have."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is '{name}'; allowed: auto, cpu, cuda, cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device is '{name}', but PyTorch finds {torch.cuda.device_count()} CUDA GPUs here; use cpu")
    return device


def read_config(directory: Path) -> tuple[Any, type]:
    """(transformers config, causal LM class) of a directory; the official Fast-dLLM v2 layout is read as Qwen2.

    Raises CheckpointError for a missing or damaged file, UnsupportedModelError for a family that cannot be right.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    entries = read_json(directory / "config.json")
    kind = str(entries.get("model_type"))
    method = (entries.get("quantization_config") or {}).get("quant_method")
    if method:
        raise UnsupportedModelError(f"{directory} holds {method} weights; give the plain model or a GGUF file")
    if kind == OFFICIAL:
        entries = entries | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    elif kind not in CONFIG_MAPPING:
        code = " and its own code in that directory is not run" if "auto_map" in entries else ""
        raise UnsupportedModelError(f"{directory}: transformers does not know the model type '{kind}'{code}")
    entries.pop("auto_map", None)
    try:
        with quiet():
            config = CONFIG_MAPPING[entries["model_type"]].from_dict(entries)
    except Exception as e:  # each family raises its own types, from a missing key to a strict-dataclass error
        raise CheckpointError(f"{directory / 'config.json'} is not valid: {str(e).splitlines()[0]}") from e
    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    model_class = found[0] if isinstance(found, tuple) else found
    check_family(config, model_class)
    return config, model_class


def light_config(directory: Path) -> Any | None:
    """A config from its entries alone, without transformers; None where the file leaves something to its defaults.

    Only for the families of the native backbone, as transformers 5 writes them; importing transformers' models takes
    longer than reading such a model.
    """
    entries = read_json(directory / "config.json")
    if entries.get("model_type") == OFFICIAL:
        entries["model_type"] = "qwen2"
    rope = entries.get("rope_parameters")
    windows = WINDOWS.get(str(entries.get("model_type")))
    whole = windows is not None and all(type(entries.get(key)) is int for key in NUMBERS)
    whole = whole and windows <= set(entries) and type(entries.get("tie_word_embeddings")) is bool  # type: ignore[operator]
    whole = whole and isinstance(rope, dict) and rope.get("rope_type") == "default" and "rope_theta" in rope
    whole = whole and isinstance(entries.get("rms_norm_eps"), float) and isinstance(entries.get("hidden_act"), str)
    whole = whole and type(rope["rope_theta"]) in (int, float) and not entries.get("rope_scaling")  # type: ignore[index]
    whole = (
        whole and len(entries.get("layer_types") or [0] * entries["num_hidden_layers"]) == entries["num_hidden_layers"]
    )
    if not whole or "quantization_config" in entries or not _is_plain(directory):
        return None
    config = SimpleNamespace(**entries)
    config.get_text_config = lambda: config
    return config


def _is_plain(directory: Path) -> bool:
    """Whether the tokenizer, if there is one, needs no config."""
    return _is_complete(directory) or not any((directory / name).is_file() for name in TOKENIZER_FILES)


def generation_settings(directory: Path) -> Any:
    """The entries of generation_config.json; none where there is no such file."""
    file = directory / "generation_config.json"
    return SimpleNamespace(**(read_json(file) if file.is_file() else {}))


def load_model(directory: Path, config: Any, model_class: type, dtype: torch.dtype | None, device: torch.device) -> Any:
    """The causal LM in eval mode with sdpa attention. dtype None keeps the type that most of its weights have.

    Every weight must come from the files and every weight in the files must have a place (CheckpointError);
    CapacityError, before anything is loaded, when it does not fit into memory.
    """
    weights = inspect_weights(directory)
    dtype = dtype or weights.dtype
    check_fits(weights, dtype, device, directory)
    with quiet():
        try:
            model, info = model_class.from_pretrained(  # type: ignore[attr-defined]
                directory,
                config=config,
                dtype=dtype,
                attn_implementation="sdpa",
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except (OSError, RuntimeError, ValueError) as e:
            raise CheckpointError(f"{directory} cannot be loaded: {' '.join(str(e).split())[:300]}") from e
    for what in ("missing", "unexpected", "mismatched"):
        if names := sorted(" ".join(map(str, key)) if isinstance(key, tuple) else key for key in info[f"{what}_keys"]):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(f"{directory} does not fit its config.json: {what} weight {names[0]}{more}")
    return model.to(device).eval()


def held_as(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The type in which the native backbone holds weights of a type: a CPU has no arithmetic for float16."""
    return torch.float32 if device.type == "cpu" and dtype == torch.float16 else dtype


def check_fits(
    weights: Weights,
    dtype: torch.dtype,
    device: torch.device,
    directory: Path,
    *,
    int8: bool = False,
    looked_up: int = 0,
) -> None:
    """Raise CapacityError, with both numbers, when the weights alone exceed what is free on the device.

    int8: they will be held in bytes, whatever their `dtype`, but for `looked_up` values of an embedding, which stay.
    """
    needed = weights.values + looked_up * (dtype.itemsize - 1) if int8 else weights.values * dtype.itemsize
    free = available_memory(device)
    if free is not None and needed > free:
        name = "int8" if int8 else str(dtype).removeprefix("torch.")
        smaller = "a smaller model" if int8 else "a smaller type (--dtype bf16 or int8) or a smaller model"
        raise CapacityError(
            f"{directory} needs {needed / 1e9:.1f} GB for its weights in {name}, "
            f"{free / 1e9:.1f} GB are free on {device}; use {smaller}"
        )


def load_tokenizer(directory: Path, config: Any) -> Any | None:
    """The directory's tokenizer; None where it has none. CheckpointError where it needs code of its own."""
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    options = {"trust_remote_code": False, "local_files_only": True}
    with quiet():
        try:
            if _is_complete(directory):
                return PreTrainedTokenizerFast.from_pretrained(directory, **options)
            return AutoTokenizer.from_pretrained(directory, config=config, **options)
        except Exception as e:  # anything from a JSON error to one of the tokenizers library's own
            raise CheckpointError(f"{directory}: tokenizer cannot be loaded: {' '.join(str(e).split())[:99]}") from e


def _is_complete(directory: Path) -> bool:
    """Whether tokenizer.json says everything. For some model types transformers would put its own class in the place
    of the declared one, with an end token that the file does not have."""
    about = directory / "tokenizer_config.json"
    declared = read_json(about).get("tokenizer_class") if about.is_file() else None
    return declared in COMPLETE and (directory / "tokenizer.json").is_file()
