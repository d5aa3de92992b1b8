"""Traces of the reference implementation: tokens and forwards, alone and in batches."""

import json
import os
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tiny import on_gpu

from unmask.config import BlockSpec, Decoding
from unmask.engine import Engine, Request
from unmask.model.checkpoint import load_checkpoint
from unmask.model.choose import backbone_for

FOLDER = Path(os.environ.get("GOLDEN_DIR", Path(__file__).parent))
TRACES = [json.loads(line) for line in (FOLDER / "decode.jsonl").read_text().splitlines()]
MASK = 511


@cache
def engine_parts(name: str, backbone: str) -> tuple[Any, BlockSpec]:
    loaded = load_checkpoint(FOLDER / name, mask_id=MASK)
    assert loaded.spec is not None and (loaded.spec.context, loaded.spec.block_size) == ("block", 32)
    if backbone == "gpu":
        mask = loaded.model.get_input_embeddings().weight[MASK]
        return on_gpu(loaded.model, mask=mask), loaded.spec
    made = backbone_for(loaded, backbone)
    assert made.name == backbone
    return made, loaded.spec


def decode(traces: list[dict], batch_size: int, backbone: str) -> None:
    """Decode the traces, all of one checkpoint, and compare each with what the reference wrote and spent."""
    engine = Engine(*engine_parts(traces[0]["checkpoint"], backbone), batch_size=batch_size)
    answers = engine.generate(
        [
            Request(
                trace["prompt_ids"],
                Decoding(
                    mode="threshold",
                    threshold=trace["threshold"],
                    block_size=trace["block_size"],
                    sub_block_size=trace["sub_block_size"],
                    sub_block_cache=trace["sub_block_cache"],
                    stop_ids=(trace["stop_id"],),
                    max_new_tokens=len(trace["token_ids"]),
                ),
            )
            for trace in traces
        ]
    )
    for trace, answer in zip(traces, answers, strict=True):
        assert answer.error is None
        stop = [trace["stop_id"]] if answer.finish_reason == "stop" else []
        assert answer.token_ids + stop == trace["token_ids"]
        assert answer.forwards == trace["forwards"]
        assert answer.forwards_by_kind == trace["forwards_by_kind"]
        assert answer.positions_computed == trace["positions_computed"]


each_backbone = pytest.mark.parametrize("backbone", ["universal", "native", "gpu"])


@each_backbone
@pytest.mark.parametrize("trace", TRACES, ids=lambda t: f"{t['checkpoint']}-{len(t['prompt_ids'])}-{t['threshold']}")
def test_trace(trace, backbone):
    decode([trace], 1, backbone)


def by_checkpoint(trace: dict) -> str:
    return trace["checkpoint"]


@each_backbone
@pytest.mark.parametrize(
    "name, traces", [(name, list(group)) for name, group in groupby(sorted(TRACES, key=by_checkpoint), by_checkpoint)]
)
def test_all_traces_of_a_checkpoint_in_batches(name, traces, backbone):
    """Rows of different prompts, block sizes, thresholds and cache settings side by side, admitted as others end."""
    decode(traces, 7, backbone)


def test_no_trace_is_missing():
    """Of the traces that belong to this repository; another folder has as many as it likes."""
    assert len(TRACES) == 101 or (TRACES and "GOLDEN_DIR" in os.environ)
