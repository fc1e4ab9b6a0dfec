"""The registry of engines, which run Programs on real buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES
from blinkccl.schedule.program import Program

Array = NDArray[Any]


class RunProgram(Protocol):
    """Function that runs a collective once.

    Parameters
    ----------
    program
        A verified program (:func:`blinkccl.schedule.verifier.verify`); engines do not check it again.
    inputs
        One-dimensional array of the input blocks of every rank, or None. Not changed.
    call
        Elements per block, type and operation; the collective is the program's.
    scales
        For ``premul_sum``, the factor of every rank's contributions; else None.
    chunk_bytes
        Preferred size of a message.
    in_place
        Let input and output share memory (:mod:`blinkccl.engines.buffers`).
    deadline_s
        Timeout of the whole run, in seconds.

    Returns
    -------
    list
        The output buffer of every rank, or None.

    Raises
    ------
    UsageError
        If program, sizes, buffers and scales do not fit.
    UnsupportedError
        If the engine lacks the operation, type or placement.
    DeadlineError
        If the ranks deadlock, or the run takes longer than the timeout.
    """

    def __call__(
        self,
        program: Program,
        inputs: Sequence[Array | None],
        call: CollectiveCall,
        *,
        scales: Sequence[float] | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        in_place: bool = False,
        deadline_s: float = 60.0,
    ) -> list[Array | None]: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """A registry row; ``module`` is imported on first use, so listing engines costs nothing."""

    module: str
    about: str
    needs: Callable[[], str | None] = lambda: None

    @property
    def missing(self) -> str | None:
        """The requirement that this installation or machine lacks; None if the engine can run."""
        return self.needs()

    @property
    def run(self) -> RunProgram:
        """The engine's :class:`RunProgram`."""
        run: RunProgram = import_module(self.module).run
        return run


def _no_library() -> str | None:
    try:
        import_module("blinkccl.engines.native_library").load()
    except UnsupportedError as error:
        return error.reason
    return None


def _no_generated_code() -> str | None:
    try:
        import_module("blinkccl.engines.generated").load()
        import_module("blinkccl.codegen.host_compiler").host_compiler()
    except UnsupportedError as error:
        return error.reason
    return None


#: The registry.
ENGINES: dict[str, Engine] = {
    "reference": Engine("blinkccl.engines.reference", "NumPy, step by step: the definition of a Program's meaning"),
    "host": Engine("blinkccl.engines.host", "native code over shared memory, between ranks of one host", _no_library),
    "generated": Engine(
        "blinkccl.engines.generated",
        "the generated CUDA code, compiled for this CPU: a thread per rank, channel and part",
        _no_generated_code,
    ),
}


def engine(name: str) -> Engine:
    """The registry row of ``name``."""
    if name not in ENGINES:
        raise UnsupportedError(f"engine {name!r} is not one of {', '.join(ENGINES)}")
    return ENGINES[name]
