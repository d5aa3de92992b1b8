"""What a user would otherwise run, for comparison: transformers and llama.cpp, with the same threads."""

import copy
import time
from collections.abc import Callable
from typing import Any

import torch

from unmask.errors import CheckpointError
from unmask.model.checkpoint import load_checkpoint
from unmask.model.skinny import plain_linear
from unmask.model.universal import interface

ATTENTIONS = ("sdpa", "eager")


class Peer:
    """The autoregressive model of a reference, as transformers runs it. Holds a copy of its own of the weights."""

    def __init__(self, ref: str, dtype: str | torch.dtype | None = None) -> None:
        self.checkpoint = load_checkpoint(ref, dtype=dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self.checkpoint.dtype

    @property
    def kind(self) -> str:
        """Its number type's name."""
        return str(self.dtype).removeprefix("torch.")

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
                eos_token_id=list(stops) or None,
                pad_token_id=stops[0] if stops else 0,
            )
            seconds = time.perf_counter() - began
        written = out[0, len(prompt) :].tolist()
        return (written[:-1] if written and written[-1] in stops else written), seconds

    def forwards(self, prefix: list[int], tokens: list[int]) -> dict[str, Callable[[], object]]:
        """A forward over `tokens` behind a cached `prefix` that gives the last one's logits, by kind of attention."""
        model: Any = self.checkpoint.model
        name, _ = interface(model.get_decoder())
        made: dict[str, Callable[[], object]] = {}
        for attention in ATTENTIONS:
            with torch.inference_mode(), plain_linear():
                self.use_attention(attention)
                held = getattr(model.get_decoder()(torch.tensor([prefix]), use_cache=True), name)

            def run(attention: str = attention, held: Any = held) -> object:
                with torch.inference_mode(), plain_linear():
                    self.use_attention(attention)
                    return model(torch.tensor([tokens]), **{name: _copied(held)}, use_cache=True, logits_to_keep=1)

            made[attention] = run
        return made

    def use_attention(self, name: str) -> None:
        """Run with one of `ATTENTIONS` from now on."""
        self.checkpoint.model.set_attn_implementation(name)


class LlamaCpp:
    """llama.cpp on a GGUF file, through llama-cpp-python."""

    def __init__(self, gguf: str, threads: int) -> None:
        try:
            from llama_cpp import Llama
        except ImportError:
            raise CheckpointError("llama.cpp is not installed: pip install llama-cpp-python") from None
        try:
            self.llama = Llama(gguf, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
        except ValueError as e:
            raise CheckpointError(f"llama.cpp cannot load {gguf}: {e}") from None

    def greedy(self, prompt: list[int], max_new_tokens: int) -> tuple[list[int], float]:
        """(token ids without the end token, seconds) of a greedy answer, the prompt's time included."""
        llama, written = self.llama, []
        began = time.perf_counter()
        llama.reset()
        llama.eval(prompt)
        for _ in range(max_new_tokens):
            token = llama.sample(temp=0.0)
            if token == llama.token_eos():
                break
            written.append(token)
            llama.eval([token])
        return written, time.perf_counter() - began


def _copied(held: Any) -> Any:
    """A transformers cache that can be added to without changing `held`: its layers are new, their tensors shared."""
    fresh = copy.copy(held)
    fresh.layers = [copy.copy(layer) for layer in held.layers]
    return fresh
