"""The same cases as on the driver's double, on a GPU: what they ask of CUDA, by torch.cuda.

torch_on_gpu.py CASE RANK SIZE STORE
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blinkccl.torch_backend.cuda_runtime import CudaRuntime

CASES = Path(__file__).parents[1] / "unit/torch_backend/cuda_double_rank.py"


class GpuRuntime(CudaRuntime):
    """GPU ``rank`` modulo how many there are; ranks share them where there are fewer."""

    def __init__(self, rank: int) -> None:
        self._device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self._device)
        self.user_stream = torch.cuda.Stream(self._device)
        torch.cuda.set_stream(self.user_stream)
        self.kept_for: list[Any] = []
        self._graph: Any = None

    def tensor(self, values: Tensor) -> Tensor:
        return values.to(self._device)

    def fill_on(self, stream: Any, tensor: Tensor, value: int) -> None:
        with torch.cuda.stream(stream):
            tensor.fill_(value)

    def delay_on(self, stream: Any, seconds: float) -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(seconds * 1e9))

    def copied_on(self, stream: Any, tensor: Tensor) -> Tensor:
        with torch.cuda.stream(stream):
            return tensor.clone()

    def finish(self, stream: Any) -> None:
        stream.synchronize()

    def record_stream(self, tensor: Tensor, stream: Any) -> None:
        self.kept_for.append((tensor.data_ptr(), stream.cuda_stream))
        super().record_stream(tensor, stream)

    def capture(self, stream: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin()

    def captured(self, stream: Any) -> Any:
        self._graph.capture_end()
        return self._graph

    def replay(self, graph: Any, stream: Any) -> None:
        graph.replay()


def main() -> None:
    sys.path.insert(0, str(CASES.parent))
    import cuda_double

    cuda_double.DoubleRuntime = GpuRuntime
    os.environ.setdefault("BLINK_TEST_ON_GPU", "1")
    runpy.run_path(str(CASES), run_name="__main__")


if __name__ == "__main__":
    main()
