"""Ray Train: workers of a TorchTrainer, whose backend is one argument."""

import sys
import tempfile
from typing import Any

import ray
import torch
import torch.distributed as dist
from framework_report import bits, report
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def worker(_: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        torch.manual_seed(10 * step + dist.get_rank())
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(weights=bits(model.parameters()))


def main() -> None:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=True)
    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            worker,
            train_loop_config={},
            torch_config=TorchConfig(backend=sys.argv[1]),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder),
        ).fit()


main()
