"""What torch calls: a ``ProcessGroup`` whose methods hand their arguments to the table of requests.

The methods have the names of all torch versions from 2.11 to 2.15 (2.13 renamed those on single tensors), and take
what torch's own take. A small all-reduce has a short way of its own. Tensors that are not on the CPU, and sparse
ones, go to :mod:`~blinkccl.torch_backend.elsewhere`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from blinkccl.errors import BlinkError
from blinkccl.torch_backend import counters
from blinkccl.torch_backend.elsewhere import Capabilities, Elsewhere, devices
from blinkccl.torch_backend.failure import for_torch
from blinkccl.torch_backend.issue import Issuer, Request
from blinkccl.torch_backend.monitored import MonitoredBarrier
from blinkccl.torch_backend.requests import Requests
from blinkccl.torch_backend.transport import Transport, open_transport
from blinkccl.torch_backend.types import DTYPES
from blinkccl.torch_backend.work import DoneWork

#: From torch 2.14 on split_group crashes on a group that does not know its store; before, none may be given.
_WANTS_STORE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)

_SUM = dist.ReduceOp.SUM
_STRIDED = torch.strided
#: Options of a call say "none" by a negative timeout.
_NO_TIME = timedelta(0)


def create(options: Any) -> BlinkProcessGroup:
    """The process group for torch's ``_DistributedBackendOptions``; all its ranks call this.

    Raises
    ------
    DistBackendError
        If a rank does not come, or they cannot share memory.
    """
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    global_ranks = list(options.global_ranks_in_group)
    try:
        transport = open_transport(options.store, rank, size, global_ranks, timeout.total_seconds())
    except BlinkError as error:
        raise for_torch(error) from error
    return BlinkProcessGroup(options.store, rank, size, timeout, transport, global_ranks)


class BlinkProcessGroup(dist.ProcessGroup):
    """A process group over one transport.

    Parameters
    ----------
    store
        torch's store, of this group alone.
    rank, size
        This rank in the group, and how many there are.
    timeout
        For calls whose options have none.
    transport
        Who moves the bytes.
    global_ranks
        The group's ranks in the world; empty for the world itself.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        transport: Transport,
        global_ranks: list[int],
    ) -> None:
        super().__init__(*((store, rank, size) if _WANTS_STORE else (rank, size)))
        self._store = store
        self._timeout_s = timeout.total_seconds()
        self._transport = transport
        self._issuer = Issuer(transport)
        self._requests = Requests(rank, size)
        self._elsewhere = Elsewhere(store, rank, size, timeout, global_ranks)
        self._monitored = MonitoredBarrier(store, rank, size)
        self._name = self._description = ""
        counters.watch(transport)

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllreduceOptions()
        tensor = _first(tensors)
        if not opts.asyncOp and len(tensors) == 1 and opts.reduceOp == _SUM and self._sum_now(tensor, opts.timeout):
            work = DoneWork()
            work.tensors = tensors
            return work
        if tensor.layout is not _STRIDED or not tensor.is_cpu:
            return self._other(tensor).allreduce(tensors, opts)
        return self._issue(self._requests.all_reduce(tensors, opts.reduceOp), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllreduceCoalescedOptions()
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).allreduce_coalesced(tensors, opts)
        return self._issue(self._requests.all_reduce(tensors, opts.reduceOp), opts)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ReduceOptions()
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).reduce(tensors, opts)
        return self._issue(self._requests.reduce(tensors[0], opts.reduceOp, opts.rootRank), opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.BroadcastOptions()
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).broadcast(tensors, opts)
        return self._issue(self._requests.broadcast(tensors, opts.rootRank), opts)

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllgatherOptions()
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).allgather(outputs, tensors, opts)
        return self._issue(self._requests.all_gather(outputs[0], tensors[0]), opts)

    def allgather_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllgatherOptions()
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).allgather_coalesced(outputs, tensors, opts)
        return self._issue(self._requests.all_gather_coalesced(outputs, tensors), opts)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllgatherOptions()
        if not tensor.is_cpu:
            return self._other(tensor).all_gather_single(output, tensor, opts)
        return self._issue(self._requests.all_gather_single([output], [tensor]), opts)

    def all_gather_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllgatherOptions()
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).all_gather_single_coalesced(outputs, tensors, opts)
        return self._issue(self._requests.all_gather_single(outputs, tensors), opts)

    def reduce_scatter(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ReduceScatterOptions()
        if not _first(outputs).is_cpu:
            return self._other(outputs[0]).reduce_scatter(outputs, tensors, opts)
        return self._issue(self._requests.reduce_scatter(outputs[0], tensors[0], opts.reduceOp), opts)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ReduceScatterOptions()
        if not output.is_cpu:
            return self._other(output).reduce_scatter_single(output, tensor, opts)
        return self._issue(self._requests.reduce_scatter_single([output], [tensor], opts.reduceOp), opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ReduceScatterOptions()
        if not _first(outputs).is_cpu:
            return self._other(outputs[0]).reduce_scatter_single_coalesced(outputs, tensors, opts)
        return self._issue(self._requests.reduce_scatter_single(outputs, tensors, opts.reduceOp), opts)

    def gather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.GatherOptions()
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).gather(outputs, tensors, opts)
        return self._issue(self._requests.gather(outputs[0] if outputs else [], tensors[0], opts.rootRank), opts)

    def scatter(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ScatterOptions()
        if not _first(outputs).is_cpu:
            return self._other(outputs[0]).scatter(outputs, tensors, opts)
        return self._issue(self._requests.scatter(outputs[0], tensors[0] if tensors else [], opts.rootRank), opts)

    def alltoall(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllToAllOptions()
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).alltoall(outputs, tensors, opts)
        return self._issue(self._requests.all_to_all(outputs, tensors), opts)

    def all_to_all_single(
        self, output: Any, tensor: Any, output_splits: Any = (), input_splits: Any = (), opts: Any = None
    ) -> Any:
        opts = opts or distributed_c10d.AllToAllOptions()
        if not tensor.is_cpu:
            return self._other(tensor).all_to_all_single(output, tensor, output_splits, input_splits, opts)
        return self._issue(self._requests.all_to_all_single(output, tensor, output_splits, input_splits), opts)

    def barrier(self, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.BarrierOptions()
        device = getattr(opts, "device", None)
        if device is not None and device.type != "cpu" and devices(self).get(device.type, "blink") != "blink":
            return self._elsewhere.group(self, device.type).barrier(opts)
        return self._issue(self._requests.barrier(), opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that do not come: see :class:`MonitoredBarrier`."""
        self._monitored(timedelta(seconds=self._timeout_s) if timeout is None else timeout, wait_all_ranks)

    # Their other names

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).send(tensors, dst, tag)
        return self._issuer.issue(self._requests.send(tensors[0], dst, tag), True, self._timeout_s)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).recv(tensors, src, tag)
        return self._issuer.issue(self._requests.receive(tensors[0], src, tag), True, self._timeout_s)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        if not _first(tensors).is_cpu:
            return self._other(tensors[0]).recv_anysource(tensors, tag)
        return self._issuer.issue(self._requests.receive(tensors[0], None, tag), True, self._timeout_s)

    # Several calls as one

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type == "cpu":
            self._issuer.start_coalescing()
        else:
            self._elsewhere.group(self, device.type)._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        if device.type == "cpu":
            return self._issuer.end_coalescing()
        return self._elsewhere.group(self, device.type)._end_coalescing(device)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # What the group is

    @property
    def _device_types(self) -> list[torch.device]:
        # None while torch makes the group: from 2.14 on it would hang a recorder on our C++ side, which has no backend.
        return [torch.device(device) for device in devices(self)]

    def _get_backend(self, device: torch.device) -> Any:
        served_by = devices(self).get(device.type, "blink")
        return Capabilities() if served_by == "blink" else self._elsewhere.backend(self, device.type)

    def set_timeout(self, timeout: timedelta) -> None:
        """For calls from now on whose options have none."""
        self._timeout_s = timeout.total_seconds()

    def get_group_store(self) -> Any:
        """The group's store; the C++ side has none before torch 2.14."""
        return self._store

    def stats(self) -> dict[str, int]:
        """The counters of this group's transport."""
        return dict(self._transport.stats())

    # Its end

    def shutdown(self) -> None:
        """Ends the group on this rank; ``destroy_process_group`` calls it."""
        self._issuer.close()
        self._end(self._transport.close)

    def abort(self) -> None:
        """Ends the group, and lets peers that wait for this rank fail at once."""
        self._end(self._transport.abort)
        self._issuer.close()

    def _end(self, how: Callable[[], None]) -> None:
        counters.settle(self._transport)
        self._elsewhere.shutdown()
        how()

    # Helpers

    def _sum_now(self, tensor: Tensor, timeout: timedelta) -> bool:
        """The short way: whether the sum could be made at once, in place; no objects of ours are made."""
        dtype, count = DTYPES.get(tensor.dtype), tensor.numel()
        if dtype is None or not count or not tensor.is_cpu or tensor.layout is not _STRIDED:
            return False
        if not tensor.is_contiguous():
            return False
        address = tensor.data_ptr()
        timeout_s = self._timeout_s if timeout < _NO_TIME else timeout.total_seconds()
        return self._issuer.sum_now(address, count, dtype, timeout_s)

    def _issue(self, request: Request, opts: Any) -> Any:
        timeout = opts.timeout
        timeout_s = self._timeout_s if timeout < _NO_TIME else timeout.total_seconds()
        return self._issuer.issue(request, opts.asyncOp, timeout_s)

    def _other(self, tensor: Tensor) -> Any:
        return self._elsewhere.group(self, tensor.device.type)


def _first(tensors: Any) -> Tensor:
    """The first of a list; torch's methods take a single tensor too, whose rows must not pass for a list."""
    if not isinstance(tensors, (list, tuple)):
        raise TypeError("backend blink takes a list of tensors and an options object, as torch.distributed passes them")
    first: Tensor = tensors[0]
    return first


def _named_by_torch() -> dict[str, Callable[..., Any]]:
    """What torch's C++ asks a group in Python, by its own names. Without them FSDP2 and DeviceMesh find no name."""
    return {
        "getBackendName": lambda group: "blink",
        "getGroupName": lambda group: group._name,
        "setGroupName": lambda group, name: setattr(group, "_name", name),
        "getGroupDesc": lambda group: group._description,
        "setGroupDesc": lambda group, description: setattr(group, "_description", description),
    }


for _name, _method in _named_by_torch().items():
    setattr(BlinkProcessGroup, _name, _method)
