"""What the modes do on prompts of several kinds: tokens per forward, per draft and check, repetition, length, speed.

    python bench/held_out.py --model demo --prompts test.jsonl --way ar --way verified,drafts=plain --out runs/held-out
    python bench/held_out.py --model demo --prompts test.jsonl --limit 20 --batch 1 --way ar --way verified --out speed

Each line of a file of prompts has `prompt` or `messages` (an answer at their end is left out) and maybe `kind`, else
the file's name stands for it.  A way is a mode and decoding settings, with commas; ways take turns batch by batch, so
that what else the machine does meets all alike.  Every answer is written to OUT/answers.jsonl at once; what is there
already is not asked again.  The table gives, by kind and way:

- tokens per forward, the prompt's included; per pair: per draft with its check (ways with drafts=plain);
- times ar: tokens per second over those of way `ar` on the same batches (the first way must be `ar`);
- same: share of the answers that are mode ar's; to place: how many tokens stand before the first other one;
- repeated: share of 4-grams that stood before in the same answer; length: tokens; cut: answers that reached the limit.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import unmask
from unmask.text import repeated_4grams

Row = dict[str, Any]
HEAD = ("kind", "way", "answers", "tokens per forward", "per pair", "times ar")
HEAD += ("same", "to place", "repeated", "length", "cut")


def prompts_of(files: list[Path], limit: int | None) -> dict[str, list[Any]]:
    """Prompts by kind, at most `limit` of each."""
    found: dict[str, list[Any]] = defaultdict(list)
    for file in files:
        for row in map(json.loads, file.read_text(encoding="utf-8").strip().split("\n")):  # U+2028 ends no line
            messages = row.get("messages", [])
            if messages and messages[-1]["role"] == "assistant":
                messages = messages[:-1]
            found[row.get("kind", file.stem)].append(messages or row["prompt"])
    return {kind: prompts[:limit] for kind, prompts in found.items()}


def decoding_of(way: str) -> Row:
    """A way as decoding settings: "threshold,threshold=0.9" → {"mode": "threshold", "threshold": 0.9}."""
    mode, *settings = way.split(",")
    found: Row = {"mode": mode}
    for setting in settings:
        name, _, value = setting.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def asked(model: unmask.Model, prompts: list[Any], way: str, limit: int) -> Iterator[Row]:
    """One batch of prompts in one way; `batch_seconds` is that of the whole batch, in its first row alone."""
    answers = model.generate(prompts, **decoding_of(way) | {"max_new_tokens": limit})
    for number, answer in enumerate(answers):
        if answer.error is not None:
            raise SystemExit(f"a prompt cannot be answered: {answer.error}")
        yield {
            "way": way,
            "tokens": answer.token_ids,
            "forwards": answer.forwards,
            "checks": sum(source == "draft" for source, _, _ in answer.checks),
            "batch_seconds": 0.0 if number else max(each.batch_seconds for each in answers),
            "cut": answer.finish_reason == "length",
        }


def measure(model: unmask.Model, prompts: dict[str, list[Any]], ways: list[str], limit: int, out: Path) -> list[Row]:
    """All rows, those of an earlier run included."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "answers.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["kind"], row["number"], row["way"]) for row in rows}
    for way in ways:  # not counted: the first answer in a way
        model.generate([next(iter(prompts.values()))[0]], **decoding_of(way) | {"max_new_tokens": 8})
    for kind, own in prompts.items():
        for start in range(0, len(own), model.batch_size):
            batch = own[start : start + model.batch_size]
            for way in ways:
                if (kind, start, way) in done:
                    continue
                found = [
                    {"kind": kind, "number": start + n, **row} for n, row in enumerate(asked(model, batch, way, limit))
                ]
                with file.open("a") as lines:
                    lines.writelines(json.dumps(row) + "\n" for row in found)
                rows += found
            print(f"{kind} {min(start + model.batch_size, len(own))} of {len(own)}", flush=True)
    return rows


def before_the_first_other(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown, a line for each kind and way."""
    by: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["number"]):
        by[row["kind"], row["way"]].append(row)
    yield f"| {' | '.join(HEAD)} |"
    yield "|" + "---|" * len(HEAD)
    for (kind, way), own in by.items():
        ar = {row["number"]: row for row in by.get((kind, "ar"), [])}
        tokens, seconds = (sum(map(size, own)) for size in (lambda r: len(r["tokens"]), lambda r: r["batch_seconds"]))
        checks = sum(row["checks"] for row in own)
        both = [(row, ar[row["number"]]) for row in own if row["number"] in ar]
        times = ""
        if ar and len(both) == len(own) == len(ar):
            rate = sum(len(row["tokens"]) for row in ar.values()) / sum(row["batch_seconds"] for row in ar.values())
            times = f"{tokens / seconds / rate:.2f}"
        same = [one["tokens"] == other["tokens"] for one, other in both]
        places = [before_the_first_other(one["tokens"], other["tokens"]) for one, other in both]
        cells = [
            kind,
            way,
            str(len(own)),
            f"{tokens / max(1, sum(row['forwards'] for row in own)):.2f}",
            f"{tokens / checks:.2f}" if checks and "plain" in way else "",
            times,
            f"{100 * sum(same) / len(same):.0f}%" if same else "",
            f"{sum(places) / len(places):.0f}" if places else "",
            f"{100 * repeated_4grams([row['tokens'] for row in own]):.1f}%",
            f"{tokens / len(own):.0f}",
            f"{100 * sum(row['cut'] for row in own) / len(own):.0f}%",
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--prompts", type=Path, action="append", required=True, help="JSONL; repeat it")
    parser.add_argument("--limit", type=int, help="prompts of each kind")
    parser.add_argument("--way", action="append", required=True, help="repeat it; `ar` first")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    model = unmask.load(options.model, dtype=options.dtype, batch_size=options.batch)
    prompts = prompts_of(options.prompts, options.limit)
    rows = measure(model, prompts, options.way, options.max_new_tokens, options.out)
    lines = "\n".join(table(rows))
    (options.out / "table.md").write_text(lines + "\n")
    print(lines)


if __name__ == "__main__":
    main()
