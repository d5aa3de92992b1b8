"""From prompts to jobs: what is asked, once, and in which row the answer will stand."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from unmask.core.noise import seeded
from unmask.data import encode
from unmask.errors import DataError, RequestError
from unmask.model.checkpoint import Checkpoint
from unmask.row import check_prompt
from unmask.synthesize.overlap import Overlap
from unmask.text import render


class Prompt(Protocol):
    """A text, a list of messages or a list of token ids; where: file and line, for error messages."""

    @property
    def value(self) -> Any: ...
    @property
    def where(self) -> str: ...


@dataclass(frozen=True)
class Job:
    """One call of the model. number: the prompt's place in the input, from 0. given: the row but for its answer."""

    number: int
    ids: list[int]
    seed: int
    given: dict[str, Any]


class Jobs:
    """Collects the jobs of prompts; what is dropped is counted by its reason.

    A malformed prompt is a DataError with its place. One that cannot be asked or learned from is dropped.
    """

    def __init__(self, checkpoint: Checkpoint, max_new_tokens: int, seed: int, excluded: Overlap | None) -> None:
        self.checkpoint, self.max_new_tokens, self.seed, self.excluded = checkpoint, max_new_tokens, seed, excluded
        self.jobs: list[Job] = []
        self.dropped: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.positions = checkpoint.positions

    def add_all(self, prompts: Iterable[tuple[int, Prompt]]) -> None:
        for number, prompt in prompts:
            reason = self._add(number, self._given(prompt), prompt)
            if reason is not None:
                self.dropped[reason] += 1

    def _add(self, number: int, given: dict[str, Any], prompt: Prompt) -> str | None:
        """Add a job, or say why not."""
        key = _key(given)
        if key in self.seen:
            return "the same prompt as another"
        self.seen.add(key)
        if self.excluded is not None and self.excluded.hits(_question(given)):
            return "shares words with an excluded text"
        tokenizer = self.checkpoint.tokenizer
        try:
            learned, _ = encode(row_of(given, "x"), tokenizer, self.checkpoint.stop_ids)
            ids = render(tokenizer, given.get("messages") or given["prompt"], raw="prompt" in given)
            check_prompt(ids, self.max_new_tokens, self.checkpoint.config.vocab_size, self.positions)
        except DataError as error:
            return error.problem
        except RequestError as error:
            return "longer than the model takes with its answer" if error.limit is not None else str(error)
        if learned[: len(ids)] != ids:
            return "a training row would not begin with the tokens of the prompt"
        self.jobs.append(Job(number, ids, item_seed("answer", self.seed, number), given))
        return None

    def _given(self, prompt: Prompt) -> dict[str, Any]:
        """The row of a prompt but for its answer: a chat row, or a plain one where no template is applied."""
        value = prompt.value
        if isinstance(value, str):
            chat = getattr(self.checkpoint.tokenizer, "chat_template", None)
            return {"messages": [{"role": "user", "content": value}]} if chat else {"prompt": value}
        if isinstance(value[0], int):
            return {"prompt": self._text(value, prompt.where)}
        if value[-1]["role"] == "assistant":
            raise DataError(
                f"{prompt.where}: the last message is the assistant's, so nothing is asked; leave it out",
            )
        return {"messages": list(value)}

    def _text(self, ids: list[int], where: str) -> str:
        """Token ids as text, for a row is text; DataError where the text does not lead back to them."""
        tokenizer = self.checkpoint.tokenizer
        rows = self.checkpoint.config.vocab_size
        wrong = next((token for token in ids if token >= rows), None)
        if wrong is not None:
            raise DataError(f"{where}: token {wrong} is outside the vocabulary; allowed: 0 to {rows - 1}")
        assert tokenizer is not None
        text = str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        if render(tokenizer, text, raw=True) != list(ids):
            raise DataError(
                f"{where}: these prompt_ids do not come back from their text, so no training row can hold them; "
                "give the prompt as text or messages"
            )
        return text


def item_seed(what: str, seed: int, number: int) -> int:
    """A seed that depends on its arguments alone."""
    return seeded("synthesize", what, seed, number).initial_seed()


def row_of(given: dict[str, Any], answer: str, ended: bool = True) -> dict[str, Any]:
    """A row of training text, as `unmask.data` reads it."""
    if "messages" in given:
        row = {"messages": [*given["messages"], {"role": "assistant", "content": answer}]}
    else:
        row = given | {"completion": answer}
    return row if ended else row | {"ended": False}


def _turns(given: dict[str, Any]) -> list[tuple[str, str]]:
    if "messages" in given:
        return [(str(m["role"]), str(m["content"])) for m in given["messages"]]
    return [("user", given["prompt"])]


def _key(given: dict[str, Any]) -> str:
    """Equal for prompts that differ in white space only."""
    return "\0".join(f"{role}\0{' '.join(text.split())}" for role, text in _turns(given))


def _question(given: dict[str, Any]) -> str:
    return "\n".join(text for role, text in _turns(given) if role == "user")
