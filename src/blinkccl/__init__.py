"""Blink: collective communication planned from the links a job really has.

``blinkccl.init()`` joins this process to its job; ``blinkccl.empty()`` makes arrays in memory that all ranks of a
host share; ``blinkccl.torch`` is for programs on PyTorch. Everything else is imported from the rooms (docs/design.md).
Importing this loads none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blinkccl.runtime.communicator import Communicator, init
    from blinkccl.runtime.heap import empty
    from blinkccl.runtime.shared_arrays import get, put

__all__ = ["Communicator", "empty", "get", "init", "put"]

_HOMES = {
    "Communicator": "blinkccl.runtime.communicator",
    "init": "blinkccl.runtime.communicator",
    "empty": "blinkccl.runtime.heap",
    "get": "blinkccl.runtime.shared_arrays",
    "put": "blinkccl.runtime.shared_arrays",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "torch":
        return import_module("blinkccl.torch")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
