"""`unmask bench`: sections one after the other, into one report."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from unmask.api import Model, load
from unmask.auto import Measured
from unmask.bench import answers, footprint, forwards, pacing, sections, training, types
from unmask.bench.clock import in_turn
from unmask.bench.guesses import gain_of, guesses_section, rates_of
from unmask.bench.settings import WORKLOADS, Bench
from unmask.errors import CheckpointError, ConfigError, UnsupportedModelError
from unmask.limits import busy, measure_limits
from unmask.model.native.panels import KINDS
from unmask.model.peer import Peer
from unmask.model.speed import write_measured
from unmask.report import Report, Section, machine

Say = Callable[[str], None]
LONG = 24
"""Tokens of an answer from which on a run is kept for mode auto."""


def bench(ref: str, settings: Bench, out: Path, *, dtype: str | None = None, say: Say = print) -> Report:
    """Measure the model `ref` and write report.json, report.md and report.html into `out`."""
    model = load(ref, dtype=dtype, device="cpu", batch_size=1)
    if not model.backbone.ragged:
        raise UnsupportedModelError(f"bench measures the native backbone, which cannot run {ref} here")
    _check(model, ref, settings)
    asked = vars(settings) | {"model": ref, "dtype": dtype or "own"}
    if (note := busy()) is not None:
        say(note)
    report = Report(f"unmask bench: {ref}", machine(), asked, finished=False)
    report.write(out)  # so that a place that cannot be written to is known before anything is measured
    for section in _sections(model, ref, settings, dtype, say):
        report.add(section)
        say(section.text())
        report.write(out)
    report.finished = True
    report.write(out)
    say(f"wrote {out}/report.json, report.md and report.html")
    return report


def bench_training(ref: str, settings: Bench, out: Path, *, dtype: str | None = None, say: Say = print) -> Report:
    """Measure training on the base `ref`: our layout beside the published one; writes the same files."""
    if dtype not in (None, "fp32", "bf16"):
        raise ConfigError(f"dtype is '{dtype}'; allowed with training: fp32, bf16")
    asked = vars(settings) | {"model": ref, "dtype": dtype}
    report = Report(f"unmask bench --training: {ref}", machine(), asked, finished=False)
    cases = training.cases_of(ref, settings.data, settings.rows, dtype or "fp32")
    report.write(out)
    limits = measure_limits(2**28)
    peak = limits.peak_bf16 if dtype == "bf16" else limits.peak_fp32
    say("training, forward and backward …")
    report.add(sections.training_section(cases, training.measure(cases, settings.rounds), settings.rows, peak))
    say(report.sections[0].text())
    report.finished = True
    report.write(out)
    say(f"wrote {out}/report.json, report.md and report.html")
    return report


def _check(model: Model, ref: str, settings: Bench) -> None:
    """Say what cannot be measured before anything is: what the model lacks, what lies beyond its positions."""
    if model.tokenizer is None:
        raise UnsupportedModelError(f"bench asks questions in words, and {ref} has no tokenizer; add one to it")
    if not _modes(model, settings):
        raise ConfigError(f"modes is '{settings.modes}', of which {ref} can do none; a plain model has mode ar only")
    most = model.backbone.max_positions
    reach = settings.prefix + max(settings.numbers("positions"))
    if reach > most:
        raise ConfigError(
            f"prefix {settings.prefix} and positions {settings.positions} reach {reach}; {ref} has {most}"
        )
    if settings.max_new_tokens > most // 2:
        raise ConfigError(
            f"max_new_tokens is {settings.max_new_tokens}; allowed: up to {most // 2}, half of {ref}'s {most}"
        )
    if "llama.cpp" in settings.names("against"):
        answers.llama_cpp_peer(settings.gguf or "", 1)


def _sections(model: Model, ref: str, settings: Bench, dtype: str | None, say: Say) -> Iterator[Section]:
    """Each part of the report as it is measured."""
    against, rounds = settings.names("against"), settings.rounds
    limits = measure_limits(model.backbone.network.nbytes)
    yield sections.limits_section(limits, model.backbone.network.nbytes)
    peer = faster_peer(ref, dtype) if {"transformers", "universal"} & set(against) else None
    beside = peer if "transformers" in against else None
    say(f"forwards behind {settings.prefix} positions …")
    rows = forwards.by_positions(model.backbone, beside, limits, settings.numbers("positions"), settings.prefix, rounds)
    yield sections.forwards_section(rows)
    say("forwards by context length …")
    yield sections.context_section(forwards.by_context(model.backbone, settings.numbers("context"), rounds))
    yield from _answers(model, beside, settings, against, say)
    if peer is not None and "universal" in against:
        say("the universal backbone …")
        other = load(ref, dtype=peer.dtype, device="cpu", backbone="universal", batch_size=1)
        rates = answers.by_backbone(model, other, _modes(model, settings), min(settings.max_new_tokens, 24))
        yield sections.universal_section(rates, peer.kind)
    say("number types …")
    yield sections.types_section(types.by_type(ref, answers.prompts_of("math")[:3], settings.max_new_tokens))
    say("memory and first token …")
    held = {kind: footprint.memory(ref, kind) for kind in KINDS}
    yield sections.footprint_section(held, model.backbone.network.parts.kind, footprint.first_token(ref, dtype))


def faster_peer(ref: str, dtype: str | None) -> Peer:
    """transformers on the same weights, in the type asked for (int8: the checkpoint's own) or in float32, whichever
    gives a token sooner here: many CPUs have no bfloat16 arithmetic, and nobody would choose it there."""
    peers = [Peer(ref, None if dtype == "int8" else dtype)]
    if peers[0].dtype != torch.float32:
        peers.append(Peer(ref, torch.float32))
    times = [min(in_turn(peer.forwards([1] * 64, [1]), 3).values()) for peer in peers]
    return peers[times.index(min(times))]


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
        kind = peer.kind if peer is not None and name == "transformers" else "its file's type"
        yield sections.peer_section(name, kind, *answers.beside(model, other, prompts, limit))
    yield from _by_mode(model, settings, say)


def _by_mode(model: Model, settings: Bench, say: Say) -> Iterator[Section]:
    """The modes beside each other; mode verified then chooses by what was just measured, here and from now on."""
    modes, batches, limit = _modes(model, settings), settings.numbers("batch"), settings.max_new_tokens
    costs = None
    if model.spec is not None:
        say("the cost of a step …")
        gain, chain = model.costs.gain, model.checkpoint.chain
        costs = pacing.forward_costs(model.backbone, model.spec, settings.prefix, settings.rounds, gain, chain)
        model.measured = Measured(costs, {}, "")
        yield sections.costs_section(costs)
    say("answers by mode, batch size and workload …")
    rows = answers.by_mode(model, modes, settings.names("workload"), batches, limit)
    yield sections.modes_section(rows)
    if "verified" in modes:
        yield guesses_section(rows, answers.unguessable(model, limit))
    thresholds: list[answers.Row] = []
    if "threshold" in modes:
        say("mode threshold by threshold and schedule …")
        thresholds = answers.by_threshold(model, settings.shares("thresholds"), batches, limit)
        yield sections.threshold_section(thresholds)
    if costs is not None and _representative(settings, modes):
        costs = replace(costs, gain=gain_of(rows, costs.gain))
        model.measured = Measured(costs, rates_of(rows, thresholds), date.today().isoformat())
        try:
            say(
                f"mode auto goes by {write_measured(model.measured, model.backbone, model.checkpoint.path)} from now on"
            )
        except CheckpointError as error:
            say(f"note: {error}; mode auto goes on without this measurement")


def _representative(settings: Bench, modes: list[str]) -> bool:
    """Whether a run says enough of a model to choose modes by: all kinds of text, of some length, in both modes that
    are compared."""
    whole = set(settings.names("workload")) == set(WORKLOADS) and settings.max_new_tokens >= LONG
    return whole and not settings.quick and {"ar", "verified"} <= set(modes)
