"""A tiny base on disk, rows and recipes for the tests that train."""

import json
from pathlib import Path
from typing import Any

import torch
from tiny import byte_tokenizer, tiny_model
from transformers import LlamaConfig, LlamaForCausalLM

from unmask.recipe import Adapt

SHORT = (
    "{% for m in messages %}<turn>{{ m.role[0] }}{{ m.content }}</turn>{% endfor %}"
    "{% if add_generation_prompt %}<turn>a{% endif %}"
)
"""A chat template that costs two tokens before a turn and one behind it."""


def save_base(directory: Path, *, plain: bool = False, **changes: Any) -> Path:
    """A random tiny model with its byte tokenizer; `plain`: a Llama as it is initialised, whose loss is about ln V."""
    model = tiny_llama(**changes) if plain else tiny_model(**changes)
    model.save_pretrained(directory)
    byte_tokenizer(template=SHORT, eos_token="</turn>").save_pretrained(directory)
    return directory


def tiny_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            **{
                "vocab_size": 261,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 512,
                "tie_word_embeddings": False,
                "bos_token_id": None,
                "eos_token_id": None,
                "pad_token_id": None,
                **changes,
            }
        )
    ).eval()


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def save_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def many_rows(count: int = 12) -> list[dict[str, Any]]:
    return [chat(f"What is {n} and {n}?", f"{n} and {n} is {2 * n}, " + "as I said. " * (n % 4)) for n in range(count)]


def recipe(base: Path, data: Path, output: Path, **fields: Any) -> Adapt:
    """A short run of a small recipe."""
    return Adapt(
        **{
            "base": str(base),
            "data": (str(data),),
            "output": str(output),
            "block_size": 8,
            "sub_block_size": 4,
            "rank": 4,
            "alpha": 8.0,
            "steps": 12,
            "batch_rows": 4,
            "learning_rate": 3e-3,
            "warmup_steps": 2,
            "threads": 1,
            **fields,
        }
    )


def log(output: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, without what a clock says."""
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
