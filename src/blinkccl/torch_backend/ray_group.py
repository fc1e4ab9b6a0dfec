"""Backend "BLINK" of ``ray.util.collective``, for its driver and each of its actors:

from ray.util.collective.backend_registry import register_collective_backend
from blinkccl.torch_backend.ray_group import BlinkGroup

register_collective_backend("BLINK", BlinkGroup)
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from ray.util.collective.collective_group import torch_gloo_collective_group as gloo

from blinkccl.torch_backend import for_gloo


class BlinkGroup(gloo.TorchGLOOGroup):
    """Ray's group on gloo with blink in its place: the same rendezvous, the same tensors and arrays on CPUs."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        with for_gloo.serving():
            super().__init__(world_size, rank, group_name)

    @classmethod
    def backend(cls) -> str:
        """The name under which Ray registers it."""
        return "BLINK"

    def reducescatter(self, output_tensor: Any, tensor_list: Any, reducescatter_options: Any = None) -> None:
        """Reduce ``tensor_list[0][r]`` of all ranks into rank r's ``output_tensor[0]``; the inputs do not change.

        Ray's group on gloo sums every block on every rank, in place.
        """
        blocks, output = self._check_tensor_list_input(tensor_list), self._check_tensor_input(output_tensor)
        options = reducescatter_options or gloo.ReduceScatterOptions()
        dist.reduce_scatter(output, blocks, gloo.TORCH_REDUCE_OP_MAP[options.reduceOp], self._pg)
