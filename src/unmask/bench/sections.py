"""What was measured as sections of a report: rows in, a table with its figures and plots out."""

from typing import Any

from unmask.bench.answers import PLAIN, Row, compared, equal_texts, rate, ratio
from unmask.core.pace import Costs
from unmask.limits import Limits
from unmask.report import Section


def limits_section(limits: Limits, nbytes: int) -> Section:
    section = Section(
        "What the machine can do",
        f"Reading a buffer of the weights' size ({nbytes / 1e6:.0f} MB), and the largest matrix "
        "products, the best of several tries with all threads.",
        ("limit", "value"),
    )
    section.row("read bandwidth, GB/s", limits.bandwidth / 1e9)
    section.row("float32 peak, GFLOP/s", limits.peak_fp32 / 1e9)
    section.row("bfloat16 peak, GFLOP/s", limits.peak_bf16 / 1e9)
    section.figures = {"bandwidth": limits.bandwidth, "peak_fp32": limits.peak_fp32, "peak_bf16": limits.peak_bf16}
    return section


def forwards_section(rows: list[dict[str, float]]) -> Section:
    section = Section(
        "One forward, by new positions",
        "Median milliseconds; both sides read the same cached prefix and give the last position's logits. The limit is "
        "the larger of bytes over bandwidth and operations over peak.",
        ("positions", "unmask ms", "limit ms", "share of limit", "transformers ms", "times transformers"),
    )
    for row in rows:
        n, ours, limit, theirs = row["positions"], row["unmask_ms"], row["limit_ms"], row.get("transformers_ms")
        section.row(n, ours, limit, limit / ours, theirs, None if theirs is None else theirs / ours)
        section.figures[f"forward_{n}_ms"] = ours
        section.figures[f"forward_{n}_vs_limit"] = ours / limit
        if theirs is not None:
            section.figures[f"forward_{n}_vs_transformers"] = theirs / ours
    section.plot("positions", ("unmask ms", "limit ms", "transformers ms"), log=True)
    return section


def context_section(rows: list[dict[str, float]]) -> Section:
    section = Section(
        "One forward, by context length",
        "Median milliseconds of a forward over one and over eight positions behind so many; tokens per second of the "
        "former.",
        ("context", "1 position, ms", "8 positions, ms", "tok/s"),
    )
    for row in rows:
        section.row(row["context"], row["1_ms"], row["8_ms"], 1e3 / row["1_ms"])
    if len(rows) > 1:
        span = rows[-1]["context"] - rows[0]["context"]
        section.figures["context_ms_per_1000"] = (rows[-1]["1_ms"] - rows[0]["1_ms"]) / span * 1000
    section.plot("context", ("1 position, ms", "8 positions, ms"))
    section.plot("context", ("tok/s",))
    return section


def peer_section(name: str, kind: str, ours: float, theirs: float) -> Section:
    about = f"Tokens per second at batch 1, prompt by prompt in turn; {name} in {kind}."
    section = Section(f"Mode ar beside {name}", about, ("", "tok/s"))
    section.row("unmask", ours)
    section.row(name, theirs)
    section.figures[f"ar_vs_{name.replace('.', '_')}_batch1"] = ours / theirs
    return section


def modes_section(rows: list[Row]) -> Section:
    section = Section(
        "Answers by mode, batch size and workload",
        "Answer tokens only; the time of the prompts is included. The cost of a forward is its time for each row, in "
        "forwards of mode ar.",
        ("workload", "batch", "mode", "tok/s", "times ar", "tok/forward", "cost of a forward", "tok/pair"),
    )
    for row in rows:
        which = {"workload": row["workload"], "batch": row["batch"]}
        pair = row["tokens"] / row["checks"] if row["mode"] == PLAIN and row["checks"] else None
        cells = [*compared(rows, mode=row["mode"], **which), pair]
        section.row(row["workload"], row["batch"], row["mode"], *cells)
    modes, batches = (list(dict.fromkeys(row[key] for row in rows)) for key in ("mode", "batch"))
    section.figures = modes_figures(rows, modes, batches)
    series = {mode: [(batch, rate(rows, mode=mode, batch=batch) or 0.0) for batch in batches] for mode in modes}
    section.lines("tokens per second by batch size", "batch", series)
    return section


def costs_section(costs: Costs) -> Section:
    section = Section(
        "What a step costs, by positions",
        "Least milliseconds of a check and of a draft over so many positions, proposals included: what mode verified "
        "chooses by.",
        ("positions", "check ms", "draft ms"),
    )
    clean, draft = dict(costs.clean), dict(costs.draft)
    for n in sorted(clean):
        section.row(n, 1e3 * clean[n], 1e3 * draft[n] if n in draft else None)
    single = clean[min(clean)]
    section.figures = {"check_6_cost": clean[6] / single, "draft_6_cost": draft[6] / single}
    section.plot("positions", ("check ms", "draft ms"))
    return section


def modes_figures(rows: list[Row], modes: list[str], batches: list[int]) -> dict[str, float]:
    """Figures by batch size over all workloads, and by workload at the smallest batch size."""
    found: dict[str, float | None] = {}
    for mode in modes:
        name = "verified_plain" if mode == PLAIN else mode
        for batch in batches:
            own, times, _, cost = compared(rows, mode=mode, batch=batch)
            found[f"{name}_tokens_per_second_batch{batch}"] = own or 0.0
            found |= {f"{name}_vs_ar_batch{batch}": times, f"{name}_forward_cost_batch{batch}": cost}
        lost = (batch for batch in batches if (found[f"{name}_vs_ar_batch{batch}"] or 1) < 1)
        found[f"ar_wins_over_{name}_from_batch"] = next(lost, None)
        for workload in dict.fromkeys(row["workload"] for row in rows):
            which = {"mode": mode, "workload": workload, "batch": batches[0]}
            _, times, per_forward, _ = compared(rows, **which)
            found |= {f"{name}_vs_ar_{workload}": times, f"{name}_tokens_per_forward_{workload}": per_forward or 0.0}
            if mode == PLAIN:
                found[f"verified_tokens_per_pair_{workload}"] = ratio(rows, "tokens", "checks", **which) or 0.0
    first, last = (rate(rows, mode="ar", batch=batch) for batch in (batches[0], batches[-1]))
    if first and last and len(batches) > 1:
        found[f"ar_batch{batches[-1]}_vs_batch{batches[0]}"] = last / first
    return {name: value for name, value in found.items() if value is not None}


def threshold_section(rows: list[Row]) -> Section:
    section = Section(
        "Threshold mode by threshold, schedule and batch size",
        "On prompts of mathematics. Equal texts: of the same answers under the schedule reference, or in mode ar.",
        ("batch", "threshold", "schedule", "tok/s", "times ar", "tok/forward", "forward cost", "as reference", "as ar"),
    )
    for row in rows:
        if row["mode"] == "threshold":
            which = {name: row[name] for name in ("batch", "threshold", "schedule")}
            cells = compared(rows, mode="threshold", **which)
            reference, ar = (equal_texts(row, rows, **other) for other in ({"schedule": "reference"}, {"mode": "ar"}))
            section.row(*which.values(), *cells, reference, ar)
            section.figures |= {
                f"threshold_{row['threshold']}_{row['schedule']}_{name}_batch{row['batch']}": value
                for name, value in zip(("tokens_per_second", "vs_ar", "tokens_per_forward"), cells, strict=False)
                if value is not None
            }
    return section


def universal_section(rates: dict[str, tuple[float, float]], kind: str) -> Section:
    section = Section(
        "Beside the universal backbone",
        f"Tokens per second at batch 1, prompt by prompt in turn; the universal backbone in {kind}.",
        ("mode", "native tok/s", "universal tok/s", "times"),
    )
    for mode, (ours, theirs) in rates.items():
        section.row(mode, ours, theirs, ours / theirs)
        section.figures[f"{mode}_native_vs_universal"] = ours / theirs
    return section


def types_section(rows: list[Row]) -> Section:
    section = Section(
        "Number types",
        "Mode ar at batch 1, prompt by prompt in turn; nats per token of docstrings of the standard library.",
        ("type", "tok/s", "loss", "weights, MB"),
    )
    by = {row["type"]: row for row in rows}
    for row in rows:
        section.row(row["type"], row["rate"], f"{row['loss']:.4f}", row["bytes"] / 1e6)
        section.figures[f"{row['type']}_loss"] = row["loss"]
    section.figures["int8_vs_bf16"] = by["int8"]["rate"] / by["bf16"]["rate"]
    section.figures["bf16_vs_fp32"] = by["bf16"]["rate"] / by["fp32"]["rate"]
    return section


def footprint_section(held: dict[str, dict[str, float]], own: str, first: float) -> Section:
    section = Section(
        "Memory and start",
        "Peak memory of loading and answering over what the imports take, beside the weights and cache that are held, "
        f"each in a process of its own; from the command to its first text {first:.1f} s in {own}.",
        ("type", "peak MB", "weights and cache MB", "times"),
    )
    for kind, bytes_of in held.items():
        peak, minimum = bytes_of["peak"], bytes_of["minimum"]
        section.row(kind, peak / 1e6, minimum / 1e6, peak / minimum)
        section.figures[f"memory_vs_minimum_{kind}"] = peak / minimum
    section.figures |= {"memory_vs_minimum": held[own]["peak"] / held[own]["minimum"], "first_token_seconds": first}
    section.plot("type", ("peak MB", "weights and cache MB"))
    return section


def training_section(
    cases: dict[tuple[str, str], Any], seconds: dict[tuple[str, str], float], rows: int, peak: float
) -> Section:
    section = Section(
        "Training: our layout beside the published one",
        "One forward and backward over the same rows, low-rank adapters; the share is that of the largest matrix "
        f"product's speed, {peak / 1e9:.0f} GFLOP/s.",
        ("form", "layout", "tokens/row", "seconds", "rows/s", "share of peak"),
    )
    for key, case in cases.items():
        form, layout = key
        taken, share = seconds[key], case.operations() / seconds[key] / peak
        section.row(form, layout, case.batch.ids.numel() / rows, taken, rows / taken, share)
        section.figures[f"train_rows_per_second_{form}_{layout}"] = rows / taken
        section.figures[f"train_share_of_peak_{form}_{layout}"] = share
    for form in dict.fromkeys(form for form, _ in cases):
        section.figures[f"train_rows_vs_reference_{form}"] = seconds[form, "reference"] / seconds[form, "ours"]
    section.figures["train_rows_draft_vs_reference_block"] = seconds["block", "reference"] / seconds["draft", "ours"]
    section.figures["train_share_of_peak"] = section.figures["train_share_of_peak_block_ours"]
    return section
