"""Functions shared by the programs on backend "blink"."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from blinkccl.torch_backend import stats

TIMEOUT = timedelta(seconds=30)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def block(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return the contribution of ``rank``: small integers, so that every order of a sum is exact."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_complex:
        parts = torch.randint(-4, 5, (*shape, 2), generator=generator).to(torch.float32)
        return torch.view_as_complex(parts).to(dtype)
    low, high = (0, 2) if dtype == torch.bool else (1, 4)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def same(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert torch.equal(got, expected), (got, expected)


def messages_sent() -> int:
    return stats().get("sends", 0)


def wait_for(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not happened() and time.monotonic() < end:
        time.sleep(0.01)
    return happened()


@contextlib.contextmanager
def raises(kind: type[Exception], text: str, torchs: bool = True) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Check that the block raises ``kind`` with ``text`` in its message; with ``torchs`` also a RuntimeError."""
    with pytest.raises(kind, match=re.escape(text)) as raised:
        yield raised
    assert isinstance(raised.value, RuntimeError) or not torchs, raised.type.__mro__


_places: list[Path] = []


def meet_in(place: Path) -> None:
    """Put this rank's files into ``place`` from now on."""
    _places[:] = [place]


def place(name: str) -> Path:
    """Return the path of a file of this run."""
    return _places[0] / name


def start(rank: int, size: int, name: str, backend: str = "blink") -> None:
    """Create the default group."""
    method = f"file://{place(name)}"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=size, timeout=TIMEOUT)
