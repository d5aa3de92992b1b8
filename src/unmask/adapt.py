"""The training loop (Fast-dLLM v2, section 3.2): rows to streams to loss, one `Progress` per optimizer step.

Noise and row order depend on (seed, epoch, row) alone, so a resumed run draws what the unbroken one would have drawn.
"""

import functools
import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unmask.core.streams import StreamBatch, collate
from unmask.curves import draw_curves
from unmask.data import Order, Row
from unmask.guard import Guard
from unmask.model.learner import Learner
from unmask.model.trainstate import is_split, load_moments, load_weights, save_state, states
from unmask.model.zero import drives
from unmask.noising import noised, without_labels
from unmask.processes import anywhere, backward, exchanging, join, share, summed, together, update
from unmask.recipe import Adapt
from unmask.rowsharing import forget, shared_rows
from unmask.rundir import add_to_log, check_run, cut_log, open_run, read_log
from unmask.validation import Validation, held_out, validate

REDRAWN = 60.0
"""Seconds after which the picture of a run is drawn again when a state is saved."""


@dataclass(frozen=True)
class Progress:
    """One optimizer step, over all processes. loss is the mean over masked labels (nats), ar_loss over next-token
    labels, divergence the mean over masked labels of what separates the draft's law from the clean stream's."""

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
    validation: Validation | None = None


@dataclass(frozen=True)
class Run:
    """What stays the same from step to step. `network` is the learner as it is called: in several processes it may be
    wrapped."""

    recipe: Adapt
    rows: Sequence[Row]
    learner: Learner
    optimizer: Any
    accelerator: Any
    network: Any
    guard: Guard

    def learning(self) -> dict[str, torch.Tensor]:
        """What learns, by name, as the optimizer holds it; a wrapped network may show it otherwise at times."""
        if drives(_plain(self.optimizer)):
            return dict(self.learner.trainable())
        [group] = _plain(self.optimizer).param_groups
        return dict(zip(self.learner.trainable(), group["params"], strict=True))

    @functools.cached_property
    def order(self) -> Order:
        return Order(self.rows, self.recipe)


def adapt(recipe: Adapt, *, resume: bool = False) -> Iterator[Progress]:
    """Run a recipe; the model is in `<output>/model` when the generator ends.

    Started by a launcher in several processes, each of them runs this, and the first one writes. A state is saved
    every `save_every` steps, and when SIGINT or SIGTERM arrives (KeyboardInterrupt is then raised). Raises DataError,
    ConfigError, CheckpointError, and UnmaskError for a loss or gradient that is not a number, for a loss that explodes
    and for a process that is lost.
    """
    accelerator = join(recipe)
    output = Path(recipe.output)
    with together(accelerator, output):
        run, done, held = _prepared(recipe, accelerator, resume)
        try:
            yield from _steps(run, done, held)
            _save_model(run)
        finally:
            forget(recipe, accelerator)
        accelerator.end_training()


def _steps(run: Run, done: int, held: Sequence[Row]) -> Iterator[Progress]:
    recipe, accelerator, output, last = run.recipe, run.accelerator, Path(run.recipe.output), None
    for record in read_log(output):
        run.guard.remember(record["step"], record["loss"], record["labels"])
        last = Validation(**record["validation"]) if record.get("validation") else last
    with interruptible() as interrupted:
        for step in range(done + 1, recipe.steps + 1):
            progress = train_step(run, step, interrupted)
            if progress is None:
                _save(run, step - 1)
                raise KeyboardInterrupt(f"stopped after step {step - 1} of {recipe.steps}; continue with --resume")
            ended = step == recipe.steps
            if held and (ended or step % recipe.validate_every == 0):
                last = validate(recipe, run.network, accelerator, held, run.learner.spec.mask_id, step, last)
                progress = replace(progress, validation=last)
            if accelerator.is_main_process:  # before the state, so that no state is ahead of its log
                add_to_log(output, asdict(progress))
            accelerator.log(_tracked(progress), step=step)
            if ended or step % recipe.save_every == 0:
                _save(run, step)
            yield progress


def _prepared(recipe: Adapt, accelerator: Any, resume: bool) -> tuple[Run, int, Sequence[Row]]:
    """Everything a run needs, read and restored; the number of steps done; the rows for validation."""
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    output, learner = Path(recipe.output), Learner(recipe)
    check_run(output, recipe, resume=resume)
    found, others = shared_rows(recipe, learner, accelerator)
    rows, held = held_out(found.rows, recipe)
    if held:
        found.counts["held out for validation"] = len(held)
    elif recipe.validation_data:
        held, found.digests = others.rows, found.digests | others.digests
    open_run(output, recipe, found, resume=resume, write=accelerator.is_main_process)
    optimizer = torch.optim.AdamW(
        learner.trainable().values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    state = states(output)[-1] if resume and states(output) else None
    done = load_weights(state, learner)["step"] if state else 0
    accelerator.wait_for_everyone()  # nobody writes before all have read
    if accelerator.is_main_process:
        cut_log(output, done)
    accelerator.wait_for_everyone()
    network, optimizer = accelerator.prepare(learner, optimizer)
    run = Run(recipe, rows, learner, optimizer, accelerator, network, Guard(recipe))
    if state:
        load_moments(state, run.learning(), _plain(optimizer))
    return run, done, held


def _plain(optimizer: Any) -> Any:
    """The optimizer inside accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _save(run: Run, step: int) -> None:
    if step > 0:
        output, first = Path(run.recipe.output), run.accelerator.is_main_process
        save_state(output, run.learning(), _plain(run.optimizer), {"step": step}, keep=run.recipe.keep, write=first)
        if first:
            draw_curves(output, older_than=0 if step == run.recipe.steps else REDRAWN)


def _save_model(run: Run) -> None:
    """Write the adapted model. Where the processes hold parts of it only, it is made anew from the last state."""
    output, learner = Path(run.recipe.output), run.learner
    if run.accelerator.is_main_process:
        if any(map(is_split, run.learning().values())):
            learner = Learner(run.recipe)
            load_weights(states(output)[-1], learner)
        learner.save(output / "model")
    run.accelerator.wait_for_everyone()


def _tracked(progress: Progress) -> dict[str, float]:
    """The numbers of a step, as trackers take them."""
    values = {**vars(progress), "validation": progress.validation and progress.validation.loss}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def train_step(run: Run, step: int, interrupted: list[int]) -> Progress | None:
    """One optimizer step; None, and nothing changed, if the run is to stop."""
    started, accelerator = time.perf_counter(), run.accelerator
    epoch, window = run.order.at(step)
    mine = share(window, accelerator.process_index, accelerator.num_processes)
    forwards = [_fed(run, part, window[0][0], step, epoch) for part in mine]
    counts = torch.tensor([sum(len(getattr(f, name)) for f in forwards) for name in ("target", "ar_target")])
    labels, following = summed(accelerator, counts).tolist()
    learning_rate = _set_learning_rate(run.optimizer, run.recipe, step)
    losses = torch.zeros(3, device=accelerator.device)
    for number, forward in enumerate(forwards, start=1):
        if anywhere(accelerator, interrupted):
            run.optimizer.zero_grad()
            return None
        with exchanging(accelerator, run.network, last=number == len(forwards)):
            losses += _backward(run, forward, labels, following)
    losses = summed(accelerator, losses)
    loss = losses[0].item() / max(1, labels)
    checked = loss if math.isfinite(float(losses.sum())) else float(losses.sum())
    check = functools.partial(run.guard.check, step, window, checked)
    norm = update(accelerator, run.network, run.optimizer, run.recipe.clip, check)
    run.guard.remember(step, loss, labels)
    return Progress(
        step,
        run.recipe.steps,
        epoch,
        loss,
        losses[1].item() / max(1, following) if run.recipe.ar_weight else None,
        losses[2].item() / max(1, labels) if run.recipe.distill else None,
        labels,
        sum(map(len, window)),
        norm,
        learning_rate,
        time.perf_counter() - started,
    )


def _fed(run: Run, part: list[int], spare: int, step: int, epoch: int) -> StreamBatch:
    """The rows of one forward with their noise. A process without a row feeds one without labels, which adds zero."""
    chosen = [(n, run.rows[n]) for n in part] or [(spare, without_labels(run.rows[spare]))]
    mask_id = run.learner.spec.mask_id
    return collate([noisy for n, row in chosen for noisy in noised(run.recipe, row, mask_id, step, epoch, n)])


def _backward(run: Run, batch: StreamBatch, labels: int, following: int) -> torch.Tensor:
    """Gradients of one forward, divided by all labels of the step (not a mean of means); returns the three sums.

    A forward, or a whole step, without a masked label adds zero. Gradients are exchanged as a mean over the processes,
    which is why the loss is multiplied by their number.
    """
    losses = run.network(batch.to(run.accelerator.device))
    share_taught = run.recipe.distill
    loss = ((1 - share_taught) * losses[0] + share_taught * losses[2]) / max(1, labels)
    loss = loss + run.recipe.ar_weight * losses[1] / max(1, following)
    backward(run.accelerator, run.network, loss * run.accelerator.num_processes)
    return losses.detach()


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
