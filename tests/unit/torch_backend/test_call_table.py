"""Calls that the table refuses before native code accesses an address of another device."""

from importlib import import_module

import pytest

from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
SUM = torch.distributed.ReduceOp.SUM
HERE, ELSEWHERE = torch.ones(4), torch.ones(4, device="meta")
WHOLE, WHOLE_ELSEWHERE = torch.ones(8), torch.ones(8, device="meta")
CALLS = {
    "all_reduce": lambda table: table.all_reduce([HERE, ELSEWHERE], SUM),
    "broadcast": lambda table: table.broadcast([HERE, ELSEWHERE], 0),
    "all_gather": lambda table: table.all_gather([HERE, ELSEWHERE], HERE),
    "all_gather of two": lambda table: table.all_gather_coalesced(
        [[HERE, ELSEWHERE], [HERE, ELSEWHERE]], [HERE, ELSEWHERE]
    ),
    "all_gather into one": lambda table: table.all_gather_single([WHOLE_ELSEWHERE], [HERE]),
    "all_gather of pairs": lambda table: table.all_gather_single([WHOLE, WHOLE_ELSEWHERE], [HERE, ELSEWHERE]),
    "reduce_scatter": lambda table: table.reduce_scatter(HERE, [HERE, ELSEWHERE], SUM),
    "reduce_scatter of one": lambda table: table.reduce_scatter_single([HERE], [WHOLE_ELSEWHERE], SUM),
    "gather": lambda table: table.gather([HERE, ELSEWHERE], HERE, 0),
    "scatter": lambda table: table.scatter(HERE, [HERE, ELSEWHERE], 0),
    "all_to_all, an input": lambda table: table.all_to_all([HERE, HERE], [HERE, ELSEWHERE]),
    "all_to_all, an output": lambda table: table.all_to_all([HERE, ELSEWHERE], [HERE, HERE]),
    "all_to_all of one": lambda table: table.all_to_all_single(WHOLE_ELSEWHERE, WHOLE, [], []),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_tensors_on_two_devices_are_refused(call):
    table = import_module("blinkccl.torch_backend.call_table").CallTable(0, 2)
    with pytest.raises(ValueError, match="on meta"):
        call(table)


@pytest.mark.parametrize("place", ["input", "output"])
def test_all_to_all_takes_one_element_type(place):
    table = import_module("blinkccl.torch_backend.call_table").CallTable(0, 2)
    sides = {"input": [HERE, HERE], "output": [HERE, HERE]}
    sides[place] = [HERE, HERE.to(torch.complex64)]
    with pytest.raises(ValueError, match=f"all_to_all: {place} 1 is torch.complex64"):
        table.all_to_all(sides["output"], sides["input"])
