"""The table of calls: the engine's calls for each of torch's collectives, and refusals."""

from importlib import import_module

import pytest

from blinkccl.collectives import ops
from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import UnsupportedError
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
SUM = pytest.importorskip("torch.distributed").ReduceOp.SUM
requests = import_module("blinkccl.torch_backend.call_table")
issue = import_module("blinkccl.torch_backend.issue")
types = import_module("blinkccl.torch_backend.types")


def table(rank: int = 1, size: int = 3):
    return requests.CallTable(rank, size)


def names(request) -> list[tuple[str, int, str]]:
    return [(each.call.collective, each.call.elements, each.call.dtype) for each in request.calls if each.call.elements]


def test_a_reduction_keeps_its_type_and_moves_are_bytes():
    tensor = torch.zeros(5, dtype=torch.bfloat16)
    address = tensor.data_ptr()
    assert table().all_reduce([tensor], SUM).calls == [
        issue.AddressedCall(CollectiveCall("allreduce", "bfloat16", 5), address, address)
    ]
    assert table().broadcast([tensor], 2).calls == [issue.moved("broadcast", address, address, 10, 2)]


def test_a_scaled_reduction_carries_its_factor():
    [each] = table().reduce(torch.zeros(5), torch.distributed._make_nccl_premul_sum(0.5), 1).calls
    assert (each.call.op, each.scale, each.call.root) == ("premul_sum", 0.5, 1)


@pytest.mark.parametrize("root", [0, 1])
def test_only_the_root_has_both_buffers(root):
    tensor, parts = torch.zeros(4), [torch.zeros(4) for _ in range(3)]
    at_root = root == 1
    [reduced] = table().reduce(tensor, SUM, root).calls
    assert (reduced.send, reduced.recv) == (tensor.data_ptr(), tensor.data_ptr() if at_root else None)
    [gathered] = table().gather(parts if at_root else [], tensor, root).calls
    assert (gathered.send, gathered.recv is None) == (tensor.data_ptr(), not at_root)
    [scattered] = table().scatter(tensor, parts if at_root else [], root).calls
    assert (scattered.send is None, scattered.recv) == (not at_root, tensor.data_ptr())


def test_equal_blocks_are_one_collective_unequal_ones_several():
    equal = table().all_gather([torch.zeros(2) for _ in range(3)], torch.zeros(2))
    assert names(equal) == [("allgather", 8, "uint8")]
    unequal = table().all_gather([torch.zeros(size) for size in (1, 2, 0)], torch.zeros(2))
    assert names(unequal) == [("broadcast", 4, "uint8"), ("broadcast", 8, "uint8")]  # no call for the empty one
    assert [each.send is None for each in unequal.calls] == [True, False, True]
    equal = table().reduce_scatter(torch.zeros(2), [torch.zeros(2)] * 3, SUM)
    assert names(equal) == [("reduce_scatter", 2, "float32")]
    parts = [torch.zeros(size) for size in (1, 2, 4)]
    assert names(table().reduce_scatter(torch.zeros(2), parts, SUM)) == [("reduce", n, "float32") for n in (1, 2, 4)]


def test_complex_sums_are_sums_of_pairs():
    tensor = torch.zeros(5, dtype=torch.complex64)
    assert names(table().all_reduce([tensor], SUM)) == [("allreduce", 10, "float32")]


def test_calls_of_many_tensors_are_many_collectives():
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(3)]
    assert names(table().all_gather_coalesced(outputs, [torch.zeros(2), torch.zeros(3)])) == [
        ("allgather", 8, "uint8"),
        ("allgather", 12, "uint8"),
    ]
    gathered = table().all_gather_single([torch.zeros(6), torch.zeros(3)], [torch.zeros(2), torch.zeros(1)])
    assert names(gathered) == [("allgather", 8, "uint8"), ("allgather", 4, "uint8")]
    scattered = table().reduce_scatter_single([torch.zeros(2)], [torch.zeros(6)], SUM)
    assert names(scattered) == [("reduce_scatter", 2, "float32")]


REFUSED = {
    "one output per rank": (
        lambda: table().all_gather([torch.zeros(2)] * 2, torch.zeros(2)),
        "one entry per rank, 3, got 2",
    ),
    "an output of another type": (
        lambda: table().all_gather([torch.zeros(2), torch.zeros(2), torch.zeros(2).int()], torch.zeros(2)),
        "output 2 is torch.int32 on cpu; expected torch.float32",
    ),
    "an own place of another size": (
        lambda: table().all_gather([torch.zeros(3)] * 3, torch.zeros(2)),
        "the input has 8 bytes, its place in the output list 12",
    ),
    "an output that does not hold all": (
        lambda: table().all_gather_single([torch.zeros(5)], [torch.zeros(2)]),
        "expected an output of 3 x 2 elements, got 5",
    ),
    "an input that has not all": (
        lambda: table().reduce_scatter_single([torch.zeros(2)], [torch.zeros(5)], SUM),
        "expected an input of 3 x 2 elements, got 5",
    ),
    "two types in one call": (
        lambda: table().all_gather_single([torch.zeros(6)], [torch.zeros(2).int()]),
        "the output is torch.float32, the input torch.int32",
    ),
    "as many outputs as inputs": (lambda: table().all_gather_single([torch.zeros(6)], []), "1 outputs for 0 inputs"),
    "an own part of another size": (
        lambda: table().reduce_scatter(torch.zeros(3), [torch.zeros(2)] * 3, SUM),
        "the output has 3 elements, the input for it 2",
    ),
    "parts of other sizes at the root": (
        lambda: table().gather([torch.zeros(2), torch.zeros(2), torch.zeros(3)], torch.zeros(2), 1),
        "gather: output 2 has 3 elements; expected 2",
    ),
    "a block per rank": (
        lambda: table().all_to_all([torch.zeros(2)] * 3, [torch.zeros(2)] * 2),
        "input list with one entry per rank, 3, got 2",
    ),
    "rows that cannot be cut": (
        lambda: table().all_to_all_single(torch.zeros(4), torch.zeros(4), [], []),
        "the first dimension has 4 rows",
    ),
    "splits that do not sum": (
        lambda: table().all_to_all_single(torch.zeros(4), torch.zeros(4), [1, 1, 1], [1, 1, 2]),
        r"got \[1, 1, 1\]",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_runs(what):
    make, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_type_that_cannot_be_reduced_can_still_move():
    tensor = torch.zeros(3, dtype=torch.complex64).view(torch.complex64)
    quantized = torch.zeros(2, dtype=torch.float8_e4m3fnuz)
    assert names(table().broadcast([tensor, quantized], 0)) == [("broadcast", 24, "uint8"), ("broadcast", 2, "uint8")]
    with pytest.raises(UnsupportedError, match="float8_e4m3fnuz"):
        table().all_reduce([quantized], SUM)


# ---- torch's names for the operations of collectives/ops.py


def test_every_element_type_has_its_torch_type_of_the_same_size():
    assert set(types.DTYPES.values()) == set(ops.DTYPES)
    for dtype, name in types.DTYPES.items():
        assert dtype.itemsize == ops.DTYPES[name].itemsize


def test_every_operation_has_its_torch_operation():
    assert set(types.OPERATIONS.values()) == set(ops.OPS)
    options = torch.distributed.AllreduceOptions()
    for kind, name in types.OPERATIONS.items():
        if name != "premul_sum":
            options.reduceOp = kind
            assert types.reduction(options.reduceOp) == types.reduction(kind) == (name, None)


@pytest.mark.parametrize("factor", [0.25, torch.tensor([0.25])])
def test_a_scaled_sum_says_its_factor(factor):
    options = torch.distributed.AllreduceOptions()
    options.reduceOp = torch.distributed._make_nccl_premul_sum(factor)
    assert types.reduction(options.reduceOp) == ("premul_sum", 0.25)


def test_what_cannot_be_is_refused():
    with pytest.raises(UnsupportedError, match="complex64; it can int8"):
        types.element_type(torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(UnsupportedError, match="needs its factor"):
        types.reduction(torch.distributed.ReduceOp.PREMUL_SUM)
    with pytest.raises(UnsupportedError, match="no reduction"):
        types.reduction(None)
