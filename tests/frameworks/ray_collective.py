"""``ray.util.collective``: all its calls between two actors, by gloo's group or by ours."""

import json
import sys
from typing import Any

import numpy as np
import ray
import torch
from framework_report import bits, served
from ray.util import collective
from ray.util.collective.types import ReduceOp


@ray.remote
class Rank:
    """One rank of the group."""

    def __init__(self, rank: int, backend: str) -> None:
        self.rank, self.backend = rank, backend
        if backend == "blink":
            from ray.util.collective.backend_registry import register_collective_backend

            from blinkccl.torch_backend.ray_group import BlinkGroup

            register_collective_backend("BLINK", BlinkGroup)

    def run(self) -> dict[str, Any]:
        collective.init_collective_group(2, self.rank, backend=self.backend)
        other = 1 - self.rank
        torch.manual_seed(self.rank)
        total, highest, array = torch.randn(1000), torch.randn(7), np.full(5, self.rank + 1.0)
        collective.allreduce(total)
        collective.allreduce(highest, op=ReduceOp.MAX)
        collective.allreduce(array)
        reduced, root = torch.full((3,), self.rank + 1.0), torch.full((3,), self.rank + 5.0)
        collective.reduce(reduced, dst_rank=1)
        collective.broadcast(root, src_rank=1)
        gathered, part = [torch.zeros(2) for _ in range(2)], torch.zeros(2)
        collective.allgather(gathered, torch.full((2,), self.rank + 1.0))
        collective.reducescatter(part, [torch.full((2,), self.rank + 10.0 * block) for block in range(2)])
        message = torch.full((4,), self.rank + 1.0)
        if self.rank == 0:
            collective.send(message, other)
        else:
            collective.recv(message, other)
        collective.barrier()
        small = [each.tolist() for each in (reduced, root, *gathered, part, message, torch.from_numpy(array))]
        result = {"calls": served(), "results": {"sums": bits([total, highest]), "small": small}}
        collective.destroy_collective_group()
        return result


def main() -> None:
    ray.init(num_cpus=4, include_dashboard=False)
    ranks = [Rank.remote(rank, sys.argv[1]) for rank in range(2)]
    print(json.dumps(ray.get([rank.run.remote() for rank in ranks])[1]), flush=True)


main()
