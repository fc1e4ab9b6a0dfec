"""The last line of a framework's program: its results, and the number of calls that blink served."""

import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


def bits(tensors: Iterable[torch.Tensor]) -> str:
    """A hash of the tensors' bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def served() -> int:
    """The calls of this process that blink has served."""
    backend = sys.modules.get("blinkccl.torch_backend")
    return backend.stats().get("calls", 0) if backend else 0


def report(**results: Any) -> None:
    """Print rank 0's results; the group must still exist."""
    if dist.get_rank() == 0:
        print(json.dumps({"calls": served(), "results": results}), flush=True)
