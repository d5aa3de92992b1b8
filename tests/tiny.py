"""Tiny random networks and a byte-level tokenizer, and a decoder without any cache to compare with."""

import itertools
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from unmask.model.adapters import Adapter
from unmask.model.native.backbone import NativeBackbone
from unmask.model.native.gpu import GpuBackbone
from unmask.model.tensors import ModelTensors

END, TURN, TURN_END, PAD, MASK, VOCAB = 256, 257, 258, 259, 260, 261
CHATML = (
    "{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def tiny_model(seed: int = 0, **changes: Any) -> Qwen2ForCausalLM:
    """Two random layers in float32; the head is scaled up so that near-ties are rare."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.1,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **changes,
        }
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight *= 10
    return model


def native(model: Any, **how: Any) -> NativeBackbone:
    """The native backbone of a transformers model in memory; in float32 unless said."""
    return NativeBackbone(model.config, ModelTensors(model), **{"kind": "fp32", **how})


def on_gpu(model: Any, device: str = "cpu", dtype: torch.dtype = torch.float32, **how: Any) -> GpuBackbone:
    """The native backbone in PyTorch's operators, on a CPU unless said."""
    return GpuBackbone(model.config, ModelTensors(model), dtype=dtype, device=torch.device(device), **how)


def low_rank(model: Any, seed: int = 3) -> Adapter:
    """A random adapter on every linear layer but the head."""
    torch.manual_seed(seed)
    pairs = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and ".layers." in name:
            out, inputs = layer.weight.shape
            pairs[name] = (torch.randn(4, inputs) * 0.2, torch.randn(out, 4) * 0.2)
    return Adapter(pairs, 0.5, None)


def byte_tokenizer(*extra: str, template: str | None = CHATML, **special: str) -> PreTrainedTokenizerFast:
    """One token per byte (its id is the byte), the special tokens of the tiny model, then `extra` whole-text tokens."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    hidden = [b for b in range(256) if b not in shown]
    letters = {**{chr(b): b for b in shown}, **{chr(256 + i): b for i, b in enumerate(hidden)}}
    core = Tokenizer(models.BPE(vocab=letters, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>", "<turn>", "</turn>", "<pad>", "<mask>"]})
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(list(extra))
    tokenizer.chat_template = template
    return tokenizer


def full_logits(model: Any, tokens: list[int], ends: list[int]) -> Tensor:
    """Logits [position, vocab] of one forward without a cache; position i sees the positions below ends[i]."""
    n = len(tokens)
    hidden = torch.arange(n) >= torch.tensor(ends)[:, None]
    mask = torch.zeros(n, n).masked_fill(hidden, torch.finfo(torch.float32).min)
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), attention_mask=mask[None, None]).logits[0]


class SlowDecoder:
    """Block decoding by the book: every step is a forward over the whole sequence, one row, no cache, greedy."""

    def __init__(
        self,
        model: Any,
        *,
        block: int,
        sub: int,
        tau: float,
        causal: bool,
        stops: tuple[int, ...] = (),
        fused: bool = False,
    ) -> None:
        self.model, self.block, self.sub, self.tau = model, block, sub, tau
        self.causal, self.stops, self.fused = causal, stops, fused

    def ends(self, n: int) -> list[int]:
        return [i + 1 if self.causal else (i // self.block + 1) * self.block for i in range(n)]

    def probabilities(self, tokens: list[int], ends: list[int]) -> Tensor:
        logits = full_logits(self.model, tokens, ends)
        logits[:, MASK] = -torch.inf
        return logits.softmax(-1)

    def answer(self, prompt: list[int], limit: int) -> list[int]:
        """The answer's tokens, the end token included."""
        text = list(prompt)
        for number in itertools.count():
            if self.causal or len(text) % self.block == 0:
                text.append(int(self.probabilities(text, self.ends(len(text)))[-1].argmax()))
            start = len(text) - 1 if self.causal else (len(text) - 1) // self.block * self.block
            first = self.foresee(text[:start]) if self.fused and number else {}
            text = text[:start] + self.fill(text[:start], text[start:], first)
            answer = text[len(prompt) :]
            stop = next((i for i, token in enumerate(answer) if token in self.stops), None)
            if stop is not None and stop < limit:
                return answer[: stop + 1]
            if len(answer) >= limit:
                return answer[:limit]

    def foresee(self, prefix: list[int]) -> dict[int, int]:
        """What is sure of a block of which every slot is masked, beyond the first, in its first sub-block."""
        tokens, end = prefix + [MASK] * self.block, len(prefix) + self.block
        chance = self.probabilities(tokens, self.ends(len(prefix)) + [end] * self.block)
        best = {i: chance[len(prefix) + i - 1].max(-1) for i in range(1, self.sub)}
        return {i: int(found.indices) for i, found in best.items() if float(found.values) > self.tau}

    def fill(self, prefix: list[int], known: list[int], foreseen: dict[int, int]) -> list[int]:
        """Decide the slots of one block after its known ones."""
        slots: list[int | None] = [*known, *[None] * (self.block - len(known))]
        for i, token in foreseen.items():
            slots[i] = token
        end = len(prefix) + self.block
        for first in range(0, self.block, self.sub):
            while None in slots[first : first + self.sub]:
                tokens = prefix + [MASK if slot is None else slot for slot in slots]
                chance = self.probabilities(tokens, self.ends(len(prefix)) + [end] * self.block)
                open_slots = [i for i in range(first, first + self.sub) if slots[i] is None]
                best = {i: chance[len(prefix) + i - 1].max(-1) for i in open_slots}
                surest = max(best, key=lambda i: float(best[i].values))
                for i, found in best.items():
                    if i == surest or float(found.values) > self.tau:
                        slots[i] = int(found.indices)
        return [slot for slot in slots if slot is not None]
