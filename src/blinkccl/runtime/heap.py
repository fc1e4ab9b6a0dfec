"""Memory that all ranks of a host can access: tensors allocated here are sent without a copy.

Each process has one heap: an unnamed memory file of the size of the machine's memory, of which only used pages occupy
memory. Blocks of 2 MiB and more are allocated at once, in huge pages if Linux supports them (from 6.1 on). The heap is
created at the first use. Every communicator created afterwards shares it, and it exists until no process has it open
any more, even after crashes.
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
#: Alignment of large blocks: that of huge pages.
HUGE = 2 << 20


class Heap:
    """A process's shared memory, ``size`` bytes of address space; blocks are allocated first-fit, in whole pages."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._library = native.load()
        self.fd = memory_file("blink-heap", size)
        self.address: int = self._library.blink_heap_map(self.fd, size)
        if not self.address:
            os.close(self.fd)
            raise UnsupportedError(
                f"shared tensors need {size} bytes of address space, but the system provides no more; look at the "
                "limit on address space (ulimit -v)"
            )
        weakref.finalize(self, self._library.blink_heap_unmap, self.address, size).atexit = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, int]] = deque()  # released blocks that are not in _free yet
        self._free: list[tuple[int, int]] = [(0, size)]  # (offset, bytes), ascending, never adjacent

    @property
    def used(self) -> int:
        """Bytes of all allocated blocks."""
        with self._lock:
            self._take_back()
            return self.size - sum(length for _, length in self._free)

    def allocate(self, nbytes: int) -> int:
        """Return the offset of a new block of at least ``nbytes`` zeros; CommunicationError if no gap is that large."""
        needed = max(1, -(-nbytes // PAGE)) * PAGE
        step = HUGE if needed >= HUGE else PAGE
        with self._lock:
            self._take_back()
            for index, (offset, length) in enumerate(self._free):
                start = -(-offset // step) * step
                if start + needed <= offset + length:
                    rest = [(offset, start - offset), (start + needed, offset + length - start - needed)]
                    self._free[index : index + 1] = [gap for gap in rest if gap[1]]
                    break
            else:
                raise self._no_gap(nbytes)
        if step == HUGE:
            self._library.blink_heap_take(self.address + start, needed)
        return start

    def _no_gap(self, nbytes: int) -> CommunicationError:
        left = max((length for _, length in self._free), default=0)
        return CommunicationError(
            f"{nbytes} bytes of shared memory do not fit: of this process's {self.size}, at most {left} are free in "
            "one piece; delete shared tensors and arrays that are not needed"
        )

    def holds(self, address: int) -> bool:
        """True if this address is in the heap."""
        return self.address <= address < self.address + self.size

    def release(self, offset: int, nbytes: int) -> None:
        """Return a block's pages to the system; takes no lock, because the garbage collector may call it any time."""
        if os.getpid() != self._pid:
            return  # a forked child's copy of an array: the block is the parent's
        length = max(1, -(-nbytes // PAGE)) * PAGE
        self._library.blink_heap_give_back(self.address + offset, length)
        self._returned.append((offset, length))

    def _take_back(self) -> None:
        """Merge released blocks with the gaps beside them; the caller holds the lock."""
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
    """The owner of a block: arrays refer to it, and the block is released with the last of them."""

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
    """This process's heap, created on first use; UnsupportedError without Linux or enough address space."""
    global _heap
    with _lock:
        if _heap is None:
            _heap = Heap(_physical_bytes())
        return _heap


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> Any:
    """Create an array of zeros in shared memory, or a tensor if ``dtype`` is torch's; collectives use it in place.

    Its views and slices are shared too. A forked child sees the same memory, not a copy.

    Parameters
    ----------
    dtype
        A NumPy type, one of the names in :data:`blinkccl.collectives.ops.DTYPES`, or a torch type.

    Raises
    ------
    UnsupportedError
        If the element type does not exist, or this system has no shared memory.
    CommunicationError
        If the shared memory is exhausted.
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
    """Return the descriptor of a new memory file that only this user can open and no process can truncate.

    Raises UnsupportedError, with the size, if this is not Linux or the system provides less.
    """
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"shared memory between ranks needs Linux's memfd_create, got {sys.platform}")
    fd = -1
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
        # Truncating the file would kill any process that reads beyond its end.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise UnsupportedError(
            f"{name} needs {size} bytes of shared memory, but the system reports: {error.strerror}; look at the "
            "limits on file size and open files (ulimit -a)"
        ) from None


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * PAGE


def _after_fork() -> None:
    """Give a child its own heap when it needs one, since its new arrays must not be the parent's."""
    global _heap, _lock
    _heap, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
