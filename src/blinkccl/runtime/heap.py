"""Memory that all ranks of a host can reach: tensors made here travel without a copy.

Each process has one heap, a memory file of no name and of the size of the machine's memory, of which only used pages
take any; blocks of 2 MiB and more take theirs at once, in huge pages, where Linux makes them (from 6.1 on). It is made
at the first use, known to every communicator that is made afterwards, and gone with the last process that has it open,
however that ends.
"""

from __future__ import annotations

import bisect
import fcntl
import math
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.ops import element_type
from blinkccl.engines import native_library as native
from blinkccl.errors import CommunicationError, UnsupportedError, UsageError

PAGE = mmap.PAGESIZE
#: Large blocks begin where huge pages do.
HUGE = 2 << 20


class Heap:
    """A process's shared memory, ``size`` bytes of address space: blocks are cut from it first-fit, on whole pages."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._library = native.load()
        self.fd = memory_file("blink-heap", size)
        self.address: int = self._library.blink_heap_map(self.fd, size)
        if not self.address:
            os.close(self.fd)
            raise UnsupportedError(
                f"{size} bytes of address space are needed for shared tensors, the system gives no more; look at the "
                "limit on address space (ulimit -v)"
            )
        weakref.finalize(self, self._library.blink_heap_unmap, self.address, size).atexit = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, int]] = deque()  # blocks given back that are not in _free yet
        self._free: list[tuple[int, int]] = [(0, size)]  # (offset, bytes), rising, never adjacent

    @property
    def used(self) -> int:
        """Bytes in blocks that are held."""
        with self._lock:
            self._take_back()
            return self.size - sum(length for _, length in self._free)

    def allocate(self, nbytes: int) -> int:
        """The offset of a new block of at least ``nbytes`` zeros; CommunicationError if no gap is large enough."""
        wanted = max(1, -(-nbytes // PAGE)) * PAGE
        step = HUGE if wanted >= HUGE else PAGE
        with self._lock:
            self._take_back()
            for index, (offset, length) in enumerate(self._free):
                start = -(-offset // step) * step
                if start + wanted <= offset + length:
                    rest = [(offset, start - offset), (start + wanted, offset + length - start - wanted)]
                    self._free[index : index + 1] = [gap for gap in rest if gap[1]]
                    break
            else:
                raise self._no_gap(nbytes)
        if step == HUGE:
            self._library.blink_heap_take(self.address + start, wanted)
        return start

    def _no_gap(self, nbytes: int) -> CommunicationError:
        left = max((length for _, length in self._free), default=0)
        return CommunicationError(
            f"{nbytes} bytes of shared memory are wanted, the largest gap in this process's {self.size} is {left}; "
            "drop arrays that are not needed"
        )

    def holds(self, address: int) -> bool:
        """Whether this address is in it."""
        return self.address <= address < self.address + self.size

    def release(self, offset: int, nbytes: int) -> None:
        """Gives a block's pages back at once; takes no lock, as the garbage collector calls it at any time."""
        if os.getpid() != self._pid:
            return  # a forked child's copy of an array: the block is the parent's
        length = max(1, -(-nbytes // PAGE)) * PAGE
        self._library.blink_heap_give_back(self.address + offset, length)
        self._returned.append((offset, length))

    def _take_back(self) -> None:
        """Joins what was given back with the gaps beside it; the caller holds the lock."""
        while self._returned:
            offset, length = self._returned.popleft()
            at = bisect.bisect(self._free, (offset, 0))
            if at < len(self._free) and offset + length == self._free[at][0]:
                length += self._free.pop(at)[1]
            if at and sum(self._free[at - 1]) == offset:
                offset, before = self._free.pop(at - 1)
                length += before
                at -= 1
            self._free.insert(at, (offset, length))


class _HeapBlock:
    """What arrays on a block hold on to; the last one gives it back."""

    def __init__(self, heap: Heap, nbytes: int) -> None:
        offset = heap.allocate(nbytes)
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (heap.address + offset, False),
            "version": 3,
        }
        weakref.finalize(self, heap.release, offset, nbytes).atexit = False


_heap: Heap | None = None
_lock = threading.Lock()


def process_heap() -> Heap:
    """This process's heap, made on first use; UnsupportedError if this is not Linux or address space is short."""
    global _heap
    with _lock:
        if _heap is None:
            _heap = Heap(_physical_bytes())
        return _heap


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> Any:
    """An array of zeros in shared memory, or a tensor if ``dtype`` is torch's: collectives use it where it lies.

    Views and slices of it are as good. A forked child sees the same memory, not a copy.

    Parameters
    ----------
    dtype
        A NumPy type, one of the names in :data:`blinkccl.collectives.ops.DTYPES`, or a torch type.

    Raises
    ------
    UnsupportedError
        If there is no such element type, or no shared memory here.
    CommunicationError
        If there is not enough.
    UsageError
        If a dimension is negative.

    Examples
    --------
    >>> import blinkccl
    >>> blinkccl.empty((2, 3), "float32")
    array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(size < 0 for size in dimensions):
        raise UsageError(f"shape {dimensions} has a negative dimension")
    if type(dtype).__module__ == "torch":
        import torch

        elements: NDArray[Any] = np.asarray(_HeapBlock(process_heap(), math.prod(dimensions) * dtype.itemsize))
        return torch.from_numpy(elements).view(dtype).view(dimensions)
    storage = element_type(dtype if isinstance(dtype, str) else np.dtype(dtype)).storage
    block = np.asarray(_HeapBlock(process_heap(), math.prod(dimensions) * storage.itemsize))
    return block.view(storage).reshape(dimensions)


def memory_file(name: str, size: int) -> int:
    """The descriptor of a new memory file that only this user can open, and nobody can cut short.

    UnsupportedError if this is not Linux, or the system refuses that much; the message says how much is needed.
    """
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"shared memory between ranks needs Linux's memfd_create, got {sys.platform}")
    fd = -1
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
        # A file that shrank would kill whoever reads beyond its end.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise UnsupportedError(
            f"{size} bytes of shared memory are needed for {name}, the system says: {error.strerror}; look at the "
            "limits on file size and open files (ulimit -a)"
        ) from None


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * PAGE


def _after_fork() -> None:
    """A child's new arrays must not be the parent's: it gets a heap of its own when it wants one."""
    global _heap, _lock
    _heap, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
