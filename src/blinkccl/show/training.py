"""The time of a training step, from the times of its collectives.

A step is a forward pass, a backward pass from the last layer to the first, and the exchange of gradients. Gradients
are sent while earlier layers still compute, in buckets as in PyTorch's DistributedDataParallel (Li et al. 2020,
§3.2). Communication that the backward pass does not hide is the overhead in Blink's Fig 5 (MLSys 2020). It is also the
time that a faster AllReduce can save in its Fig 18.

The model is a recurrence over two resources that each do one job at a time: the GPU's arithmetic and the communicator.
It does not model links: the caller gives the time of a collective as a function of its size. Left out: communication
that slows arithmetic, launches by the host, stragglers. The backward time is divided among the layers by their FLOPs,
which gives too little to memory-bound layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any

from blinkccl.cost.baselines.candidate import Prepared
from blinkccl.cost.baselines.registry import JobCandidates
from blinkccl.errors import UnsupportedError
from blinkccl.show.models import Compute, NeuralNetwork, Tensor, work_of
from blinkccl.show.text import Paint, columns, fit, seconds_text
from blinkccl.units import size_text

#: Time of a collective, by its size in bytes.
Seconds = Callable[[int], float]

#: Bytes at which DistributedDataParallel closes its first bucket (small, to begin sending early), and the others.
DDP_BUCKET_BYTES = (2**20, 25 * 2**20)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors in one AllReduce. It may begin at ``ready_s``, and ran from ``start_s`` to ``end_s``.

    Times count from the beginning of the step.
    """

    tensors: tuple[str, ...]
    size_bytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TrainingStep:
    """One step of one rank.

    ``compute_s`` is forward and backward alone, ``communication_s`` the time for which the communicator is busy,
    ``exposed_s`` the part of it that compute does not hide, ``total_s`` = compute + exposed. ``buckets`` are in
    sending order. The optimizer's time is part of compute, as in published throughputs.
    """

    compute_s: float
    communication_s: float
    exposed_s: float
    total_s: float
    buckets: tuple[Bucket, ...]

    @property
    def overhead_percent(self) -> float:
        """Communication overhead as in Blink's Fig 5: exposed communication in percent of the step."""
        return 100.0 * self.exposed_s / self.total_s


def step_time(
    model: NeuralNetwork,
    compute: Compute,
    allreduce_seconds: Seconds,
    overlap: bool = True,
    bucket_bytes: tuple[int, int] = DDP_BUCKET_BYTES,
) -> TrainingStep:
    """A step of data-parallel training: forward, backward, and an AllReduce of every bucket of gradients.

    Gradients come in the reverse order of the parameters, a layer's all at once. A bucket closes when it holds at
    least its bytes; it is ready when its last gradient is. Buckets are reduced one after another. Without ``overlap``,
    sending starts after the backward pass. The buckets are those of PyTorch from its second iteration on, after it has
    recorded the order of gradients.
    """
    seconds = cache(allreduce_seconds)
    gradients = list(_gradients(model, compute))
    sizes = [tensor.elements * model.element_bytes for tensor, _ in gradients]
    free_s, buckets, busy = 0.0 if overlap else compute.total_s, list[Bucket](), list[float]()
    for begin, end in _cut(sizes, *bucket_bytes):
        names = tuple(tensor.name for tensor, _ in gradients[begin:end])
        size_bytes, ready_s = sum(sizes[begin:end]), gradients[end - 1][1]
        start_s = max(free_s, ready_s)
        busy.append(seconds(size_bytes) if size_bytes else 0.0)
        free_s = start_s + busy[-1]
        buckets.append(Bucket(names, size_bytes, ready_s, start_s, free_s))
    total_s = max(free_s, compute.total_s)
    return TrainingStep(compute.total_s, math.fsum(busy), total_s - compute.total_s, total_s, tuple(buckets))


def _gradients(model: NeuralNetwork, compute: Compute) -> Iterator[tuple[Tensor, float]]:
    """Every tensor, last first, with the time at which its gradient is ready."""
    layers = model.layers[::-1]
    for layer, done in zip(layers, accumulate(layer.backward_flops for layer in layers), strict=True):
        # One rounding, so that the last gradient is ready exactly at the end of the backward pass.
        ready_s = float(Fraction(compute.forward_s) + Fraction(compute.backward_s) * done / model.backward_flops)
        for tensor in reversed(layer.tensors):
            yield tensor, ready_s


def _cut(sizes: list[int], first_bytes: int, then_bytes: int) -> Iterator[tuple[int, int]]:
    """Consecutive runs, each closed by the size that fills it; the remainder is the last run."""
    begin, held, limit = 0, 0, first_bytes
    for end, size_bytes in enumerate(sizes, start=1):
        held += size_bytes
        if held >= limit:
            yield begin, end
            begin, held, limit = end, 0, then_bytes
    if begin < len(sizes):
        yield begin, len(sizes)


@dataclass(frozen=True)
class StepTable:
    """A training step of ``model`` on ``gpu`` with each candidate's AllReduce."""

    model: str
    gpu: str
    by_name: Mapping[str, TrainingStep]

    def document(self) -> list[dict[str, Any]]:
        """The steps in the JSON of ``blink sim --model``."""
        return [
            {
                "algorithm": name,
                "step_s": step.total_s,
                "compute_s": step.compute_s,
                "communication_s": step.communication_s,
                "exposed_s": step.exposed_s,
                "overhead_percent": step.overhead_percent,
            }
            for name, step in self.by_name.items()
        ]

    def text(self, paint: Paint, width: int | None = None) -> str:
        """A table, the shortest step first."""
        ordered = sorted(self.by_name.items(), key=lambda item: item[1].total_s)
        table = [
            [
                name,
                *(seconds_text(part) for part in (step.total_s, step.exposed_s, step.communication_s)),
                f"{step.overhead_percent:.1f}",
            ]
            for name, step in ordered
        ]
        header = ("algorithm", "step", "exposed", "allreduce", "overhead %")
        lines = columns(header, table, (0,), width, look=lambda n, _: "bold" if n == 1 else "", paint=paint)
        compute = seconds_text(ordered[0][1].compute_s)
        buckets = f"buckets of {size_text(DDP_BUCKET_BYTES[1])} during the backward pass"
        head = f"a step of {self.model} on {self.gpu.upper()}s: {compute} of compute, gradients reduced in {buckets}"
        return fit(f"\n{head}\n\n", width) + "\n".join(lines) + "\n"


def training_steps(field: JobCandidates, model: str, gpu: str) -> StepTable:
    """A data-parallel training step of ``model`` on GPUs called ``gpu``, with each candidate's AllReduce."""
    name = field.request.collective.name
    if name != "allreduce":
        raise UnsupportedError(f"a data-parallel step reduces gradients by allreduce, not by {name}")
    chosen, compute = work_of(model, gpu)

    def seconds(one: Prepared) -> Seconds:
        return lambda size_bytes: one.at(size_bytes).seconds

    return StepTable(model, gpu, {one.name: step_time(chosen, compute, seconds(one)) for one in field.prepared})
