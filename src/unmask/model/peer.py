"""transformers' own `generate`, for comparison: the same weights, dtype and threads."""

import time
from typing import Any

import torch

from unmask.model.checkpoint import load_checkpoint
from unmask.model.skinny import plain_linear


class Peer:
    """The autoregressive model of a reference, as transformers runs it. Holds a copy of its own of the weights."""

    def __init__(self, ref: str, dtype: str | torch.dtype | None = None) -> None:
        self.checkpoint = load_checkpoint(ref, dtype=dtype)

    def greedy(self, prompt: list[int], max_new_tokens: int) -> tuple[list[int], float]:
        """(token ids without the end token, seconds) of a greedy answer by `generate`, in inference mode, batch 1."""
        model: Any = self.checkpoint.model
        stops = self.checkpoint.stop_ids
        ids = torch.tensor([prompt], device=model.device)
        with torch.inference_mode(), plain_linear():
            began = time.perf_counter()
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=list(stops),
                pad_token_id=stops[0],
            )
            seconds = time.perf_counter() - began
        written = out[0, len(prompt) :].tolist()
        return (written[:-1] if written and written[-1] in stops else written), seconds
