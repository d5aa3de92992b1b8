"""The training loop (Fast-dLLM v2, section 3.2): rows to streams to loss, one `Progress` per optimizer step.

Noise and row order depend on (seed, epoch, row) alone, so a resumed run draws what the unbroken one would have drawn.
"""

import functools
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unmask.core.streams import StreamBatch, collate
from unmask.curves import draw_curves
from unmask.data import Order, Row
from unmask.guard import Guard
from unmask.lock import locked
from unmask.model.checkpoint import base_digest
from unmask.model.learner import Learner
from unmask.model.sources import locate
from unmask.model.trainstate import is_split, load_moments, load_weights, prune, save_state, states
from unmask.model.zero import drives
from unmask.noising import noised, without_labels
from unmask.processes import anywhere, backward, exchanging, join, share, summed, together, update
from unmask.recipe import Adapt, warn_of_idle
from unmask.rowsharing import alone, forget, shared_rows
from unmask.rundir import add_to_log, check_run, clean, cut_log, open_run, read_log
from unmask.validation import Validation, divided, due, validate

REDRAWN = 60.0
"""Seconds after which the picture of a run is drawn again when a state is saved."""


@dataclass(frozen=True)
class Progress:
    """One optimizer step, over all processes. loss is the mean over masked labels (nats), ar_loss over next-token
    labels, divergence the mean over masked labels of what separates the draft's law from the clean stream's, chain_loss
    the mean over masked labels with the chain."""

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
    chain_loss: float | None = None


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
    every `save_every` steps, and when SIGINT or SIGTERM arrives (KeyboardInterrupt is then raised); a second signal
    ends the process at once. Raises DataError, ConfigError, CheckpointError, and UnmaskError for a loss or gradient
    that is not a number, for a loss that explodes and for a process that is lost.
    """
    accelerator = join(recipe)
    output = Path(recipe.output)
    if accelerator.is_main_process:
        warn_of_idle(recipe)
    with together(accelerator, output), _owned(recipe, accelerator, resume) as base:
        run, done, held = _prepared(recipe, accelerator, base, resume)
        try:
            yield from _steps(run, done, held)
            _save_model(run)
        finally:
            forget(recipe, accelerator)
        accelerator.end_training()


@contextmanager
def _owned(recipe: Adapt, accelerator: Any, resume: bool) -> Iterator[str]:
    """The output is this run's alone: its first process locks it, sees what is there, and removes what a killed one
    was writing. What it gives identifies the base, in the first process."""
    output, digest = Path(recipe.output), ""
    new = not os.path.exists(output)
    with ExitStack() as held:
        with alone(accelerator) as first:
            if first:
                held.enter_context(locked(output))
                digest = base_digest(locate(recipe.base))
                check_run(output, recipe, digest, resume=resume)
                clean(output)
        try:
            yield digest
        finally:
            if first and new:
                with suppress(OSError):
                    output.rmdir()  # nothing was written


def _steps(run: Run, done: int, held: Sequence[Row]) -> Iterator[Progress]:
    recipe, accelerator, output, first = run.recipe, run.accelerator, Path(run.recipe.output), run.guard.first
    records = read_log(output)
    for record in records:
        run.guard.remember(record["step"], record["loss"], record["labels"])
    seen = [Validation(**record["validation"]) for record in records if record.get("validation")]
    logged = records[-1] if records else {"step": 0}
    if held and due(recipe, done) and logged["step"] == done and not logged["validation"]:
        done -= 1  # it was stopped while it was validated
    with interruptible() as interrupted:
        for step in range(done + 1, recipe.steps + 1):
            again = step == logged["step"]
            progress = Progress(**logged) if again else train_step(run, step, interrupted)
            if progress is None:
                _save(run, step - 1)
                raise _stopped(step - 1, recipe)
            if first and not again:
                prune(output, recipe.keep)  # states of earlier steps are good
            stopped = False
            if held and due(recipe, step):
                found = validate(
                    recipe, run.network, accelerator, held, run.learner.spec.mask_id, step, seen, interrupted
                )
                stopped, progress = found is None, replace(progress, validation=found)
                seen += [found] if found else []
            if first:  # before the state, so that no state is ahead of its log
                if again:
                    cut_log(output, step - 1)
                add_to_log(output, asdict(progress))
            accelerator.log(_tracked(progress), step=step)
            if stopped or step == recipe.steps or step % recipe.save_every == 0:
                _save(run, step)
            if stopped:
                raise _stopped(step, recipe)
            yield progress


def _stopped(step: int, recipe: Adapt) -> KeyboardInterrupt:
    return KeyboardInterrupt(f"stopped after step {step} of {recipe.steps}; continue with --resume")


def _prepared(recipe: Adapt, accelerator: Any, base: str, resume: bool) -> tuple[Run, int, Sequence[Row]]:
    """Everything a run needs, read and restored; the number of steps done; the rows for validation."""
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    output, learner = Path(recipe.output), Learner(recipe)
    found, held = divided(*shared_rows(recipe, learner, accelerator))
    with alone(accelerator) as first:
        if first:
            open_run(output, recipe, base, found, resume=resume)
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
    guard = Guard(recipe, found.named, first=accelerator.is_main_process)
    run = Run(recipe, found.rows, learner, optimizer, accelerator, network, guard)
    if state:
        load_moments(state, run.learning(), _plain(optimizer))
    return run, done, held


def _plain(optimizer: Any) -> Any:
    """The optimizer inside accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _save(run: Run, step: int) -> None:
    if step > 0:
        output, first = Path(run.recipe.output), run.accelerator.is_main_process
        kind, about = run.learner.saved_as, {"step": step}
        save_state(output, run.learning(), _plain(run.optimizer), about, saved_as=kind, write=first)
        if first:
            draw_curves(output, older_than=0 if step == run.recipe.steps else REDRAWN)


def _save_model(run: Run) -> None:
    """Write the adapted model. Where the processes hold parts of it only, it is made anew from the last state."""
    output, learner = Path(run.recipe.output), run.learner
    with interruptible(at_once="stopped while the model was saved; all steps are done, save it with --resume"):
        if run.accelerator.is_main_process:
            if any(map(is_split, run.learning().values())):
                learner = Learner(run.recipe)
                load_weights(states(output)[-1], learner)
            learner.save(output / "model")
            prune(output, run.recipe.keep)
        run.accelerator.wait_for_everyone()


def _tracked(progress: Progress) -> dict[str, float]:
    """The numbers of a step, as trackers take them."""
    values = {**vars(progress), "validation": progress.validation and progress.validation.loss}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def train_step(run: Run, step: int, interrupted: list[int]) -> Progress | None:
    """One optimizer step; None, and nothing changed, if the run is to stop. Without a label nothing changes either."""
    started, accelerator = time.perf_counter(), run.accelerator
    epoch, window = run.order.at(step)
    mine = share(window, accelerator.process_index, accelerator.num_processes)
    forwards = [_fed(run, part, window[0][0], step, epoch) for part in mine]
    counts = torch.tensor([sum(len(getattr(f, name)) for f in forwards) for name in ("target", "ar_target")])
    labels, following = summed(accelerator, counts).tolist()
    learning_rate = _set_learning_rate(run.optimizer, run.recipe, step)
    losses, norm = torch.zeros(4, device=accelerator.device), 0.0
    if not (labels or (run.recipe.ar_weight and following)):
        run.guard.unlabelled(step, window)
        forwards = []
        if anywhere(accelerator, interrupted):
            return None
    for number, forward in enumerate(forwards, start=1):
        if anywhere(accelerator, interrupted):
            run.optimizer.zero_grad()
            return None
        with exchanging(accelerator, run.network, last=number == len(forwards)):
            losses += _backward(run, forward, labels, following)
    losses = summed(accelerator, losses)
    loss = losses[0].item() / max(1, labels)
    checked = loss if math.isfinite(float(losses.sum())) else float(losses.sum())
    if forwards:
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
        chain_loss=losses[3].item() / max(1, labels) if run.recipe.chain else None,
    )


def _fed(run: Run, part: list[int], spare: int, step: int, epoch: int) -> StreamBatch:
    """The rows of one forward with their noise. A process without a row feeds one without labels, which adds zero."""
    chosen = [(n, run.rows[n]) for n in part] or [(spare, without_labels(run.rows[spare]))]
    mask_id = run.learner.spec.mask_id
    return collate([noisy for n, row in chosen for noisy in noised(run.recipe, row, mask_id, step, epoch, n)])


def _backward(run: Run, batch: StreamBatch, labels: int, following: int) -> torch.Tensor:
    """Gradients of one forward, divided by all labels of the step (not a mean of means); returns the four sums.

    A forward without a masked label adds zero. Gradients are exchanged as a mean over the processes,
    which is why the loss is multiplied by their number.
    """
    losses = run.network(batch.to(run.accelerator.device))
    share_taught = run.recipe.distill
    loss = ((1 - share_taught) * losses[0] + share_taught * losses[2] + losses[3]) / max(1, labels)
    loss = loss + run.recipe.ar_weight * losses[1] / max(1, following)
    backward(run.accelerator, run.network, loss * run.accelerator.num_processes)
    return losses.detach()


def _set_learning_rate(optimizer: Any, recipe: Adapt, step: int) -> float:
    """Linear warm-up, then constant, or falling by equal parts to 0, which the step after the last would have."""
    rise = min(1.0, step / recipe.warmup_steps) if recipe.warmup_steps else 1.0
    left = max(1, recipe.steps - recipe.warmup_steps)
    fall = min(1.0, (recipe.steps - step + 1) / left) if recipe.decay == "linear" else 1.0
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * rise * fall
    return float(recipe.learning_rate * rise * fall)


@contextmanager
def interruptible(at_once: str = "") -> Iterator[list[int]]:
    """A list that fills when SIGINT or SIGTERM arrives, so that a run can stop where its state is whole; the next
    signal does what it did before. at_once: raise KeyboardInterrupt with these words instead."""
    arrived: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def take(number: int, _: Any) -> None:
        restore()
        arrived.append(number)
        if at_once:
            raise KeyboardInterrupt(at_once)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, take)
    except ValueError:  # not the main thread: signals are somebody else's
        yield arrived
        return
    try:
        yield arrived
    finally:
        restore()
