"""What an evaluation yields: contenders (a model in a mode with its settings), and what each did on tasks' items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["generation", "likelihood"]


@dataclass(frozen=True)
class Contender:
    """A model with decoding settings, under a name that no other contender has.

    model: a reference as `unmask.load` takes it. role: what it stands for in comparisons: "model" (the one under test,
    whose modes are compared with its own mode ar), "base" or "plain" (a plain next-token fine-tune on the same data).
    decoding: fields of `Decoding` that differ from its defaults. swept: the settings that a sweep varies, else empty.
    """

    name: str
    model: str
    mode: str
    role: Literal["model", "base", "plain"] = "model"
    decoding: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 8
    swept: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """One item of a task as one contender did it.

    number: place in the task's documents; the same item has the same number for every contender
    prompt, answer, target: as text (of a likelihood item: the answer chosen)
    score: of the task's main metric, 0 to 1. metrics: all that the task reports
    tokens, forwards, seconds: of the answer, as `Answer` counts them; 0 for likelihood items
    finish_reason: stop, length or error; empty for likelihood items
    repeated: share of the answer's 4-grams of tokens that occurred before in it
    standard_error: of the likelihood estimate of the answer chosen, in nats; None where there is none
    error: why there is no answer, in one line; empty where there is one
    greedy: whether greedy decoding writes the answer chosen; None where that is not known, and where text is written
    """

    number: int
    prompt: str
    answer: str
    target: str
    score: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0
    finish_reason: str = ""
    repeated: float = 0.0
    standard_error: float | None = None
    error: str = ""
    greedy: bool | None = None


@dataclass(frozen=True)
class Outcome:
    """What one contender did on one task.

    wall: seconds that its answers took together, batches counted once
    cut: how many of its prompts were cut on the left, being too long for the model
    """

    contender: Contender
    task: str
    kind: Kind
    metric: str
    items: Sequence[Item]
    wall: float
    cut: int = 0

    @property
    def score(self) -> float:
        """Mean over the items, 0 to 1."""
        return sum(item.score for item in self.items) / len(self.items) if self.items else float("nan")

    @property
    def tokens_per_forward(self) -> float | None:
        forwards = sum(item.forwards for item in self.items)
        return sum(item.tokens for item in self.items) / forwards if forwards else None

    @property
    def tokens_per_second(self) -> float | None:
        tokens = sum(item.tokens for item in self.items)
        return tokens / self.wall if tokens and self.wall else None
