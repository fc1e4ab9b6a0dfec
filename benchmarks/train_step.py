"""What communication takes of a DDP step of examples/train.py: plain, with shared buckets, and on gloo, in turns.

    torchrun --standalone --nproc-per-node 2 benchmarks/train_step.py [--steps 60] [--width 128]

The models train side by side on the same texts, a step of each in turn. Of each AllReduce of a bucket counts the
processor time of the thread that runs it, and of the ranks the one that spent least: others had waited. (Wall time
would count what the backward pass does on the same core.) "Exposed" is what a step takes longer than one under
no_sync(), which sends nothing. "One element" reduces a single element of each bucket: what is left of a collective
when nothing is moved. All losses of the first three must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import blinkccl

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train

#: Steps before anything counts: DDP makes its buckets anew after the first, and caches fill.
WARM_UP = 5


def one_element(group, bucket):  # torch compares annotations as objects, and these would be text
    """A communication hook that leaves out the data."""
    gradients = bucket.buffer()
    work = dist.all_reduce(gradients[:1], group=group, async_op=True)
    return work.get_future().then(lambda _: gradients)


class Contestant:
    """One model, how it is reduced, and what its steps took."""

    def __init__(self, backend: str, texts: int, prepare: Any = None, synced: bool = True) -> None:
        torch.manual_seed(0)
        self.group = dist.new_group(backend=backend)
        self.model = DistributedDataParallel(train.Transformer(), process_group=self.group)
        if prepare is not None:
            prepare(self.model)
        self.synced = synced
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.texts = torch.Generator().manual_seed(texts)
        self.losses: list[float] = []
        self.step_s: list[float] = []
        self.communication_s: list[float] = []

    def step(self) -> None:
        """One step, and afterwards what its collectives took on the rank that waited least."""
        text = train.batch_of_texts(self.texts, 8)
        with self._timed() as taken, nullcontext() if self.synced else self.model.no_sync():
            begin = time.perf_counter()
            loss = cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step_s.append(time.perf_counter() - begin)
        self.losses.append(loss.item())
        least = torch.tensor(taken)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        self.communication_s.append(least.sum().item())

    @contextmanager
    def _timed(self) -> Iterator[list[float]]:
        """Processor time of each collective of ours in the block, in order."""
        taken: list[float] = []
        transport = getattr(self.group, "_transport", None)
        if transport is None:  # gloo's threads are its own
            yield taken
            return
        run = transport.run

        def timed(*call: Any) -> None:
            begin = time.thread_time()
            run(*call)
            taken.append(time.thread_time() - begin)

        transport.run = timed
        try:
            yield taken
        finally:
            del transport.run


def main() -> None:
    parser = argparse.ArgumentParser(description="What communication takes of a DDP step.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--width", type=int, default=train.WIDTH, help="of the transformer: parameters grow by its square"
    )
    options = parser.parse_args()
    train.WIDTH = options.width
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("blink")
    texts = 1000 + dist.get_rank()
    each = {
        "gloo": Contestant("gloo", texts),
        "blink": Contestant("blink", texts),
        "shared": Contestant("blink", texts, blinkccl.torch.shared_buckets),
        "one element": Contestant(
            "blink", texts, lambda model: model.register_comm_hook(model.process_group, one_element)
        ),
        "no_sync": Contestant("blink", texts, synced=False),
    }
    order = list(each.values())
    for _ in range(WARM_UP + options.steps):
        for contestant in order:
            contestant.step()
        order.append(order.pop(0))
    if dist.get_rank() == 0:
        tell(each)
    dist.barrier()
    dist.destroy_process_group()


def tell(each: dict[str, Contestant]) -> None:
    """Medians over the steps; ratios and differences are taken within a round."""
    counted = {name: contestant.step_s[WARM_UP:] for name, contestant in each.items()}
    for name, steps in counted.items():
        longer = statistics.median(a - b for a, b in zip(steps, counted["no_sync"], strict=True))
        took = statistics.median(each[name].communication_s[WARM_UP:])
        ours = f"collectives {took * 1e6:8.0f} us" if took else ""
        print(f"{name:11} step {statistics.median(steps) * 1e3:8.2f} ms  exposed {longer * 1e6:8.0f} us  {ours}")
    shared, plain, least = (each[name].communication_s[WARM_UP:] for name in ("shared", "blink", "one element"))
    whole = statistics.median(a / b for a, b in zip(shared, plain, strict=True))
    empty = statistics.median(least)
    moving = (statistics.median(shared) - empty) / (statistics.median(plain) - empty)
    print(f"shared / blink: collectives {whole:.2f}, and without what one element takes {moving:.2f}")
    same = each["gloo"].losses == each["blink"].losses == each["shared"].losses
    print("losses are", "the same, bit for bit" if same else "NOT the same")


if __name__ == "__main__":
    main()
