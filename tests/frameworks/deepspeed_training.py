"""DeepSpeed on CPUs: four steps with ZeRO's stages 1, 2 and 3."""

import sys

import deepspeed
import torch
import torch.distributed as dist
from framework_report import bits, report


def trained(stage: int) -> str:
    """The bits of the weights after training."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), config=settings)
    for step in range(4):
        torch.manual_seed(10 * step + dist.get_rank())
        inputs, targets = torch.randn(4, 16), torch.randn(4, 4)
        engine.backward(((engine(inputs) - targets) ** 2).mean())
        engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        return bits(model.parameters())


def main() -> None:
    # Inference has a kernel of its own, which would be compiled here; training does not use it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=sys.argv[1])
    report(weights=[trained(stage) for stage in (1, 2, 3)])
    dist.destroy_process_group()


main()
