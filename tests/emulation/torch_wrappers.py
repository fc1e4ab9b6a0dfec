"""Programs on tensors without plain data at their address: torch's wrappers, negative and conjugate bits."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch_calls import gather_into, reduce_into
from torch_common import raises, same

from blinkccl.errors import CommunicationError, DeadlineError, UnsupportedError

Make = Callable[[float], Tensor]


def filled(value: float) -> Tensor:
    return torch.full((4,), value)


def on_a_mesh(value: float) -> Tensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return DTensor.from_local(filled(value), mesh, [Replicate()], run_check=False)


#: Wrappers that are waited for, or have memory of their own.
SERVED: dict[str, Make] = {
    "AsyncCollectiveTensor": lambda value: AsyncCollectiveTensor(filled(value)),
    "of one another": lambda value: AsyncCollectiveTensor(AsyncCollectiveTensor(filled(value))),
    "Parameter": lambda value: nn.Parameter(filled(value), requires_grad=False),
    "amid an element": lambda value: torch.frombuffer(bytearray(17), dtype=torch.float32, offset=1).fill_(value),
}
REFUSED: dict[str, Make] = {
    "FakeTensor": lambda value: FakeTensorMode(allow_non_fake_inputs=True).from_tensor(filled(value)),
    "DTensor": on_a_mesh,
    "TwoTensor": lambda value: TwoTensor(filled(value), filled(value)),
    "LoggingTensor": lambda value: LoggingTensor(filled(value)),
    "MaskedTensor": lambda value: torch.masked.masked_tensor(filled(value), torch.ones(4, dtype=torch.bool)),
    "NestedTensor": lambda value: torch.nested.nested_tensor([filled(value)], layout=torch.jagged),
    "nested tensor": lambda value: torch.nested.nested_tensor([filled(value)]),
    "layout torch._mkldnn": lambda value: filled(value).to_mkldnn(),
}

# ---- every collective on such tensors; returns the written data


def reduced(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    summed, most, later = make(rank + 1.0), make(rank + 1.0), make(rank + 1.0)
    dist.all_reduce(summed, group=group)
    dist.all_reduce(most, dist.ReduceOp.MAX, group)
    dist.all_reduce(later, group=group, async_op=True).wait()
    return [summed, most, later]


def to_a_root(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    tensor = make(rank + 1.0)
    dist.reduce(tensor, 0, group=group)
    return [tensor] if rank == 0 else []


def from_a_root(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    tensor = make(rank + 1.0)
    dist.broadcast(tensor, 0, group)
    return [tensor]


def gathered(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    outputs, mixed = [make(0.0) for _ in range(size)], [filled(0.0) for _ in range(size)]
    dist.all_gather(outputs, make(rank + 1.0), group)
    dist.all_gather(mixed, make(rank + 1.0), group)
    return outputs + mixed


def gathered_whole(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    whole = torch.zeros(4 * size)
    gather_into(whole, make(rank + 1.0), group=group)
    return [whole]


def gathered_at_a_root(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    outputs = [filled(0.0) for _ in range(size)] if rank == 0 else []
    dist.gather(make(rank + 1.0), outputs or None, 0, group)
    return outputs


def scattered(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    output = make(0.0)
    dist.scatter(output, [make(peer + 5.0) for peer in range(size)] if rank == 0 else None, 0, group)
    return [output]


def scattered_sum(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    output = make(0.0)
    dist.reduce_scatter(output, [make(peer + rank + 1.0) for peer in range(size)], group=group)
    return [output]


def scattered_sum_whole(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    output = torch.zeros(4 // size)
    reduce_into(output, make(rank + 1.0), group=group)
    return [output]


def exchanged(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    outputs = [make(0.0) for _ in range(size)]
    dist.all_to_all(outputs, [make(10.0 * rank + peer) for peer in range(size)], group)
    return outputs


def exchanged_whole(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    output, into = torch.zeros(4), make(0.0)
    dist.all_to_all_single(output, make(rank + 1.0), group=group)
    dist.all_to_all_single(into, filled(rank + 1.0), group=group)
    return [output, into]


def sent(make: Make, rank: int, size: int, group: Any) -> list[Tensor]:
    tensor = make(rank + 1.0)
    if rank == 0:
        dist.send(tensor, 1, group)
    elif rank == 1:
        dist.recv(tensor, 0, group)
    return [tensor]


EVERY = (
    *(reduced, to_a_root, from_a_root, gathered, gathered_whole, gathered_at_a_root, scattered, scattered_sum),
    *(scattered_sum_whole, exchanged, exchanged_whole, sent),
)


def wrappers(rank: int, size: int) -> None:
    """Every wrapper class of torch through every collective: gloo's results, or a rejection, and a usable group."""
    gloo = dist.new_group(backend="gloo")
    for name, make in SERVED.items():
        for collective in EVERY:
            expected = collective(filled, rank, size, gloo)
            for got, wanted in zip(collective(make, rank, size, None), expected, strict=True):
                assert (got + 0).tolist() == wanted.tolist(), (name, collective.__name__, got, wanted)
    for name, make in REFUSED.items():
        for collective in EVERY:
            refused(name, collective, make, rank, size)
    own = torch.ones(3)
    dist.all_reduce(own)
    same(own, torch.full((3,), float(size)))


def refused(name: str, collective: Callable[..., Any], make: Make, rank: int, size: int) -> None:
    with raises(UnsupportedError, name):
        collective(make, rank, size, None)


def zeros_without_memory(rank: int, size: int) -> None:
    """They can be sent, but not written to, which all ranks report."""
    for collective in (reduced, to_a_root, from_a_root, gathered, scattered, exchanged):
        refused("ZeroTensor", collective, lambda _: torch._efficientzerotensor(4), rank, size)
    outputs = [filled(7.0) for _ in range(size)]
    dist.all_gather(outputs, torch._efficientzerotensor(4) if rank else filled(3.0))
    assert [float(output.sum()) for output in outputs] == [12.0] + [0.0] * (size - 1)


def transformed(rank: int, size: int) -> None:
    """Arguments of functions under vmap and grad are rejected too."""

    def summed(tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor.sum()

    for transform in (torch.vmap(summed), torch.func.grad(summed)):
        with raises(UnsupportedError, "function transform"):
            transform(torch.ones(2, 3))
    own = torch.ones(3)
    dist.all_reduce(own)
    same(own, torch.full((3,), float(size)))


def negative_bits(rank: int, size: int) -> None:
    """A view with a negative bit is read by value and written through, of each shape, by every collective."""
    gloo = dist.new_group(backend="gloo")

    def negative(value: float) -> Tensor:
        tensor = torch.complex(torch.zeros(4), torch.full((4,), -value)).conj().imag
        assert tensor.is_neg()
        return tensor

    for collective in EVERY:
        expected = collective(filled, rank, size, gloo)
        for got, wanted in zip(collective(negative, rank, size, None), expected, strict=True):
            assert got.tolist() == wanted.tolist(), (collective.__name__, got, wanted)
    for shape in ((), (1,), (1, 1)):  # such a view is contiguous
        whole = torch.full(shape, 3 + (4 + rank) * 1j)
        view = whole.conj().imag
        assert view.is_neg()
        assert view.is_contiguous()
        outputs = [torch.zeros(shape) for _ in range(size)]
        dist.all_gather(outputs, view)
        assert [float(output) for output in outputs] == [-4.0 - peer for peer in range(size)]
        dist.all_reduce(view, dist.ReduceOp.MAX)
        assert (float(view), complex(whole)) == (-4.0, 3 + 4j)
        dist.broadcast(view, size - 1)
        assert (float(view), complex(whole)) == (-4.0, 3 + 4j)
        dist.all_gather([whole.conj().imag if peer == rank else torch.zeros(shape) for peer in range(size)], -view)
        assert complex(whole) == 3 - 4j


def conjugate_bits(rank: int, size: int) -> None:
    """The same with conjugates, as functional collectives pass them; torch's plain calls reject them."""
    group: Any = dist.distributed_c10d._get_default_group()
    numbers = torch.full((3,), rank + 1 + (rank + 2) * 1j)
    with_bit = numbers.conj()
    assert with_bit.is_conj()
    root = dist.distributed_c10d.BroadcastOptions()
    root.rootRank = 1
    group.broadcast([with_bit], root).wait()
    assert with_bit.tolist() == [2 - 3j] * 3
    assert numbers.tolist() == [2 + 3j] * 3
    received = torch.zeros(3 * size, dtype=torch.complex64)
    group.all_gather_single(received, (numbers * (rank + 1)).conj()).wait()
    assert received.tolist() == [(peer + 1) * (2 - 3j) for peer in range(size) for _ in range(3)]
    group.allreduce([with_bit]).wait()
    assert numbers.tolist() == [size * (2 + 3j)] * 3


def later_calls_name_the_first_failure(rank: int, size: int) -> None:
    """A group that has ended reports the failed call and its cause, not a wait of the current call."""
    dist.all_reduce(torch.ones(3))
    group = dist.new_group(backend="blink", timeout=timedelta(seconds=1))
    tensor = torch.ones(7)
    if rank == 0:
        with raises(DeadlineError, "all_reduce: Timed out - call 1 "):
            dist.all_reduce(tensor, group=group)
        for call in (lambda: dist.broadcast(tensor, 0, group), lambda: dist.barrier(group)):
            with raises(
                CommunicationError, ": the group had ended already: call 1 (allreduce of 7 × float32, sum)"
            ) as late:
                call()
            assert not isinstance(late.value, DeadlineError)
    dist.barrier()
