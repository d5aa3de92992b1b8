"""The main job on the model that ships with unmask: the same prompts in every mode, side by side.

The modes take turns prompt by prompt in one process on one set of weights, so their ratios do not depend on how fast
the machine happens to be. transformers' own `generate` answers the first prompt of each kind, as an outside measure of
the autoregressive mode.
"""

import json
import os
import platform
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from unmask.api import Model, load
from unmask.errors import CheckpointError, ConfigError
from unmask.events import Answer
from unmask.model.peer import transformers_greedy

MODES = ("ar", "verified", "threshold")
LIMIT = 40
WIDTH = 110


@dataclass(frozen=True)
class Setting:
    """One column of the comparison: a name for figures and tables, and what is asked of the model."""

    name: str
    decoding: dict[str, Any]


@dataclass(frozen=True)
class Total:
    """What one setting did on all prompts together. Prompt tokens and end tokens never count."""

    tokens: int
    forwards: int
    seconds: float
    equal_to_ar: int
    repeated_4grams: float
    mean_length: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards


@dataclass(frozen=True)
class Answered:
    """A prompt of one kind and its answers by setting name."""

    kind: str
    prompt: str
    by_setting: dict[str, Answer]


def main(
    json_file: Path | None = None,
    *,
    limit: int = LIMIT,
    thresholds: tuple[float, ...] = (0.9,),
    model: str = "demo",
    say: Callable[[str], None] = print,
) -> int:
    """Answer the demo's prompts in every mode, print answers and figures, and write them to `json_file`."""
    prompts = [json.loads(line) for line in (files("unmask") / "assets/demo_prompts.jsonl").read_text().splitlines()]
    started = time.perf_counter()
    loaded = load(model, dtype="fp32", batch_size=1)
    say(
        f"{_about(loaded)}\nloaded in {time.perf_counter() - started:.1f} s; {len(prompts)} prompts, "
        f"at most {limit} tokens each, greedy, float32, batch 1\n"
    )
    settings = [
        Setting("ar", {"mode": "ar"}),
        Setting("verified", {"mode": "verified"}),
        *(
            Setting("threshold" if t == thresholds[0] else f"threshold_{t}", {"mode": "threshold", "threshold": t})
            for t in thresholds
        ),
    ]
    answered, peer = _answers(loaded, prompts, settings, limit, say)
    totals = _totals(answered)
    figures = _figures(totals, answered, peer)
    say(_table(totals, figures))
    if json_file is not None:
        _write(
            json_file,
            {
                "figures": figures,
                "settings": {s.name: s.decoding for s in settings} | {"max_new_tokens": limit},
                "machine": machine(),
                "model": _about(loaded),
                "answers": [
                    {
                        "kind": item.kind,
                        "prompt": item.prompt,
                        **{name: _plain(answer) for name, answer in item.by_setting.items()},
                    }
                    for item in answered
                ],
            },
        )
        say(f"wrote {json_file}")
    return 0


def _answers(
    model: Model, prompts: list[dict[str, str]], settings: list[Setting], limit: int, say: Callable[[str], None]
) -> tuple[list[Answered], tuple[float, float]]:
    """One answer per prompt and setting; and seconds of our AR and of transformers on the prompts both answered."""
    answered: list[Answered] = []
    ours = theirs = 0.0
    for setting in settings:  # warm up, untimed
        model.generate(["Hi"], max_new_tokens=8, **setting.decoding)
    for number, prompt in enumerate(prompts, start=1):
        row = {s.name: model.generate([prompt["prompt"]], max_new_tokens=limit, **s.decoding)[0] for s in settings}
        if prompt["kind"] not in {item.kind for item in answered}:
            ids = model.encode(prompt["prompt"])
            written, seconds = transformers_greedy(model.checkpoint, ids, limit)
            assert written == row["ar"].token_ids, "our AR is not what transformers' greedy generate writes"
            ours, theirs = ours + row["ar"].seconds, theirs + seconds
        answered.append(Answered(prompt["kind"], prompt["prompt"], row))
        say(f"[{number}/{len(prompts)}] {_side_by_side(answered[-1])}")
    return answered, (ours, theirs)


def _side_by_side(item: Answered) -> str:
    lines = [f"{item.kind}: {item.prompt}"]
    ar = item.by_setting["ar"]
    for name, answer in item.by_setting.items():
        same = "the same text as ar" if name != "ar" and answer.token_ids == ar.token_ids else ""
        speed = f"{answer.completion_tokens / answer.seconds:5.1f} tok/s {_tpf(answer):4.2f} tok/forward"
        lines.append(f"  {name:<14} {speed}  {same}".rstrip())
        if not same:
            lines += textwrap.wrap(
                " ".join((answer.text or "").split()), WIDTH, initial_indent="    ", subsequent_indent="    "
            )
    return "\n".join(lines) + "\n"


def _tpf(answer: Answer) -> float:
    return answer.completion_tokens / answer.forwards


def _totals(answered: list[Answered]) -> dict[str, Total]:
    return {name: _total(name, answered) for name in answered[0].by_setting}


def _total(name: str, answered: list[Answered]) -> Total:
    answers = [item.by_setting[name] for item in answered]
    tokens = sum(answer.completion_tokens for answer in answers)
    return Total(
        tokens,
        sum(a.forwards for a in answers),
        sum(a.seconds for a in answers),
        sum(item.by_setting[name].token_ids == item.by_setting["ar"].token_ids for item in answered),
        repeated_4grams([a.token_ids for a in answers]),
        tokens / len(answers),
    )


def repeated_4grams(texts: list[list[int]]) -> float:
    """Share of 4-grams that occurred before in their own text; 0 where no text has four tokens."""
    repeated = total = 0
    for text in texts:
        grams = Counter(tuple(text[at : at + 4]) for at in range(len(text) - 3))
        repeated += sum(n - 1 for n in grams.values())
        total += grams.total()
    return repeated / total if total else 0.0


def _figures(totals: dict[str, Total], answered: list[Answered], peer: tuple[float, float]) -> dict[str, float]:
    """Flat and stable names (documented in docs/demo.md)."""
    figures: dict[str, float] = {"prompts": len(answered), "ar_vs_transformers": peer[1] / peer[0]}
    for name, total in totals.items():
        figures[f"{name}_tokens_per_second"] = total.tokens_per_second
        figures[f"{name}_tokens_per_forward"] = total.tokens_per_forward
        figures[f"{name}_vs_ar"] = total.tokens_per_second / totals["ar"].tokens_per_second
        figures[f"{name}_texts_equal_to_ar"] = total.equal_to_ar
        figures[f"{name}_repeated_4grams"] = total.repeated_4grams
        figures[f"{name}_mean_length"] = total.mean_length
    for kind in dict.fromkeys(item.kind for item in answered):
        of_kind = [item for item in answered if item.kind == kind]
        for name, total in _totals(of_kind).items():
            figures[f"{name}_vs_ar_{kind}"] = total.tokens_per_second / _total("ar", of_kind).tokens_per_second
            figures[f"{name}_tokens_per_forward_{kind}"] = total.tokens_per_forward
        pairs = sum(item.by_setting["verified"].forwards_by_kind.get("check", 0) for item in of_kind)
        figures[f"verified_tokens_per_pair_{kind}"] = _total("verified", of_kind).tokens / max(1, pairs)
    return figures


COLUMNS = ("mode", "tokens", "forwards", "tok/forward", "tok/s", "vs ar", "same as ar", "repeated", "length")


def _table(totals: dict[str, Total], figures: dict[str, float]) -> str:
    """The figures as text. "repeated" is the share of 4-grams that occurred before in their own text."""
    rows = [
        (
            name,
            f"{total.tokens}",
            f"{total.forwards}",
            f"{total.tokens_per_forward:.2f}",
            f"{total.tokens_per_second:.1f}",
            f"{figures[f'{name}_vs_ar']:.2f}x",
            f"{total.equal_to_ar}/{figures['prompts']:.0f}",
            f"{total.repeated_4grams:.1%}",
            f"{total.mean_length:.1f}",
        )
        for name, total in totals.items()
    ]
    lines = [f"{row[0]:<15}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in (COLUMNS, *rows)]
    peer = (
        "ar against transformers' generate, same weights, dtype and threads, on the first prompt of each kind: "
        f"{figures['ar_vs_transformers']:.2f}x"
    )
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], peer])


def _plain(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in asdict(answer).items() if name != "error"}


def _about(model: Model) -> str:
    spec = model.spec
    if spec is None:
        raise ConfigError(f"{model.checkpoint.ref} is a plain autoregressive model; adapt it first (unmask adapt)")
    return (
        f"{model.checkpoint.ref}: {model.checkpoint.model.num_parameters() / 1e6:.0f}M parameters, blocks of "
        f"{spec.block_size}, context {spec.context}, adapter on {spec.adapter_scope}, backbone {model.backbone.name}"
    )


def machine() -> dict[str, Any]:
    """What a figure was measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    """The processor's name; Python leaves it empty on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _write(path: Path, report: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}") from None
