"""The allocations that the documents count, and what one is called here."""

from __future__ import annotations

from blinkccl.topology.allocations import connected_allocations

__all__ = ["Gpus", "connected_allocations"]

#: GPUs of a job, by id.
Gpus = tuple[int, ...]
