"""The ``ProcessGroup`` that torch calls; its methods pass their arguments to the table of calls.

The methods have the names and arguments of torch 2.11 to 2.15 (2.13 renamed those on single tensors). Sums and
gathers of single tensors on plain memory have a short way. Tensors of other devices than the CPU, and sparse ones, go
to :mod:`~blinkccl.torch_backend.delegated`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
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
from blinkccl.torch_backend.issue import AddressedCall, Issuer, ShortCall, SteppedWork, TorchCall
from blinkccl.torch_backend.monitored import MonitoredBarrier
from blinkccl.torch_backend.plain import address_of
from blinkccl.torch_backend.shown import ShownCalls, watched
from blinkccl.torch_backend.types import DTYPES, OPERATIONS

#: From torch 2.14 on, split_group crashes on a group without a known store; before, none may be set.
_WANTS_STORE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)

_STRIDED = torch.strided
_Calls = Callable[[CallTable], TorchCall]
#: A call on plain memory: its title, the hash of its operation, types and numbers of input and output elements.
_Key = tuple[str, int, torch.dtype, int, torch.dtype, int]
#: A negative timeout in the options of a call means none.
_NO_TIME = timedelta(0)
#: Number of cached calls on plain memory: small ones spend no time on making them again.
_KEPT_SHORT = 256
#: The calls that have a short way, by their names in torch's own backends: collectives, and whether these reduce.
_SHORT = {
    "all_reduce": ("allreduce", True),
    "_allgather_base": ("allgather", False),
    "_reduce_scatter_base": ("reduce_scatter", True),
    "barrier": ("allreduce", True),
}
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
    group.share_core(torch.get_num_threads())
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
        self._short: dict[_Key, ShortCall] = {}
        self._token = torch.zeros(1, dtype=torch.uint8)  # of barriers
        self._shown = ShownCalls(rank, size)
        self._deterministic = wish()
        counters.watch(self._issuer)

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.AllreduceOptions(), _first(tensors)
        if len(tensors) == 1:
            work = self._shortly("all_reduce", hash(opts.reduceOp), first, first, opts)
            if work is not None:
                return work
        if first.is_sparse and self._serves_sum(first):
            return self._other(first).allreduce(tensors, opts)
        return self._sum("allreduce", first, lambda table: table.all_reduce(tensors, opts.reduceOp), opts, tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.AllreduceCoalescedOptions(), _first(tensors)
        calls = partial(CallTable.all_reduce, tensors=tensors, operation=opts.reduceOp)
        return self._sum("allreduce_coalesced", first, calls, opts, tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.ReduceOptions(), _first(tensors)
        return self._sum(
            "reduce", first, lambda table: table.reduce(first, opts.reduceOp, opts.rootRank), opts, tensors
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.BroadcastOptions(), _first(tensors)
        return self._move("broadcast", first, lambda table: table.broadcast(tensors, opts.rootRank), opts, tensors)

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.AllgatherOptions(), _first(tensors)
        return self._move("allgather", first, lambda table: table.all_gather(outputs[0], first), opts, outputs, tensors)

    def allgather_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.AllgatherOptions(), _first(tensors)
        calls = partial(CallTable.all_gather_coalesced, outputs=outputs, tensors=tensors)
        return self._move("allgather_coalesced", first, calls, opts, outputs, tensors)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        return self._gather_singly("all_gather_single", [output], [tensor], opts, output, tensor)

    def all_gather_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        return self._gather_singly("all_gather_single_coalesced", outputs, tensors, opts, outputs, tensors)

    def reduce_scatter(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.ReduceScatterOptions(), _first(outputs)
        calls = partial(CallTable.reduce_scatter, output=first, tensors=tensors[0], operation=opts.reduceOp)
        return self._sum("reduce_scatter", first, calls, opts, outputs, tensors)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        return self._scatter_singly("reduce_scatter_single", [output], [tensor], opts, output, tensor)

    def reduce_scatter_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        return self._scatter_singly("reduce_scatter_single_coalesced", outputs, tensors, opts, outputs, tensors)

    def gather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.GatherOptions(), _first(tensors)
        targets = outputs[0] if outputs else []
        calls = partial(CallTable.gather, outputs=targets, tensor=first, root=opts.rootRank)
        return self._move("gather", first, calls, opts, outputs, tensors)

    def scatter(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.ScatterOptions(), _first(outputs)
        sources = tensors[0] if tensors else []
        calls = partial(CallTable.scatter, output=first, tensors=sources, root=opts.rootRank)
        return self._move("scatter", first, calls, opts, outputs, tensors)

    def alltoall(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        opts, first = opts or distributed_c10d.AllToAllOptions(), _first(tensors)
        return self._move("alltoall", first, lambda table: table.all_to_all(outputs, tensors), opts, outputs, tensors)

    def all_to_all_single(
        self, output: Any, tensor: Any, output_splits: Any = (), input_splits: Any = (), opts: Any = None
    ) -> Any:
        opts, arguments = opts or distributed_c10d.AllToAllOptions(), (output, tensor, output_splits, input_splits)
        return self._move(
            "all_to_all_single", tensor, lambda table: table.all_to_all_single(*arguments), opts, *arguments
        )

    def barrier(self, opts: Any = None) -> Any:
        opts = opts or distributed_c10d.BarrierOptions()
        device = self._barrier_device(opts)
        if not self._serves_on(device.type):
            return self._delegated.group(self, device.type).barrier(opts)
        work = self._shortly("barrier", 0, self._token, self._token, opts)
        return self._issue(self._table.barrier(self._token), opts, "barrier") if work is None else work

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
        first = _first(tensors)
        return self._move("send", first, lambda table: table.send(first, dst, tag), None, tensors, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        first = _first(tensors)
        return self._move("recv", first, lambda table: table.receive(first, src, tag), None, tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        first = _first(tensors)
        return self._move("recv_anysource", first, lambda table: table.receive(first, None, tag), None, tensors, tag)

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

    def start_in_place(self, call: CollectiveCall, tensor: Tensor) -> SteppedWork | None:
        """Begin an AllReduce of flat CPU memory, which continues where it is awaited; None: impossible now."""
        address = tensor.data_ptr()
        made = TorchCall("all_reduce", [tensor], self._table.memory(), [AddressedCall(call, address, address)])
        return self._issuer.start(made, self._timeout_s)

    def stats(self) -> dict[str, int]:
        """The counters of this group: :meth:`Issuer.stats`."""
        return self._issuer.stats()

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
        counters.settle(self._issuer)
        self._delegated.shutdown()
        self._short.clear()
        how()

    # Helpers

    def _shortly(self, title: str, operation: int, source: Tensor, target: Tensor, opts: Any) -> Any:
        """The short way, with few objects, for tensors on plain memory; None: the call has to go the long way."""
        if watched():
            return None
        key = title, operation, source.dtype, source.numel(), target.dtype, target.numel()
        short = self._short.get(key) or self._keep_short(key, source, opts)
        send = address_of(source)
        recv = send if target is source else address_of(target)
        if short is None or not send or not recv or not source.is_cpu or not target.is_cpu:
            return None
        timeout = opts.timeout
        timeout_s = self._timeout_s if timeout < _NO_TIME else timeout.total_seconds()
        return self._issuer.shortly(short, send, recv, (target, source), opts.asyncOp, timeout_s)

    def _keep_short(self, key: _Key, source: Tensor, opts: Any) -> ShortCall | None:
        """A new call for :meth:`_shortly`; None if it has elements or an operation for which there is no short way."""
        title, _, dtype, elements, output_dtype, output_elements = key
        collective, reduces = _SHORT[title]
        whole, part = (elements, output_elements) if reduces else (output_elements, elements)
        size = 1 if collective == "allreduce" else self._table.size
        name = DTYPES.get(dtype) if reduces else "uint8"
        operation = OPERATIONS.get(opts.reduceOp.op) if reduces and title != "barrier" else "sum"
        if dtype is not output_dtype or whole != part * size or not part or name is None:
            return None
        if operation in (None, "premul_sum") or not self._serves_on("cpu"):
            return None
        try:
            call = CollectiveCall(collective, name, part if reduces else source.nbytes, operation)
            short = self._issuer.short(title, call)
        except BlinkError:  # the long way raises it
            return None
        if len(self._short) >= _KEPT_SHORT:
            self._short.clear()
        self._short[key] = short
        return short

    def _gather_singly(self, name: str, outputs: Any, tensors: Any, opts: Any, *arguments: Any) -> Any:
        opts, first = opts or distributed_c10d.AllgatherOptions(), _first(tensors)
        if len(outputs) == len(tensors) == 1:
            work = self._shortly("_allgather_base", 0, first, outputs[0], opts)
            if work is not None:
                return work
        return self._move(name, first, lambda table: table.all_gather_single(outputs, tensors), opts, *arguments)

    def _scatter_singly(self, name: str, outputs: Any, tensors: Any, opts: Any, *arguments: Any) -> Any:
        opts, first = opts or distributed_c10d.ReduceScatterOptions(), _first(outputs)
        if len(outputs) == len(tensors) == 1:
            work = self._shortly("_reduce_scatter_base", hash(opts.reduceOp), tensors[0], first, opts)
            if work is not None:
                return work
        calls = partial(CallTable.reduce_scatter_single, outputs=outputs, tensors=tensors, operation=opts.reduceOp)
        return self._sum(name, first, calls, opts, *arguments)

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

    def _sum(self, name: str, first: Tensor, call: _Calls, opts: Any, *arguments: Any) -> Any:
        """:meth:`_move` for a reduction."""
        if not self._serves_sum(first):
            return getattr(self._other(first), name)(*arguments, opts)
        return self._issue(call(self._table), opts, name, *arguments)

    def _move(self, name: str, first: Tensor, call: _Calls, opts: Any, *arguments: Any) -> Any:
        """Issue ``call`` of the method ``name``, or let the backend for its ``first`` tensor serve it.

        Messages have no options: None for ``opts``.
        """
        if not self._serves(first):
            return getattr(self._other(first), name)(*arguments, *(() if opts is None else (opts,)))
        return self._issue(call(self._table), opts, name, *arguments)

    def _issue(self, call: TorchCall, opts: Any, name: str, *arguments: Any) -> Any:
        timeout_s, asynchronous = self._timeout_s, True
        if opts is not None:
            asynchronous, arguments = opts.asyncOp, (*arguments, opts)
            if opts.timeout >= _NO_TIME:
                timeout_s = opts.timeout.total_seconds()
        if not watched():
            return self._issuer.issue(call, asynchronous, timeout_s)
        with self._shown.call(name, arguments, call.shown):
            return self._issuer.issue(call, asynchronous, timeout_s)

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


#: Members that torch's C++ calls by its own names; without them FSDP2 and DeviceMesh have no name of the group.
_NAMED_BY_TORCH: dict[str, Any] = {
    "getBackendName": lambda group: "blink",
    "getGroupName": lambda group: group._name,
    "setGroupName": lambda group, name: setattr(group, "_name", name),
    "group_name": property(attrgetter("_name")),  # as functional collectives read it, without C++
    "getGroupDesc": lambda group: group._description,
    "setGroupDesc": lambda group, description: setattr(group, "_description", description),
}
for _name, _member in _NAMED_BY_TORCH.items():
    setattr(BlinkProcessGroup, _name, _member)
