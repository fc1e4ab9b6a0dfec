"""Cost of communication in a DDP step of examples/train.py: plain, with shared buckets, and on gloo, in turns.

    torchrun --standalone --nproc-per-node 2 benchmarks/train_step.py [--steps 60] [--width 128]

The models train in parallel on the same texts, a step of each in turn. The cost is the excess of a step over one whose
hook sends nothing ("silent"): wall time as the mean of the ranks, and processor time of all threads of a process, of
the rank with least, because the others waited more. "Calls" is its part in the engine, with cold caches after a
backward pass: processor time of the engine's threads from a call of the group to its end, of the rank with least in
that step. "One element" reduces one of each bucket, which leaves a call without data. "Beside" has shared buckets, and
a thread that reduces them during the backward pass. All losses must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import blinkccl
from blinkccl.torch_backend.issue import SteppedWork

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train

#: Steps that do not count: DDP rebuilds its buckets after the first, and caches fill.
WARM_UP = 5


def one_element(group, bucket):  # torch compares annotations as objects, and these would be text
    """A communication hook that omits the data."""
    gradients = bucket.buffer()
    work = dist.all_reduce(gradients[:1], group=group, async_op=True)
    return work.get_future().then(lambda _: gradients)


def silent(group, bucket):
    """A communication hook that sends nothing."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Contestant:
    """One model, its reduction, and the times of its steps."""

    def __init__(self, backend: str, texts: int, prepare: Any = None) -> None:
        torch.manual_seed(0)
        self.group = dist.new_group(backend=backend)
        self.model = DistributedDataParallel(train.Transformer(), process_group=self.group)
        if prepare is not None:
            prepare(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.texts = torch.Generator().manual_seed(texts)
        self.losses: list[float] = []
        #: Of each step: wall time, processor time, and the part of the latter in calls.
        self.took_s: list[tuple[float, float, float]] = []

    def step(self) -> None:
        """One step; the time of calls is that of the rank that waited least."""
        text = train.batch_of_texts(self.texts, 8)
        with self._timed() as taken:
            wall, processor = time.perf_counter(), time.process_time()
            loss = cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
        self.losses.append(loss.item())
        self.took_s.append((wall, processor, sum(taken)))

    def beyond(self, silent: Contestant) -> list[float]:
        """Medians over the steps that count: wall and processor time beyond ``silent``'s, and that of calls."""
        took, least = (torch.tensor(each.took_s[WARM_UP:], dtype=torch.float64) for each in (self, silent))
        longer = (took - least)[:, :2].median(0).values
        ranks = [torch.empty_like(longer) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, longer)
        calls = took[:, 2].contiguous()
        dist.all_reduce(calls, dist.ReduceOp.MIN)
        return [torch.stack(ranks)[:, 0].mean().item(), torch.stack(ranks)[:, 1].min().item(), calls.median().item()]

    @contextmanager
    def _timed(self) -> Iterator[list[float]]:
        """Processor time of each call of Blink in the block, or of each step of it, in the calling thread."""
        taken: list[float] = []
        transport = getattr(self.group, "_transport", None)
        if transport is None:  # gloo's threads are its own
            yield taken
            return

        def timed(run: Any) -> Any:
            def call(*arguments: Any) -> None:
                begin = time.thread_time()
                run(*arguments)
                taken.append(time.thread_time() - begin)

            return call

        go_on = SteppedWork.go_on
        transport.run, SteppedWork.go_on = timed(transport.run), timed(go_on)
        try:
            yield taken
        finally:
            del transport.run
            SteppedWork.go_on = go_on


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of communication in a DDP step.")
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
    shared = blinkccl.torch.shared_buckets
    each = {
        "silent": Contestant("blink", texts, hooked(silent)),
        "gloo": Contestant("gloo", texts),
        "blink": Contestant("blink", texts),
        "shared": Contestant("blink", texts, partial(shared, in_background=False)),
        "beside": Contestant("blink", texts, partial(shared, in_background=True)),
        "one element": Contestant("blink", texts, hooked(one_element)),
    }
    order = list(each.values())
    for _ in range(WARM_UP + options.steps):
        for contestant in order:
            contestant.step()
        order.append(order.pop(0))
    tell(each)
    dist.barrier()
    dist.destroy_process_group()


def hooked(hook: Any) -> Any:
    """A function that registers a hook on a model."""
    return lambda model: model.register_comm_hook(model.process_group, hook)


def tell(each: dict[str, Contestant]) -> None:
    """Print times of steps; differences are taken within a round."""
    beyond = {name: contestant.beyond(each["silent"]) for name, contestant in each.items() if name != "silent"}
    if dist.get_rank():
        return
    for name, (wall, processor, calls) in beyond.items():
        step = statistics.median(took[0] for took in each[name].took_s[WARM_UP:])
        more = f"beyond silent {wall * 1e6:6.0f} us, processor {processor * 1e6:6.0f} us"
        print(f"{name:11} step {step * 1e3:7.2f} ms  {more}", f" calls {calls * 1e6:6.0f} us" if calls else "")
    for name in ("shared", "beside"):
        ratios = [a / b for a, b in zip(beyond[name], beyond["blink"], strict=True)]
        print("{} / blink: wall {:.2f}, processor {:.2f}, calls {:.2f}".format(name, *ratios))
    same = all(each[name].losses == each["gloo"].losses for name in ("blink", "shared", "beside"))
    print("losses are", "the same, bit for bit" if same else "NOT the same")


if __name__ == "__main__":
    main()
