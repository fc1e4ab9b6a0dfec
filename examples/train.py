"""Training of a small transformer on generated text, with DDP or FSDP2, on gloo or blink; only one word differs.

    torchrun --nproc-per-node 2 examples/train.py --backend gloo
    torchrun --nproc-per-node 2 examples/train.py --backend blink [--mode fsdp2] [--shared-buckets]

This is plain PyTorch; only the backend's name refers to blink, except --shared-buckets, which is one line. The last
line of output has results of training, without time or backend. At 2 ranks it is the same for gloo and blink, because
a + b = b + a to the last bit. Each backend sums more ranks in its own order, so there the last digits differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import struct
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

SYMBOLS = 61  # a prime: every rule below is then a permutation of them
WIDTH = 128
HEADS = 4
LAYERS = 4
LENGTH = 64
TIMEOUT = timedelta(seconds=60)


class Block(nn.Module):
    """Causal self-attention, then two linear layers, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.queries_keys_values(self.before_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.layers(self.before_layers(x))


class Transformer(nn.Module):
    """Scores of the next symbol at every position of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS))

    def forward(self, text: Tensor) -> Tensor:
        return self.last(self.blocks(self.symbols(text) + self.places.weight[: text.size(1)]))


def batch_of_texts(generator: torch.Generator, batch: int) -> Tensor:
    """Texts of ``LENGTH + 1`` symbols: mostly x → 3x + 1 (mod ``SYMBOLS``), each tenth symbol random."""
    text = torch.randint(SYMBOLS, (batch, LENGTH + 1), generator=generator)
    by_rule = torch.rand((batch, LENGTH + 1), generator=generator) < 0.9
    for place in range(1, LENGTH + 1):
        text[:, place] = torch.where(by_rule[:, place], (3 * text[:, place - 1] + 1) % SYMBOLS, text[:, place])
    return text


def distributed(model: Transformer, options: argparse.Namespace) -> nn.Module:
    """``model`` on all ranks: a copy on each (ddp), or a part of every parameter on each (fsdp2)."""
    if options.mode == "ddp":
        made = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        made = fully_shard(model, mesh=mesh)
    if options.shared_buckets:
        import blinkccl

        blinkccl.torch.shared_buckets(made)
    return made


def train(model: nn.Module, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """The ranks' mean loss before each step, and the seconds of each step."""
    rank, size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1000 * options.seed + rank)  # each rank its own texts
    losses, seconds = [], []
    for step in range(options.steps):
        text = batch_of_texts(generator, options.batch)
        begin = time.perf_counter()
        loss = cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        seconds.append(time.perf_counter() - begin)
        losses.append(mean.item() / size)
        if rank == 0 and not options.json and (step % 5 == 0 or step == options.steps - 1):
            print(f"step {step:3}  loss {losses[-1]!r:20}  {seconds[-1] * 1e3:7.1f} ms", flush=True)
    return losses, seconds


def digest(model: nn.Module) -> str:
    """Hash of all parameters, to the last bit; all ranks must call this, because FSDP2's are gathered."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        sha.update(whole.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def report(losses: list[float], seconds: list[float], parameters: str, options: argparse.Namespace) -> None:
    """Print the result on rank 0. Losses are hashed as doubles, to the last bit."""
    size = dist.get_world_size()
    step_s = statistics.median(seconds)
    tokens_per_s = size * options.batch * LENGTH / step_s
    losses_digest = hashlib.sha256(struct.pack(f"<{len(losses)}d", *losses)).hexdigest()
    if options.json:
        document = {"backend": dist.get_backend(), "mode": options.mode, "ranks": size, "steps": options.steps}
        document |= {"losses": losses, "losses_sha256": losses_digest, "parameters_sha256": parameters}
        print(json.dumps(document | {"step_s": step_s, "tokens_per_s": tokens_per_s}))
        return
    print(f"{dist.get_backend()}: {step_s * 1e3:.1f} ms per step (median), {tokens_per_s:.0f} tokens per second")
    print(
        f"{options.mode}, {size} ranks, {options.steps} steps: losses {losses_digest[:16]}, "
        f"parameters {parameters[:16]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small transformer on generated text.")
    parser.add_argument("--backend", default="blink", help="gloo, blink, or another that serves CPU tensors")
    parser.add_argument("--mode", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--shared-buckets", action="store_true", help="gradients in memory that ranks share: blink")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8, help="texts per rank and step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    options = parser.parse_args()
    if options.steps < 1 or options.batch < 1:
        parser.error(f"--steps and --batch must be at least 1, got {options.steps} and {options.batch}")
    if options.shared_buckets and options.backend != "blink":
        parser.error(f"--shared-buckets is for --backend blink, got {options.backend}")

    # One thread: more would sum in another order from run to run on some machines, and compete for the ranks' cores.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(options.backend, timeout=TIMEOUT)
    torch.manual_seed(options.seed)  # all ranks begin with the same parameters
    model = distributed(Transformer(), options)
    losses, seconds = train(model, options)
    parameters = digest(model)
    if dist.get_rank() == 0:
        report(losses, seconds, parameters, options)
    dist.barrier()  # together: gloo's destructor was seen to hang on ranks whose peers had left before them
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
