"""What goes into the engine and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unmask.config import Decoding
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.core.propose import Logprobs


@dataclass(frozen=True)
class Request:
    """One prompt. An empty one starts from the tokenizer's beginning-of-text token, where it has one."""

    prompt_ids: Sequence[int]
    decoding: Decoding = field(default_factory=Decoding)
    provisional: bool = False


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    token_ids: the answer without the end token, and without tokens that reach into or past a stop string; equal to
        the joined tokens of the row's `Committed` events
    text: None without a tokenizer; equal to the joined texts of the row's `Committed` events
    finish_reason: stop (end token or stop string), length, or error
    forwards: calls of the network in which the row had a query, the prefill once (`row.PIECE`); forwards_by_kind
        splits them
    positions_computed: tokens that were fed for this row
    seconds: from admission to the last token, prefill included
    logprobs: per token its log-probability in nats and the likeliest tokens with theirs, where asked for
    cached_tokens: of the prompt, how many positions the cache already held
    checks: per check of mode verified where its guess came from (draft, text, rest, none), its length, what was kept
    batch_seconds: how long the whole run had been going at this row's end; times of one batch must not be added
    """

    text: str | None
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    forwards: int
    seconds: float
    mode: str
    batch_seconds: float
    forwards_by_kind: dict[str, int]
    positions_computed: int = 0
    error: UnmaskError | None = None
    logprobs: "Sequence[Logprobs] | None" = None
    checks: Sequence[tuple[str, int, int]] = ()
    cached_tokens: int = 0


def refusal(error: UnmaskError, mode: str, *, prompt_tokens: int = 0, text: str | None = None) -> Answer:
    """The answer to a request that never came to the network."""
    return Answer(text, [], "error", prompt_tokens, 0, 0, 0.0, mode, 0.0, {}, error=error)


@dataclass(frozen=True)
class Committed:
    """Settled tokens and settled text of request `index`; text never ends inside a character or a stop string.

    A token comes once all of its text is settled, so the tokens of all events are `Answer.token_ids`, and likewise
    their logprobs.
    """

    index: int
    token_ids: list[int]
    text: str | None
    logprobs: "Sequence[Logprobs] | None" = None


@dataclass(frozen=True)
class Provisional:
    """The block being written, on request: slots from position `start`, which of them are masked, how sure they are.

    The first `settled` slots are final. In mode verified a drafted slot is not masked, but it may yet be refused. A
    step without a block, as all of mode ar, has no slots. forwards: how many the row has taken part in.
    """

    index: int
    start: int
    token_ids: list[int]
    masked: list[bool]
    confidence: list[float]
    settled: int = 0
    forwards: int = 0


@dataclass(frozen=True)
class Finished:
    """The last event of request `index`."""

    index: int
    answer: Answer


Event = Committed | Provisional | Finished
