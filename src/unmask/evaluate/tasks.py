"""From names to lm-eval task objects: the community's own wherever lm-eval has the task, else one of ours.

A name is one of lm-eval's tasks or groups, one of the table below, `reasoning-gym`, `reasoning-gym:GENERATOR`, or a
JSONL file of one's own. Data come from the hub, or from local files in its place (`standins`).
"""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.errors import ConfigError, MissingExtraError, UnmaskError
from unmask.evaluate import own, puzzles, usable
from unmask.evaluate.code import CodeEval, in_place_of_code_eval
from unmask.evaluate.ifeval import MissingData, ready_for_ifeval
from unmask.evaluate.sandbox import SandboxError
from unmask.evaluate.standins import Files, splits

DATA = "UNMASK_DATA"
"""The environment variable that names the directory of local data where no flag does."""
FOLDERS = (
    *("gsm8k", "minerva_math", "humaneval", "mbpp", "ifeval", "mmlu/default", "gpqa/zeroshot", "arc", "hellaswag"),
    *("piqa", "openbookqa", "super_glue/boolq", "commonsense_qa", "siqa", "asdiv"),
)
"""Where lm-eval keeps the tasks of our table. All its folders are looked through only for a name that is not there."""
BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."

# Tasks of ours that are a community task with other settings: base, and what differs.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gsm8k_chat": (
        "gsm8k",
        {
            "num_fewshot": 0,
            "doc_to_text": "{{question}}" + BOXED,
            "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": 512},
        },
    ),
}
OWN: dict[str, dict[str, Any]] = {
    "mmlu_mix": {
        "dataset_path": "mmlu_mix",
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\n"
        "D. {{choices[3]}}\nAnswer:",
        "doc_to_choice": ["A", "B", "C", "D"],
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    },
}
GROUPS = {"math": "minerva_math", "gpqa": "gpqa_main_zeroshot"}
"""Short names for lm-eval's."""
SCORES: dict[str, tuple[str, str]] = {
    "gsm8k": ("exact_match", "strict-match"),
    "gsm8k_chat": ("exact_match", "flexible-extract"),
    "gsm8k_cot": ("exact_match", "strict-match"),
    "gsm8k_cot_zeroshot": ("exact_match", "flexible-extract"),
    "arc_easy": ("acc", "none"),
    "arc_challenge": ("acc_norm", "none"),
    "hellaswag": ("acc_norm", "none"),
    "piqa": ("acc", "none"),
    "openbookqa": ("acc_norm", "none"),
    "ifeval": ("prompt_level_strict_acc", "none"),
    "humaneval": ("pass@1", "create_test"),
    "humaneval_plus": ("pass@1", "create_test"),
    "humaneval_instruct": ("pass@1", "create_test"),
}
"""The metric and filter that are a task's score, where they are not its first ones."""
COMPLETION = ("gsm8k", "gsm8k_cot", "humaneval", "humaneval_plus", "mbpp", "mbpp_plus")
"""Generation tasks whose prompt is a text to go on with: no chat template unless asked for. So are minerva_math's
and puzzles."""


@dataclass
class Loaded:
    """What was found. tasks: by name, ready for `lm_eval.evaluate(task_dict=…)`. skipped: the reason by name.

    names: the task, or all parts of the group, that each name asked for stands for. group: the name that a task's items
    are reported under, and its place among the group's parts, which does not depend on what else was asked for or could
    be had. digests: sha256 of each local file read.
    main_metric: (metric, filter) that is the task's score. chat: whether the chat template is applied by default.
    notes: what is to be said about stand-ins. code: the metric of tasks that run code, whose `verdicts` tell what the
    sandbox saw.
    """

    tasks: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    main_metric: dict[str, tuple[str, str]] = field(default_factory=dict)
    chat: dict[str, bool] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    group: dict[str, tuple[str, int]] = field(default_factory=dict)
    code: CodeEval = field(default_factory=CodeEval)


def load_tasks(
    names: Sequence[str],
    *,
    data_dir: Path | None = None,
    limit: Callable[[str], int | None] = lambda name: None,
    seed: int = 0,
    scorer: str = "exact",
    num_fewshot: int | None = None,
    workers: int | None = None,
    allow_weaker: bool = False,
) -> Loaded:
    """Task objects for these names; what cannot be had is in `skipped`, with the reason.

    data_dir: local data, else the directory that UNMASK_DATA names. limit: items of a generated task by its name, None
    for its own size. seed: of generated tasks and few-shot examples. scorer: exact, number or regex, for own files.
    num_fewshot: in place of the tasks' own. workers, allow_weaker: as `CodeEval`.

    Raises MissingExtraError without lm-eval, ConfigError for a name that nothing has, for two names of one task and
    where no task is left, DataError for an own file's row.
    """
    if find_spec("lm_eval") is None:
        raise MissingExtraError("lm-eval", "eval")
    given = os.environ.get(DATA)
    files = Files(data_dir or (Path(given) if given else None))
    if files.directory and not files.directory.is_dir():
        raise ConfigError(f"the data directory {files.directory} does not exist; name one that does, or none")
    loaded = Loaded(code=CodeEval(workers, allow_weaker), digests=files.digests, notes=files.notes)
    asked = list(dict.fromkeys(names))
    for name in asked:
        found = _found(name, _named(name, asked), loaded, files, limit(name), seed, scorer)
        loaded.names[name] = sorted(found)
        for each, task in found.items():
            if each in loaded.group:
                other = next(asked for asked, stands_for in loaded.names.items() if each in stands_for)
                raise ConfigError(f"'{other}' and '{name}' both stand for {each}; name one of them")
            loaded.group[each] = (name if len(found) > 1 else each, loaded.names[name].index(each))
            if num_fewshot is not None:
                task.set_config("num_fewshot", num_fewshot)
            task.set_fewshot_seed(seed)
            _keep(each, task, loaded)
    loaded.code.verdicts.clear()  # those of made-up answers
    if not loaded.tasks:
        raise ConfigError("no task can be run: " + "; ".join(f"{name}: {why}" for name, why in loaded.skipped.items()))
    return loaded


def _keep(name: str, task: Any, loaded: Loaded) -> None:
    """Put a task into `loaded`, or the reason why it cannot be run."""
    metric = main_metric(name, task)
    with quiet():
        problem = usable.problem(task, metric, loaded.code)
    if problem:
        loaded.skipped[name] = problem
        return
    loaded.tasks[name], loaded.main_metric[name], loaded.chat[name] = task, metric, _chat(name, task)


def _found(
    name: str, called: str, loaded: Loaded, files: Files, limit: int | None, seed: int, scorer: str
) -> dict[str, Any]:
    """The task or tasks of one name; none where they cannot be had, then the reason is in `loaded`."""
    try:
        with quiet(), _data(files), in_place_of_code_eval(loaded.code), ready_for_ifeval(files):
            if _is_puzzle(name):
                return {name: _made(*puzzles.config(name, seed, limit))}
            if _is_file(name):
                file = _file(name)
                settings, rows = own.config(called, files.numbered(file, str(file)), file, scorer)
                return {called: _made(settings, rows)}
            if name in OWN:
                return {name: _made({"task": name, **OWN[name]})}
            if name in VARIANTS:
                base, changes = VARIANTS[name]
                whole = _community(base)[base].config.to_dict(keep_callable=True)
                del whole["fewshot_config"]  # made anew from the changed settings
                return {name: _made({**whole, **changes, "task": name})}
            return _community(GROUPS.get(name, name))
    except SandboxError as error:  # some of lm-eval's modules try their metric when they are imported
        loaded.skipped[called] = str(error)
        return {}
    except (UnmaskError, AssertionError):
        raise
    except Exception as error:
        loaded.skipped[called] = _why(error)
        return {}


def _community(name: str) -> dict[str, Any]:
    """lm-eval's task of this name, or the tasks of its group; ConfigError where it has none."""
    for everywhere in (False, True):
        manager = _manager(everywhere)
        if name in manager.task_index:
            found: dict[str, Any] = manager.load([name])["tasks"]
            return found
    raise ConfigError(
        f"there is no task '{name}'; see docs/evaluate.md, or `lm-eval ls tasks` for the community's names"
    )


@functools.cache
def _manager(everywhere: bool) -> Any:
    import lm_eval.tasks

    if everywhere:
        return lm_eval.tasks.TaskManager()
    root = Path(lm_eval.tasks.__file__).parent
    return lm_eval.tasks.TaskManager(include_defaults=False, include_path=[root / each for each in FOLDERS])


def _made(settings: dict[str, Any], rows: list[dict[str, Any]] | None = None) -> Any:
    """A task of ours; rows: its test split, where it is not read from a data set."""
    from lm_eval.api.task import ConfigurableTask

    if rows is not None:
        settings = {**settings, "custom_dataset": lambda **_: _dataset({"test": rows})}
    return ConfigurableTask(config=settings)


def _dataset(parts: dict[str, list[dict[str, Any]]]) -> Any:
    """A `DatasetDict`. A split that lm-eval asks for and that is not there is empty."""
    from datasets import Dataset, DatasetDict

    made = {split: Dataset.from_list(rows) for split, rows in parts.items() if rows}
    if not made:
        raise MissingData("its local files hold no row")
    features = next(iter(made.values())).features
    empty = Dataset.from_dict({name: [] for name in features}, features=features)
    return DatasetDict({split: made.get(split, empty) for split in ("train", "dev", "validation", "test", *made)})


@contextlib.contextmanager
def _data(files: Files) -> Iterator[None]:
    """While this lasts, `datasets.load_dataset` gives local files where there are some for the data set asked for."""
    import datasets

    before = datasets.load_dataset

    def load(path: str, name: str | None = None, *args: Any, **options: Any) -> Any:
        found = splits(files, path, name)
        return before(path, name, *args, **options) if found is None else _dataset(found)

    datasets.load_dataset = load
    try:
        yield
    finally:
        datasets.load_dataset = before


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """lm-eval tells much about the settings of its own tasks, of which only errors are shown, and draws bars."""
    import lm_eval.api.task

    logger, bars = logging.getLogger("lm_eval"), lm_eval.api.task.tqdm
    before = logger.level
    logger.setLevel(logging.ERROR)
    lm_eval.api.task.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        logger.setLevel(before)
        lm_eval.api.task.tqdm = bars


def _why(error: Exception) -> str:
    """One line on why a task is not there."""
    line = " ".join(str(error).split())[:300]
    if isinstance(error, ModuleNotFoundError):
        return f"needs the package '{error.name}'" if error.name else line
    if isinstance(error, IndexError) and "size 0" in line:
        return "its data has no item"
    if isinstance(error, ConnectionError):
        return f"{line}; put its rows into the data directory (docs/evaluate.md) or let the hub be reached"
    return line if isinstance(error, MissingData) else f"{type(error).__name__}: {line}"


def _is_puzzle(name: str) -> bool:
    return name.partition(":")[0] == "reasoning-gym"


def _is_file(name: str) -> bool:
    return name.startswith("own:") or name.endswith(".jsonl")


def _file(name: str) -> Path:
    return Path(name.removeprefix("own:"))


def _named(name: str, asked: Sequence[str]) -> str:
    """What a task is called: a file without its directory and ending, so that runs in other places are comparable; its
    path where something else is called so."""
    if not _is_file(name):
        return name
    stem = _file(name).stem
    others = [_file(each).stem if _is_file(each) else each for each in asked if each != name]
    return str(_file(name)) if stem in others else stem


def main_metric(name: str, task: Any) -> tuple[str, str]:
    """(metric, filter) that is a task's score: from the table, else its first metric and first filter."""
    return SCORES.get(name) or usable.first_metric(task)


def _chat(name: str, task: Any) -> bool:
    completion = name in COMPLETION or name.startswith("minerva_math") or _is_puzzle(name)
    return task.OUTPUT_TYPE == "generate_until" and not completion
