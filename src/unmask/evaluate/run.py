"""The run: every contender does every task, through lm-eval; what is answered is on disk at once.

A run that is killed goes on where it was: answers come from the journals, scores are computed anew.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lm_eval

from unmask import __version__
from unmask.api import Model, opened
from unmask.errors import CheckpointError, ConfigError
from unmask.evaluate.asking import Asked, Record, Scored, answer, key_of, likelihood
from unmask.evaluate.checks import check_judged, check_prompts, check_settings, uses_chat
from unmask.evaluate.contenders import contenders
from unmask.evaluate.harness import UnmaskLM
from unmask.evaluate.items import items_of
from unmask.evaluate.outcomes import Contender, Kind, Outcome
from unmask.evaluate.settings import Evaluate
from unmask.evaluate.tasks import Loaded, load_tasks, quiet
from unmask.journal import Journal, changed, replacement
from unmask.model.checkpoint import Checkpoint
from unmask.model.files import read_json
from unmask.model.provenance import model_made_with, versions
from unmask.model.sources import say_on_stderr
from unmask.report import machine
from unmask.spread import Task, Work, need_ray, workers

GREEDY = "loglikelihood"
"""The output type of tasks scored by whether greedy decoding writes the target."""
APART = 10**6
MAY_CHANGE = ("workers",)
"""Settings that do not change an answer, so that a run may be continued with others."""
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "lm_eval", "reasoning_gym")
"""Whose versions may change an answer or a score."""
WARM = 4
"""Tokens of the answer that is written and discarded before a contender's clock starts."""


@dataclass(frozen=True)
class Progress:
    """An answer of a contender on a task has come. part: which of `parts` pairs of contender and task this is. left:
    seconds that the whole run may still take, if all items take as long as those before."""

    contender: str
    task: str
    done: int
    total: int
    part: int
    parts: int
    tokens: int
    seconds: float
    left: float


@dataclass(frozen=True)
class Evaluated:
    """What came of a run: outcomes, tasks that could not be had with the reason, and what all was made with. directory:
    where the model under test was found."""

    outcomes: list[Outcome]
    skipped: dict[str, str]
    made_with: dict[str, Any]
    directory: Path


def evaluate(
    ref: str,
    settings: Evaluate,
    decoding: Mapping[str, Any],
    loading: dict[str, Any],
    out: Path,
    *,
    resume: bool = False,
    judged: Sequence[str] = (),
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Evaluated:
    """Run everything; `out` keeps the journals. decoding: fields of `Decoding` that were given. loading: the arguments
    of `api.load` but for the model. judged: the flags by which the outcomes will be judged.

    Raises, before any answer, ConfigError for tasks, modes or settings that cannot be, CheckpointError where `out`
    holds another run.
    """
    if settings.workers > 1:
        need_ray()
    loaded = load_tasks(
        settings.task_names,
        data_dir=None if settings.data is None else Path(settings.data),
        limit=settings.limit_of,
        seed=settings.seed,
        scorer=settings.scorer,
        num_fewshot=settings.num_fewshot,
        allow_weaker=settings.weaker_sandbox,
    )
    checkpoint = _checkpoint(ref, loading)
    found = contenders(ref, checkpoint.spec, settings, decoding, loading["batch_size"])
    parts = [(contender, task) for contender in found for task in _tasks_of(contender, loaded, settings)]
    refs = list(dict.fromkeys(contender.model for contender in found))
    models = {each: checkpoint if each == ref else _checkpoint(each, loading) for each in refs}
    check_judged(judged, parts, loaded)
    check_settings(parts, loaded, models, settings.seed)
    check_prompts(loaded, models, settings)
    run = _Run(settings, loaded, out, tell, parts)
    made_with = _made_with(models, loading, settings, decoding, loaded)
    _begin(out, made_with, resume)
    outcomes = []
    for each in refs:
        with workers(models[each], {**loading, "ref": each}, settings.workers) as spread:
            outcomes += [
                run.outcome(contender, task, models[each], spread)
                for contender, task in parts
                if contender.model == each
            ]
    order = {contender.name: place for place, contender in enumerate(found)}
    outcomes.sort(key=lambda outcome: order[outcome.contender.name])
    outcomes = pooled(outcomes, loaded.group)
    if any(not verdict.isolated for verdict in loaded.code.verdicts):
        made_with["notes"] = made_with["notes"] | {"sandbox": "generated code ran in the weaker sandbox"}
    return Evaluated(
        outcomes, loaded.skipped | _unknowable(found, loaded), made_with | {"machine": machine()}, checkpoint.path
    )


class _Run:
    """What stays the same from pair to pair of contender and task."""

    def __init__(
        self,
        settings: Evaluate,
        loaded: Loaded,
        out: Path,
        tell: Callable[[Progress], None],
        parts: Sequence[tuple[Contender, str]],
    ) -> None:
        self.settings, self.loaded, self.out, self.tell = settings, loaded, out, tell
        self.part, self.parts = 0, len(parts)
        self.items = 0.0 + sum(self._size(contender, task) for contender, task in parts)
        self.answered, self.spent = 0.0, 0.0
        self.warm: set[str] = set()
        self.told: set[str] = set()

    def _limit(self, contender: Contender, task: str) -> int | None:
        """Items of a task, None for all: those of a sweep are among those of the modes."""
        asked = next(name for name, stands_for in self.loaded.names.items() if task in stands_for)
        limit = self.settings.limit_of(asked)
        sweep = (self.settings.sweep_limit if contender.swept else None) or limit
        return sweep if limit is None else min(sweep or limit, limit)

    def _size(self, contender: Contender, task: str) -> int:
        size = len(self.loaded.tasks[task].eval_docs)
        return min(self._limit(contender, task) or size, size)

    def outcome(self, contender: Contender, task: str, checkpoint: Checkpoint, spread: Work) -> Outcome:
        """One contender on one task, scored by lm-eval."""
        self.part += 1
        times: list[float] = []
        chat = uses_chat(task, self.loaded, self.settings, checkpoint)
        lm = UnmaskLM(
            checkpoint,
            {**contender.decoding, "mode": contender.mode},
            functools.partial(self._ask, contender, task, spread, times),
            positions=checkpoint.positions,
            chat=chat,
            seed=self.settings.seed,
        )
        made = self.loaded.tasks[task]
        made.set_fewshot_seed(self.settings.seed)
        with quiet():
            result = lm_eval.evaluate(
                lm,
                {"tasks": {task: made}},
                limit=self._limit(contender, task),
                bootstrap_iters=0,
                apply_chat_template=chat,
                fewshot_as_multiturn=chat,
                confirm_run_unsafe_code=True,  # it runs in our sandbox
            )
        metric, chosen = self.loaded.main_metric[task]
        choices = made.doc_to_choice if made.OUTPUT_TYPE == "multiple_choice" else None
        items = items_of(result["samples"][task], lm.records, task, metric, chosen, choices)
        cut = len(
            {document for (_, document, _), record in lm.records.items() if record.get("cut") or "prompt" in record}
        )
        if cut and kind_of(made) == "generation" and task not in self.told:
            self.told.add(task)
            say_on_stderr(
                f"warning: {cut} of {len(items)} prompts of {task} lose their beginning: "
                f"the model has {lm.positions} positions"
            )
        return Outcome(contender, task, kind_of(made), metric, items, sum(times), cut)

    def _ask(
        self,
        contender: Contender,
        task: str,
        spread: Work,
        times: list[float],
        jobs: Sequence[Asked] | Sequence[Scored],
    ) -> dict[int, Record]:
        """The records of jobs by number: those of the journal, the others as they come, longest first."""
        keys = {job.number: key_of(job) for job in jobs}
        file = self.out / "answers" / file_name(contender.name) / f"{file_name(task)}.jsonl"
        with Journal(file) as journal:
            for record in journal:
                if keys.get(record["number"]) not in (None, record["key"]):
                    raise CheckpointError(f"{file} has answers to other prompts; give another --out")
            left = sorted((job for job in jobs if job.number not in journal), key=lambda job: -job.cost)
            self._warm(contender, left, spread)
            size = self._size(contender, task) / max(1, len(jobs))  # items of a job
            self.items -= size * (len(jobs) - len(left))
            began = last = time.perf_counter()
            done, tokens = len(jobs) - len(left), 0
            for record in spread(self._work(contender, jobs), left):
                now = time.perf_counter()
                journal.add({**record, "key": keys[record["number"]], "elapsed": now - last})
                self.answered, self.spent = self.answered + size, self.spent + now - last
                last, done, tokens = now, done + 1, tokens + record.get("tokens", 0)
                more = (self.items - self.answered) * self.spent / self.answered
                where = (contender.name, task, done, len(jobs), self.part, self.parts)
                self.tell(Progress(*where, tokens, now - began, max(0.0, more)))
            records = {record["number"]: record for record in journal if record["number"] in keys}
        times.append(sum(record["elapsed"] for record in records.values()))
        return records

    def _warm(self, contender: Contender, left: Sequence[Any], spread: Work) -> None:
        """Write the beginning of one answer and discard it: what is loaded or compiled at first use is not timed."""
        if not left or not isinstance(left[-1], Asked) or contender.name in self.warm:
            return
        self.warm.add(contender.name)
        short = dataclasses.replace(left[-1].decoding, max_new_tokens=min(WARM, left[-1].decoding.max_new_tokens))
        jobs = [dataclasses.replace(left[-1], decoding=short)] * self.settings.workers
        for _ in spread(self._work(contender, jobs), jobs):
            pass

    def _work(self, contender: Contender, jobs: Sequence[Any]) -> Task:
        task: Task = answer
        if jobs and isinstance(jobs[0], Scored):
            sizes = ("block_size", "sub_block_size") if contender.mode == "threshold" else ()
            task = functools.partial(
                likelihood,
                mode=contender.mode,
                samples=self.settings.samples,
                seed=self.settings.seed,
                decoding={name: contender.decoding[name] for name in sizes if name in contender.decoding},
            )
        return functools.partial(sized, task=task, batch_size=contender.batch_size)


def sized(model: Model, jobs: Sequence[Any], *, task: Task, batch_size: int) -> Iterator[Any]:
    """Do jobs at a batch size."""
    model.batch_size = batch_size
    return task(model, jobs)


def kind_of(task: Any) -> Kind:
    """Whether an lm-eval task has text written or likelihoods compared."""
    return "generation" if task.OUTPUT_TYPE == "generate_until" else "likelihood"


def file_name(name: str) -> str:
    """A name as a file has it; different names stay different."""
    return "".join(c if c.isalnum() or c in "-_.=" else f"%{ord(c):06x}" for c in name)


def pooled(outcomes: Sequence[Outcome], group: Mapping[str, tuple[str, int]]) -> list[Outcome]:
    """The tasks of one group (the subjects of MMLU) as one. group: by task, the group's name and its place in it.

    An item of the n-th part has the number n * APART + its own, so that the same item has the same number everywhere.
    """
    together: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        together.setdefault((outcome.contender.name, group[outcome.task][0]), []).append(outcome)
    return [_one(name, parts, group) for (_, name), parts in together.items()]


def _one(name: str, parts: list[Outcome], group: Mapping[str, tuple[str, int]]) -> Outcome:
    items = [
        dataclasses.replace(item, number=group[part.task][1] * APART + item.number)
        for part in parts
        for item in part.items
    ]
    wall, cut = sum(part.wall for part in parts), sum(part.cut for part in parts)
    return dataclasses.replace(parts[0], task=name, items=items, wall=wall, cut=cut)


def _unknowable(found: Sequence[Contender], loaded: Loaded) -> dict[str, str]:
    """Tasks that ask whether greedy decoding writes the target, which no likelihood tells in mode threshold."""
    if not any(contender.mode == "threshold" for contender in found):
        return {}
    why = "asks whether greedy decoding writes the target, which the likelihood of mode threshold does not tell"
    return {f"{task} in mode threshold": why for task, made in loaded.tasks.items() if made.OUTPUT_TYPE == GREEDY}


def _tasks_of(contender: Contender, loaded: Loaded, settings: Evaluate) -> list[str]:
    """The tasks that a contender does: points of a sweep those of the sweep."""
    tasks = [task for task, made in loaded.tasks.items() if contender.mode != "threshold" or made.OUTPUT_TYPE != GREEDY]
    if not contender.swept:
        return tasks
    asked = settings.sweep_task_names
    if asked is None:
        return [task for task in tasks if kind_of(loaded.tasks[task]) == "generation"]
    unknown = [name for name in asked if name not in loaded.names and name not in loaded.group]
    if unknown:
        raise ConfigError(f"sweep_tasks is '{settings.sweep_tasks}', but {unknown[0]} is not among the tasks")
    wanted = {task for name in asked for task in loaded.names.get(name, [name])}
    return [task for task in tasks if task in wanted]


def _checkpoint(ref: str, loading: dict[str, Any]) -> Checkpoint:
    """A checkpoint without its weights in memory; ConfigError for one that cannot read prompts."""
    checkpoint = opened(ref, **{name: loading[name] for name in ("dtype", "device", "mask_id")})
    if checkpoint.tokenizer is None:
        raise ConfigError(f"{ref} has no tokenizer, so it cannot read a task's prompts; add one to it")
    return checkpoint


def _made_with(
    models: Mapping[str, Checkpoint],
    loading: dict[str, Any],
    settings: Evaluate,
    decoding: Mapping[str, Any],
    loaded: Loaded,
) -> dict[str, Any]:
    """All that decides an answer or a score."""
    return {
        "unmask": __version__,
        "versions": versions(*PACKAGES),
        "models": {ref: model_made_with(checkpoint, loading) for ref, checkpoint in models.items()},
        "settings": {name: value for name, value in asdict(settings).items() if name not in MAY_CHANGE},
        "decoding": dict(decoding),
        "batch_size": loading["batch_size"],
        "data": loaded.digests,
        "notes": loaded.notes,
    }


def _begin(out: Path, made_with: dict[str, Any], resume: bool) -> None:
    """Note what a run is made with; where one was begun, it must be the same."""
    about = out / "about.json"
    if not about.is_file():
        if resume:
            raise CheckpointError(f"{out} holds no run to resume; leave --resume out")
        with replacement(about) as file:
            file.write(json.dumps(made_with, indent=1, default=str).encode() + b"\n")
        return
    if not resume:
        raise CheckpointError(f"{out} holds a run; give --resume to continue it, or another --out")
    if (differs := changed(read_json(about), json.loads(json.dumps(made_with, default=str)))) is not None:
        key, old, new = differs
        raise CheckpointError(
            f"{key} is {new!r}, {out} was begun with {old!r}; resume with the same, or give another --out"
        )
