"""Programs on backend "blink" that ranks run: functions of rank and size; the default group is there. By hand:

    echo NAME WORLD_SIZE | PYTHONPATH=tests python tests/emulation/torch_programs.py

The ranks of each line are forked from this process, which has imported torch once (support/forked_ranks.py). The
programs are in torch_calls.py (what a group is asked for), torch_wrappers.py (with tensors that are none),
torch_training.py (what is built on top) and torch_hosts.py (ranks that are on several hosts).
"""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import torch
import torch._dynamo  # once here, and not in every rank that trains
import torch.distributed as dist
import torch_calls
import torch_hosts
import torch_training
import torch_wrappers
from torch_common import meet_in, start

from support.forked_ranks import serve


def _rank(name: str, rank: int, size: int, place: Path) -> None:
    meet_in(place)
    torch.set_num_threads(1)
    if name != "train_example":  # it makes its group itself
        start(rank, size, "first")
    module = next(each for each in (torch_calls, torch_wrappers, torch_training, torch_hosts) if hasattr(each, name))
    getattr(module, name)(rank, size)
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(_rank, limit_s=100)
