"""vLLM's plug-in (entry point ``vllm.general_plugins``): with ``BLINK_FOR=gloo``, its groups on CPUs call blink.

vLLM's groups on CPUs are gloo's, so the switch serves them. But the communicator of tensor and pipeline parallelism has
kernels of its own for ranks of one host, and takes ``torch.distributed`` only where these ranks have no common name.
"""

from __future__ import annotations

import logging
import os


def register() -> None:
    """Have vLLM's communicator on CPUs take ``torch.distributed``; vLLM calls this in each of its processes."""
    if os.environ.get("BLINK_FOR") != "gloo":
        return
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    if hasattr(CpuCommunicator, "_all_group_ranks_share_shm_group_name"):
        CpuCommunicator._all_group_ranks_share_shm_group_name = _never
    else:
        logging.getLogger(__name__).warning(
            "this vLLM keeps its own kernels on CPUs: its CpuCommunicator has no _all_group_ranks_share_shm_group_name"
        )


def _never(_: object) -> bool:
    return False
