"""From what lm-eval logged of each document to items."""

from collections.abc import Mapping, Sequence
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
) -> list[Item]:
    """Items by number. metric: the task's score, under the filter `chosen`; the metrics of other filters are named
    metric,filter."""
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
        _item(scored[n], [found[n][at] for at in sorted(found[n])], float(scored[n][metric]), metrics[n])
        for n in sorted(scored)
    ]


def _item(sample: Mapping[str, Any], found: list[Record], score: float, metrics: dict[str, float]) -> Item:
    arguments = [tuple(each) for each in sample["arguments"]]
    common = {"number": sample["doc_id"], "prompt": arguments[0][0], "score": score, "metrics": metrics}
    if "log_probability" in found[0]:
        best = max(range(len(found)), key=lambda n: found[n]["log_probability"])
        target = sample["target"]
        if isinstance(target, int) and 0 <= target < len(arguments):
            target = arguments[target][1]
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
        **common,
    )
