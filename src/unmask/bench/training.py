"""Rows per second of our training layout against the published one, in one run.

Ours feeds one clean stream per row and only those noisy blocks in which something is masked; the published layout feeds
[x_0 ; x_t] once per view. Both run through the same forward, attention and loss, on the same rows, noise and trainable
parameters (low-rank adapters and the mask's vector). The form `block` is the paper's objective; in `draft` (context
causal, scope draft) the clean stream carries no gradient in either layout. Before anything is timed, the gradients of
both layouts must agree. A row counts once, with all its views, forward and backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from unmask.bench.clock import in_turn
from unmask.core.noise import seeded
from unmask.core.streams import StreamBatch, collate
from unmask.data import Row, load_rows
from unmask.errors import UnmaskError
from unmask.model.learner import Learner
from unmask.noising import noised
from unmask.plan.cost import Fed, operations
from unmask.plan.network import network_of
from unmask.recipe import Adapt

FORMS: dict[str, dict[str, Any]] = {
    "block": {"context": "block", "adapter_scope": "all"},
    "draft": {"context": "causal", "adapter_scope": "draft"},
}
LAYOUTS: dict[str, Any] = {"ours": "lean", "reference": "reference"}
BLOCK, RANK, LENGTH, ANSWER, TOLERANCE = 32, 16, 256, 128, 1e-5


@dataclass(frozen=True)
class Case:
    """One form in one layout, with its batch. A form's two cases share one learner."""

    learner: Learner
    batch: StreamBatch

    def backward(self) -> None:
        """Gradients of the mean loss over masked labels."""
        self.learner.zero_grad(set_to_none=True)
        (self.learner(self.batch)[0] / len(self.batch.target)).backward()

    def gradient(self) -> torch.Tensor:
        self.backward()
        return torch.cat([p.grad.flatten() for p in self.learner.trainable().values() if p.grad is not None])

    def operations(self) -> float:
        """Multiplications and additions of matrix products in one forward and backward, attention left out."""
        tokens, clean = self.batch.ids.numel(), self.batch.clean
        step = Fed(clean, tokens - clean, labels=len(self.batch.target))
        return operations(network_of(self.learner.base_ref), self.learner.recipe, step)


def cases_of(ref: str, data: Sequence[str], rows: int, dtype: Any) -> dict[tuple[str, str], Case]:
    """Both forms in both layouts. data: files of training rows; without one, random tokens.

    Raises UnmaskError where the layouts' gradients in float32 differ by more than TOLERANCE of their norm.
    """
    cases: dict[tuple[str, str], Case] = {}
    found: list[Row] = []
    for form, fields in FORMS.items():
        recipe = Adapt(
            base=ref,
            data=tuple(data) or ("random tokens",),
            output="nowhere",  # nothing is run
            rank=RANK,
            block_size=BLOCK,
            sub_block_size=8,
            **fields,
        )
        learner = Learner(recipe)
        _stir(learner)
        found = found or _rows(learner, data, rows)
        for layout, name in LAYOUTS.items():
            cases[form, layout] = Case(learner, _batch(replace(recipe, layout=name), found, learner))
        ours, theirs = (cases[form, layout].gradient() for layout in LAYOUTS)
        difference = float((ours - theirs).norm() / theirs.norm())
        if not difference <= TOLERANCE:
            raise UnmaskError(f"the gradients of form {form} differ by {difference:.1e}, more than {TOLERANCE}")
        learner.recipe = replace(learner.recipe, dtype=dtype)
    return cases


def measure(cases: dict[tuple[str, str], Case], rounds: int) -> dict[tuple[str, str], float]:
    """Median seconds of each case; cases take turns."""
    named = {" ".join(key): case.backward for key, case in cases.items()}
    times = in_turn(named, rounds)
    return {key: times[" ".join(key)] for key in cases}


def _stir(learner: Learner) -> None:
    """Fresh adapters have B = 0, which hides the gradient of A; give B values."""
    for name, parameter in learner.trainable().items():
        if "lora_B" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=seeded("stir", name)) * 0.02)


def _rows(learner: Learner, data: Sequence[str], rows: int) -> list[Row]:
    if data:
        stops = learner.spec.stop_ids
        found = load_rows(list(data), learner.tokenizer, max_length=512, truncation="keep", stop_ids=stops).rows
        return [found[n] for n in torch.randperm(len(found), generator=seeded("rows"))[:rows].tolist()]
    top, labelled = learner.model.get_input_embeddings().weight.shape[0], torch.arange(LENGTH) >= LENGTH - ANSWER
    return [Row(torch.randint(0, top, (LENGTH,), generator=seeded("rows", n)), labelled) for n in range(rows)]


def _batch(recipe: Adapt, rows: list[Row], learner: Learner) -> StreamBatch:
    return collate([part for n, row in enumerate(rows) for part in noised(recipe, row, learner.spec.mask_id, 1, 0, n)])
