"""unmask as a model of lm-eval: its requests become jobs, and what comes back is kept for the report.

Prompts, stop texts and limits are each request's own. A prompt is encoded once: with the chat template already in it no
token is put before it, else the beginning-of-text token that the tokenizer asks for.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from unmask.config import Decoding
from unmask.evaluate.asking import Asked, Record, Scored
from unmask.evaluate.pairs import encode, encode_pair
from unmask.model.checkpoint import Checkpoint

Ask = Callable[[Sequence[Asked] | Sequence[Scored]], dict[int, Record]]
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
DEFAULT_LIMIT = 256
"""lm-eval's own, for a task that names none."""
KNOWN = {*LIMITS, "until", "do_sample", "temperature", "top_p", "seed"}


@register_model("unmask")
class UnmaskLM(LM):
    """One contender. decoding: its fields of `Decoding`, of which max_new_tokens bounds what tasks ask for. ask: does
    jobs, gives a record for each by number. chat: whether the prompts that come are already rendered.

    records: (task, document, request) → what came back; `prompt` is there where its beginning had to be cut.
    """

    def __init__(
        self, checkpoint: Checkpoint, decoding: dict[str, Any], ask: Ask, *, positions: int, chat: bool, seed: int = 0
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.tokenizer: Any = checkpoint.tokenizer
        self.decoding, self.ask, self.positions, self.chat, self.seed = decoding, ask, positions, chat, seed
        self.records: dict[tuple[str, int, int], Record] = {}
        self._shortened: dict[int, str] = {}
        self._ignored: set[str] = set()

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The answers, in the order of the requests."""
        self._shortened = {}
        jobs = [self._asked(number, *request.args) for number, request in enumerate(requests)]
        return [record["text"] for record in self._done(requests, jobs)]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """(log probability in nats, whether greedy decoding writes it) of each continuation; the latter is not known in
        mode threshold, and False."""
        pairs = [encode_pair(self.checkpoint, *request.args, special=not self.chat) for request in requests]
        jobs = [Scored(number, context, continuation) for number, (context, continuation) in enumerate(pairs)]
        return [(record["log_probability"], bool(record["greedy"])) for record in self._done(requests, jobs)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log probability in nats of each whole text."""
        texts = [encode(self.tokenizer, request.args[0], special=False) for request in requests]
        jobs = [Scored(number, None, text) for number, text in enumerate(texts)]
        return [record["log_probability"] for record in self._done(requests, jobs)]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages as text; without a generation prompt the last message is left open, to be gone on with."""
        rendered: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return rendered

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return str(self.tokenizer.chat_template or "")

    def _asked(self, number: int, text: str, wanted: dict[str, Any]) -> Asked:
        """A request as a job. A prompt that is too long loses its beginning, as in lm-eval's own models."""
        for name in sorted(set(wanted) - KNOWN - self._ignored):
            self._ignored.add(name)
            warnings.warn(
                f"the task's generation setting {name} = {wanted[name]!r} is not known and ignored", stacklevel=2
            )
        decoding = decoding_of(self.decoding, wanted, self.seed + number)
        ids = encode(self.tokenizer, text, special=not self.chat)
        room = self.positions - decoding.max_new_tokens
        if len(ids) > room:
            ids = ids[-room:]
            self._shortened[number] = self.tokenizer.decode(ids)
        return Asked(number, ids, decoding)

    def _done(self, requests: list[Instance], jobs: Sequence[Any]) -> list[Record]:
        """The records of jobs; each is kept under its request's document."""
        found = self.ask(jobs)
        for number, request in enumerate(requests):
            cut = {"prompt": self._shortened[number]} if number in self._shortened else {}
            self.records[request.task_name, request.doc_id, request.idx] = {**found[number], **cut}
        return [found[number] for number in range(len(jobs))]


def decoding_of(decoding: Mapping[str, Any], wanted: Mapping[str, Any], seed: int) -> Decoding:
    """A contender's settings with a request's own limit, stop texts and sampling."""
    until = wanted.get("until") or []
    stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
    limit = next((int(wanted[name]) for name in LIMITS if wanted.get(name) is not None), DEFAULT_LIMIT)
    changes: dict[str, Any] = {"stop": stop, "max_new_tokens": min(limit, decoding.get("max_new_tokens", limit))}
    if wanted.get("do_sample") and wanted.get("temperature") != 0:
        changes["temperature"] = float(wanted.get("temperature") or 1.0)
        changes["top_p"] = float(wanted.get("top_p") or 1.0)
        changes["seed"] = seed
    return Decoding(**{**decoding, **changes})
