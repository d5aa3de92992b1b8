"""transformers' own `generate`, for comparison: the same weights, dtype and threads."""

import time
from typing import Any

import torch

from unmask.model.checkpoint import Checkpoint
from unmask.model.skinny import plain_linear


def transformers_greedy(checkpoint: Checkpoint, prompt: list[int], max_new_tokens: int) -> tuple[list[int], float]:
    """(token ids without the end token, seconds) of a greedy answer by `generate`, in inference mode, batch 1."""
    model: Any = checkpoint.model
    ids = torch.tensor([prompt], device=model.device)
    with torch.inference_mode(), plain_linear():
        began = time.perf_counter()
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(checkpoint.stop_ids),
            pad_token_id=checkpoint.stop_ids[0],
        )
        seconds = time.perf_counter() - began
    written = out[0, len(prompt) :].tolist()
    return (written[:-1] if written and written[-1] in checkpoint.stop_ids else written), seconds
