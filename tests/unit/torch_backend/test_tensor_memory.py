"""Tensors as flat memory: used in place if possible, else through scratch memory."""

import ctypes
from importlib import import_module
from typing import Any

import pytest

from blinkccl.errors import UnsupportedError
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
memory = import_module("blinkccl.torch_backend.memory")


def floats_at(address: int, count: int) -> list[float]:
    return list((ctypes.c_float * count).from_address(address))


def write(address: int, values: list[float]) -> None:
    (ctypes.c_float * len(values)).from_address(address)[:] = values


@pytest.fixture
def scratch():
    return memory.Scratch()


def test_a_contiguous_tensor_is_used_as_it_lies(scratch):
    tensor = torch.arange(6.0)
    used = memory.Memory(scratch)
    assert used.reads(tensor) == used.writes(tensor) == used.updates(tensor) == tensor.data_ptr()
    assert used.reads(tensor[2:5]) == tensor.data_ptr() + 8


def test_a_tensor_in_pieces_is_read_in_the_order_of_its_elements(scratch):
    tensor = torch.arange(6.0).view(2, 3).t()
    assert floats_at(memory.Memory(scratch).reads(tensor), 6) == [0, 3, 1, 4, 2, 5]


def test_a_tensor_in_pieces_is_written_on_success_alone(scratch):
    tensor = torch.zeros(2, 3).t()
    for succeeded in (False, True):
        used = memory.Memory(scratch)
        write(used.writes(tensor), [0, 1, 2, 3, 4, 5])
        assert not tensor.any()
        used.finish(succeeded)
    assert tensor.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_an_update_begins_with_what_is_there(scratch):
    tensor = torch.arange(6.0).view(2, 3).t()
    used = memory.Memory(scratch)
    address = used.updates(tensor)
    assert floats_at(address, 6) == [0, 3, 1, 4, 2, 5]
    write(address, [10, 13, 11, 14, 12, 15])
    used.finish(True)
    assert tensor.t().flatten().tolist() == [10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_the_chunks_of_one_tensor_are_one_piece(scratch, parts):
    whole = torch.arange(30.0)
    used = memory.Memory(scratch)
    assert used.reads_all(whole.chunk(parts)) == used.writes_all(whole.chunk(parts)) == whole.data_ptr()


def test_tensors_that_do_not_follow_each_other_are_joined(scratch):
    whole = torch.arange(6.0)
    backwards = list(whole.chunk(3))[::-1]
    assert floats_at(memory.Memory(scratch).reads_all(backwards), 6) == [4, 5, 2, 3, 0, 1]
    apart = [torch.zeros(2), torch.zeros(2, 2).t(), torch.zeros(0)]
    used = memory.Memory(scratch)
    write(used.writes_all(apart), [1, 2, 3, 4, 5, 6])
    used.finish(True)
    assert [tensor.flatten().tolist() for tensor in apart] == [[1, 2], [3, 4, 5, 6], []]


def test_scratch_memory_is_used_again_after_success_only(scratch):
    first = scratch.take(10_000)
    scratch.give([first])
    assert scratch.take(9_000).data_ptr() == first.data_ptr()
    scratch.give([first])
    failed = memory.Memory(scratch)
    address = failed.reads(torch.zeros(100, 20).t())
    assert address == first.data_ptr()
    failed.finish(False)  # a late peer may still write there
    assert scratch.take(8_000).data_ptr() != first.data_ptr()


def test_scratch_memory_is_limited():
    scratch = memory.Scratch(keep_bytes=100_000)
    small, large = scratch.take(50_000), scratch.take(80_000)
    scratch.give([small, large])
    assert scratch.take(1).data_ptr() == large.data_ptr()
    assert scratch.take(1).data_ptr() not in (small.data_ptr(), large.data_ptr())


def fake(none: Any) -> Any:
    mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)
    return mode.from_tensor(none)


#: Tensors without elements whose memory is not their own, or is on a device that blink does not serve.
WITHOUT_ELEMENTS = {
    "FakeTensor": fake,
    "TwoTensor": lambda none: import_module("torch.testing._internal.two_tensor").TwoTensor(none, none),
    "sparse": lambda none: none.to_sparse(),
    "mkldnn": lambda none: none.to_mkldnn(),
    "on meta": lambda none: none.to("meta"),
    "nested": lambda none: torch.nested.nested_tensor([none]),
    "NestedTensor": lambda none: torch.nested.nested_tensor([none], layout=torch.jagged),
}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", WITHOUT_ELEMENTS)
def test_what_has_no_memory_of_its_own_is_refused_without_elements_too(scratch, kind):
    tensor = WITHOUT_ELEMENTS[kind](torch.zeros(0))
    used = memory.Memory(scratch)
    for use in (used.reads, used.writes, used.updates):
        with pytest.raises(UnsupportedError, match=kind):
            use(tensor)


@pytest.mark.parametrize("make", [lambda none: none, torch.nn.Parameter, lambda none: none.view(2, 0).t()])
def test_no_elements_take_no_scratch_and_no_copy(scratch, monkeypatch, make):
    def taken(*_):
        raise AssertionError("it is for nothing")

    monkeypatch.setattr(scratch, "take", taken)
    monkeypatch.setattr(memory, "copy", taken)
    used = memory.Memory(scratch)
    tensor = make(torch.zeros(0))
    assert used.reads(tensor) == used.writes(tensor) == used.updates(tensor) == used.reads_all([tensor, tensor]) == 0
    used.finish(True)


@pytest.mark.parametrize("with_bit", [torch._neg_view, torch.conj])
def test_bits_are_seen_wherever_they_are_in_a_list(scratch, with_bit):
    whole = torch.arange(8.0).to(torch.complex64)
    later = with_bit(whole[4:])
    for tensors in ([later], [whole[:4], later], [later[:2], later[2:]]):
        assert tensors[-1].is_contiguous()
        assert memory.Memory(scratch).reads_all(tensors) not in (whole.data_ptr(), later.data_ptr())
