"""The training loop (Fast-dLLM v2, section 3.2): rows to streams to loss, one `Progress` per optimizer step.

Noise and row order depend on (seed, epoch, row) alone, so a resumed run draws what the unbroken one would have drawn.
"""

import functools
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.config import Adapt
from unmask.core.streams import StreamBatch, collate
from unmask.data import Order, Row, load_rows, packing_of
from unmask.errors import ConfigError, MissingExtraError, UnmaskError
from unmask.model.learner import Learner
from unmask.model.trainstate import load_state, save_state
from unmask.noising import noised
from unmask.rundir import add_to_log, cut_log, open_run


@dataclass(frozen=True)
class Progress:
    """One optimizer step. loss is the mean over masked labels (nats), ar_loss over next-token labels, divergence the
    mean over masked labels of what separates the draft's law from the clean stream's."""

    step: int
    steps: int
    epoch: int
    loss: float
    ar_loss: float | None
    divergence: float | None
    labels: int
    rows: int
    grad_norm: float
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class Run:
    """What stays the same from step to step."""

    recipe: Adapt
    rows: list[Row]
    learner: Learner
    optimizer: Any
    accelerator: Any

    @functools.cached_property
    def order(self) -> Order:
        return Order(self.rows, self.recipe)


def adapt(recipe: Adapt, *, resume: bool = False) -> Iterator[Progress]:
    """Run a recipe; the model is in `<output>/model` when the generator ends.

    A state is saved every `save_every` steps, and when SIGINT or SIGTERM arrives (KeyboardInterrupt is then raised).
    Raises DataError, ConfigError, CheckpointError, and UnmaskError for a loss or gradient that is not a number.
    """
    accelerator = _accelerator()
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    output, learner = Path(recipe.output), Learner(recipe)
    rows = load_rows(
        list(recipe.data),
        learner.tokenizer,
        max_length=recipe.max_length,
        truncation=recipe.truncation,
        stop_ids=learner.spec.stop_ids,
        seed=recipe.seed,
        packing=packing_of(recipe, learner.spec.mask_id),
    )
    open_run(output, recipe, rows, resume=resume)
    optimizer = torch.optim.AdamW(
        learner.trainable().values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    done = (load_state(output, learner, optimizer) or {}).get("step", 0) if resume else 0
    cut_log(output, done)
    learner, optimizer = accelerator.prepare(learner, optimizer)
    run = Run(recipe, rows.rows, learner, optimizer, accelerator)
    with interruptible() as interrupted:
        for step in range(done + 1, recipe.steps + 1):
            progress = train_step(run, step, interrupted)
            if progress is None:
                _save(run, step - 1)
                raise KeyboardInterrupt(f"stopped after step {step - 1} of {recipe.steps}; continue with --resume")
            add_to_log(output, asdict(progress))  # before the state, so that no state is ahead of its log
            if step % recipe.save_every == 0 or step == recipe.steps:
                _save(run, step)
            yield progress
    learner.save(output / "model")


def _accelerator() -> Any:
    try:
        from accelerate import Accelerator
    except ImportError:
        raise MissingExtraError("accelerate", "train") from None
    accelerator = Accelerator()
    if accelerator.num_processes > 1:
        raise ConfigError(
            f"started as {accelerator.num_processes} processes, but training in several processes is not proved yet; "
            "start one"
        )
    return accelerator


def _save(run: Run, step: int) -> None:
    if step > 0:
        optimizer = getattr(run.optimizer, "optimizer", run.optimizer)
        save_state(Path(run.recipe.output), run.learner, optimizer, {"step": step})


def train_step(run: Run, step: int, interrupted: list[int]) -> Progress | None:
    """One optimizer step; None, and nothing changed, if the run is to stop."""
    started = time.perf_counter()
    epoch, window = run.order.at(step)
    forwards = [
        collate(
            [noisy for n in part for noisy in noised(run.recipe, run.rows[n], run.learner.spec.mask_id, step, epoch, n)]
        )
        for part in window
    ]
    labels, following = (sum(len(getattr(f, name)) for f in forwards) for name in ("target", "ar_target"))
    learning_rate = _set_learning_rate(run.optimizer, run.recipe, step)
    losses = torch.zeros(3, device=run.accelerator.device)
    for forward in forwards:
        if interrupted:
            run.optimizer.zero_grad()
            return None
        losses += _backward(run, forward, labels, following)
    norm = float(run.accelerator.clip_grad_norm_(run.learner.parameters(), run.recipe.clip))
    _refuse_not_a_number(run, step, window, {"loss": float(losses.sum()), "norm of the gradient": norm})
    run.optimizer.step()
    run.optimizer.zero_grad()
    return Progress(
        step,
        run.recipe.steps,
        epoch,
        losses[0].item() / max(1, labels),
        losses[1].item() / max(1, following) if run.recipe.ar_weight else None,
        losses[2].item() / max(1, labels) if run.recipe.distill else None,
        labels,
        sum(map(len, window)),
        norm,
        learning_rate,
        time.perf_counter() - started,
    )


def _backward(run: Run, batch: StreamBatch, labels: int, following: int) -> torch.Tensor:
    """Gradients of one forward, divided by all labels of the step (not a mean of means); returns the three sums.

    A forward, or a whole step, without a masked label adds zero.
    """
    losses = run.learner(batch.to(run.accelerator.device))
    share = run.recipe.distill
    loss = ((1 - share) * losses[0] + share * losses[2]) / max(1, labels)
    loss = loss + run.recipe.ar_weight * losses[1] / max(1, following)
    run.accelerator.backward(loss)
    return losses.detach()


def _refuse_not_a_number(run: Run, step: int, window: list[list[int]], found: dict[str, float]) -> None:
    """Stop before such a gradient reaches the weights."""
    for name, value in found.items():
        if not math.isfinite(value):
            raise UnmaskError(
                f"the {name} of step {step} is {value}, on rows {window}; the last good state is in "
                f"{run.recipe.output}; lower learning_rate, or look at these rows, and --resume"
            )


def _set_learning_rate(optimizer: Any, recipe: Adapt, step: int) -> float:
    """Linear warm-up, then constant or falling linearly to 0 at the last step."""
    rise = min(1.0, step / recipe.warmup_steps) if recipe.warmup_steps else 1.0
    left = max(1, recipe.steps - recipe.warmup_steps)
    fall = min(1.0, (recipe.steps - step + 1) / left) if recipe.decay == "linear" else 1.0
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * rise * fall
    return float(recipe.learning_rate * rise * fall)


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """A list that fills when SIGINT or SIGTERM arrives, so that a run can stop where its state is whole."""
    arrived: list[int] = []
    wanted = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(number, lambda n, _: arrived.append(n)) for number in wanted]
    except ValueError:  # not the main thread: signals are somebody else's
        yield arrived
        return
    try:
        yield arrived
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
