"""Blink: collective communication planned from the links a job really has.

``blinkccl.plan()`` packs trees into the links of a job, ``blinkccl.topo()`` describes these links, ``blinkccl.load()``
reads a plan from a file. ``blinkccl.init()`` joins this process to its job; ``blinkccl.empty()`` allocates arrays in
memory that all ranks of a host share; ``blinkccl.torch`` is for programs on PyTorch. All errors derive from
``blinkccl.BlinkError``. Other names are imported from the rooms (docs/design.md). Importing this package loads no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blinkccl.api.plan import Plan, load, plan
    from blinkccl.api.topo import Topo, topo
    from blinkccl.errors import BlinkError
    from blinkccl.runtime.communicator import Communicator, init
    from blinkccl.runtime.heap import empty

__all__ = ["BlinkError", "Communicator", "Plan", "Topo", "empty", "init", "load", "plan", "topo"]

_HOMES = {
    "BlinkError": "blinkccl.errors",
    "Communicator": "blinkccl.runtime.communicator",
    "Plan": "blinkccl.api.plan",
    "Topo": "blinkccl.api.topo",
    "empty": "blinkccl.runtime.heap",
    "init": "blinkccl.runtime.communicator",
    "load": "blinkccl.api.plan",
    "plan": "blinkccl.api.plan",
    "topo": "blinkccl.api.topo",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("errors", "torch"):
        return import_module(f"blinkccl.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
