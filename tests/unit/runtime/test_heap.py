"""Shared arrays: ordinary arrays on private memory, zero when new, and freed with the last reference."""

import fcntl
import gc
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from blinkccl.collectives.ops import DTYPES
from blinkccl.errors import CommunicationError, UnsupportedError, UsageError
from blinkccl.runtime.heap import HUGE, PAGE, Heap, empty, memory_file, process_heap
from support.processes import open_files


@pytest.fixture
def heap() -> Iterator[Heap]:
    made = Heap(64 * PAGE)
    yield made
    os.close(made.fd)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_never_overlap_and_everything_comes_back(heap: Heap, seed: int) -> None:
    """Compare with a plain list of blocks."""
    random = Random(seed)
    held: list[tuple[int, int]] = []
    for _ in range(200):
        if held and random.random() < 0.5:
            heap.release(*held.pop(random.randrange(len(held))))
        else:
            nbytes = random.choice((0, 1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE))
            try:
                offset = heap.allocate(nbytes)
            except CommunicationError:
                continue
            assert offset % PAGE == 0
            held.append((offset, nbytes))
        pages = sorted((offset, max(1, -(-nbytes // PAGE)) * PAGE) for offset, nbytes in held)
        assert all(a + length <= b for (a, length), (b, _) in pairwise(pages))
        assert all(a >= 0 and a + length <= heap.size for a, length in pages)
        assert heap.used == sum(length for _, length in pages)
    for block in held:
        heap.release(*block)
    assert heap.used == 0
    assert heap.allocate(heap.size) == 0, "it is one gap again"


def test_too_large_arrays_are_rejected_with_the_sizes(heap: Heap) -> None:
    first = heap.allocate(30 * PAGE)
    heap.allocate(10 * PAGE)
    heap.release(first, 30 * PAGE)
    with pytest.raises(CommunicationError, match=f"{31 * PAGE} bytes .* do not fit: .* at most {30 * PAGE} are free"):
        heap.allocate(31 * PAGE)
    with pytest.raises(CommunicationError):
        heap.allocate(1 << 60)


def test_a_full_heap_has_nothing_left(heap: Heap) -> None:
    heap.allocate(heap.size)
    with pytest.raises(CommunicationError, match="at most 0 are free"):
        heap.allocate(1)


def test_a_block_is_zero_when_it_is_used_again(heap: Heap) -> None:
    for _ in range(3):
        offset = heap.allocate(3 * PAGE)
        os.pwrite(heap.fd, b"\xff" * 3 * PAGE, offset)
        heap.release(offset, 3 * PAGE)
        assert os.pread(heap.fd, heap.size, 0).count(0) == heap.size


def test_large_blocks_are_taken_at_once_in_huge_pages() -> None:
    heap = Heap(8 * HUGE)
    assert heap.address % HUGE == 0
    heap.allocate(1)
    block = heap.allocate(2 * HUGE + PAGE)
    assert block % HUGE == 0
    if not (huge := huge_page_bytes(heap.address)):
        pytest.skip("this system makes no huge pages of memory files")
    assert huge == 2 * HUGE
    assert os.pread(heap.fd, 2 * HUGE, block).count(0) == 2 * HUGE
    heap.release(block, 2 * HUGE + PAGE)
    assert huge_page_bytes(heap.address) == 0
    os.close(heap.fd)


def huge_page_bytes(address: int) -> int:
    """Bytes in huge pages of the mapping that begins at ``address``."""
    of_mapping = Path("/proc/self/smaps").read_text().split(f"\n{address:x}-")[1]
    return int(of_mapping.split("ShmemPmdMapped:")[1].split()[0]) << 10


def test_several_threads_may_use_it_at_once() -> None:
    heap = Heap(4096 * PAGE)

    def work(mark: int) -> None:
        random = Random(mark)
        for _ in range(200):
            nbytes = random.randrange(1, 20 * PAGE)
            offset = heap.allocate(nbytes)
            os.pwrite(heap.fd, bytes([mark]) * nbytes, offset)
            assert os.pread(heap.fd, nbytes, offset) == bytes([mark]) * nbytes
            heap.release(offset, nbytes)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5), timeout=30))
    assert heap.used == 0
    os.close(heap.fd)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_ordinary_zeros_of_the_type(dtype: str) -> None:
    array = empty((3, 5), dtype)
    assert array.shape == (3, 5)
    assert array.dtype.itemsize == DTYPES[dtype].itemsize
    assert not array.view(np.uint8).any()
    array[...] = 1
    assert (array == 1).all()


def test_views_keep_the_memory_and_the_last_gives_it_back() -> None:
    gc.collect()
    before = process_heap().used
    array = empty(10 * PAGE, np.uint8)
    view = array[PAGE : PAGE + 5]
    view[:] = 7
    del array
    gc.collect()
    assert process_heap().used == before + 10 * PAGE
    assert (view == 7).all()
    del view
    gc.collect()
    assert process_heap().used == before


def test_a_block_may_come_back_in_the_middle_of_an_allocation(heap: Heap) -> None:
    """The collector frees arrays in cycles whenever Python allocates, also while this thread holds the lock."""
    first, second = heap.allocate(PAGE), heap.allocate(PAGE)
    with heap._lock:
        collector = threading.Thread(target=heap.release, args=(first, PAGE), daemon=True)
        collector.start()
        collector.join(10)
        assert not collector.is_alive(), "giving back waits for the lock"
    assert heap.used == PAGE
    assert heap.allocate(PAGE) == first
    heap.release(second, PAGE)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # pytest's own timer is a second thread
def test_a_forked_child_has_its_parents_arrays_at_first() -> None:
    array = empty(1000)
    array[:] = 3
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            parents = process_heap.__globals__["_heap"]
            own = empty(1000)
            own[:] = 9
            array[0] = 4
            del array
            gc.collect()
            code = 0 if parents is None else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert array[0] == 4
    assert (array[1:] == 3).all()


@pytest.mark.parametrize("shape", [(), 0, (0,), (3, 0), 1, (2, 3, 4)])
def test_shapes_are_numpys(shape: Any) -> None:
    assert empty(shape).shape == np.empty(shape).shape


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="negative"):
        empty((3, -1))
    with pytest.raises(UnsupportedError, match="complex64"):
        empty(3, np.complex64)
    with pytest.raises(CommunicationError, match=f"{1 << 70} bytes of shared memory"):
        empty((1 << 40, 1 << 30), np.uint8)


def test_memory_files_are_private_and_cannot_be_cut_short() -> None:
    fd = memory_file("blink-test", 3 * PAGE)
    try:
        row = os.fstat(fd)
        assert stat.S_IMODE(row.st_mode) == 0o600
        assert row.st_size == 3 * PAGE
        assert row.st_blocks == 0, "no memory before it is used"
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        for size in (0, PAGE, 5 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
    finally:
        os.close(fd)


def test_a_system_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(27, "File too large")

    before = open_files()
    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(UnsupportedError, match=r"12345 bytes .*, but the system reports: File too large"):
        memory_file("blink-test", 12345)
    assert open_files() <= before
