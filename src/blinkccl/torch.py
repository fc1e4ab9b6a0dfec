"""Functions for programs on PyTorch; the backend itself needs no import (:mod:`blinkccl.torch_backend`)."""

from __future__ import annotations

from blinkccl.torch_backend import stats
from blinkccl.torch_backend.hooks import group, shared_buckets

__all__ = ["group", "shared_buckets", "stats"]
