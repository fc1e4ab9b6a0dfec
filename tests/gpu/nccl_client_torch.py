"""A program of torch with NCCL, without any use of Blink. Ranks share GPUs if there are fewer GPUs than ranks.

nccl_client_torch.py RANK SIZE STORE
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

RANK, SIZE, STORE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def main() -> None:
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    store = dist.FileStore(STORE, SIZE)
    dist.init_process_group("nccl", store=store, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=120))
    for count in (1, 1000, 300_000):
        ramp = torch.arange(count, device="cuda", dtype=torch.float32) % 7
        tensor = ramp + RANK
        dist.all_reduce(tensor)
        assert torch.equal(tensor, ramp * SIZE + sum(range(SIZE))), f"all_reduce of {count}"
        tensor = ramp * (RANK + 1)
        dist.broadcast(tensor, 1)
        assert torch.equal(tensor, ramp * 2), f"broadcast of {count}"
        gathered = torch.empty(SIZE * count, device="cuda")
        dist.all_gather_into_tensor(gathered, ramp + RANK)
        assert torch.equal(gathered, torch.cat([ramp + rank for rank in range(SIZE)])), f"all_gather of {count}"
    dist.destroy_process_group()
    print("ok", flush=True)


if __name__ == "__main__":
    main()
