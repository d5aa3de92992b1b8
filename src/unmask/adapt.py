"""The training loop (Fast-dLLM v2, section 3.2): rows to streams to loss, one `Progress` per optimizer step.

Noise and row order depend on (seed, epoch, row) alone, so a resumed run draws what the unbroken one would have drawn.
"""

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.config import Adapt
from unmask.core.noise import seeded
from unmask.core.streams import NoisyRow, StreamBatch, collate, draw_noise, noisy_row
from unmask.data import Row, Rows, batches, load_rows
from unmask.errors import CheckpointError, MissingExtraError, UnmaskError
from unmask.model.files import read_json
from unmask.model.learner import Learner
from unmask.model.trainstate import load_state, save_state, states


@dataclass(frozen=True)
class Progress:
    """One optimizer step. loss is the mean over masked labels (nats), ar_loss over next-token labels."""

    step: int
    steps: int
    epoch: int
    loss: float
    ar_loss: float | None
    labels: int
    rows: int
    grad_norm: float
    learning_rate: float
    seconds: float


def adapt(recipe: Adapt, *, resume: bool = False) -> Iterator[Progress]:
    """Run a recipe; the model is in `<output>/model` when the generator ends.

    A state is saved every `save_every` steps, and when SIGINT or SIGTERM arrives (KeyboardInterrupt is then raised).
    Raises DataError, ConfigError, CheckpointError, and UnmaskError for a loss that is not a number.
    """
    accelerator = _accelerator()
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    output = Path(recipe.output)
    _refuse_overwriting(output, recipe, resume)
    learner = Learner(recipe)
    rows = load_rows(
        list(recipe.data),
        learner.tokenizer,
        max_length=recipe.max_length,
        truncation=recipe.truncation,
        stop_ids=learner.spec.stop_ids,
    )
    optimizer = torch.optim.AdamW(
        learner.trainable().values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    done = (load_state(output, learner, optimizer) or {}).get("step", 0) if resume else 0
    if accelerator.is_main_process:
        _start_output(output, recipe, rows, done)
    model, optimizer = accelerator.prepare(learner, optimizer)
    with interruptible() as interrupted:
        for step in range(done + 1, recipe.steps + 1):
            progress = _step(accelerator, model, learner, optimizer, rows.rows, recipe, step, interrupted)
            if progress is not None and accelerator.is_main_process:
                _log(output, progress)  # before the state, so that no state is ahead of its log
            if progress is None or step % recipe.save_every == 0 or step == recipe.steps:
                _save(accelerator, output, learner, optimizer, step - (progress is None))
            if progress is None:
                raise KeyboardInterrupt(f"stopped after step {step - 1} of {recipe.steps}; continue with --resume")
            yield progress
    if accelerator.is_main_process:
        learner.save(output / "model")


def _accelerator() -> Any:
    try:
        from accelerate import Accelerator
    except ImportError:
        raise MissingExtraError("accelerate", "train") from None
    return Accelerator()


def _step(
    accelerator: Any,
    model: Any,
    learner: Learner,
    optimizer: Any,
    rows: list[Row],
    recipe: Adapt,
    step: int,
    interrupted: list[int],
) -> Progress | None:
    """One optimizer step; None, and nothing changed, if the run is to stop."""
    started = time.perf_counter()
    epoch, window = _window(rows, recipe, step)
    mine = [
        [
            _noised(rows[n], n, epoch, learner, recipe)
            for n in part[accelerator.process_index :: accelerator.num_processes]
        ]
        for part in window
    ]
    forwards = [collate(part) for part in mine if part]
    counts = torch.tensor(
        [sum(len(f.target) for f in forwards), sum(len(f.ar_target) for f in forwards)], device=accelerator.device
    )
    labels, following = (int(n) for n in accelerator.reduce(counts, "sum"))
    losses = torch.zeros(2, device=accelerator.device)
    learning_rate = _set_learning_rate(optimizer, recipe, step)
    for forward in forwards:
        if interrupted:
            optimizer.zero_grad()
            return None
        losses += _backward(accelerator, model, forward.to(accelerator.device), labels, following, recipe)
    total, ar = (float(x) for x in accelerator.reduce(losses, "sum"))
    if not math.isfinite(total):
        raise UnmaskError(
            f"the loss of step {step} is {total} on rows {window}; the last good state is in {recipe.output}; "
            "lower learning_rate or look at these rows"
        )
    norm = float(accelerator.clip_grad_norm_(model.parameters(), recipe.clip))
    optimizer.step()
    optimizer.zero_grad()
    return Progress(
        step,
        recipe.steps,
        epoch,
        total / max(1, labels),
        ar / max(1, following) if recipe.ar_weight else None,
        labels,
        sum(map(len, window)),
        norm,
        learning_rate,
        time.perf_counter() - started,
    )


def _backward(
    accelerator: Any, model: Any, batch: StreamBatch, labels: int, following: int, recipe: Adapt
) -> torch.Tensor:
    """Gradients of one forward, divided by all labels of the step (not a mean of means); returns the two sums.

    A forward, or a whole step, without a masked label adds zero.
    """
    losses = model(batch)
    loss = losses[0] / max(1, labels) + recipe.ar_weight * losses[1] / max(1, following)
    accelerator.backward(loss * accelerator.num_processes)  # gradients are averaged over processes
    return losses.detach()


def _window(rows: list[Row], recipe: Adapt, step: int) -> tuple[int, list[list[int]]]:
    """Epoch and row numbers of each forward of a step. An epoch's last steps may be smaller; none is left out."""
    per_epoch = math.ceil(math.ceil(len(rows) / recipe.batch_rows) / recipe.accumulation)
    epoch, place = divmod(step - 1, per_epoch)
    order = batches(rows, recipe.batch_rows, seed=recipe.seed, epoch=epoch)
    return epoch, order[place * recipe.accumulation : (place + 1) * recipe.accumulation]


def _noised(row: Row, number: int, epoch: int, learner: Learner, recipe: Adapt) -> NoisyRow:
    generator = seeded("noise", recipe.seed, epoch, number)
    causal = recipe.context == "causal"
    draws = [
        draw_noise(len(row.ids), recipe.block_size, generator, shift=causal, full_share=recipe.full_share)
        for _ in range(recipe.draws)
    ]
    return noisy_row(
        row.ids,
        row.labelled,
        draws,
        block_size=recipe.block_size,
        mask_id=learner.spec.mask_id,
        causal=causal,
        complementary=recipe.complementary,
    )


def _set_learning_rate(optimizer: Any, recipe: Adapt, step: int) -> float:
    """Linear warm-up, then constant or falling linearly to 0 at the last step."""
    rise = min(1.0, step / recipe.warmup_steps) if recipe.warmup_steps else 1.0
    left = max(1, recipe.steps - recipe.warmup_steps)
    fall = min(1.0, (recipe.steps - step + 1) / left) if recipe.decay == "linear" else 1.0
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * rise * fall
    return float(recipe.learning_rate * rise * fall)


def _refuse_overwriting(output: Path, recipe: Adapt, resume: bool) -> None:
    if not resume and states(output):
        raise CheckpointError(
            f"{output} holds a run that got to {states(output)[-1].name}; give --resume to continue it, "
            "or another --output"
        )
    saved = output / "recipe.json"
    if resume and saved.is_file():
        before, now = read_json(saved), json.loads(json.dumps(asdict(recipe)))
        changed = [k for k in now if k not in ("steps", "save_every", "threads") and before.get(k) != now[k]]
        if changed:
            key = changed[0]
            raise CheckpointError(
                f"{key} is {now[key]!r}, the run in {output} was made with {before.get(key)!r}; "
                "resume with the same recipe, or start another --output"
            )


def _start_output(output: Path, recipe: Adapt, rows: Rows, done: int) -> None:
    """Write the resolved recipe and the row counts; drop log lines of steps that are done again."""
    with _writing(output):
        output.mkdir(parents=True, exist_ok=True)
        log = output / "log.jsonl"
        kept = log.read_text(encoding="utf-8").splitlines()[:done] if log.is_file() else []
        _replace(output / "recipe.json", json.dumps(asdict(recipe), indent=2) + "\n")
        _replace(output / "rows.json", json.dumps(rows.counts, indent=2) + "\n")
        _replace(log, "".join(line + "\n" for line in kept))


def _replace(file: Path, text: str) -> None:
    """A process that is killed here leaves the old text or the new one."""
    fresh = file.with_name(f".{file.name}.tmp")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, file)


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {output}: {error.strerror}; the last saved state is untouched"
        ) from None


def _log(output: Path, progress: Progress) -> None:
    with _writing(output), (output / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(progress)) + "\n")


def _save(accelerator: Any, output: Path, learner: Learner, optimizer: Any, step: int) -> None:
    if accelerator.is_main_process and step > 0:
        save_state(output, learner, getattr(optimizer, "optimizer", optimizer), {"step": step})


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
