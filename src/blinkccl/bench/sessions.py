"""How an engine is run again and again on the same buffers, so that only the collective itself is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from blinkccl.collectives.ops import DType, Operation
from blinkccl.engines.buffers import Array, RankBuffers
from blinkccl.engines.registry import engine
from blinkccl.schedule.chunking import Bound


@dataclass(frozen=True, slots=True)
class Job:
    """A program bound to a size and to the buffers that it reads and writes."""

    bound: Bound
    buffers: RankBuffers
    dtype: DType
    operation: Operation
    chunk_bytes: int
    in_place: bool
    deadline_s: float
    scales: Sequence[float] | None = None


#: Runs the collective once and returns each rank's output.
Go = Callable[[], list[Array | None]]


@contextmanager
def session(name: str, job: Job) -> Iterator[Go]:
    """A function that runs ``job`` on the engine ``name``, again and again.

    Parameters
    ----------
    name
        One of :data:`blinkccl.engines.registry.ENGINES`. ``threads`` keeps its threads and staging buffers
        between runs; other engines are called as a whole, so that their time includes copying the inputs.

    Raises
    ------
    UnsupportedError
        If there is no such engine.
    """
    if name == "threads":
        from blinkccl.engines.threads import Execution

        with Execution(job.bound, job.buffers, job.dtype, job.operation, job.scales) as execution:
            yield lambda: _on_threads(execution.go, job)
        return
    run = engine(name).run
    yield lambda: run(
        job.bound.program,
        job.buffers.inputs,
        count=job.bound.count,
        dtype=job.dtype.name,
        op=job.operation.name,
        chunk_bytes=job.chunk_bytes,
        in_place=job.in_place,
        deadline_s=job.deadline_s,
        scales=job.scales,
    )


def _on_threads(go: Callable[[float], None], job: Job) -> list[Array | None]:
    go(job.deadline_s)
    return list(job.buffers.outputs)
