"""One-sided copies between the ranks of a host: into, and out of, arrays that all of them share.

A copy runs in the caller's thread, with one processor's loads and stores; the other rank does nothing. So a put that
has returned is complete, and nothing is left to flush. Who reads has to know *that* it was made: by a signal, or by a
fence. Where both ranks are in a call anyway, ``sendrecv`` is faster: each of them moves half.
"""

from __future__ import annotations

import ctypes as c
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, element_type
from blinkccl.errors import DeadlineError, UnsupportedError, UsageError
from blinkccl.runtime.group import Group
from blinkccl.runtime.heap import empty, process_heap
from blinkccl.runtime.host_group import HostGroup

Array = NDArray[Any]
#: How long native code waits before Python looks for signals of the user's.
_SLICE_US = 50_000
_NAMES = list(DTYPES)
_WORD = np.dtype(np.uint64).itemsize


class SharedArrays:
    """An array per rank that every rank may copy to and from; made by all of them with ``Communicator.share``.

    ``sizes`` are the ranks' numbers of elements. The arrays are kept until :meth:`close`.
    """

    def __init__(self, group: Group, own: Array) -> None:
        if not isinstance(group, HostGroup):
            raise UnsupportedError("the ranks are on several hosts: put and get need memory that they share")
        self._group, self._own = group, own
        self._open = True
        self.rank, self.size = group.rank, group.size
        self._dtype = own.dtype
        self._signals = empty(self.size, "uint64")  # word r: how often rank r has signalled to this rank
        self._seen = [0] * self.size
        rows = self._exchange()
        self.sizes = [int(row[1]) for row in rows]
        self._offsets = [int(row[0]) for row in rows]
        self._words = [
            group.endpoint.heap_at(rank, int(row[3]) + _WORD * self.rank, _WORD) for rank, row in enumerate(rows)
        ]
        group.shared_arrays.add(self)

    def part(self, rank: int, at: int, count: int) -> Array:
        """These elements of ``rank``'s array, where they lie; of use until the communicator is closed.

        UsageError if there is no such rank, or the elements are not wholly in its array.
        """
        self._check_rank(rank)
        if not self._open:
            raise UsageError("these shared arrays are closed")
        if at < 0 or at + count > self.sizes[rank]:
            raise UsageError(
                f"elements {at} … {at + count - 1} are not in rank {rank}'s array, which has {self.sizes[rank]}"
            )
        if not count:
            return np.empty(0, self._dtype)
        nbytes = count * self._dtype.itemsize
        offset = self._offsets[rank] + at * self._dtype.itemsize
        address = self._group.endpoint.heap_at(rank, offset, nbytes)
        return np.asarray((c.c_uint8 * nbytes).from_address(address)).view(self._dtype)

    def signal(self, rank: int) -> None:
        """Lets one :meth:`wait` of ``rank`` for this rank return; what this thread has put before is there then."""
        self._check_rank(rank)
        self._group.endpoint.signal(rank, self._words[rank])

    def wait(self, rank: int, deadline_s: float | None = None) -> None:
        """Returns when ``rank`` has signalled once more than it was waited for; for one thread at a time per rank.

        PeerLostError if its process ends, DeadlineError after ``deadline_s`` (None: the communicator's); the signal may
        still come, and be waited for again.
        """
        self._check_rank(rank)
        seconds = self._group.timeout_s if deadline_s is None else deadline_s
        word = int(self._signals.ctypes.data) + _WORD * rank
        deadline = time.monotonic() + seconds
        while not self._group.endpoint.await_signal(rank, word, self._seen[rank] + 1, _SLICE_US):
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"rank {self.rank} waited {seconds:g} s for signal {self._seen[rank] + 1} of rank {rank} on its "
                    "shared array; is that rank stuck, or the deadline too short?"
                )
        self._seen[rank] += 1

    def fence(self, deadline_s: float | None = None) -> None:
        """Returns when all ranks have called it: what any of them has put before is there for all."""
        self._group.barrier(deadline_s)

    def close(self, deadline_s: float | None = None) -> None:
        """Ends access; all ranks call it, and then each has its own array for itself again."""
        self.fence(deadline_s)
        self._open = False
        self._group.shared_arrays.discard(self)

    def _exchange(self) -> NDArray[np.int64]:
        """Of each rank: where its array lies, its elements and type, and where its signals lie."""
        heap, address = process_heap(), int(self._own.ctypes.data)
        inside = heap.holds(address) or not self._own.nbytes
        mine = np.array(
            [
                address - heap.address if inside and self._own.nbytes else (0 if inside else -1),
                self._own.size,
                _NAMES.index(element_type(self._dtype).name),
                int(self._signals.ctypes.data) - heap.address,
            ],
            np.int64,
        )
        rows = np.empty((self.size, len(mine)), np.int64)
        gather = CollectiveCall("allgather", "int64", len(mine))
        self._group.run(gather, int(mine.ctypes.data), int(rows.ctypes.data))
        for rank, (offset, _, dtype, _) in enumerate(rows.tolist()):
            if offset < 0:
                raise UsageError(f"the array of rank {rank} is in its own memory; make it with blinkccl.empty")
            if dtype != rows[0, 2]:
                raise UsageError(f"rank 0 shares {_NAMES[rows[0, 2]]}, rank {rank} {_NAMES[dtype]}; expected one type")
        return rows

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise UsageError(f"rank {rank} is outside 0 … {self.size - 1}")


def put(source: Array, shared: SharedArrays, rank: int, at: int = 0) -> None:
    """Copies ``source`` into ``rank``'s shared array, from element ``at`` on; that rank does nothing.

    Returns when the bytes are there; :meth:`SharedArrays.signal` and :meth:`SharedArrays.fence` say so.

    Raises
    ------
    UsageError
        If the elements do not fit there, or are of another type.
    CommunicationError
        If the communicator is closed.

    Examples
    --------
    >>> import blinkccl, numpy as np
    >>> comm = blinkccl.init(rank=0, world_size=1)
    >>> mine = blinkccl.empty(4, np.float32)
    >>> shared = comm.share(mine)
    >>> blinkccl.put(np.full(2, 7, np.float32), shared, rank=0, at=1)
    >>> mine
    array([0., 7., 7., 0.], dtype=float32)
    >>> comm.close()
    """
    _copy(shared.part(rank, at, source.size), source.reshape(-1))


def get(target: Array, shared: SharedArrays, rank: int, at: int = 0) -> None:
    """Fills ``target`` from ``rank``'s shared array, from element ``at`` on; errors as of :func:`put`.

    What it reads is what was there at some moment of the call: for more, wait for a signal or a fence before.

    Examples
    --------
    >>> import blinkccl, numpy as np
    >>> comm = blinkccl.init(rank=0, world_size=1)
    >>> mine = blinkccl.empty(4, np.float32)
    >>> mine[2] = 5
    >>> copy = np.empty(2, np.float32)
    >>> blinkccl.get(copy, comm.share(mine), rank=0, at=2)
    >>> copy
    array([5., 0.], dtype=float32)
    >>> comm.close()
    """
    if not target.flags.c_contiguous or not target.flags.writeable:
        raise UsageError("get: the target is read-only or not contiguous; pass an array that can be filled")
    _copy(target.reshape(-1), shared.part(rank, at, target.size))


def _copy(target: Array, source: Array) -> None:
    if target.dtype != source.dtype:
        raise UsageError(
            f"the shared arrays and the other one are {target.dtype} and {source.dtype}; expected one type"
        )
    np.copyto(target, source)
