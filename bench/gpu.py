"""All checks that need a GPU, in one script of at most ten minutes on one card: python bench/gpu.py [--out FILE]

Parity: the native backbone against transformers on random networks of every shape, float32 and bfloat16, as recorded
CUDA graphs and as it is, and drafts gated per token against a merged network. Speed, at 135M, 1.5B and 7B shapes with
random weights, batch 1, 8 and 32: forwards per second behind a prefix, and whole answers of our engine in mode ar
beside transformers' `generate` with a static cache and torch.compile, on the same prompts.
Without a card, `--device cpu` runs the parity part (that is what the tests do).
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from unmask.config import Decoding
from unmask.engine import Engine
from unmask.events import Request
from unmask.model.adapters import Adapter, merged
from unmask.model.backbone import Feed
from unmask.model.native.gpu import GpuBackbone
from unmask.model.tensors import ModelTensors

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 6},
}
SIZES: dict[str, dict[str, int]] = {
    "135M": {"hidden": 576, "layers": 30, "heads": 9, "kv": 3, "ff": 1536, "vocab": 49152},
    "1.5B": {"hidden": 1536, "layers": 28, "heads": 12, "kv": 2, "ff": 8960, "vocab": 151936},
    "7B": {"hidden": 3584, "layers": 28, "heads": 28, "kv": 4, "ff": 18944, "vocab": 152064},
}
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
BUDGET, PREFIX, STEPS = 540.0, 256, 32


def network(kind: str, device: str, dtype: torch.dtype, **sizes: Any) -> Any:
    """A random causal LM of a family."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    base = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None, "max_position_embeddings": 2048}
    config = AutoConfig.for_model(kind, **base, **sizes)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def backbone(model: Any, device: str, dtype: torch.dtype, adapter: Adapter | None = None) -> GpuBackbone:
    mask = model.get_input_embeddings().weight[3]
    return GpuBackbone(
        model.config, ModelTensors(model), dtype=dtype, device=torch.device(device), mask=mask, adapter=adapter
    )


def causal(tokens: list[int], start: int = 0, read: list[int] | None = None) -> Feed:
    ends = list(range(start + 1, start + len(tokens) + 1))
    return Feed(tokens, start, ends, [False] * len(tokens), list(range(len(tokens))) if read is None else read)


def parity(device: str) -> dict[str, float]:
    """Largest difference of logits over their largest size, by family and type; a run in pieces and a ragged batch."""
    found = {}
    for kind, own in FAMILIES.items():
        for dtype in TOLERANCE:
            sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "vocab_size": 512}
            model = network(kind, device, dtype, num_attention_heads=4, num_key_value_heads=2, **sizes, **own)
            ours, tokens = backbone(model, device, dtype), torch.randint(0, 512, (40,)).tolist()
            with torch.inference_mode():
                expected = model(torch.tensor([tokens], device=device)).logits[0].float()
            cache = ours.new_cache(3, 64)
            ours.forward(cache, [1], [causal(tokens[:25], read=[])])
            rows = ours.forward(cache, [0, 1], [causal(tokens), causal(tokens[25:], 25)])
            again = ours.forward(cache, [0, 1], [causal(tokens), causal(tokens[25:], 25)])  # a replayed graph
            plain = unrecorded(ours, ours.new_cache(3, 64), [0], [causal(tokens)])
            off = max((rows[:40] - expected).abs().max(), (rows[40:] - expected[25:]).abs().max())
            found[f"{kind}_{str(dtype).removeprefix('torch.')}"] = float(off / expected.abs().max())
            assert float(off / expected.abs().max()) < TOLERANCE[dtype], (kind, dtype, float(off))
            assert torch.allclose(rows, again), (kind, dtype)
            assert torch.allclose(rows[:40], plain, atol=float(TOLERANCE[dtype] * expected.abs().max())), (kind, dtype)
        found[f"{kind}_draft"] = gated(model.float(), device, tokens)
    return found


def unrecorded(ours: GpuBackbone, cache: Any, rows: list[int], feeds: list[Feed]) -> torch.Tensor:
    """The same forward without a CUDA graph."""
    with torch.inference_mode():
        inputs, reads = ours._inputs(cache, rows, feeds)
        return ours._run(cache, inputs, cache.capacity)[:reads]


def gated(model: Any, device: str, tokens: list[int]) -> float:
    """Largest difference of a draft in float32 with unmerged adapters, beside a committed row, to a merged network."""
    pairs = {
        name: (torch.randn(4, part.in_features) * 0.1, torch.randn(part.out_features, 4) * 0.1)
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear) and ".layers." in name
    }
    adapter = Adapter(pairs, 0.5, None)
    ours, draft = backbone(model, device, torch.float32, adapter), causal(tokens)
    draft = Feed(draft.tokens, 0, draft.ends, draft.masked, draft.read, draft=True)
    rows = ours.forward(ours.new_cache(2, 64), [0, 1], [draft, causal(tokens)])
    with torch.inference_mode():
        each = [net(torch.tensor([tokens], device=device)).logits[0] for net in (merged(model, adapter), model)]
    off = max((rows[:40] - each[0]).abs().max(), (rows[40:] - each[1]).abs().max())
    assert float(off / each[0].abs().max()) < TOLERANCE[torch.float32], float(off)
    return float(off / each[0].abs().max())


def per_second(work: Any, device: str, steps: int) -> float:
    """Calls per second, after three that are not timed."""
    for _ in range(3):
        work()
    wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        work()
    wait(device)
    return steps / (time.perf_counter() - began)


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def speed(name: str, device: str, batches: list[int]) -> dict[str, float]:
    """Forwards per second behind a prefix, one and eight new positions; tokens per second of our engine in mode ar and
    of `generate`, for the same prompts."""
    size = SIZES[name]
    names = {"hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
    names |= {"kv": "num_key_value_heads", "ff": "intermediate_size", "vocab": "vocab_size"}
    model = network("qwen2", device, torch.bfloat16, **{names[key]: value for key, value in size.items()})
    ours, found = backbone(model, device, torch.bfloat16), {}
    for batch in batches:
        cache = ours.new_cache(batch, PREFIX + 64)
        for n in (1, 8):
            feeds = [causal([5] * n, PREFIX, [n - 1])] * batch
            found[f"{name}_batch{batch}_positions{n}"] = per_second(
                lambda feeds=feeds, cache=cache, batch=batch: ours.forward(cache, list(range(batch)), feeds),
                device,
                STEPS,
            )
        prompt = torch.full((batch, PREFIX), 5, device=device)
        options = {"do_sample": False, "min_new_tokens": STEPS, "max_new_tokens": STEPS, "pad_token_id": 0}

        def generate(prompt: Any = prompt, options: Any = options) -> None:
            with torch.inference_mode():
                model.generate(prompt, attention_mask=torch.ones_like(prompt), cache_implementation="static", **options)

        theirs = per_second(generate, device, 2) * STEPS
        asked = [Request([5] * PREFIX, Decoding(mode="ar", max_new_tokens=STEPS, stop_ids=()))] * batch
        engine = Engine(ours, None, None, batch_size=batch)  # one engine, so that its graphs are recorded once
        own = per_second(lambda engine=engine, asked=asked: engine.generate(asked), device, 2) * STEPS
        found |= {f"{name}_batch{batch}_ar": own * batch, f"{name}_batch{batch}_transformers": theirs * batch}
        found[f"{name}_batch{batch}_vs_transformers"] = own / theirs
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began = time.perf_counter()
    report: dict[str, Any] = {"torch": torch.__version__, "parity": parity(args.device), "figures": {}}
    if args.device != "cpu":
        report["device"] = torch.cuda.get_device_name(args.device)
        for name in SIZES:
            if time.perf_counter() - began < BUDGET * 0.7:
                report["figures"] |= speed(name, args.device, [1, 8, 32])
    report["seconds"] = time.perf_counter() - began
    text = json.dumps(report, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
