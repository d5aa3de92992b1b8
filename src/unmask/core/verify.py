"""Checking a draft against the tokens that autoregression writes."""

from collections.abc import Sequence


def accepted(draft: Sequence[int], target: Sequence[int]) -> int:
    """How many tokens of the draft, from its beginning, are the target's too.

    `target[i]` is what autoregression writes after the draft's first i tokens, so it counts only while all of those
    were accepted; the target's next token after the accepted ones is then right as well.
    """
    kept = 0
    for guess, right in zip(draft, target, strict=False):
        if guess != right:
            break
        kept += 1
    return kept
