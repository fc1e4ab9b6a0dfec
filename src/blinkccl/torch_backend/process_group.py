"""The ``ProcessGroup`` that torch calls; its methods pass their arguments to the table of calls.

The methods have the names and arguments of torch 2.11 to 2.15 (2.13 renamed those on single tensors). A small
all-reduce has a fast path. Tensors of other devices than the CPU, and sparse ones, go to
:mod:`~blinkccl.torch_backend.delegated`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.runtime.deterministic import wish
from blinkccl.runtime.group import Group
from blinkccl.runtime.hosts import NOWHERE, Place
from blinkccl.runtime.probe import measured
from blinkccl.runtime.spanning_group import open_group
from blinkccl.runtime.store import TorchStore
from blinkccl.torch_backend import counters
from blinkccl.torch_backend.call_table import CallTable
from blinkccl.torch_backend.delegated import CPU_ALONE, Capabilities, DelegatedGroup, devices
from blinkccl.torch_backend.eager import eager
from blinkccl.torch_backend.failure import for_torch
from blinkccl.torch_backend.issue import InPlaceBySteps, Issuer, TorchCall
from blinkccl.torch_backend.monitored import MonitoredBarrier
from blinkccl.torch_backend.types import DTYPES
from blinkccl.torch_backend.work import DoneWork

#: From torch 2.14 on, split_group crashes on a group without a known store; before, none may be set.
_WANTS_STORE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)

_SUM = dist.ReduceOp.SUM
_STRIDED = torch.strided
#: A negative timeout in the options of a call means none.
_NO_TIME = timedelta(0)
#: Number of cached sums: small ones spend no time on making them again.
_KEPT_SUMS = 4096
_NO_ORDER = (
    "BLINK_DETERMINISTIC=order needs a dense tensor that blink serves, got one on {}: unset it, or move the tensor"
)


def create(options: Any) -> BlinkProcessGroup:
    """The process group for torch's ``_DistributedBackendOptions``; all its ranks call this.

    DistBackendError if it is meant for CUDA tensors, or if a rank is missing.
    """
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    global_ranks = list(options.global_ranks_in_group)
    try:
        if _is_for(options.store, rank, "cuda"):
            raise UnsupportedError(CPU_ALONE.format("cuda"))
        transport = open_transport(options.store, rank, size, timeout.total_seconds(), global_ranks)
    except BlinkError as error:
        raise for_torch(error) from error
    return BlinkProcessGroup(options.store, rank, size, timeout, transport, global_ranks)


#: The place of the default group, of which other groups have parts.
_default = NOWHERE


def open_transport(store: Any, rank: int, size: int, timeout_s: float, global_ranks: Sequence[int] = ()) -> Group:
    """The ranks of a new group, which meet in torch's ``store``; all call this. RendezvousTimeout names late ranks.

    Ranks of one host share memory; otherwise the group spans hosts. The hosts that the
    group's ranks report decide this. Environment variables of launchers describe the whole job, and a group may be
    distributed over its hosts in another way.
    """
    global _default
    is_default = not dist.is_initialized()
    place = Place.stated(None) if is_default else _default.part(global_ranks)
    group = open_group(TorchStore(store), rank, size, deadline_s=timeout_s, place=place)
    if is_default:
        group = measured(group) if place.measure else group
        _default = group.place
    group.share_core()  # with torch's computing threads
    return group


def _is_for(store: Any, rank: int, device: str) -> bool:
    """True if torch made ``store`` for this device; torch does not state it, but prefixes all keys with it."""
    below = getattr(store, "underlying_store", None)
    if below is None:
        return False
    key = f"blink/device/{rank}"
    store.set(key, "here")
    return any(below.check([f"{device}{slashes}{key}"]) for slashes in ("/", "//"))


@eager
class BlinkProcessGroup(dist.ProcessGroup):
    """A process group over one transport; ``timeout`` is for calls whose options have none."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        transport: Group,
        global_ranks: list[int],
    ) -> None:
        super().__init__(*((store, rank, size) if _WANTS_STORE else (rank, size)))
        self._store = store
        self._timeout_s = timeout.total_seconds()
        self._transport = transport
        self._issuer = Issuer(transport)
        self._table = CallTable(rank, size)
        self._delegated = DelegatedGroup(store, rank, size, timeout, global_ranks)
        self._monitored = MonitoredBarrier(store, rank, size)
        self._serves_cpu = False  # until torch has named the backend for CPU tensors
        self._name = self._description = ""
        self._sums: dict[tuple[str, int], CollectiveCall] = {}
        self._deterministic = wish()
        counters.watch(transport)

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllreduceOptions()
        tensor = _first(tensors)
        if not opts.asyncOp and len(tensors) == 1 and opts.reduceOp == _SUM and self._sum_now(tensor, opts.timeout):
            work = DoneWork()
            work.tensors = tensors
            return work
        if not self._serves_sum(tensor) or tensor.is_sparse:
            return self._other(tensor).allreduce(tensors, opts)
        return self._issue(self._table.all_reduce(tensors, opts.reduceOp), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllreduceCoalescedOptions()
        if not self._serves_sum(_first(tensors)):
            return self._other(tensors[0]).allreduce_coalesced(tensors, opts)
        return self._issue(self._table.all_reduce(tensors, opts.reduceOp), opts)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ReduceOptions()
        if not self._serves_sum(_first(tensors)):
            return self._other(tensors[0]).reduce(tensors, opts)
        return self._issue(self._table.reduce(tensors[0], opts.reduceOp, opts.rootRank), opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.BroadcastOptions()
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).broadcast(tensors, opts)
        return self._issue(self._table.broadcast(tensors, opts.rootRank), opts)

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllgatherOptions()
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).allgather(outputs, tensors, opts)
        return self._issue(self._table.all_gather(outputs[0], tensors[0]), opts)

    def allgather_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllgatherOptions()
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).allgather_coalesced(outputs, tensors, opts)
        return self._issue(self._table.all_gather_coalesced(outputs, tensors), opts)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllgatherOptions()
        if not self._serves(tensor):
            return self._other(tensor).all_gather_single(output, tensor, opts)
        return self._issue(self._table.all_gather_single([output], [tensor]), opts)

    def all_gather_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllgatherOptions()
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).all_gather_single_coalesced(outputs, tensors, opts)
        return self._issue(self._table.all_gather_single(outputs, tensors), opts)

    def reduce_scatter(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ReduceScatterOptions()
        if not self._serves_sum(_first(outputs)):
            return self._other(outputs[0]).reduce_scatter(outputs, tensors, opts)
        return self._issue(self._table.reduce_scatter(outputs[0], tensors[0], opts.reduceOp), opts)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ReduceScatterOptions()
        if not self._serves_sum(output):
            return self._other(output).reduce_scatter_single(output, tensor, opts)
        return self._issue(self._table.reduce_scatter_single([output], [tensor], opts.reduceOp), opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ReduceScatterOptions()
        if not self._serves_sum(_first(outputs)):
            return self._other(outputs[0]).reduce_scatter_single_coalesced(outputs, tensors, opts)
        return self._issue(self._table.reduce_scatter_single(outputs, tensors, opts.reduceOp), opts)

    def gather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.GatherOptions()
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).gather(outputs, tensors, opts)
        targets = outputs[0] if outputs else []
        return self._issue(self._table.gather(targets, tensors[0], opts.rootRank), opts)

    def scatter(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.ScatterOptions()
        if not self._serves(_first(outputs)):
            return self._other(outputs[0]).scatter(outputs, tensors, opts)
        sources = tensors[0] if tensors else []
        return self._issue(self._table.scatter(outputs[0], sources, opts.rootRank), opts)

    def alltoall(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.AllToAllOptions()
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).alltoall(outputs, tensors, opts)
        return self._issue(self._table.all_to_all(outputs, tensors), opts)

    def all_to_all_single(
        self, output: Any, tensor: Any, output_splits: Any = (), input_splits: Any = (), opts: Any = None
    ) -> Any:
        opts = opts or distributed_c10d.AllToAllOptions()
        if not self._serves(tensor):
            return self._other(tensor).all_to_all_single(output, tensor, output_splits, input_splits, opts)
        splits = output_splits, input_splits
        return self._issue(self._table.all_to_all_single(output, tensor, *splits), opts)

    def barrier(self, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.BarrierOptions()
        device = self._barrier_device(opts)
        if not self._serves_on(device.type):
            return self._delegated.group(self, device.type).barrier(opts)
        return self._issue(self._table.barrier(), opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names missing ranks: see :class:`MonitoredBarrier`."""
        self._monitored(timedelta(seconds=self._timeout_s) if timeout is None else timeout, wait_all_ranks)

    # Their other names

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).send(tensors, dst, tag)
        return self._issuer.issue(self._table.send(tensors[0], dst, tag), True, self._timeout_s)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).recv(tensors, src, tag)
        return self._issuer.issue(self._table.receive(tensors[0], src, tag), True, self._timeout_s)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        if not self._serves(_first(tensors)):
            return self._other(tensors[0]).recv_anysource(tensors, tag)
        return self._issuer.issue(self._table.receive(tensors[0], None, tag), True, self._timeout_s)

    # Several calls as one

    def _start_coalescing(self, device: torch.device) -> None:
        if self._serves_on(device.type):
            self._issuer.start_coalescing()
        else:
            self._delegated.group(self, device.type)._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        if self._serves_on(device.type):
            return self._issuer.end_coalescing()
        return self._delegated.group(self, device.type)._end_coalescing(device)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # Properties of the group

    @property
    def _device_types(self) -> list[torch.device]:
        # None while torch makes the group: from 2.14 on it would hang a recorder on our C++ side, which has no backend.
        return [torch.device(device) for device in devices(self)]

    def _get_backend(self, device: torch.device) -> Any:
        served_by = devices(self).get(device.type, "blink")
        return Capabilities() if served_by == "blink" else self._delegated.backend(self, device.type)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls whose options have none."""
        self._timeout_s = timeout.total_seconds()

    def get_group_store(self) -> Any:
        """The group's store; the C++ side has none before torch 2.14."""
        return self._store

    def by_steps(self, call: CollectiveCall, tensor: Tensor) -> InPlaceBySteps | None:
        """A repeatable AllReduce of flat CPU memory without threads; None: the transport has no such call."""
        return self._issuer.by_steps(call, tensor.data_ptr(), self._timeout_s)

    def stats(self) -> dict[str, int]:
        """The counters of this group's transport."""
        return self._transport.stats()

    # Its end

    def shutdown(self) -> None:
        """End the group on this rank; ``destroy_process_group`` calls it."""
        self._issuer.close()
        self._end(self._transport.close)

    def abort(self) -> None:
        """End the group, and make peers that wait for this rank fail at once."""
        self._end(self._transport.abort)
        self._issuer.close()

    def _end(self, how: Callable[[], None]) -> None:
        counters.settle(self._transport)
        self._delegated.shutdown()
        how()

    # Helpers

    def _sum_now(self, tensor: Tensor, timeout: timedelta) -> bool:
        """Fast path: sum at once, in place, without making objects. True if it was possible."""
        dtype, count = DTYPES.get(tensor.dtype), tensor.numel()
        if dtype is None or not count or not tensor.is_cpu:
            return False
        try:
            if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_nested:
                return False
            address = tensor.data_ptr()
        except RuntimeError:  # of another layout, or inside a function transform
            return False
        if not address or (address & 15 and address % tensor.itemsize):
            return False  # a wrapper, or it begins amid an element
        if not self._serves_cpu and not self._serves_on("cpu"):
            return False
        timeout_s = self._timeout_s if timeout < _NO_TIME else timeout.total_seconds()
        call = self._sums.get((dtype, count))
        if call is None:
            if len(self._sums) >= _KEPT_SUMS:
                self._sums.clear()
            call = self._sums[dtype, count] = CollectiveCall("allreduce", dtype, count)
        return self._issuer.run_now(call, address, timeout_s)

    def _serves_sum(self, tensor: Tensor) -> bool:
        """Call :meth:`_serves` for a tensor to reduce; refuse it if the promised order would not be kept."""
        served = self._serves(tensor)
        if self._deterministic and not (served and tensor.layout is _STRIDED):
            raise for_torch(UnsupportedError(_NO_ORDER.format(_kind(tensor))))
        return served

    def _serves(self, tensor: Tensor) -> bool:
        return self._serves_on(_kind(tensor))

    def _serves_on(self, kind: str) -> bool:
        """True if tensors on devices of this kind are ours, by the string with which the group was made."""
        if not self._serves_cpu:
            named = devices(self)
            if not named:  # torch has not registered the group
                return kind == "cpu"
            self._serves_cpu = named.get("cpu") == "blink"
        return kind == "cpu" and self._serves_cpu

    def _issue(self, call: TorchCall, opts: Any) -> Any:
        timeout = opts.timeout
        timeout_s = self._timeout_s if timeout < _NO_TIME else timeout.total_seconds()
        return self._issuer.issue(call, opts.asyncOp, timeout_s)

    def _barrier_device(self, opts: Any) -> torch.device:
        """The group's device that a barrier is for."""
        requested = getattr(opts, "device", None)
        named = devices(self) or {"cpu": "blink"}
        if requested is not None and requested.type in named:
            return requested
        return torch.device("cpu" if "cpu" in named else next(iter(named)))

    def _other(self, tensor: Tensor) -> Any:
        return self._delegated.group(self, _kind(tensor))


def _kind(tensor: Tensor) -> str:
    """The kind of the tensor's device."""
    return "cpu" if tensor.is_cpu else str(tensor.device.type)


def _first(tensors: Any) -> Tensor:
    """The first of a list; torch's methods accept a single tensor too, whose rows must not be mistaken for a list."""
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(
            "backend blink expects a list of tensors and an options object, as torch.distributed passes them"
        )
    first: Tensor = tensors[0]
    return first


def _named_by_torch() -> dict[str, Callable[..., Any]]:
    """Methods that torch's C++ calls by its own names; without them FSDP2 and DeviceMesh have no name of the group."""
    return {
        "getBackendName": lambda group: "blink",
        "getGroupName": lambda group: group._name,
        "setGroupName": lambda group, name: setattr(group, "_name", name),
        "getGroupDesc": lambda group: group._description,
        "setGroupDesc": lambda group, description: setattr(group, "_description", description),
    }


for _name, _method in _named_by_torch().items():
    setattr(BlinkProcessGroup, _name, _method)
