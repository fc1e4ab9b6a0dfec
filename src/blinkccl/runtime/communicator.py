"""The user's communicator: a group of ranks, with collectives on arrays.

Arrays are NumPy's, or objects with a contiguous ``__array_interface__``. Counts, roots and in-place use are those of
nccl.h; ``recv=None`` means in place on ``send`` for collectives that support it.
"""

from __future__ import annotations

import ctypes as c
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import PeerLostError, UsageError
from blinkccl.runtime.environment import launch, store_of
from blinkccl.runtime.group import Group
from blinkccl.runtime.hosts import Place
from blinkccl.runtime.peer_info import alive
from blinkccl.runtime.probe import measured
from blinkccl.runtime.spanning_group import open_group, open_part
from blinkccl.runtime.store import Store, TorchStore, open_store
from blinkccl.runtime.timeouts import default_timeout_s
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES
from blinkccl.schedule.program import Program

Array = NDArray[Any]
#: Number of cached buffer forms: small calls need not validate their buffers again.
_KEPT_FORMS = 4096
#: The parameters of a call besides its buffers: collective, operation, root (or source) and destination.
_Parameters = tuple[str, str, int, int]
_Result = TypeVar("_Result")


class Communicator:
    """A group of ranks, on one host or several: made with :func:`init` or :meth:`create`, its parts with :meth:`split`.

    All ranks call the same collectives in the same order. With ``wait=False`` a collective returns a future at once.

    Examples
    --------
    A job of one rank; with two, ``allreduce`` would give twos and ``allgather`` two rows.

    >>> import blinkccl, numpy as np
    >>> comm = blinkccl.init(rank=0, world_size=1)
    >>> comm.allreduce(np.ones(4, np.float32))
    array([1., 1., 1., 1.], dtype=float32)
    >>> comm.allreduce(np.arange(3.0), op="max", wait=False).result(10)
    array([0., 1., 2.])
    >>> comm.allgather(np.arange(2)).reshape(comm.size, 2)
    array([[0, 1]])
    >>> comm.close()
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank, self.size = group.rank, group.size
        self._calls: dict[tuple[Any, ...], CollectiveCall] = {}
        self._splits = 0

    @classmethod
    def create(
        cls,
        store: Any,
        rank: int,
        size: int,
        *,
        prefix: str = "blink",
        deadline_s: float | None = None,
        deterministic: str | None = None,
        topo: Any = None,
    ) -> Communicator:
        """A communicator among ``size`` ranks that meet in ``store``, which is a Store or one of torch's.

        Other parameters and errors are those of :func:`init`.
        """
        opened = store if isinstance(store, Store) else TorchStore(store)
        place = Place.stated(getattr(topo, "topology", topo))
        group = open_group(
            opened, rank, size, prefix=prefix, deadline_s=deadline_s, deterministic=deterministic, place=place
        )
        return cls(measured(group) if place.measure else group)

    # ---- collectives on arrays

    def allreduce(
        self,
        send: Array,
        recv: Array | None = None,
        op: str = "sum",
        *,
        scale: float | None = None,
        deadline_s: float | None = None,
        wait: bool = True,
    ) -> Any:
        """Reduce ``send`` over all ranks; every rank gets the same bits in ``recv`` (None: in place).

        ``op`` is sum, prod, min, max, avg, premul_sum (with ``scale``), band, bor or bxor.
        """
        return self._call(("allreduce", op, 0, 0), send, send if recv is None else recv, scale, deadline_s, wait)

    def broadcast(self, array: Array, root: int = 0, *, deadline_s: float | None = None, wait: bool = True) -> Any:
        """Copy the root's ``array`` to every rank's ``array``."""
        return self._call(("broadcast", "sum", root, 0), array, array, None, deadline_s, wait)

    def reduce(
        self,
        send: Array,
        recv: Array | None = None,
        op: str = "sum",
        root: int = 0,
        *,
        scale: float | None = None,
        deadline_s: float | None = None,
        wait: bool = True,
    ) -> Any:
        """Reduce ``send`` over all ranks into the root's ``recv`` (None: in place)."""
        return self._call(("reduce", op, root, 0), send, send if recv is None else recv, scale, deadline_s, wait)

    def allgather(
        self, send: Array, recv: Array | None = None, *, deadline_s: float | None = None, wait: bool = True
    ) -> Any:
        """Concatenate the ``send`` of all ranks by rank on every rank: ``recv`` has ``size`` times its elements."""
        if recv is None:
            recv = np.empty(self.size * send.size, send.dtype)
        return self._call(("allgather", "sum", 0, 0), send, recv, None, deadline_s, wait)

    def reduce_scatter(
        self,
        send: Array,
        recv: Array | None = None,
        op: str = "sum",
        *,
        scale: float | None = None,
        deadline_s: float | None = None,
        wait: bool = True,
    ) -> Any:
        """Reduce ``send`` over all ranks; rank r gets block r of the ``size`` blocks."""
        if recv is None:
            recv = np.empty(send.size // self.size, send.dtype)
        return self._call(("reduce_scatter", op, 0, 0), send, recv, scale, deadline_s, wait)

    def gather(
        self,
        send: Array,
        recv: Array | None = None,
        root: int = 0,
        *,
        deadline_s: float | None = None,
        wait: bool = True,
    ) -> Any:
        """Concatenate the ``send`` of all ranks by rank on the root."""
        if recv is None and self.rank == root:
            recv = np.empty(self.size * send.size, send.dtype)
        return self._call(("gather", "sum", root, 0), send, recv if self.rank == root else None, None, deadline_s, wait)

    def scatter(
        self, send: Array | None, recv: Array, root: int = 0, *, deadline_s: float | None = None, wait: bool = True
    ) -> Any:
        """Copy block r of the root's ``send`` to rank r."""
        return self._call(
            ("scatter", "sum", root, 0), send if self.rank == root else None, recv, None, deadline_s, wait
        )

    def alltoall(
        self, send: Array, recv: Array | None = None, *, deadline_s: float | None = None, wait: bool = True
    ) -> Any:
        """Copy block s of rank r's ``send`` to block r of rank s's ``recv``; not in place."""
        if recv is None:
            recv = np.empty_like(send)
        return self._call(("alltoall", "sum", 0, 0), send, recv, None, deadline_s, wait)

    def sendrecv(
        self,
        send: Array | None,
        recv: Array | None,
        src: int,
        dst: int,
        *,
        deadline_s: float | None = None,
        wait: bool = True,
    ) -> Any:
        """Copy ``send`` of rank ``src`` to ``recv`` of rank ``dst``.

        All ranks call it; the ranks in between pass a ``recv`` of the same size and type.
        """
        return self._call(("sendrecv", "sum", src, dst), send, recv, None, deadline_s, wait)

    def run(
        self,
        program: Program,
        send: Array | None,
        recv: Array | None,
        op: str = "sum",
        *,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        scale: float | None = None,
    ) -> Array | None:
        """Run any Program for ``size`` ranks without changes: its rank i is this communicator's rank i."""
        call = self._fitting(program.collective, op, send, recv)
        prepared = self.group.prepare(HostPlan(program), call.elements, call.dtype, op, chunk_bytes)
        try:
            self.group.run_prepared(prepared, _pointer(send), _pointer(recv), scale)
        finally:
            prepared.close()
        return recv

    def time(
        self,
        name: str,
        send: Array | None,
        recv: Array | None,
        *,
        op: str = "sum",
        root: int = 0,
        dst: int = 0,
        iterations: int = 1,
        with_barrier: bool = False,
    ) -> NDArray[np.float64]:
        """Seconds of each of ``iterations`` calls, each after a barrier; the loop is in C.

        With ``with_barrier`` the times include the barrier.
        """
        call = self._fitting(CollectiveCall(name, "", 0, op, root, dst).among(self.size), op, send, recv)
        return self.group.time(call, _pointer(send), _pointer(recv), iterations, with_barrier)

    # ---- point to point on arrays

    def send(self, array: Array, dst: int, tag: int = 0, *, deadline_s: float | None = None, wait: bool = True) -> Any:
        """Send to rank ``dst``, which receives with the same tag."""
        _check_memory("send", "the array", array)
        future = _keep(self.group.isend(_address(array), array.nbytes, dst, tag, deadline_s), array)
        return self.group.result(future) if wait else future

    def recv(
        self, array: Array, src: int | None = None, tag: int = 0, *, deadline_s: float | None = None, wait: bool = True
    ) -> Any:
        """Receive from rank ``src``, or from any rank (None); return the source, or a future of it."""
        _check_memory("recv", "the array", array, written=True)
        future = _keep(self.group.irecv(_address(array), array.nbytes, src, tag, deadline_s), array)
        return self.group.result(future) if wait else future

    # ---- subgroups

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks with the same ``color``, ordered by ``key`` and then by rank.

        A rank with the color None gets None. All ranks of this communicator must call it.
        """
        self._splits += 1
        mine = np.array([color is not None, 0 if color is None else color, key], np.int64)
        rows = np.asarray(self.allgather(mine)).reshape(self.size, 3)
        if color is None:
            self.group.exchange(b"")
            return None
        members = sorted((int(row[2]), rank) for rank, row in enumerate(rows) if row[0] and row[1] == color)
        ranks = [rank for _, rank in members]
        try:
            part = open_part(self.group, ranks, f"{self.group.prefix}/{self._splits}.{color}")
        except PeerLostError as error:
            lost = ranks[error.rank]
            if alive(self.group.peers[lost]) is False:  # a living rank may also have closed its connection
                self.group.report_lost(lost)  # before this rank ends too, so that others see the first cause
            raise
        return Communicator(part)

    # ---- the group itself

    def barrier(self, deadline_s: float | None = None) -> None:
        """Return when every rank has called it."""
        self.group.barrier(deadline_s)

    def stats(self) -> dict[str, int]:
        """Counters since the group was made: calls, waits, messages, and their bytes by transfer method."""
        return self.group.stats()

    def memory_bytes(self) -> dict[str, int]:
        """See :meth:`Group.memory_bytes`."""
        return self.group.memory_bytes()

    def abort(self, why: str = "abort() was called") -> None:
        """End the group for all ranks: their waits raise CommunicationError with ``why``."""
        self.group.abort(why)

    def close(self) -> None:
        """Leave the group in order, after the current calls; see :meth:`Group.close`."""
        self.group.close()

    # ---- from arrays to addresses

    def _call(
        self,
        parameters: _Parameters,
        send: Array | None,
        recv: Array | None,
        scale: float | None = None,
        deadline_s: float | None = None,
        wait: bool = True,
    ) -> Any:
        form = (parameters, _form(send), None if recv is send else _form(recv), recv is send)
        call = self._calls.get(form)
        if call is None:
            name, op, root, dst = parameters
            call = self._fitting(CollectiveCall(name, "", 0, op, root, dst).among(self.size), op, send, recv)
            if len(self._calls) >= _KEPT_FORMS:
                self._calls.clear()
            self._calls[form] = call
        source = _pointer(send)
        target = source if recv is send else _pointer(recv)
        if wait:
            self.group.run(call, source, target, scale, deadline_s)
            return recv
        done: Future[Array | None] = Future()

        def finish(future: Future[None]) -> None:
            error = future.exception()
            done.set_result(recv) if error is None else done.set_exception(error)

        future = self.group.submit(call, source, target, scale, deadline_s)
        _keep(future, send, recv)
        future.add_done_callback(finish)
        return done

    def _fitting(self, collective: Collective, op: str, send: Array | None, recv: Array | None) -> CollectiveCall:
        """The call that matches these buffers; UsageError before anything happens if none does."""
        name = collective.name
        count: int | None = None
        dtype: str | None = None
        for buffer, array, blocks in (
            ("send", send, collective.input_blocks(self.rank)),
            ("recv", recv, collective.output_blocks(self.rank)),
        ):
            if array is None:
                if blocks:
                    raise UsageError(f"{name}: rank {self.rank} needs {buffer}, got None")
                continue
            _check_memory(name, buffer, array, written=buffer == "recv" and blocks > 0)
            row = element_type(array.dtype).name
            if dtype not in (None, row):
                raise UsageError(f"{name}: send is {dtype}, recv is {row}; expected one type")
            dtype = row
            if not blocks:
                continue
            if array.size % blocks:
                raise UsageError(f"{name}: {buffer} has {array.size} elements, which are not {blocks} equal blocks")
            if count not in (None, array.size // blocks):
                raise UsageError(
                    f"{name}: {buffer} has {array.size} elements, {blocks} block(s) of {array.size // blocks}; the "
                    f"other buffer has blocks of {count}"
                )
            count = array.size // blocks
        if count is None:  # a rank without input and output must still make the same call
            count = 0 if recv is None else recv.size
        if dtype is None:
            raise UsageError(f"{name}: rank {self.rank} passes no buffer; pass its recv, for size and type")
        return CollectiveCall.of(collective, dtype, count, op)


def init(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    store: str | Store | None = None,
    deadline_s: float | None = None,
    deterministic: str | None = None,
    topo: Any = None,
) -> Communicator:
    """Communicator of this process with all ranks of its job.

    Parameters
    ----------
    rank, world_size, store
        None: from the launcher's environment, which is BLINK_RANK, BLINK_WORLD_SIZE and BLINK_STORE, torchrun, mpirun
        or srun (see :mod:`blinkccl.runtime.environment`). A store is a URL or a :class:`Store`; a single rank needs
        none.
    deadline_s
        Timeout in seconds for all ranks to connect, and for calls without their own; None: BLINK_TIMEOUT, or 300.
    deterministic
        ``"order"``: every element is summed in one order, in calls of any size; None: BLINK_DETERMINISTIC, or not.
    topo
        The job's hosts and their links, for ranks on several hosts: a SPEC as on the command line, a :class:`Topo`, a
        :class:`~blinkccl.topology.model.Topology`, or "measure" for the links that messages find now; None: BLINK_TOPO.
        Hosts are servers of these names, or in the order of the ranks. Without one, every host has one interface to one
        network.

    Raises
    ------
    TopologyError, UsageError
        If ``topo`` is unknown, does not match the hosts and their interfaces, or is of another type.
    LaunchError
        If the rank, or the store in which the ranks meet, is unknown.
    RendezvousTimeout, PlanMismatchError, UnsupportedError
        As :class:`~blinkccl.runtime.host_group.HostGroup`.

    Examples
    --------
    Under torchrun, mpirun or srun call ``blinkccl.init()`` without arguments. Without a launcher:

    >>> import blinkccl
    >>> comm = blinkccl.init(rank=0, world_size=1)
    >>> comm.rank, comm.size
    (0, 1)
    >>> comm.close()
    """
    environ = dict(os.environ)
    for name, value in (("BLINK_RANK", rank), ("BLINK_WORLD_SIZE", world_size)):
        if value is not None:
            environ[name] = str(value)
    if isinstance(store, str):
        environ["BLINK_STORE"] = store
    place = launch(environ)
    seconds = default_timeout_s() if deadline_s is None else deadline_s
    if isinstance(store, Store):
        opened = store
    elif place.world_size == 1 and place.store_url is None:
        opened = Store()
    else:
        opened = open_store(store_of(place), place.rank, time.monotonic() + seconds)
    prefix = f"blink/{place.job_id}" if place.job_id else "blink"
    return Communicator.create(
        opened,
        place.rank,
        place.world_size,
        prefix=prefix,
        deadline_s=deadline_s,
        deterministic=deterministic,
        topo=topo,
    )


def _check_memory(name: str, buffer: str, array: Array, *, written: bool = False) -> None:
    """Refuse an array that native code cannot use in place."""
    if not array.flags.c_contiguous:
        raise UsageError(f"{name}: {buffer} is not contiguous; pass a contiguous copy")
    if not array.dtype.isnative:
        raise UsageError(f"{name}: {buffer} is {array.dtype}, in the other byte order; pass array.astype(…) of it")
    if written and not array.flags.writeable:
        raise UsageError(f"{name}: {buffer} is read-only, but receives the result; pass a copy")


def _keep(future: Future[_Result], *arrays: Array | None) -> Future[_Result]:
    """Keep a reference to the arrays that native code still uses, until the future is done."""
    held = list(arrays)
    future.add_done_callback(lambda _: held.clear())
    return future


def _form(array: Array | None) -> tuple[Any, ...] | None:
    """The properties that decide whether an array fits a call."""
    return None if array is None else (array.size, array.dtype, array.flags.c_contiguous, array.flags.writeable)


def _pointer(array: Array | None) -> int | None:
    return None if array is None else _address(array)


def _address(array: Any) -> int:
    try:
        return c.addressof(c.c_char.from_buffer(array))  # takes a fifth of the time of the other way
    except (TypeError, ValueError):  # read-only, empty, or of a type without buffer support
        return int(array.ctypes.data)


__all__: Sequence[str] = ["Communicator", "init"]
