"""A row of text to token ids with labels, through the base's own chat template.

A chat row is {"messages": [{"role", "content"}, …]}; a plain row is {"prompt": text, "completion": text}, taken without
a template. An optional "ended": false says that the answer was cut by a length limit, so that its end is not learned.
Labels lie on assistant text and its end token, in every assistant turn, and on nothing else.
"""

from typing import Any

from unmask.errors import DataError

Pieces = list[tuple[list[int], bool]]
"""Consecutive token ids of a row, and whether they are an answer."""


def encode(record: dict[str, Any], tokenizer: Any, stop_ids: tuple[int, ...]) -> tuple[list[int], list[bool]]:
    """ids and labels of one row; stop_ids are the tokens on which the decoder ends an answer."""
    if "messages" in record:
        pieces = chat_pieces(record["messages"], tokenizer, stop_ids)
    elif "prompt" in record or "completion" in record:
        pieces = plain_pieces(record, tokenizer, stop_ids)
    else:
        raise DataError(f"has neither 'messages' nor 'prompt' and 'completion', only {sorted(record)}")
    if not isinstance(record.get("ended", True), bool):
        raise DataError("must be true or false", field="ended")
    if record.get("ended") is False:
        pieces[-1] = (pieces[-1][0][:-1], True)
    return flat(pieces)


def flat(pieces: Pieces) -> tuple[list[int], list[bool]]:
    """ids and labels of a row, token by token."""
    ids = [token for tokens, _ in pieces for token in tokens]
    return ids, [answer for tokens, answer in pieces for _ in tokens]


def plain_pieces(record: dict[str, Any], tokenizer: Any, stop_ids: tuple[int, ...]) -> Pieces:
    """Prompt, then completion and the tokenizer's end token."""
    for name in ("prompt", "completion"):
        if not isinstance(record.get(name), str):
            raise DataError("must be text", field=name)
        _refuse_special(record[name], tokenizer, name)
    if not record["completion"]:
        raise DataError("is empty: a row needs an answer", field="completion")
    end = tokenizer.eos_token_id if tokenizer.eos_token_id in stop_ids else stop_ids[0]
    before = tokenizer(record["prompt"]).input_ids
    together = tokenizer(record["prompt"] + record["completion"]).input_ids
    return [(before, False), ([*_behind(before, together, record["completion"], tokenizer), end], True)]


def chat_pieces(messages: Any, tokenizer: Any, stop_ids: tuple[int, ...]) -> Pieces:
    """Split the final render of a chat into what was given and what the assistant wrote, end token included.

    Works without generation marks in the template, and with templates that rewrite earlier turns: the answer spans are
    found in the final text, from the header that the template puts before an answer (what `add_generation_prompt`
    adds) to the end token behind it. Tokens end where a piece ends, as they do when a prompt is served.
    """
    check_messages(messages, tokenizer)
    text = _render(tokenizer, messages)
    header = _header(tokenizer, messages)
    answers = sum(message["role"] == "assistant" for message in messages)
    parts = text.split(header)
    if len(parts) != answers + 1:
        raise DataError(
            f"the chat template shows {len(parts) - 1} assistant turns for {answers} in 'messages', so the "
            "answers cannot be told from the rest"
        )
    pieces: Pieces = []
    ids: list[int] = []
    done, given = "", parts[0] + header
    for number, part in enumerate(parts[1:], start=1):
        answer, end, mark, given_next = _cut_end(part, tokenizer, stop_ids, last=number == answers)
        for words, closing, learned in ((given, [], False), (answer, [end], True)):
            together = tokenizer(done + words, add_special_tokens=False).input_ids
            pieces.append((_behind(ids, together, words, tokenizer) + closing, learned))
            ids, done = ids + pieces[-1][0], done + words
        done, given = done + mark, given_next + header
    return pieces


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


def check_messages(messages: Any, tokenizer: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise DataError("must be a list of at least one message", field="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(f"message {number + 1} has no 'role'", field="messages")
        if not isinstance(message.get("content"), str):
            raise DataError(f"message {number + 1} has no text in 'content'", field="messages")
        _refuse_special(message["content"], tokenizer, "messages")
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError("holds no assistant turn: a row needs an answer", field="messages")


def _refuse_special(text: str, tokenizer: Any, name: str) -> None:
    """Text that spells a control token would become that token; refuse it instead of learning a false turn."""
    for mark in sorted({token.content for token in tokenizer.added_tokens_decoder.values() if token.special}):
        if mark in text:
            raise DataError(f"holds the control token {mark!r} as text; remove it", field=name)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError("holds half of a surrogate pair, which is not a character; remove it", field=name)
