"""The paper's packing, restored by `reference_quirks`: one row of exactly L tokens holds parts of several documents.

The rows that unmask makes otherwise hold one document each. Rows stand in a forward one behind the other without
padding, so packing would not make them cheaper. The released code renders ChatML by itself, pads with masks to whole
blocks, concatenates documents in groups of 1000, cuts them into rows of L and drops the rest of a group. Positions and
attention run through, so a document sees the ones before it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from unmask.data.encode import Document, Part, Parts, check_messages, control_marks
from unmask.data.stored import Row
from unmask.errors import ConfigError, DataError
from unmask.recipe import Adapt

GROUP = 1000
"""Documents that are concatenated before they are cut."""
SYSTEM = "You are a helpful assistant."
START, END = "<|im_start|>", "<|im_end|>"
UNSHOWN = ("tool_calls", "function_call", "reasoning_content")
"""Parts of a message that ChatML, as the paper renders it, leaves out."""


@dataclass(frozen=True)
class Packing:
    """length: tokens of a row (L). fill: fill documents up to whole blocks of this size with mask_id; None: do not."""

    length: int
    fill: int | None
    mask_id: int


def packing_of(recipe: Adapt, mask_id: int) -> Packing | None:
    """How a recipe packs; None where each row is one document."""
    if not recipe.reference_quirks:
        return None
    return Packing(recipe.max_length, recipe.block_size if recipe.padding else None, mask_id)


def chatml_parts(record: dict[str, Any], tokenizer: Any) -> Parts:
    """A chat in ChatML, whatever template the tokenizer has; a prompt with its completion is one question and answer.

    An answer's label lies on its text, its end token and the newline behind it, in every assistant turn.
    """
    for mark in (START, END):
        if len(tokenizer(mark, add_special_tokens=False).input_ids) != 1:
            raise ConfigError(f"reference_quirks writes ChatML, but the base has no token {mark}; take a Qwen2.5 base")
    messages = record.get("messages")
    if messages is None:
        pair = zip(("user", "assistant"), (record.get("prompt"), record.get("completion")), strict=True)
        messages = [{"role": role, "content": content} for role, content in pair]
    check_messages(messages, sorted({START, END, *control_marks(tokenizer, ())}))
    for number, message in enumerate(messages, start=1):
        for name in UNSHOWN:
            if message.get(name):
                problem = f"message {number} has {name}, which the paper's ChatML does not show; leave the row out"
                raise DataError(problem, field="messages")
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": SYSTEM}, *messages]
    parts: list[Part] = []
    for message in messages:
        learned, header = message["role"] == "assistant", f"{START}{message['role']}\n"
        if learned:
            parts.append(Part(None, header, False))
        parts.append(Part(None, ("" if learned else header) + f"{message['content']}{END}\n", learned))
    if record.get("ended") is False:
        raise DataError("is false, but the paper's packing has no cut answers; leave the row out", field="ended")
    return Parts(parts)


def filled(document: Document, size: int, mask_id: int) -> Document:
    """With D - (n mod D) masks behind its n tokens, never 0 of them; they are not learned."""
    ids, labelled = document
    count = size - len(ids) % size
    return ids + [mask_id] * count, labelled + [False] * count


def packed(documents: Sequence[Row], packing: Packing) -> Iterator[tuple[list[tuple[int, Document]], int]]:
    """Of each group: (rows of exactly `length` tokens, each with the number of the document that it begins in, how many
    tokens at its end were dropped)."""
    length = packing.length
    for first in range(0, len(documents), GROUP):
        group = [(row.ids.tolist(), row.labelled.tolist()) for row in documents[first : first + GROUP]]
        if packing.fill is not None:
            group = [filled(document, packing.fill, packing.mask_id) for document in group]
        ids = list(chain.from_iterable(ids for ids, _ in group))
        labelled = list(chain.from_iterable(labelled for _, labelled in group))
        ends = list(accumulate(len(ids) for ids, _ in group))
        whole = len(ids) // length * length
        yield (
            [
                (first + bisect_right(ends, at), (ids[at : at + length], labelled[at : at + length]))
                for at in range(0, whole, length)
            ],
            len(ids) - whole,
        )
