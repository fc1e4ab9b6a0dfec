"""Hugging Face accelerate: a model that is trained, and metrics that are gathered, on CPUs."""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from framework_report import bits, report


def main() -> None:
    handlers = [InitProcessGroupKwargs(backend="gloo")]
    if sys.argv[1] != "gloo":  # accelerate refuses other names, and takes a group that exists
        dist.init_process_group(sys.argv[1])
        handlers = []
    accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    made = model, torch.optim.SGD(model.parameters(), 0.1), torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader = accelerator.prepare(*made)
    for inputs, targets in loader:
        loss = ((model(inputs) - targets) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses = accelerator.gather_for_metrics(loss.detach().reshape(1))
    report(losses=losses.tolist(), weights=bits(model.parameters()), ranks=accelerator.num_processes)
    dist.barrier()
    dist.destroy_process_group()


main()
