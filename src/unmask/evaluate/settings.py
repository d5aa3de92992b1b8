"""What `unmask evaluate` is asked to compare."""

from dataclasses import dataclass
from typing import Literal

from unmask.config import check_fields, option
from unmask.errors import ConfigError

MODES = ("ar", "threshold", "verified")


def _positive(value: int) -> bool:
    return value >= 1


def _names(text: str) -> bool:
    return bool([part for part in text.split(",") if part.strip()])


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Tasks, the modes of the model under test, what stands beside it, and what is swept."""

    tasks: str = option(
        help="names with commas: gsm8k, humaneval, ifeval, reasoning-gym, piqa, any task of lm-eval, or a FILE.jsonl",
        check=_names,
        allowed="names with commas",
        metavar="A,B",
    )
    modes: str | None = option(None, help="modes of the model, with commas; default: all that it can", metavar="A,B")
    limit: str | None = option(
        None,
        help="only the first N items of each task, or of one task: 1000,ifeval=100",
        check=lambda text: limits(text) is not None,
        allowed="at least 1, or TASK=N with commas",
        metavar="N",
    )
    base: str | None = option(None, help="the base before adapting, beside the model (in mode ar)", metavar="M")
    plain: str | None = option(
        None, help="the base after a plain next-token fine-tune on the same data, beside the model", metavar="M"
    )
    sweep: tuple[str, ...] = option(
        (),
        help="values of decoding settings or batch_size, as threshold=0.5,0.7 ; several in one text are combined",
        metavar="NAME=A,B",
    )
    sweep_tasks: str | None = option(
        None, help="tasks of the sweeps; default: all in which text is written", metavar="A,B"
    )
    sweep_limit: int | None = option(
        None, help="items of each task in a sweep", check=_positive, allowed="at least 1", metavar="N"
    )
    chat: Literal["auto", "yes", "no"] = option(
        "auto", help="whether prompts go through the chat template; auto: as each task has it by default"
    )
    num_fewshot: int | None = option(
        None,
        help="worked examples before each item; default: the task's own",
        check=lambda v: v >= 0,
        allowed="0 or more",
        metavar="N",
    )
    samples: int = option(
        4, help="draws of the masked likelihood estimate (mode threshold)", check=_positive, allowed="at least 1"
    )
    seed: int = option(0, help="of everything that is drawn: items, worked examples, masks")
    data: str | None = option(
        None, help="files that stand in for the hub, as gsm8k_test.jsonl; default: $UNMASK_DATA", metavar="DIR"
    )
    scorer: Literal["exact", "number", "regex"] = option(
        "exact", help="how a FILE.jsonl is scored where its lines do not say: whole answer, last number, or a pattern"
    )
    weaker_sandbox: bool = option(
        False, help="run generated code where this machine cannot seal it off fully; the report says so"
    )
    workers: int = option(
        1, help="processes that answer, spread by Ray where more than one", check=_positive, allowed="at least 1"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for mode in self.mode_names or ():
            if mode not in MODES:
                raise ConfigError(f"modes is '{self.modes}'; allowed: {', '.join(MODES)}, with commas")
        for name in self.limits:
            if name and name not in self.task_names:
                raise ConfigError(f"limit is '{self.limit}', but {name} is not among the tasks, {self.tasks}")

    @property
    def task_names(self) -> list[str]:
        return names(self.tasks)

    def limit_of(self, name: str) -> int | None:
        """Items of the task or group that was asked for by this name; None for all."""
        return self.limits.get(name, self.limits.get(""))

    @property
    def limits(self) -> dict[str, int]:
        """Items by the name asked for, under "" those of all others; empty without any limit."""
        return (None if self.limit is None else limits(self.limit)) or {}

    @property
    def mode_names(self) -> list[str] | None:
        return None if self.modes is None else names(self.modes)

    @property
    def sweep_task_names(self) -> list[str] | None:
        return None if self.sweep_tasks is None else names(self.sweep_tasks)


def limits(text: str) -> dict[str, int] | None:
    """Items by task, under "" those of every other task; None for a text that is not N or TASK=N with commas."""
    found = {}
    for part in text.split(","):
        name, _, number = part.strip().rpartition("=")
        if not number.isdecimal() or int(number) < 1 or name in found or ("=" in part and not name):
            return None
        found[name] = int(number)
    return found


def names(text: str) -> list[str]:
    """The parts of a list with commas, each once, in their order."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
