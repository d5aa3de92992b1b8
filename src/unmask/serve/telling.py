"""From events of the engine to objects of OpenAI's API."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from unmask.core.propose import Logprobs
from unmask.events import Answer, Committed, Provisional
from unmask.serve.asking import Plan
from unmask.text import Decoder

LEAST = -9999.0
"""In the place of minus infinity, which JSON does not have."""


class Teller:
    """Objects of one request. kind: chat or completion; usage: whether streams end with a chunk of counts."""

    def __init__(self, tokenizer: Any, model: str, plan: Plan, kind: str, *, usage: bool, logprobs: bool) -> None:
        self.tokenizer, self.model, self.plan, self.usage = tokenizer, model, plan, usage
        self.chat, self.logprobs = kind == "chat", logprobs
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + uuid.uuid4().hex
        self.created, self.began = int(time.time()), time.monotonic()
        self.written = [0] * len(plan.requests)
        self.places = [Places(tokenizer) for _ in plan.requests]

    # --- streams -----------------------------------------------------------------------------------------------------

    def first(self, place: int) -> dict[str, Any]:
        """The chunk that names the role; completions have none."""
        return self._chunk(place, {"role": "assistant", "content": ""})

    def committed(self, place: int, event: Committed) -> dict[str, Any] | None:
        """A delta of settled text; None where nothing can be shown yet."""
        self.written[place] += len(event.token_ids)
        laws = self._laws(self.places[place], event.token_ids, event.logprobs)
        if not event.text and laws is None:
            return None
        return self._chunk(place, {"content": event.text or ""}, logprobs=laws)

    def provisional(self, place: int, event: Provisional) -> dict[str, Any]:
        """The block being written, as the page draws it."""
        start = event.start - len(self.plan.requests[place].prompt_ids)
        slots = [
            {"id": None, "text": None, "masked": True, "confidence": 0.0}
            if masked
            else {"id": token, "text": self._text(token), "masked": False, "confidence": round(sure, 4)}
            for token, masked, sure in zip(event.token_ids, event.masked, event.confidence, strict=True)
        ]
        block = {"start": start, "settled": event.settled, "slots": slots} if slots else None
        counts = {
            "forwards": event.forwards,
            "completion_tokens": self.written[place],
            "seconds": round(time.monotonic() - self.began, 4),
        }
        return self._chunk(place, {}) | {"unmask": {"block": block, **counts}}

    def last(self, place: int, answer: Answer) -> dict[str, Any]:
        """The chunk with the reason for the end, and what the answer took."""
        return self._chunk(place, {}, reason=answer.finish_reason) | {"unmask": self._took(answer)}

    def counts(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The chunk of counts at the end, where the request asked for it."""
        return self._named(".chunk") | {"choices": [], "usage": self._usage(answers)}

    def _chunk(
        self, place: int, delta: dict[str, Any], *, logprobs: Any = None, reason: str | None = None
    ) -> dict[str, Any]:
        shown = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        choice = {"index": place, **shown, "logprobs": logprobs, "finish_reason": reason}
        return self._named(".chunk") | {"choices": [choice]} | ({"usage": None} if self.usage else {})

    # --- whole answers -----------------------------------------------------------------------------------------------

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The answer to a request that did not ask for a stream."""
        choices = [self._choice(place, answer) for place, answer in enumerate(answers)]
        return self._named("") | {"choices": choices, "usage": self._usage(answers)}

    def _choice(self, place: int, answer: Answer) -> dict[str, Any]:
        text = answer.text or ""
        said = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
        laws = self._laws(Places(self.tokenizer), answer.token_ids, answer.logprobs)
        reason = answer.finish_reason
        return {"index": place, **said, "logprobs": laws, "finish_reason": reason, "unmask": self._took(answer)}

    def _named(self, part: str) -> dict[str, Any]:
        kind = f"chat.completion{part}" if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        completion = sum(answer.completion_tokens for answer in answers)
        return {
            "prompt_tokens": self.plan.prompts,
            "completion_tokens": completion,
            "total_tokens": self.plan.prompts + completion,
            "prompt_tokens_details": {"cached_tokens": self._cached(answers)},
        }

    def _cached(self, answers: Sequence[Answer]) -> int:
        """Prompt tokens that were in the cache for every choice, each prompt counted once."""
        size = self.plan.choices
        parts = [answers[start : start + size] for start in range(0, len(answers), size)]
        return sum(min(answer.cached_tokens for answer in part) for part in parts)

    def _took(self, answer: Answer) -> dict[str, Any]:
        tokens, forwards = answer.completion_tokens, answer.forwards
        return {
            "mode": answer.mode,
            "why": self.plan.why,
            "forwards": forwards,
            "forwards_by_kind": answer.forwards_by_kind,
            "tokens_per_forward": round(tokens / max(forwards, 1), 3),
            "tokens_per_second": round(tokens / max(answer.seconds, 1e-9), 2),
            "seconds": round(answer.seconds, 4),
            "completion_tokens": tokens,
            "prompt_tokens": answer.prompt_tokens,
            "cached_tokens": answer.cached_tokens,
        }

    # --- log-probabilities -------------------------------------------------------------------------------------------

    def _laws(self, at: "Places", tokens: Sequence[int], laws: Sequence[Logprobs] | None) -> dict[str, Any] | None:
        if not self.logprobs or laws is None or not tokens:
            return None
        found = list(zip(tokens, laws, strict=True))
        return self._chat_laws(found) if self.chat else self._completion_laws(at, found)

    def _chat_laws(self, found: list[tuple[int, Logprobs]]) -> dict[str, Any]:
        content = [
            self._law(token, own) | {"top_logprobs": [self._law(*each) for each in likeliest]}
            for token, (own, likeliest) in found
        ]
        return {"content": content, "refusal": None}

    def _completion_laws(self, at: "Places", found: list[tuple[int, Logprobs]]) -> dict[str, Any]:
        return {
            "tokens": [self._text(token) for token, _ in found],
            "token_logprobs": [max(LEAST, own) for _, (own, _) in found],
            "top_logprobs": [{self._text(t): max(LEAST, p) for t, p in likeliest} for _, (_, likeliest) in found],
            "text_offset": [at.next(token) for token, _ in found],
        }

    def _law(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text(token)
        whole = None if "\ufffd" in text else list(text.encode())  # part of a character is no text of its own
        return {"token": text, "logprob": max(LEAST, logprob), "bytes": whole}

    def _text(self, token: int) -> str:
        return str(self.tokenizer.decode([token], skip_special_tokens=False))


class Places:
    """Where the tokens of an answer begin in its text, in characters. Parts of one character share its place."""

    def __init__(self, tokenizer: Any) -> None:
        self.decoder, self.shown = Decoder(tokenizer), 0

    def next(self, token: int) -> int:
        """The place of the next token."""
        place = self.shown
        self.shown += len(self.decoder.push(token) or "")
        return place
