import pytest
import torch

from unmask.model.native.panels import KINDS, interleaved, packed
from unmask.model.native.shape import Weight


def weight(out, inputs, rank=0):
    torch.manual_seed(out)
    low = (torch.randn(rank, inputs), torch.randn(out, rank)) if rank else (None, None)
    return Weight(torch.randn(out, inputs), torch.randn(out), *low)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", [16, 17, 40])
@pytest.mark.parametrize("panel", [16, 32])
def test_what_is_packed_can_be_read_back(kind, out, panel):
    given = weight(out, 10, rank=3)
    held = packed(given, kind, panel)
    assert (held.inputs, held.out, held.rank) == (10, out, 3)
    exact = {"fp32": given.matrix, "bf16": given.matrix.bfloat16().float()}
    if kind == "int8":
        step = given.matrix.abs().amax(1, keepdim=True) / 127
        assert ((held.dense() - given.matrix).abs() <= step / 2 + 1e-6).all()
    else:
        assert torch.equal(held.dense(), exact[kind])
    assert torch.allclose(held.dense(updated=True), held.dense() + given.up @ given.down, atol=1e-6)


def test_panels_of_gates_and_ups_take_turns_and_each_is_filled_up():
    gate, up = weight(20, 6, rank=2), weight(20, 6, rank=3)
    both = interleaved(gate, up, 16)
    rows = list(both.matrix.split(16))
    assert len(rows) == 4
    assert torch.equal(torch.cat([rows[0], rows[2]])[:20], gate.matrix)
    assert torch.equal(torch.cat([rows[1], rows[3]])[:20], up.matrix)
    assert rows[2][4:].abs().sum() == 0
    update = (both.up @ both.down).split(16)
    assert torch.allclose(torch.cat([update[0], update[2]])[:20], gate.up @ gate.down, atol=1e-5)
    assert torch.allclose(torch.cat([update[1], update[3]])[:20], up.up @ up.down, atol=1e-5)
