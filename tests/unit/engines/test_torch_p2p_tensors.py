"""Which tensors a rank may pass, and what is said of others."""

from __future__ import annotations

from importlib import import_module

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError, UsageError

torch = pytest.importorskip("torch", reason="needs PyTorch")

bound_tensors = import_module("blinkccl.engines.torch_p2p_tensors").bound_tensors
CPU = torch.device("cpu")
ALLREDUCE, GATHERED = Collective("allreduce", 4), Collective("allgather", 4)


def test_contiguous_tensors_are_seen_as_they_are() -> None:
    given = torch.arange(12.0).reshape(3, 4)
    seen = bound_tensors(ALLREDUCE, 0, given, given, 12, None, CPU)
    assert seen.input is not None
    assert seen.output is not None
    assert seen.input.data_ptr() == seen.output.data_ptr() == given.data_ptr()
    assert seen.input.shape == (12,)


def test_other_layouts_are_copied_and_the_result_is_put_back() -> None:
    given = torch.arange(12.0).reshape(3, 4)
    turned = given.t()
    seen = bound_tensors(ALLREDUCE, 0, turned, turned, 12, None, CPU)
    assert seen.input is not None
    assert seen.output is not None
    assert torch.equal(seen.input, turned.flatten())
    seen.output.copy_(-seen.input)
    seen.store()
    assert torch.equal(given, -torch.arange(12.0).reshape(3, 4))


def test_in_place_as_in_nccl() -> None:
    whole = torch.zeros(40)
    bound_tensors(GATHERED, 2, whole[20:30], whole, 10, None, CPU)
    bound_tensors(Collective("reduce_scatter", 4), 2, whole, whole[20:30], 10, None, CPU)
    bound_tensors(Collective("gather", 4, root=1), 1, whole[10:20], whole, 10, None, CPU)


def test_a_rank_that_only_passes_on_names_the_type() -> None:
    relayed = Collective("sendrecv", 3, src=0, dst=2)
    assert bound_tensors(relayed, 1, None, None, 10, torch.bool, CPU).dtype == torch.bool
    with pytest.raises(UsageError, match="rank 1 has neither input nor output: give the dtype"):
        bound_tensors(relayed, 1, None, None, 10, None, CPU)


@pytest.mark.parametrize(
    ("given", "output", "message"),
    [
        (None, torch.zeros(40), r"rank 2's input: expected 1 block\(s\), got none"),
        (torch.zeros(9), torch.zeros(40), r"input has 9 elements, expected 1 block\(s\) of 10"),
        (torch.zeros(10), torch.zeros(41), r"output has 41 elements, expected 4 block\(s\) of 10"),
        (torch.zeros(10), torch.zeros(40, dtype=torch.int32), "torch.float32, torch.int32; give one type"),
        (torch.zeros(10, device="meta"), torch.zeros(40), "input is on meta, expected cpu"),
    ],
)
def test_what_does_not_fit(given: torch.Tensor | None, output: torch.Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bound_tensors(GATHERED, 2, given, output, 10, None, CPU)


def test_what_is_superfluous() -> None:
    with pytest.raises(UsageError, match="rank 1's input: expected none, got one"):
        bound_tensors(Collective("broadcast", 4, root=0), 1, torch.zeros(10), torch.zeros(10), 10, None, CPU)


@pytest.mark.parametrize("shift", [-1, 1, 5])
def test_other_overlaps_are_refused(shift: int) -> None:
    memory = torch.zeros(40)
    with pytest.raises(UsageError, match="overlap, but not as in place"):
        bound_tensors(ALLREDUCE, 0, memory[10:20], memory[10 + shift : 20 + shift], 10, None, CPU)
    with pytest.raises(UsageError, match="overlap, but not as in place"):
        bound_tensors(GATHERED, 2, memory[20 + shift : 30 + shift], memory, 10, None, CPU)


def test_alltoall_runs_out_of_place_only() -> None:
    memory = torch.zeros(40)
    with pytest.raises(UnsupportedError, match="out of place only"):
        bound_tensors(Collective("alltoall", 4), 0, memory, memory, 10, None, CPU)


def test_sparse_and_complex_tensors_are_refused() -> None:
    for given, kind in ((torch.zeros(10).to_sparse(), "sparse"), (torch.zeros(10, dtype=torch.complex64), "complex")):
        with pytest.raises(UnsupportedError, match=kind):
            bound_tensors(ALLREDUCE, 0, given, given, 10, None, CPU)
