"""`unmask bench`: sections one after the other, into one report."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from unmask.api import Model, load
from unmask.bench import answers, footprint, forwards, types
from unmask.bench.limits import Limits, measure_limits
from unmask.bench.settings import Bench
from unmask.errors import UnsupportedModelError
from unmask.model.peer import Peer
from unmask.report import Report, Section, machine

Say = Callable[[str], None]


def bench(ref: str, settings: Bench, out: Path, *, dtype: str | None = None, say: Say = print) -> Report:
    """Measure the model `ref` and write report.json, report.md and report.html into `out`."""
    model = load(ref, dtype=dtype, batch_size=1)
    if not model.backbone.ragged:
        raise UnsupportedModelError(f"bench measures the native backbone, which cannot run {ref} here")
    report = Report(f"unmask bench: {ref}", machine(), vars(settings) | {"model": ref, "dtype": dtype or "own"})
    for section in _sections(model, ref, settings, dtype, say):
        report.add(section)
        say(section.text())
        report.write(out)
    say(f"wrote {out}/report.json, report.md and report.html")
    return report


def _sections(model: Model, ref: str, settings: Bench, dtype: str | None, say: Say) -> Iterator[Section]:
    """Each part of the report as it is measured."""
    against, rounds = settings.names("against"), settings.rounds
    theirs = (
        None if dtype == "int8" else dtype
    )  # the others hold no weights in bytes: they run the checkpoint's own type
    limits = measure_limits(model.backbone.network.nbytes)
    yield limits_section(limits, model)
    peer = Peer(ref, theirs) if "transformers" in against else None
    say(f"forwards behind {settings.prefix} positions …")
    rows = forwards.by_positions(model.backbone, peer, limits, settings.numbers("positions"), settings.prefix, rounds)
    yield forwards_section(rows)
    say("forwards by context length …")
    yield context_section(forwards.by_context(model.backbone, settings.numbers("context"), rounds))
    yield from _answers(model, peer, settings, against, say)
    if "universal" in against:
        say("the universal backbone …")
        other = load(ref, dtype=theirs, backbone="universal", batch_size=1)
        modes, prompts = _modes(model, settings), answers.prompts_of("math")[:2]
        limit = min(settings.max_new_tokens, 24)
        slow = answers.by_mode_alone(other, modes, prompts, limit)
        yield universal_section(slow, answers.by_mode_alone(model, modes, prompts, limit))
    if model.tokenizer is not None:
        say("number types …")
        yield types_section(types.by_type(ref, answers.prompts_of("math")[:3], settings.max_new_tokens))
    say("memory and first token …")
    yield footprint_section(footprint.memory(ref, dtype), footprint.first_token(ref, dtype))


def _modes(model: Model, settings: Bench) -> list[str]:
    """The modes asked for that the model can."""
    spec = model.spec
    can = {"ar": True, "threshold": spec is not None, "verified": spec is not None and spec.context == "causal"}
    return [mode for mode in settings.names("modes") if can[mode]]


def _answers(model: Model, peer: Peer | None, settings: Bench, against: list[str], say: Say) -> Iterator[Section]:
    workloads = settings.names("workload")
    prompts, limit = [answers.prompts_of(name)[0] for name in workloads], settings.max_new_tokens
    others = {}
    if peer is not None:
        others["transformers"] = answers.transformers_peer(peer)
    if "llama.cpp" in against and settings.gguf is not None:
        others["llama.cpp"] = answers.llama_cpp_peer(settings.gguf, torch.get_num_threads())
    for name, other in others.items():
        say(f"mode ar beside {name} …")
        yield peer_section(name, *answers.beside(model, other, prompts, limit))
    say("answers by mode, batch size and workload …")
    rows = answers.by_mode(model, _modes(model, settings), workloads, settings.numbers("batch"), limit)
    yield modes_section(rows)


def limits_section(limits: Limits, model: Model) -> Section:
    section = Section(
        "What the machine can do",
        f"Reading a buffer of the weights' size ({model.backbone.network.nbytes / 1e6:.0f} MB), and the largest matrix "
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
        "Median milliseconds of a forward over one and over eight positions behind so many.",
        ("context", "1 position, ms", "8 positions, ms"),
    )
    for row in rows:
        section.row(row["context"], row["1_ms"], row["8_ms"])
    if len(rows) > 1:
        span = rows[-1]["context"] - rows[0]["context"]
        section.figures["context_ms_per_1000"] = (rows[-1]["1_ms"] - rows[0]["1_ms"]) / span * 1000
    section.plot("context", ("1 position, ms", "8 positions, ms"))
    return section


def peer_section(name: str, ours: float, theirs: float) -> Section:
    section = Section(
        f"Mode ar beside {name}", "Tokens per second at batch 1, prompt by prompt in turn.", ("", "tok/s")
    )
    section.row("unmask", ours)
    section.row(name, theirs)
    section.figures[f"ar_vs_{name.replace('.', '_')}_batch1"] = ours / theirs
    return section


def modes_section(rows: list[dict[str, Any]]) -> Section:
    section = Section(
        "Answers by mode, batch size and workload",
        "Answer tokens only; the time of the prompts is included.",
        ("workload", "batch", "mode", "tok/s", "times ar", "tok/forward", "tok/pair"),
    )
    rate, ratio, figures = answers.rate, answers.ratio, section.figures
    for row in rows:
        which = {"workload": row["workload"], "batch": row["batch"]}
        own, ar = rate(rows, mode=row["mode"], **which), rate(rows, mode="ar", **which)
        pair = row["tokens"] / row["checks"] if row["checks"] else None
        compared = own / ar if own is not None and ar else None
        section.row(row["workload"], row["batch"], row["mode"], own, compared, row["tokens"] / row["forwards"], pair)
    modes, batches = (list(dict.fromkeys(row[key] for row in rows)) for key in ("mode", "batch"))
    for mode in modes:
        for batch in batches:
            own, ar = rate(rows, mode=mode, batch=batch), rate(rows, mode="ar", batch=batch)
            figures[f"{mode}_tokens_per_second_batch{batch}"] = own or 0.0
            if own is not None and ar:
                figures[f"{mode}_vs_ar_batch{batch}"] = own / ar
        for workload in dict.fromkeys(row["workload"] for row in rows):
            which = {"workload": workload, "batch": batches[0]}
            own, ar = rate(rows, mode=mode, **which), rate(rows, mode="ar", **which)
            if own is not None and ar:
                figures[f"{mode}_vs_ar_{workload}"] = own / ar
            figures[f"{mode}_tokens_per_forward_{workload}"] = (
                ratio(rows, "tokens", "forwards", mode=mode, **which) or 0.0
            )
            if mode == "verified":
                figures[f"verified_tokens_per_pair_{workload}"] = (
                    ratio(rows, "tokens", "checks", mode=mode, **which) or 0.0
                )
    first, last = rate(rows, mode="ar", batch=batches[0]), rate(rows, mode="ar", batch=batches[-1])
    if first and last and len(batches) > 1:
        figures[f"ar_batch{batches[-1]}_vs_batch{batches[0]}"] = last / first
    series = {mode: [(batch, rate(rows, mode=mode, batch=batch) or 0.0) for batch in batches] for mode in modes}
    section.lines("tokens per second by batch size", "batch", series)
    return section


def universal_section(theirs: dict[str, float], ours: dict[str, float]) -> Section:
    section = Section(
        "Beside the plain schedule on the universal backbone",
        "Tokens per second at batch 1, on two prompts.",
        ("mode", "native tok/s", "universal tok/s", "times"),
    )
    for mode, rate in theirs.items():
        section.row(mode, ours[mode], rate, ours[mode] / rate)
        section.figures[f"{mode}_native_vs_universal"] = ours[mode] / rate
    return section


def types_section(rows: list[dict[str, Any]]) -> Section:
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


def footprint_section(held: dict[str, float], first: float) -> Section:
    section = Section(
        "Memory and start",
        "Peak memory of loading and answering over what the imports take, beside the weights and cache that are held; "
        "seconds from the command to its first text. Each in a process of its own.",
        ("", "value"),
    )
    section.row("peak, MB", held["peak"] / 1e6)
    section.row("weights and cache, MB", held["minimum"] / 1e6)
    section.row("first token, s", first)
    section.figures = {"memory_vs_minimum": held["peak"] / held["minimum"], "first_token_seconds": first}
    return section
