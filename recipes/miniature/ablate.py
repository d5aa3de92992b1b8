"""Train every variant of a table of recipes and measure what came out: loss, tokens per forward, score.

    python recipes/miniature/ablate.py recipes/miniature/ablations.toml --seed 0 --out runs/miniature/ablations.jsonl

A variant is the table's `common` recipe with its own keys. One JSON line per variant and seed is appended; those that
are there already are left out, so a run that was stopped goes on where it was. One thread: two seeds fit on two cores.

Loss: mean of -log p per token of 48 held-out answers, in nats, as `unmask.evaluate.likelihood` defines it for mode
threshold (the mean over the orders in which a sub-block can be written); of a plain fine-tune it is the chain rule's.
So it does not depend on the noise that a variant was trained with.
"""

import argparse
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.evaluate import own
from unmask.evaluate.likelihood import score

FOLDER = Path(__file__).parent
SETS = ("seeds", "templates")


def rows_of(name: str, limit: int) -> list[dict[str, Any]]:
    lines = (FOLDER / "data" / f"{name}.jsonl").read_text().splitlines()[:limit]
    return [json.loads(line) for line in lines]


def answers(model: unmask.Model, items: list[dict[str, Any]], how: dict[str, Any]) -> dict[str, Any]:
    """Score, tokens and forwards of one set of items in one way of decoding; per item 1 for a right answer, else 0."""
    found = model.generate([item["prompt"] for item in items], max_new_tokens=128, **how)
    right = [
        own.SCORERS[item["score"]](each.text or "", str(item["target"]))
        for item, each in zip(items, found, strict=True)
    ]
    return {
        **how,
        "tokens": sum(each.completion_tokens for each in found),
        "forwards": sum(each.forwards - each.forwards_by_kind.get("prefill", 0) for each in found),
        "cut": sum(each.finish_reason == "length" for each in found),
        "right": "".join(str(int(each)) for each in right),
    }


def nats(model: unmask.Model, rows: list[dict[str, Any]], mode: str) -> float:
    """-log p per token of the rows' answers."""
    pairs = []
    for row in rows:
        question, answer = (message["content"] for message in row["messages"])
        pairs.append((model.encode(question), model.encode(answer + "<|im_end|>", raw=True)))
    total = sum(result.log_probability for _, result in score(model, pairs, mode=mode, samples=1))
    return -total / sum(len(continuation) for _, continuation in pairs)


def ways(model: unmask.Model, thresholds: list[float]) -> list[dict[str, Any]]:
    """Ways of decoding that the model has."""
    if model.spec is None:
        return [{"mode": "ar"}]
    causal = [{"mode": "ar"}, {"mode": "verified", "drafts": "plain"}] if model.spec.context == "causal" else []
    return causal + [{"mode": "threshold", "threshold": threshold} for threshold in thresholds]


def measured(path: Path, items: int, thresholds: list[float]) -> dict[str, Any]:
    """What a trained model does on the held-out sets."""
    model = unmask.load(path, batch_size=32)
    mode = "ar" if model.spec is None else "threshold"
    sets = {name: [answers(model, rows_of(name, items), how) for how in ways(model, thresholds)] for name in SETS}
    return {"nats": nats(model, rows_of("validation", 48), mode), "sets": sets}


def trained(recipe: dict[str, Any]) -> dict[str, Any]:
    """Train as a recipe says; what the log says of it."""
    begun = any(Path(recipe["output"]).glob("state-*"))
    list(unmask.adapt(recipe, resume=begun))
    log = (Path(recipe["output"]) / "log.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in log]
    tail = steps[-10:]
    return {
        "loss": sum(step["loss"] for step in tail) / len(tail),
        "labels": sum(step["labels"] for step in steps),
        "seconds": sum(step["seconds"] for step in steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; new ones are appended")
    parser.add_argument("--runs", type=Path, help="trained models (default runs/miniature/ and the table's name)")
    parser.add_argument("--items", type=int, default=250, help="of each test set (default 250)")
    parser.add_argument("--threshold", type=float, action="append", help="repeat it (default 0.9 and 0.5)")
    parser.add_argument("--only", action="append", help="a variant to train; repeat it (default all)")
    parser.add_argument("--keep", action="store_true", help="keep the trained models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = options.runs or Path("runs/miniature") / options.table.stem
    table = tomllib.loads(options.table.read_text())
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {(each["variant"], each["seed"]) for each in map(json.loads, lines)}
    variants = table["variant"]
    if unknown := set(options.only or ()) - set(variants):
        parser.error(f"--only {', '.join(sorted(unknown))}: {options.table} has {', '.join(variants)}")
    for name in options.only or variants:
        if (name, options.seed) in done:
            print(name, options.seed, f"left out: {options.out} has it", flush=True)
            continue
        output = runs / f"{'-'.join(name.replace(',', '').split())}-{options.seed}"
        recipe = {**table["common"], **variants[name], "seed": options.seed, "output": str(output), "threads": 1}
        run = trained(recipe)
        line = {"variant": name, "seed": options.seed, **run}
        line |= measured(output / "model", options.items, options.threshold or [0.9, 0.5])
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(name, options.seed, f"{run['seconds']:.0f} s", f"{line['nats']:.3f} nats", flush=True)
        if not options.keep:
            shutil.rmtree(output)


if __name__ == "__main__":
    main()
