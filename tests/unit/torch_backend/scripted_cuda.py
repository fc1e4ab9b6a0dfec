"""CUDA and an engine that do what a test tells them: streams that only note what is put on them, in order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch

from blinkccl.errors import BlinkError
from blinkccl.torch_backend.cuda_runtime import CudaRuntime


class ScriptedRuntime(CudaRuntime):
    """Device tensors are CPU tensors, a stream is a name, an event (stream, how much was on it)."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.current = "current"
        self.ran = True  # whether events have come
        self.captures = False
        self.watching = False
        self.made: list[str] = []

    def device(self, device: Any) -> Any:
        return device

    def number(self, device: Any) -> int:
        return 3

    def current_stream(self, device: Any) -> str:
        return self.current

    def new_stream(self, device: Any) -> str:
        self.made.append("group" if not self.made else f"message {len(self.made)}")
        return self.made[-1]

    @contextmanager
    def on(self, stream: str) -> Any:
        before, self.current = self.current, stream
        yield
        self.current = before

    def handle(self, stream: str) -> int:
        return {"current": 1, "group": 2, "other": 3}.get(stream) or 3 + self.made.index(stream)

    def record(self, stream: str) -> Any:
        self.log.append(("record", stream))
        return stream, len(self.log)

    def wait_event(self, stream: str, event: Any) -> None:
        self.log.append(("wait", stream, event[0]))

    def done(self, event: Any) -> bool:
        return self.ran

    def capturing(self) -> bool:
        return self.captures

    def empty(self, nbytes: int, device: Any) -> Any:
        self.log.append(("empty", nbytes, self.current))
        return torch.empty(nbytes, dtype=torch.uint8)

    def copy(self, target: Any, source: Any) -> None:
        self.log.append(("copy", self.current))
        super().copy(target, source)

    def copy_bytes(self, target: int, source: int, nbytes: int, handle: int | None) -> None:
        self.log.append(("copy_bytes", target, source, nbytes, handle))

    def record_stream(self, tensor: Any, stream: str) -> None:
        self.log.append(("keep", tensor.data_ptr(), stream))

    def future(self, tensors: Sequence[Any], device: Any, stream: str) -> Any:
        self.log.append(("future", stream))
        made: Any = torch.futures.Future()
        made.set_result(list(tensors))
        return made

    def begin_watching(self) -> None:
        self.watching = True


class ScriptedEngine:
    """Notes its calls; ``fails`` is raised by them, ``says`` is what kernels have said."""

    def __init__(self, runtime: ScriptedRuntime) -> None:
        self.runtime = runtime
        self.calls: list[tuple[Any, ...]] = []
        self.fails: BlinkError | None = None
        self.says: BlinkError | None = None
        self.ended: list[str] = []

    def run(self, *call: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.runtime.log.append(("run", call[0].collective, call[-1]))
        self.calls.append(call)

    def message(self, *message: Any) -> None:
        self.runtime.log.append(("message", message[0], message[-1]))
        self.calls.append(message)

    def error(self) -> BlinkError | None:
        return self.says

    def abort(self) -> None:
        self.ended.append("abort")

    def close(self) -> None:
        self.ended.append("close")

    def stats(self) -> dict[str, int]:
        return {"gpu_calls": len(self.calls)}
