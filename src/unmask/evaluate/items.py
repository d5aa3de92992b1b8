"""From what lm-eval logged of each document to items."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmask.errors import UnmaskError
from unmask.evaluate.asking import Record
from unmask.evaluate.outcomes import Item


def items_of(
    samples: Sequence[Mapping[str, Any]],
    records: Mapping[tuple[str, int, int], Record],
    task: str,
    metric: str,
    chosen: str,
    choices: Callable[[Any], list[str]] | None = None,
) -> list[Item]:
    """Items by number. metric: the task's score, under the filter `chosen`; the metrics of other filters are named
    metric,filter. choices: the answers to choose from, of a document. An answer that failed scores 0 in everything."""
    scored = {sample["doc_id"]: sample for sample in samples if sample["filter"] == chosen}
    if not scored or metric not in next(iter(scored.values())):
        raise UnmaskError(f"task {task} gave no {metric} under the filter {chosen}")
    found: dict[int, dict[int, Record]] = {}
    for (name, document, request), record in records.items():
        if name == task:
            found.setdefault(document, {})[request] = record
    metrics: dict[int, dict[str, float]] = {number: {} for number in scored}
    for sample in samples:
        for name in sample["metrics"]:
            if isinstance(sample[name], bool | int | float):
                key = name if sample["filter"] == chosen else f"{name},{sample['filter']}"
                metrics[sample["doc_id"]][key] = float(sample[name])
    return [
        _item(scored[n], [found[n][at] for at in sorted(found[n])], metric, metrics[n], choices) for n in sorted(scored)
    ]


def _item(
    sample: Mapping[str, Any],
    found: list[Record],
    metric: str,
    metrics: dict[str, float],
    choices: Callable[[Any], list[str]] | None,
) -> Item:
    arguments = [tuple(each) for each in sample["arguments"]]
    failed = found[0].get("finish_reason") == "error"
    if failed:
        metrics = dict.fromkeys(metrics, 0.0)
    common: dict[str, Any] = {
        "number": sample["doc_id"],
        "prompt": found[0].get("prompt", arguments[0][0]),
        "score": 0.0 if failed else float(sample[metric]),
        "metrics": metrics,
    }
    if "log_probability" in found[0]:
        weights = _weights(found, metric, choices(sample["doc"]) if choices else None)
        best = max(range(len(weights)), key=weights.__getitem__)
        target = sample["target"]
        if isinstance(target, int) and 0 <= target < len(arguments):
            target = arguments[target][1]
        common |= {"standard_error": found[best].get("standard_error"), "greedy": found[best].get("greedy")}
        return Item(answer=arguments[best][1], target=str(target), **common)
    [record] = found
    return Item(
        answer=record["text"],
        target=str(sample["target"]),
        tokens=record["tokens"],
        forwards=record["forwards"],
        seconds=record["seconds"],
        finish_reason=record["finish_reason"],
        repeated=record["repeated"],
        error=record.get("error") or "",
        **common,
    )


def _weights(found: list[Record], metric: str, choices: list[str] | None) -> list[float]:
    """By what the answer is chosen, as lm-eval's metric does it: acc_norm goes by a character, acc_bytes by a byte,
    acc_mutual_info by what the context adds (the same answers without it come behind)."""
    values = [record["log_probability"] for record in found]
    if choices is None:
        return values
    given, alone = values[: len(choices)], values[len(choices) :]
    if metric == "acc_norm":
        return [value / max(1, len(text)) for value, text in zip(given, choices, strict=True)]
    if metric == "acc_bytes":
        return [value / max(1, len(text.encode())) for value, text in zip(given, choices, strict=True)]
    if metric == "acc_mutual_info":
        return [value - prior for value, prior in zip(given, alone, strict=True)]
    return given
