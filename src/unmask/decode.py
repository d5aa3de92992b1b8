"""Modes ar and threshold, as the paper tells them: programs of one row (`unmask.row`)."""

from collections.abc import Generator

import torch

from unmask.core.propose import Proposals
from unmask.model.backbone import Feed
from unmask.row import Block, Program, Row, Step, feed_prompt


def autoregressive(row: Row) -> Program:
    """One token per forward; block size 1 of the others."""
    found = yield from feed_prompt(row, len(row.prompt), row.causal)
    while not row.write(found.tokens.tolist(), found):
        found = yield row.causal("ar", row.written[-1:], row.length - 1)


def threshold(row: Row) -> Program:
    """Fast-dLLM v2, algorithm of section 3.3: denoise a block sub-block by sub-block, commit it, go on.

    The commit's last logit gives the next block's first token (the seam). The name is that of the paper's rule; the
    row's own rule decides. Above temperature 0 the seam is drawn like every other token, so that all tokens follow one
    law (the official code takes its argmax, even while it samples the rest of the block).

    With the schedule `fused` the commit is also the next block's first denoising step: it feeds that block's slots too,
    all of them still masked, so that a block takes one forward less and its first proposals have not seen the seam.
    """
    size, part, fused = row.settings.block_size, row.settings.sub_block_size, row.settings.schedule == "fused"
    start, seam = yield from prefill(row, size)
    found: Proposals | None = None
    while not row.write(seam):
        row.block = block = Block.open(start, row.tail(start), size, row.blocks.mask_id)
        if fused and found is not None and begin(row, block, found, part):
            return
        for first in range(0, size, part):
            yield from denoise(row, block, first, first + part)
            if row.finish is not None:
                return
        found = yield commit_and_open(row, block) if fused else row.clean("commit", block.tokens.tolist(), start)
        seam, start = found.tokens[:1].tolist(), start + size


def commit_and_open(row: Row, block: Block) -> Step:
    """The commit of a block together with the slots of the next; reads its last token and those slots but the last."""
    size, draft = len(block.tokens), row.blocks.adapter_scope == "draft"
    feed = Feed(
        block.tokens.tolist() + [row.blocks.mask_id] * size,
        block.start,
        row.ends(size, block.start) + [block.start + 2 * size] * size,
        [False] * size + [True] * size,
        list(range(size - 1, 2 * size - 1)),
        draft,
        settled=size if draft else 0,
    )
    return row.step("fused", feed, confidence=True)


def begin(row: Row, block: Block, found: Proposals, stop: int) -> bool:
    """Decide what the commit before has proposed for slots 1 … stop - 1; its seam, slot 0, is known. True when the
    answer is complete."""
    block.cached = row.settings.sub_block_cache
    part = found.part(1, stop)
    assert part.confidence is not None
    accept = row.rule(part.confidence, part.entropy, row.parameter)
    if accept.any():
        block.accept(torch.arange(1, stop), part, accept)
    return row.write(block.tokens[row.length - block.start : block.settled()].tolist())


def prefill(row: Row, size: int) -> Generator[Step, Proposals, tuple[int, list[int]]]:
    """Commit the prompt; returns where the first block starts and the seam token, if there is one already.

    Context `causal`: the whole prompt, and the first block starts with the seam. Context `block`: whole blocks of the
    prompt only; what is left over opens the first block. (The official code skips a prompt of exactly one block and so
    never sees it; that fault is not kept.)
    """
    whole = len(row.prompt) if row.blocks.context == "causal" else len(row.prompt) // size * size
    if whole == 0:
        return 0, []
    found = yield from feed_prompt(row, whole, row.clean, size)
    return whole, found.tokens.tolist()


def denoise(row: Row, block: Block, first: int, stop: int) -> Program:
    """Decide the slots first … stop - 1 of the block, the surest first, until none is masked or the answer is complete.

    A slot is proposed by the logit of the slot before it (token shift). With the sub-block cache only these slots are
    fed, against the draft keys and values of the others, once their first slot is decided (its predecessor's logit is
    then not needed); until then, and once per block at least, the whole block is fed and refreshes them.
    """
    cache, draft = row.settings.sub_block_cache, row.blocks.adapter_scope == "draft"
    while block.masked[first:stop].any():
        slots = first + torch.nonzero(block.masked[first:stop]).flatten()
        read = (slots - 1).tolist()
        if cache and block.cached and not block.masked[first]:
            found = yield row.step("sub", block.feed(first, stop, read, draft), confidence=True)
        else:
            whole = block.feed(0, len(block.tokens), read, draft)
            found = yield row.step("refresh" if cache else "denoise", whole, confidence=True)
            block.cached = True
        assert found.confidence is not None
        block.accept(slots, found, row.rule(found.confidence, found.entropy, row.parameter))
        if row.write(block.tokens[row.length - block.start : block.settled()].tolist()):
            return
