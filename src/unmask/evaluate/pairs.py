"""Texts as the token pairs that likelihoods are of, cut exactly where lm-eval cuts them."""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.errors import RequestError
from unmask.model.checkpoint import Checkpoint
from unmask.text import render

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context and of what continues it."""


def prefix_token(checkpoint: Checkpoint) -> int:
    """What stands before a text that has no context: the beginning-of-text token, else the end-of-text token.

    That is lm-eval's choice. Without a tokenizer it is the checkpoint's first end token; RequestError where there is
    none.
    """
    ids = [getattr(checkpoint.tokenizer, name, None) for name in ("bos_token_id", "eos_token_id")]
    found = next((token for token in (*ids, *checkpoint.stop_ids) if token is not None), None)
    if found is None:
        raise RequestError(
            f"the context is empty and {checkpoint.ref} has no beginning-of-text or end-of-text token; give a context",
            field="context",
            value=[],
        )
    return int(found)


def encode_pair(
    checkpoint: Checkpoint, context: str, continuation: str, *, special: bool = True
) -> tuple[list[int], list[int]]:
    """Token ids of both parts, as lm-eval's `_encode_pair` cuts them.

    Blanks that end the context belong to the continuation, both are encoded as one text, and the border lies where the
    context encoded alone ends. An empty context becomes the prefix token; a continuation that begins with that token
    lends it, so that it stands there once. special: as for `encode`.
    """
    tokenizer = checkpoint.tokenizer
    if not context:
        ids = encode(tokenizer, continuation, special=False)
        prefix = prefix_token(checkpoint)
        return (ids[:1], ids[1:]) if ids[:1] == [prefix] else ([prefix], ids)
    bare = context.rstrip()
    whole, left = (encode(tokenizer, text, special=special) for text in (context + continuation, bare))
    return left, whole[len(left) :]


def encode(tokenizer: Any, text: str, *, special: bool = True) -> list[int]:
    """Token ids of a text as it is. special: with the special tokens that the tokenizer puts around a text."""
    if special:
        return render(tokenizer, text, raw=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def windows(tokens: Sequence[int], prefix: int, longest: int) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs that score each token of a long text once, each with as much context as fits (lm-eval, rolling windows).

    longest: tokens of a pair without its last one. The first pair has only `prefix` for a context; the others have a
    single token, but for the last, which is filled up from the left.
    """
    text, done = [prefix, *tokens], 0
    while done < len(tokens):
        count = min(len(tokens) - done, longest)
        done += count
        context = text[max(0, done - longest) : done - count + 1]
        yield context, text[done - count + 1 : done + 1]
