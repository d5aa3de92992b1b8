"""Write the demo's training text: prompts of three kinds, answered greedily by the base model itself.

    python recipes/demo/make_data.py --base DIR --gsm8k gsm8k_train.jsonl --out recipes/demo/data

Mathematics: questions of the GSM8K train split (their human answers are not used).  Chat: the base completes
an empty user turn at temperature 1.  Code: the first docstring line of functions in Python's standard library
and numpy, put as a request.  A prompt that occurs among the demo's own 24 prompts is dropped.  The answers are what the
base writes at temperature 0, which is the text that a draft has to guess in verified mode.

Rows appear in `<out>/rows.jsonl` as they are made, so an interrupted run loses one batch.
"""

import argparse
import ast
import hashlib
import json
import random
import sysconfig
import time
from pathlib import Path

import torch
from prompts import VERBS
from transformers import AutoModelForCausalLM, AutoTokenizer

DEMO_PROMPTS = Path(__file__).parents[2] / "src/unmask/assets/demo_prompts.jsonl"
BATCH = 64


def math_prompts(path: Path, count: int, seed: int) -> list[str]:
    """`count` questions of GSM8K's train split, in a seeded order."""
    rows = [json.loads(line)["question"].strip() for line in path.read_text(encoding="utf-8").strip().split("\n")]
    random.Random(seed).shuffle(rows)
    return [row for row in rows if len(row) < 320][:count]


def code_prompts(count: int, seed: int) -> list[str]:
    """Requests made of the first docstring line of documented functions in the standard library and numpy."""
    import numpy

    roots = [Path(sysconfig.get_paths()["stdlib"]), Path(numpy.__file__).parent]
    found = set()
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            if "site-packages" in path.parts and "numpy" not in path.parts or "test" in str(path):
                continue
            try:
                tree = ast.parse(path.read_text(errors="ignore"))
            except (SyntaxError, ValueError):
                continue
            for node in ast.walk(tree):
                line = (
                    (ast.get_docstring(node) or "").strip().split("\n")[0] if isinstance(node, ast.FunctionDef) else ""
                )
                words = line.rstrip(".").split()
                if 5 <= len(words) <= 18 and words[0].lower() in VERBS and not line.startswith(("__", "See")):
                    found.add(f"Write a Python function that {VERBS[words[0].lower()]} {' '.join(words[1:])}.")
    prompts = sorted(found)
    random.Random(seed).shuffle(prompts)
    return prompts[:count]


def chat_prompts(model, tokenizer, count: int, seed: int) -> list[str]:
    """Requests that the base writes itself when it is shown an empty user turn (temperature 1, top-p 0.9)."""
    torch.manual_seed(seed)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "\x00"}], tokenize=False).split("\x00")[0]
    start = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids.repeat(BATCH, 1)
    found: dict[str, None] = {}
    while len(found) < count:
        out = model.generate(
            start,
            attention_mask=torch.ones_like(start),
            do_sample=True,
            temperature=1.0,
            top_p=0.9,
            max_new_tokens=56,
            pad_token_id=2,
        )
        for row in out[:, start.shape[1] :].tolist():
            if 2 in row:
                request = tokenizer.decode(row[: row.index(2)]).strip()
                if 12 < len(request) < 240 and "<|" not in request:
                    found[request] = None
        print(f"chat prompts {len(found)}/{count}", flush=True)
    return list(found)[:count]


def answer(model, tokenizer, prompts: list[str], max_new_tokens: int) -> list[tuple[str, bool]]:
    """Greedy answers and whether each ended by itself."""
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in prompts
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    out = model.generate(**batch, do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=2)
    result = []
    for row in out[:, batch.input_ids.shape[1] :].tolist():
        ended = 2 in row
        result.append((tokenizer.decode(row[: row.index(2)] if ended else row), ended))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-kind", type=int, default=832)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.base, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32).eval()
    args.out.mkdir(parents=True, exist_ok=True)
    held_out = {json.loads(line)["prompt"] for line in DEMO_PROMPTS.read_text(encoding="utf-8").strip().split("\n")}
    kinds = {
        "math": math_prompts(args.gsm8k, args.per_kind, args.seed),
        "code": code_prompts(args.per_kind, args.seed),
        "chat": chat_prompts(model, tokenizer, args.per_kind, args.seed),
    }
    kinds = {kind: [p for p in prompts if p not in held_out] for kind, prompts in kinds.items()}
    print({kind: len(prompts) for kind, prompts in kinds.items()}, flush=True)

    started, written = time.time(), 0
    with (args.out / "rows.jsonl").open("w") as file:
        for at in range(0, max(map(len, kinds.values())), BATCH):
            for kind, prompts in kinds.items():
                # neighbours of similar length waste less padding
                chunk = sorted(prompts[at : at + BATCH], key=len)
                if not chunk:
                    continue
                for prompt, (text, ended) in zip(
                    chunk, answer(model, tokenizer, chunk, args.max_new_tokens), strict=True
                ):
                    row = {
                        "messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}],
                        "kind": kind,
                        "ended": ended,
                    }
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    written += 1
                file.flush()
                print(f"{written} rows, {time.time() - started:.0f} s", flush=True)
    print("sha256", hashlib.sha256((args.out / "rows.jsonl").read_bytes()).hexdigest())


if __name__ == "__main__":
    with torch.inference_mode():
        main()
