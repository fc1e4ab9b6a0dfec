"""How torch learns of the backend. Loads nothing else of the package: torch may call it while it is being imported.

torch < 2.14 loads what is installed under the entry point group ``torch.backends`` at ``import torch``; torch 2.14 and
later look a name up under ``torch.distributed.backends`` when a process group asks for it.
"""

from __future__ import annotations

from typing import Any

NAME = "blink"


def register() -> None:
    """Registers ``"blink"`` for CPU and CUDA tensors; does nothing where that is done or ``distributed`` lacks."""
    import torch.distributed as dist

    if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: object, _backend_options: object) -> Any:
    """What ``init_process_group`` and ``new_group`` call, with torch's ``_DistributedBackendOptions``."""
    from blinkccl.torch_backend.process_group import create

    return create(options)
