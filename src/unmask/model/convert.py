"""A GGUF file turned into an ordinary Hugging Face directory, once.

transformers reads GGUF in half a minute, keeps it quantised and then refuses to save it; dequantised and saved, the
same model loads in a second.
"""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from unmask.errors import CheckpointError
from unmask.model.files import replacing
from unmask.model.quiet import quiet


def convert_gguf(gguf: Path, directory: Path, digest: str) -> None:
    """Write `gguf` as float32 safetensors with its tokenizer and chat template into `directory`, all or nothing.

    Raises CheckpointError for a file that cannot be read.
    """
    with quiet(), contextlib.redirect_stderr(io.StringIO()):  # its progress bar asks no one
        model, tokenizer = _read(gguf)
        with replacing(directory) as fresh:
            model.save_pretrained(fresh)
            tokenizer.save_pretrained(fresh)
            (fresh / "source.json").write_text(json.dumps({"file": gguf.name, "sha256": digest}) + "\n")


def _read(gguf: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a file. Read through a link in an empty folder: other files beside the GGUF (above all a
    tokenizer.json) would take precedence, and the chat template inside it would disappear."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / gguf.name).symlink_to(gguf.resolve())
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name, trust_remote_code=False)
        except (OSError, ValueError, KeyError, NotImplementedError, ImportError) as e:
            raise CheckpointError(f"{gguf} cannot be read as a GGUF model: {str(e).splitlines()[0]}") from e
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model, tokenizer
