"""A row of text to token ids with labels, through the base's own chat template.

A chat row is {"messages": [{"role", "content"}, …]}; a plain row is {"prompt": text, "completion": text}, taken without
a template. An optional "ended": false says that the answer was cut by a length limit, so that its end is not learned.
Labels lie on assistant text and its end token, in every assistant turn, and on nothing else.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import DataError

SURROGATE = re.compile(r"[\ud800-\udfff]")
Document = tuple[list[int], list[bool]]
"""Token ids, and which of them are learned."""


@dataclass(frozen=True)
class Part:
    """A stretch of a row, and whether it is an answer.

    before: the text of the row up to here, with which `words` are tokenised; None: they are tokenised by themselves.
    closing: ids behind them that no text stands for.
    """

    before: str | None
    words: str
    learned: bool
    closing: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return (self.before or "") + self.words


@dataclass(frozen=True)
class Parts:
    """A row before it is tokenised. special: with the tokenizer's own beginning; ended: the last end is learned."""

    parts: list[Part]
    special: bool = False
    ended: bool = True


def encode(record: dict[str, Any], tokenizer: Any, stop_ids: tuple[int, ...]) -> Document:
    """ids and labels of one row; stop_ids are the tokens on which the decoder ends an answer."""
    [document] = tokenised([parts_of(record, tokenizer, stop_ids)], tokenizer)
    return document


def parts_of(record: dict[str, Any], tokenizer: Any, stop_ids: tuple[int, ...]) -> Parts:
    """What is to be tokenised of a row. Every fault of a row is found here."""
    if "messages" in record:
        parts = chat_parts(record["messages"], tokenizer, stop_ids)
    elif "prompt" in record or "completion" in record:
        parts = plain_parts(record, tokenizer, stop_ids)
    else:
        raise DataError(f"has neither 'messages' nor 'prompt' and 'completion', only {sorted(record)}")
    if not isinstance(record.get("ended", True), bool):
        raise DataError("must be true or false", field="ended")
    return Parts(parts, "messages" not in record, record.get("ended", True))


def tokenised(rows: Sequence[Parts], tokenizer: Any) -> Iterator[Document]:
    """ids and labels of rows. All their texts go to the tokenizer at once, which works on them in threads."""
    found: dict[bool, Iterator[list[int]]] = {}
    for special in (False, True):
        texts = [part.text for row in rows if row.special == special for part in row.parts]
        options = {"add_special_tokens": special, "return_attention_mask": False, "return_token_type_ids": False}
        found[special] = iter(tokenizer(texts, **options).input_ids if texts else [])
    for row in rows:
        ids: list[int] = []
        labelled: list[bool] = []
        for part in row.parts:
            together = next(found[row.special])
            mine = together if part.before is None else _behind(ids, together, part.words, tokenizer)
            ids += [*mine, *part.closing]
            labelled += [part.learned] * (len(ids) - len(labelled))
        yield (ids, labelled) if row.ended else (ids[:-1], labelled[:-1])


def plain_parts(record: dict[str, Any], tokenizer: Any, stop_ids: tuple[int, ...]) -> list[Part]:
    """Prompt, then completion and the tokenizer's end token."""
    marks = control_marks(tokenizer, stop_ids)
    for name in ("prompt", "completion"):
        if not isinstance(record.get(name), str):
            raise DataError("must be text", field=name)
        _refuse_marks(record[name], marks, name)
    if not record["completion"]:
        raise DataError("is empty: a row needs an answer", field="completion")
    end = tokenizer.eos_token_id if tokenizer.eos_token_id in stop_ids else stop_ids[0]
    return [Part("", record["prompt"], False), Part(record["prompt"], record["completion"], True, (end,))]


def chat_parts(messages: Any, tokenizer: Any, stop_ids: tuple[int, ...]) -> list[Part]:
    """Split the final render of a chat into what was given and what the assistant wrote, end token included.

    Works without generation marks in the template, and with templates that rewrite earlier turns: the answer spans are
    found in the final text, from the header that the template puts before an answer (what `add_generation_prompt`
    adds) to the end token behind it. Tokens end where a part ends, as they do when a prompt is served.
    """
    check_messages(messages, control_marks(tokenizer, stop_ids))
    text = _render(tokenizer, messages)
    header = _header(tokenizer, messages)
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    turns = text.split(header)
    if len(turns) != len(answers) + 1:
        raise DataError(
            f"the chat template shows {len(turns) - 1} assistant turns for {len(answers)} in 'messages', so the "
            "answers cannot be told from the rest"
        )
    parts: list[Part] = []
    done, given = "", turns[0] + header
    for number, turn in zip(answers, turns[1:], strict=True):
        answer, end, mark, given_next = _cut_end(turn, tokenizer, stop_ids, last=number == answers[-1])
        _check_answer(answer, mark, header, messages[: number + 1], tokenizer)
        parts += [Part(done, given, False), Part(done + given, answer, True, (end,))]
        done, given = done + given + answer + mark, given_next + header
    return parts


def _behind(before: list[int], together: list[int], text: str, tokenizer: Any) -> list[int]:
    """Ids of `text` as it follows other text: ids `before`, both `together`.

    Some tokenizers put a blank before the first word of what they are given, so a piece is read off the whole. Where
    the whole has a token across the border, the piece is tokenised by itself.
    """
    if together[: len(before)] == before:
        return list(together[len(before) :])
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _cut_end(part: str, tokenizer: Any, stop_ids: tuple[int, ...], last: bool) -> tuple[str, int, str, str]:
    """An answer, its end token, the text of that, and what follows."""
    found = [(part.index(mark), token, mark) for token, mark in _marks(tokenizer, stop_ids) if mark in part]
    if found:
        at, token, mark = min(found)
        return part[:at], token, mark, part[at + len(mark) :]
    if not last:
        raise DataError(
            "the chat template puts no end token behind an answer that another turn follows, so the end of "
            "the answer cannot be told"
        )
    return part.rstrip("\n"), stop_ids[0], "", ""


def _check_answer(answer: str, mark: str, header: str, messages: list[dict[str, Any]], tokenizer: Any) -> None:
    """DataError where the text that would be learned is not all of the last message, or not of it alone.

    A template may strip white space and reasoning, and add what it shows of tool calls. So an answer that is not the
    message's text must stand, with its end, where nothing behind the message is shown.
    """
    if answer.strip() == messages[-1]["content"].strip():
        if messages[-1].get("tool_calls"):
            raise DataError(
                f"message {len(messages)} has tool_calls, which the chat template does not show, so they cannot be "
                "learned; leave the row out",
                field="messages",
            )
    elif answer + mark not in _render(tokenizer, messages).rpartition(header)[2]:
        raise DataError(
            f"the chat template puts no end token behind message {len(messages)}, so the end of the answer cannot be "
            "told from what follows",
            field="messages",
        )


def _marks(tokenizer: Any, stop_ids: tuple[int, ...]) -> list[tuple[int, str]]:
    """The end tokens as they stand in rendered text; a configuration may name one that the tokenizer does not have."""
    named = ((token, tokenizer.convert_ids_to_tokens(token)) for token in stop_ids)
    return [(token, mark) for token, mark in named if mark]


def _render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    if not tokenizer.chat_template:
        raise DataError("the base has no chat template; give rows of 'prompt' and 'completion'", field="messages")
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except Exception as error:  # a template is a program of the model's makers and may raise anything
        reason = " ".join(str(error).split())
        raise DataError(f"the chat template cannot render it ({reason})", field="messages") from None


def _header(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    """What the template puts before an answer."""
    asked = messages[:1] if messages[0]["role"] == "user" else [{"role": "user", "content": "x"}]
    plain = _render(tokenizer, asked)
    prompted = _render(tokenizer, asked, add_generation_prompt=True)
    if not prompted.startswith(plain) or len(prompted) == len(plain):
        raise DataError("the chat template has no generation prompt, so the answers cannot be told from the rest")
    return prompted[len(plain) :]


def control_marks(tokenizer: Any, stop_ids: tuple[int, ...]) -> list[str]:
    """The texts that would become control tokens: special ones, and those on which the decoder ends an answer."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(special.union(mark for _, mark in _marks(tokenizer, stop_ids)))


def check_messages(messages: Any, marks: list[str]) -> None:
    """marks: control tokens that no text of a message may spell."""
    if not isinstance(messages, list) or not messages:
        raise DataError("must be a list of at least one message", field="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(f"message {number + 1} has no 'role'", field="messages")
        if not isinstance(message.get("content"), str):
            raise DataError(f"message {number + 1} has no text in 'content'", field="messages")
        for text in _texts(message):
            _refuse_marks(text, marks, "messages")
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError("holds no assistant turn: a row needs an answer", field="messages")


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested lists and objects, names included: a template may show any of them."""
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            left += [*found, *found.values()]
        elif isinstance(found, list):
            left += found


def _refuse_marks(text: str, marks: list[str], name: str) -> None:
    """Text that spells a control token would become that token; refuse it instead of learning a false turn."""
    for mark in marks:
        if mark in text:
            raise DataError(f"holds the control token {mark!r} as text; remove it", field=name)
    if SURROGATE.search(text):
        raise DataError("holds half of a surrogate pair, which is not a character; remove it", field=name)
