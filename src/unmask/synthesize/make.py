"""Prompts by the model itself: an instruction-tuned model completes an empty user turn (Magpie, arXiv 2406.08464)."""

from dataclasses import dataclass
from typing import Any

from unmask.errors import ConfigError
from unmask.events import Answer
from unmask.model.checkpoint import Checkpoint
from unmask.synthesize.jobs import Job, item_seed
from unmask.synthesize.settings import Synthesis
from unmask.synthesize.worker import Record
from unmask.text import UNFINISHED, repeated_4grams

PROBE = "What is the sum of 27 and 58?"


@dataclass(frozen=True)
class Header:
    """What a chat template puts before a user's text, and the tokens that end it."""

    ids: list[int]
    stop_ids: tuple[int, ...]


def header_of(checkpoint: Checkpoint) -> Header:
    """Read off a render of one user turn. ConfigError where the model has no such turn."""
    tokenizer: Any = checkpoint.tokenizer
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(f"--make needs an instruction-tuned model; {checkpoint.ref} has no chat template")
    text = tokenizer.apply_chat_template([{"role": "user", "content": PROBE}], tokenize=False)
    if text.count(PROBE) != 1:
        raise ConfigError(f"--make cannot tell where the chat template of {checkpoint.ref} puts the user's text")
    before, after = text.split(PROBE)
    behind = tokenizer.encode(after, add_special_tokens=False)[:1]
    ends = [token for token in behind if token in tokenizer.all_special_ids]
    return Header(
        list(tokenizer.encode(before, add_special_tokens=False)), tuple(sorted({*checkpoint.stop_ids, *ends}))
    )


def jobs_to_make(header: Header, settings: Synthesis) -> list[Job]:
    assert settings.make is not None
    return [Job(n, header.ids, item_seed("make", settings.seed, n), {}) for n in range(settings.make)]


@dataclass(frozen=True)
class Judge:
    """Keeps a made prompt, or says why not."""

    settings: Synthesis

    def __call__(self, checkpoint: Checkpoint, job: Job, answer: Answer) -> Record:
        tokens, text = answer.token_ids, (answer.text or "").strip()
        special = set(getattr(checkpoint.tokenizer, "all_special_ids", ()))
        limits = self.settings
        if answer.finish_reason != "stop":
            return {"dropped": f"made prompt: no end within {limits.max_prompt_tokens} tokens"}
        if len(tokens) < limits.min_prompt_tokens:
            return {"dropped": f"made prompt: shorter than {limits.min_prompt_tokens} tokens"}
        if special.intersection(tokens) or UNFINISHED in text or not text:
            return {"dropped": "made prompt: not text"}
        if repeated_4grams([tokens]) > limits.max_repeated:
            return {"dropped": "made prompt: repeats itself"}
        return {"prompt": text}
