"""Tensors as flat memory, and back: memory that an engine can read and write by pointers.

A tensor is used in place if its elements are contiguous and stored with their values; a list of tensors, if each
follows the previous one. All others use scratch memory: they are copied in before the call and out after it. Each rank
decides this by itself, because the transferred data are the same. Wrapper tensors are awaited or refused
(:mod:`~blinkccl.torch_backend.plain`).
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Sequence
from operator import is_
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blinkccl.runtime.heap import empty as shared_zeros
from blinkccl.torch_backend.plain import address_in_order, address_of, plain, plain_all, writable


class Scratch:
    """Reused flat buffers of one process group. Freshly mapped pages would cost more than the copies."""

    def __init__(self, keep_bytes: int = 256 << 20) -> None:
        self._keep_bytes = keep_bytes
        self._free: list[Tensor] = []  # by ascending size
        self._lock = Lock()

    def take(self, nbytes: int) -> Tensor:
        """A buffer of at least ``nbytes`` bytes, of type uint8, until :meth:`give`."""
        with self._lock:
            for index, buffer in enumerate(self._free):
                if buffer.numel() >= nbytes:
                    return self._free.pop(index)
        return torch.empty(max(nbytes, 4096), dtype=torch.uint8)

    def give(self, buffers: Sequence[Tensor]) -> None:
        """Return buffers; above the limit of bytes, the smallest are dropped first."""
        with self._lock:
            self._free = sorted([*self._free, *buffers], key=Tensor.numel)
            while self._free and sum(buffer.numel() for buffer in self._free) > self._keep_bytes:
                self._free.pop(0)


class SharedBlocks:
    """Temporary tensors in shared memory; a dropped block is reused for the same number of bytes."""

    def __init__(self, keep_bytes: int = 1 << 30) -> None:
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}
        self._pid = os.getpid()

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """A flat tensor with arbitrary contents."""
        nbytes = elements * dtype.itemsize
        if os.getpid() != self._pid:  # a forked child: the blocks are its parent's
            self._free, self._kept_bytes, self._pid = {}, 0, os.getpid()
        try:
            block = self._free[nbytes].pop()
            self._kept_bytes -= nbytes
        except (KeyError, IndexError):
            block = shared_zeros(nbytes, np.uint8)
        lease = _Lease(block)
        weakref.finalize(lease, self._take_back, block, self._pid).atexit = False
        return torch.from_numpy(np.asarray(lease)).view(dtype)

    def _take_back(self, block: NDArray[np.uint8], pid: int) -> None:
        """Return a block. The garbage collector calls this at any time, so it takes no lock and the sum is inexact."""
        if pid == os.getpid() == self._pid and self._kept_bytes + block.nbytes <= self._keep_bytes:
            self._kept_bytes += block.nbytes
            self._free.setdefault(block.nbytes, deque()).append(block)


class _Lease:
    """The owner of a tensor's block, which the tensor keeps alive."""

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self.__array_interface__ = block.__array_interface__


class Memory:
    """Memory of one call while it runs: pointers to flat memory before it, :meth:`finish` after it."""

    __slots__ = ("_copies", "_held", "_scratch", "_taken")

    def __init__(self, scratch: Scratch, held: Sequence[Tensor] = ()) -> None:
        self._scratch = scratch
        self._taken: list[Tensor] = []
        self._held: list[Tensor] = [*held]
        self._copies: list[tuple[Tensor, Tensor]] = []

    def reads(self, tensor: Tensor) -> int:
        """Address of the elements of ``tensor``, in order."""
        return self._in_place(tensor) or self.reads_all([tensor])

    def writes(self, tensor: Tensor) -> int:
        """Address to which the elements of ``tensor`` are written, in order."""
        return self._in_place(tensor) or self.writes_all([tensor])

    def updates(self, tensor: Tensor) -> int:
        """Address of the elements of ``tensor``, in order, to be overwritten in place."""
        address = self._in_place(tensor)
        if not address:
            tensor = plain(tensor)
            address = self.writes(tensor)
            if self._copies and self._copies[-1][0] is tensor:
                copy(self._copies[-1][1], tensor)
        return address

    def _in_place(self, tensor: Tensor) -> int:
        address = address_of(tensor)
        if address:
            self._held.append(tensor)
        return address

    def reads_all(self, tensors: Sequence[Tensor]) -> int:
        """Address of the elements of all ``tensors``, one after the other."""
        address = address_in_order(tensors)
        if not address:
            bare = plain_all(tensors)
            address = 0 if all(map(is_, bare, tensors)) else address_in_order(bare)
            tensors = bare
        self._held.extend(tensors)
        if address or not any(map(Tensor.numel, tensors)):
            return address
        flats = self._take(tensors)
        for flat, tensor in zip(flats, tensors, strict=True):
            copy(flat, tensor)
        return int(flats[0].data_ptr())

    def writes_all(self, tensors: Sequence[Tensor]) -> int:
        """Address to which the elements of all ``tensors`` are written, one after the other."""
        address = address_in_order(tensors)
        if not address:
            bare = writable(tensors)
            address = 0 if all(map(is_, bare, tensors)) else address_in_order(bare)
            tensors = bare
        self._held.extend(tensors)
        if address or not any(map(Tensor.numel, tensors)):
            return address
        flats = self._take(tensors)
        self._copies.extend(zip(tensors, flats, strict=True))
        return int(flats[0].data_ptr())

    def room(self, nbytes: int) -> Tensor:
        """Bytes of scratch memory, until :meth:`finish`."""
        buffer = self._scratch.take(nbytes)
        self._taken.append(buffer)
        return buffer[:nbytes]

    def finish(self, succeeded: bool) -> None:
        """Copy out of scratch memory and release it; after a failure neither, because a late peer may write there."""
        if succeeded and self._taken:
            for tensor, flat in self._copies:
                copy(tensor, flat)
            self._scratch.give(self._taken)
        self._taken, self._held, self._copies = [], [], []

    def _take(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Flat views for ``tensors`` in one scratch buffer, one after the other."""
        buffer = self.room(sum(tensor.nbytes for tensor in tensors))
        flats, start = [], 0
        for tensor in tensors:
            flats.append(buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
            start += tensor.nbytes
        return flats


def copy(target: Tensor, source: Tensor) -> None:
    """Copy elements in inference mode, which permits writes to inference tensors and to leaves that require grad."""
    with torch.inference_mode():
        target.detach().copy_(source.detach())
