"""vLLM's communicator on CPUs, its own class: kernels of vLLM's by default, blink with its plug-in.

The class is that of the wheel, whose compiled kernels are not loaded. Their operators are doubles, which end the rank.
"""

import os
import sys
from importlib.metadata import entry_points

import torch
import torch.distributed as dist
from framework_report import report
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


def main() -> None:
    kernels = torch.library.Library("_C", "FRAGMENT")
    kernels.define("init_shm_manager(str name, int ranks, int rank, int threads) -> int")
    os.environ["VLLM_DIST_IDENT"] = "frameworks"
    if sys.argv[1] == "gloo":
        (plugin,) = entry_points(group="vllm.general_plugins", name="blink")
        plugin.load()()
        dist.init_process_group("gloo")
    else:  # the word serves all calls of a group that has no kernels
        dist.init_process_group(sys.argv[1])
    name = "tp:0" if os.environ.get("BLINK_FOR") else "dp:0"
    group = dist.group.WORLD
    communicator = CpuCommunicator(group, torch.device("cpu"), group, unique_name=name)
    assert communicator.dist_module is dist
    rank = dist.get_rank()
    total = communicator.all_reduce(torch.full((5,), rank + 1.0))
    rows = communicator.all_gather(torch.full((2, 3), rank + 1.0), dim=0)
    columns = communicator.all_gather(torch.full((2, 3), rank + 1.0))
    whole = communicator.gather(torch.full((2,), rank + 1.0))
    report(
        results=[each.tolist() for each in (total, rows, columns)], whole=whole.tolist() if whole is not None else None
    )
    dist.destroy_process_group()


main()
