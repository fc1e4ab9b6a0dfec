"""All that runs Programs on real buffers, as one registry: every engine is tested on everything."""

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
    """Function that runs a collective once, as :func:`blinkccl.engines.reference.run` does."""

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
        import_module("support.generated").load()
        import_module("blinkccl.codegen.host_compiler").host_compiler()
    except UnsupportedError as error:
        return error.reason
    return None


#: The registry: NumPy step by step, which is the definition of a Program's meaning; native code, a thread per rank; and
#: the generated CUDA code, compiled for this CPU.
ENGINES: dict[str, Engine] = {
    "reference": Engine("blinkccl.engines.reference"),
    "host": Engine("support.local_host", _no_library),
    "generated": Engine("support.generated", _no_generated_code),
}
