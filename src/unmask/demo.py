"""The main job on the model that ships with unmask: the same prompts in every mode, side by side.

The modes take turns prompt by prompt in one process on one set of weights, so their ratios do not depend on how fast
the machine happens to be. transformers' own `generate` answers the first prompt of each kind, as an outside measure of
the autoregressive mode.
"""

import json
import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from unmask.api import Model, load
from unmask.errors import CheckpointError, ConfigError
from unmask.events import Answer
from unmask.limits import busy
from unmask.model.peer import Peer
from unmask.report import machine
from unmask.text import repeated_4grams

LIMIT = 24
Say = Callable[[str], None]


@dataclass(frozen=True)
class Answered:
    """A prompt of one kind, its answers by setting name, and transformers' (token ids, seconds) where it was asked."""

    kind: str
    prompt: str
    by_setting: dict[str, Answer]
    peer: tuple[list[int], float] | None


@dataclass(frozen=True)
class Total:
    """What one setting did on several prompts together. Prompt tokens and end tokens never count."""

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


def main(
    json_file: Path | None = None,
    *,
    limit: int = LIMIT,
    thresholds: tuple[float, ...] = (0.9,),
    model: str = "demo",
    say: Say = print,
) -> int:
    """Answer the demo's prompts in every mode, print answers and figures, and write them to `json_file`."""
    prompts = [json.loads(line) for line in (files("unmask") / "assets/demo_prompts.jsonl").read_text().splitlines()]
    if (note := busy()) is not None:
        say(note)
    began = time.perf_counter()
    loaded = load(model, dtype="fp32", batch_size=1)
    peer = Peer(model, dtype="fp32")
    say(_about(loaded))
    say(f"loaded in {time.perf_counter() - began:.1f} s")
    say(f"{len(prompts)} prompts, greedy, float32, one at a time, at most {limit} tokens each\n")
    settings = _settings(thresholds)
    answered = _answers(loaded, peer, prompts, settings, limit, say)
    figures = _figures(answered)
    say(_table(answered, figures))
    if json_file is not None:
        _write(json_file, _report(loaded, settings, limit, answered, figures))
        say(f"wrote {json_file}")
    return 0


def _settings(thresholds: tuple[float, ...]) -> dict[str, dict[str, Any]]:
    """What is compared: a name for figures and tables, and what is asked of the model. The first threshold has the
    plain name."""
    first, *others = thresholds
    return {
        "ar": {"mode": "ar"},
        "verified": {"mode": "verified"},
        "threshold": {"mode": "threshold", "threshold": first},
        **{f"threshold_{x}": {"mode": "threshold", "threshold": x} for x in others},
    }


def _answers(
    model: Model, peer: Peer, prompts: list[dict[str, str]], settings: dict[str, dict[str, Any]], limit: int, say: Say
) -> list[Answered]:
    """Answer every prompt in every setting; all of them, and transformers, have run once before anything is timed."""
    for decoding in settings.values():
        model.generate(["Hi"], max_new_tokens=8, **decoding)
    peer.greedy(model.encode("Hi"), 8)
    answered: list[Answered] = []
    for number, prompt in enumerate(prompts, start=1):
        first_of_kind = prompt["kind"] not in {item.kind for item in answered}
        theirs = peer.greedy(model.encode(prompt["prompt"]), limit) if first_of_kind else None
        row = {
            name: model.generate([prompt["prompt"]], max_new_tokens=limit, **decoding)[0]
            for name, decoding in settings.items()
        }
        answered.append(Answered(prompt["kind"], prompt["prompt"], row, theirs))
        say(f"[{number}/{len(prompts)}] {_side_by_side(answered[-1])}")
    return answered


def _side_by_side(item: Answered) -> str:
    lines = [f"{item.kind}: {item.prompt}"]
    ar = item.by_setting["ar"]
    for name, answer in item.by_setting.items():
        same = name != "ar" and answer.token_ids == ar.token_ids
        speed = f"{answer.completion_tokens / answer.seconds:5.1f} tok/s"
        yields = f"{answer.completion_tokens / answer.forwards:4.2f} tok/forward"
        lines.append(f"  {name:<14} {speed} {yields}" + ("  the same text as ar" if same else ""))
        if not same:
            for line in (answer.text or "").splitlines():
                lines += textwrap.wrap(line, 110, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def _total(name: str, answered: list[Answered]) -> Total:
    answers = [item.by_setting[name] for item in answered]
    tokens = sum(answer.completion_tokens for answer in answers)
    return Total(
        tokens,
        sum(answer.forwards for answer in answers),
        sum(answer.seconds for answer in answers),
        sum(item.by_setting[name].token_ids == item.by_setting["ar"].token_ids for item in answered),
        repeated_4grams([answer.token_ids for answer in answers]),
        tokens / len(answers),
    )


def _figures(answered: list[Answered]) -> dict[str, float]:
    """Flat and stable names (documented in docs/demo.md)."""
    figures: dict[str, float] = {"prompts": len(answered), **_peer_figures(answered)}
    ar = _total("ar", answered)
    for name in answered[0].by_setting:
        total = _total(name, answered)
        figures[f"{name}_tokens_per_second"] = total.tokens_per_second
        figures[f"{name}_tokens_per_forward"] = total.tokens_per_forward
        figures[f"{name}_vs_ar"] = total.tokens_per_second / ar.tokens_per_second
        figures[f"{name}_texts_equal_to_ar"] = total.equal_to_ar
        figures[f"{name}_repeated_4grams"] = total.repeated_4grams
        figures[f"{name}_mean_length"] = total.mean_length
    for kind in dict.fromkeys(item.kind for item in answered):
        figures |= _kind_figures(kind, [item for item in answered if item.kind == kind])
    return figures


def _peer_figures(answered: list[Answered]) -> dict[str, float]:
    asked = [(item.peer, item.by_setting["ar"]) for item in answered if item.peer is not None]
    return {
        "ar_vs_transformers": sum(peer[1] for peer, _ in asked) / sum(ours.seconds for _, ours in asked),
        "ar_texts_equal_to_transformers": sum(peer[0] == ours.token_ids for peer, ours in asked),
        "transformers_prompts": len(asked),
    }


def _kind_figures(kind: str, answered: list[Answered]) -> dict[str, float]:
    figures: dict[str, float] = {}
    ar = _total("ar", answered)
    for name in answered[0].by_setting:
        total = _total(name, answered)
        figures[f"{name}_vs_ar_{kind}"] = total.tokens_per_second / ar.tokens_per_second
        figures[f"{name}_tokens_per_forward_{kind}"] = total.tokens_per_forward
    pairs = [
        kept + 1 for item in answered for source, _, kept in item.by_setting["verified"].checks if source == "draft"
    ]
    figures[f"verified_tokens_per_pair_{kind}"] = sum(pairs) / max(1, len(pairs))
    return figures


COLUMNS = ("mode", "tokens", "forwards", "tok/forward", "tok/s", "vs ar", "same as ar", "repeated", "length")


def _table(answered: list[Answered], figures: dict[str, float]) -> str:
    """The figures as text. "repeated" is the share of 4-grams that occurred before in their own text."""
    rows = [COLUMNS, *(_row(name, _total(name, answered), figures) for name in answered[0].by_setting)]
    lines = [f"{row[0]:<15}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows]
    peer = (
        f"ar is {figures['ar_vs_transformers']:.2f} times as fast as transformers' generate, on "
        f"{figures['transformers_prompts']} of the prompts, with the same weights, dtype and threads"
    )
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], peer])


def _row(name: str, total: Total, figures: dict[str, float]) -> tuple[str, ...]:
    return (
        name,
        f"{total.tokens}",
        f"{total.forwards}",
        f"{total.tokens_per_forward:.2f}",
        f"{total.tokens_per_second:.1f}",
        f"{figures[f'{name}_vs_ar']:.2f}x",
        f"{total.equal_to_ar}/{figures['prompts']}",
        f"{total.repeated_4grams:.1%}",
        f"{total.mean_length:.1f}",
    )


def _report(
    model: Model, settings: dict[str, Any], limit: int, answered: list[Answered], figures: dict[str, float]
) -> dict[str, Any]:
    return {
        "figures": figures,
        "settings": settings | {"max_new_tokens": limit},
        "machine": machine(),
        "model": _about(model),
        "answers": [
            {"kind": item.kind, "prompt": item.prompt, **{name: _plain(a) for name, a in item.by_setting.items()}}
            for item in answered
        ],
    }


def _plain(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in asdict(answer).items() if name != "error"}


def _about(model: Model) -> str:
    spec = model.spec
    if spec is None:
        raise ConfigError(f"{model.checkpoint.ref} is a plain autoregressive model; adapt it first (unmask adapt)")
    return (
        f"{model.checkpoint.ref}: {model.checkpoint.parameters / 1e6:.0f}M parameters, blocks of "
        f"{spec.block_size}, context {spec.context}, adapter on {spec.adapter_scope}, backbone {model.backbone.name}"
    )


def _write(path: Path, report: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}") from None
