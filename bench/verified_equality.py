"""Does mode verified write what mode ar writes, on a real model and many prompts? Alone, in batches, mixed with others.

    python bench/verified_equality.py --model demo --prompts questions.jsonl --limit 500 --max-new-tokens 24

Mode ar answers each prompt alone; mode verified alone, in batches of four, and in batches of four in which every other
row is in another mode; all that at each temperature, above 0 with seeds. Counts equal texts. Where two part, it says
where, and how far apart mode ar's two likeliest tokens are there, in nats: a near-tie may be settled by rounding on a
backbone whose sums depend on how many positions are computed together. Exit code 1 where a text differs.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import unmask
from unmask.events import Answer

WAYS: dict[str, tuple[int, bool]] = {"alone": (1, False), "batch 4": (4, False), "mixed batch 4": (4, True)}
"""Batch size, and whether rows of modes ar and threshold stand between those of mode verified."""


def prompts_of(file: Path, limit: int) -> list[Any]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    found = [row.get("messages") or row.get("prompt") or row.get("question") for row in rows]
    return [prompt for prompt in found if prompt][:limit]


def answers(model: Any, prompts: list[Any], batch: int, mixed: bool, **decoding: Any) -> list[Answer]:
    """The answers in mode verified, decoded together; mixed: beside as many rows in other modes."""
    model.batch_size = batch
    requests, own = [], []
    for number, prompt in enumerate(prompts):
        if mixed:
            other = {"mode": "ar"} if number % 2 else {"mode": "threshold", "threshold": 0.5}
            requests.append(model.request(prompt, **decoding | other))
        own.append(len(requests))
        requests.append(model.request(prompt, **decoding | {"mode": "verified", "seed": number}))
    found = model.engine().generate(requests)
    return [found[index] for index in own]


def differences(ar: list[Answer], others: list[Answer]) -> list[str]:
    """A line for each text that is not mode ar's."""
    lines = []
    for number, (one, other) in enumerate(zip(ar, others, strict=True)):
        if (one.token_ids, one.finish_reason) != (other.token_ids, other.finish_reason):
            pairs = zip(one.token_ids, other.token_ids, strict=False)
            place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.token_ids), len(other.token_ids)))
            best = (
                [value for _, value in one.logprobs[place][1]]
                if one.logprobs and place < len(one.logprobs)
                else [0.0, 0.0]
            )
            lines.append(f"prompt {number}, token {place}: mode ar's two likeliest are {best[0] - best[1]:.2e} apart")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype")
    parser.add_argument("--backbone", default="auto")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with prompt, messages or question")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--out", type=Path, help="where the counts go, as JSON")
    args = parser.parse_args()
    model, prompts = (
        unmask.load(args.model, dtype=args.dtype, backbone=args.backbone),
        prompts_of(args.prompts, args.limit),
    )
    counts: dict[str, Any] = {"prompts": len(prompts), "max_new_tokens": args.max_new_tokens, "model": args.model}
    for temperature in args.temperature:
        asked = {"max_new_tokens": args.max_new_tokens, "temperature": temperature}
        model.batch_size, began = 1, time.perf_counter()
        requests = [model.request(p, mode="ar", seed=n, logprobs=2, **asked) for n, p in enumerate(prompts)]
        ar = model.engine().generate(requests)
        print(f"temperature {temperature:g}: mode ar alone, {time.perf_counter() - began:.0f} s", flush=True)
        for name, (batch, mixed) in WAYS.items():
            began = time.perf_counter()
            found = answers(model, prompts, batch, mixed, **asked)
            lines = differences(ar, found)
            equal = len(prompts) - len(lines)
            counts[f"temperature {temperature:g}, {name}"] = equal
            seconds = time.perf_counter() - began
            print(f"  {name}: {equal} of {len(prompts)} texts equal, {seconds:.0f} s", *lines, sep="\n    ", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    return int(any(value != len(prompts) for name, value in counts.items() if name.startswith("temperature")))


if __name__ == "__main__":
    sys.exit(main())
