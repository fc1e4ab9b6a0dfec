"""A group of one rank on a GPU: nobody to talk to, so what it sends is what it gets."""

from __future__ import annotations

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.torch_backend.cuda_runtime import CudaRuntime


class Alone:
    """What :class:`blinkccl.runtime.gpu_group.GpuGroup` is for two ranks and more."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._calls = 0

    def run(
        self,
        call: CollectiveCall,
        send: int | None,
        recv: int | None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> None:
        """Copies the block, where it is not in place."""
        if call.op == "premul_sum":
            raise UnsupportedError(
                f"{call.collective} with PREMUL_SUM in a group of one rank: multiply the tensor instead"
            )
        self._calls += 1
        if send is not None and recv is not None and send != recv:
            self._runtime.copy_bytes(recv, send, call.elements * DTYPES[call.dtype].itemsize, stream)

    def error(self) -> BlinkError | None:
        return None

    def abort(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is held."""

    def stats(self) -> dict[str, int]:
        return {"gpu_alone": self._calls}
