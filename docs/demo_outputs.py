"""Publish what the demo wrote: `python docs/demo_outputs.py demo.json > docs/demo-outputs.md`."""

import json
import sys
from pathlib import Path
from typing import Any

HEAD = """# What the demo wrote

Made by `unmask demo{flags} --json demo.json` and `python docs/demo_outputs.py demo.json`. {model}.
Machine: {processor}, {threads} threads, {instructions}, torch {torch}. At most {limit} tokens an answer, greedy, in
float32.

| mode | tokens/s | vs ar | tokens/forward | texts equal to ar | repeated 4-grams | mean length |
|---|---|---|---|---|---|---|
{rows}

| tokens per draft-and-check pair | {kinds} |
|---|{rule}
| verified | {pairs} |

ar against transformers' `generate`: {peer:.2f} times as fast. A text that equals AR's is not printed again.
"""


def page(report: dict[str, Any]) -> str:
    figures, settings = report["figures"], dict(report["settings"])
    limit = settings.pop("max_new_tokens")
    thresholds = "".join(f" --threshold {s['threshold']}" for s in settings.values() if "threshold" in s)
    kinds = list(dict.fromkeys(answer["kind"] for answer in report["answers"]))
    head = HEAD.format(
        flags=f" --max-new-tokens {limit}{thresholds}",
        model=report["model"],
        limit=limit,
        rows="\n".join(_row(name, settings[name], figures) for name in settings),
        kinds=" | ".join(kinds),
        rule="---|" * len(kinds),
        pairs=" | ".join(f"{figures[f'verified_tokens_per_pair_{kind}']:.2f}" for kind in kinds),
        peer=figures["ar_vs_transformers"],
        **{key: report["machine"][key] for key in ("processor", "threads", "instructions", "torch")},
    )
    return head + "".join(_answers(answer, settings) for answer in report["answers"])


def _row(name: str, setting: dict[str, Any], figures: dict[str, float]) -> str:
    shown = f"threshold {setting['threshold']}" if "threshold" in setting else name
    return (
        f"| {shown} | {figures[f'{name}_tokens_per_second']:.1f} | {figures[f'{name}_vs_ar']:.2f} "
        f"| {figures[f'{name}_tokens_per_forward']:.2f} | {figures[f'{name}_texts_equal_to_ar']}/{figures['prompts']} "
        f"| {figures[f'{name}_repeated_4grams']:.1%} | {figures[f'{name}_mean_length']:.1f} |"
    )


def _answers(answer: dict[str, Any], settings: dict[str, Any]) -> str:
    parts = [f"\n## {answer['kind']}: {answer['prompt']}\n"]
    for name, setting in settings.items():
        shown = f"threshold {setting['threshold']}" if "threshold" in setting else name
        same = name != "ar" and answer[name]["token_ids"] == answer["ar"]["token_ids"]
        cost = f"{answer[name]['completion_tokens']} tokens, {answer[name]['forwards']} forwards"
        parts.append(f"\n**{shown}** ({cost})" + (": the same text as ar\n" if same else "\n"))
        if not same:
            parts.append("\n" + "\n".join(f"    {line}" for line in answer[name]["text"].splitlines()) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    print(page(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
