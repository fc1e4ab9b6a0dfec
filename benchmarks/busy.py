"""Steps of two ranks on blink and on gloo in turns, beside processes that compute: the ratio of their times.

    pip install transformers accelerate
    torchrun --standalone --nproc-per-node 2 benchmarks/busy.py [--busy 0,2,4,8] [--rounds 15]

"Prefill" is 256 tokens of a small Llama with random weights, in parts on the ranks (Hugging Face transformers,
tp_plan="auto"), and "decode" eight further tokens. "DDP" is a step of examples/train.py. A round runs each on both
backends, after a barrier, in an order that changes from round to round. The time of a round is that of its slower rank.
Ratios are those of blink to gloo in one round: median and quartiles.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from train_step import Contestant
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

BACKENDS = ("blink", "gloo")
LLAMA = LlamaConfig(
    vocab_size=1024,
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
)
TOKENS = 8
#: It computes until the process that started it has ended.
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100000))"


class Served:
    """A Llama in parts on the ranks of one group: prefill, and the tokens after it."""

    def __init__(self, backend: str, folder: str) -> None:
        mesh = DeviceMesh.from_group(dist.new_group(backend=backend), "cpu", mesh_dim_names=("tp",))
        self.model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", device_mesh=mesh)
        self.prompt = torch.arange(256).view(1, -1)
        self.logits: list[torch.Tensor] = []

    @torch.no_grad()
    def prefill(self) -> None:
        """Read the prompt."""
        out = self.model(self.prompt, use_cache=True)
        self.past, self.logits = out.past_key_values, [out.logits[:, -1]]

    @torch.no_grad()
    def decode(self) -> None:
        """Append :data:`TOKENS` tokens."""
        for _ in range(TOKENS):
            token = self.logits[-1].argmax(-1, keepdim=True)
            self.logits.append(self.model(token, past_key_values=self.past, use_cache=True).logits[:, -1])


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Processes that compute, each in a session of its own, which the system gives as much time as a rank."""
    started = [
        subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())], start_new_session=True)
        for _ in range(number if dist.get_rank() == 0 else 0)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def seconds(step: Callable[[], Any]) -> float:
    """Wall time of ``step`` after a barrier."""
    dist.barrier()
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def times(steps: dict[str, dict[str, Callable[[], None]]], rounds: int) -> dict[str, list[list[float]]]:
    """Seconds of each step on each backend, by round, of the slower rank."""
    took: dict[str, list[list[float]]] = {name: [] for name in steps}
    for number in range(rounds):
        for name, on in steps.items():
            order = BACKENDS[:: 1 if number % 2 else -1]
            measured = {backend: seconds(on[backend]) for backend in order}
            took[name].append([measured[backend] for backend in BACKENDS])
    for name, rows in took.items():
        slower = torch.tensor(rows)
        dist.all_reduce(slower, dist.ReduceOp.MAX)
        took[name] = slower.tolist()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure steps of training and serving beside busy processes.")
    parser.add_argument("--busy", default="0,2,4,8", help="numbers of busy processes")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LLAMA).save_pretrained(folder)  # each rank its own copy of the same weights
        dist.init_process_group("blink")
        llamas = {backend: Served(backend, folder) for backend in BACKENDS}
    training = {backend: Contestant(backend, 1000 + dist.get_rank()) for backend in BACKENDS}
    steps: dict[str, dict[str, Callable[[], None]]] = {
        "prefill": {backend: llama.prefill for backend, llama in llamas.items()},
        "decode": {backend: llama.decode for backend, llama in llamas.items()},
        "DDP": {backend: each.step for backend, each in training.items()},
    }
    times(steps, 3)
    if dist.get_rank() == 0:
        print(f"{'busy':>4}  {'step':8}{'blink ms':>10}{'gloo ms':>10}{'ratio':>8}{'quartiles':>14}")
    for number in map(int, options.busy.split(",")):
        with busy(number):
            took = times(steps, options.rounds)
        for name, rows in took.items() if dist.get_rank() == 0 else ():
            ratios = [blink / gloo for blink, gloo in rows]
            first, _, third = quantiles(ratios, n=4)
            blink, gloo = (1e3 * median(column) for column in zip(*rows, strict=True))
            print(
                f"{number:4}  {name:8}{blink:10.1f}{gloo:10.1f}{median(ratios):8.2f}{first:8.2f}{third:6.2f}",
                flush=True,
            )
    same = all(torch.equal(*pair) for pair in zip(*(each.logits for each in llamas.values()), strict=True))
    same = same and training["blink"].losses == training["gloo"].losses
    if dist.get_rank() == 0:
        print("logits and losses are", "the same, bit for bit" if same else "NOT the same")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
