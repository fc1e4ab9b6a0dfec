"""Programs on backend "blink" for ranks: functions of rank and size, called with the default group. On a shell:

    echo NAME WORLD_SIZE | PYTHONPATH=tests python tests/emulation/torch_programs.py

The ranks of each line are forked from this process, which has imported torch once (support/forked_ranks.py). The
programs are in torch_calls.py (the calls of a group), torch_small_calls.py (small ones, and tools that watch them),
torch_wrappers.py (tensors without plain memory), torch_training.py (layers on top) and torch_hosts.py (ranks of
several hosts).
"""

import gc
import warnings
from pathlib import Path

import torch
import torch._dynamo  # imported once, not in every rank that trains
import torch.distributed as dist
import torch_calls
import torch_hosts
import torch_small_calls
import torch_training
import torch_wrappers
from torch_common import meet_in, start

from support.forked_ranks import serve


def _rank(name: str, rank: int, size: int, place: Path) -> None:
    meet_in(place)
    torch.set_num_threads(1)
    if name != "train_example":  # it creates its group itself
        start(rank, size, "first")
    module = next(
        each
        for each in (torch_calls, torch_small_calls, torch_wrappers, torch_training, torch_hosts)
        if hasattr(each, name)
    )
    getattr(module, name)(rank, size)
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(_rank, limit_s=100)
