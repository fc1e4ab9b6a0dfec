"""The time of a training step, given how long its collectives take.

A step is a forward pass, a backward pass from the last layer to the first, and the exchange of gradients. Gradients
are sent while earlier layers still compute, in buckets as PyTorch's DistributedDataParallel does (Li et al. 2020,
§3.2). What does not hide behind the backward pass is the communication overhead of Blink's Fig 5 (MLSys 2020), and what
a faster AllReduce can save in its Fig 18.

The model is a recurrence over two things that each do one job at a time: the GPU's arithmetic and the communicator.
It knows nothing of links: the time of a collective is a function of its size that the caller gives. Left out:
communication that slows arithmetic, launches by the host, stragglers. The backward time is spread over the layers by
their FLOPs, which gives too little to layers that wait for memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any

from blinkccl.baselines.candidate import Prepared
from blinkccl.baselines.registry import JobCandidates
from blinkccl.errors import UnsupportedError
from blinkccl.paper.models import Compute, NeuralNetwork, Tensor, compute_time, network
from blinkccl.report.text import Paint, columns, seconds_text

#: Time of a collective of so many bytes.
Seconds = Callable[[int], float]

#: Bytes at which DistributedDataParallel closes its first bucket, so that sending begins early, and the others.
DDP_BUCKET_BYTES = (2**20, 25 * 2**20)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that one collective moves. It may begin at ``ready_s`` and ran from ``start_s`` to ``end_s``.

    Times count from the beginning of the step.
    """

    collective: str
    tensors: tuple[str, ...]
    size_bytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TrainingStep:
    """One step of one rank.

    ``compute_s`` is forward and backward alone, ``communication_s`` the time for which the communicator is busy,
    ``exposed_s`` the part of it that compute does not hide, ``total_s`` = compute + exposed. ``buckets`` are in the
    order in which they are sent. The optimizer's time is in compute, as it is in published throughputs.
    """

    compute_s: float
    communication_s: float
    exposed_s: float
    total_s: float
    buckets: tuple[Bucket, ...]

    @property
    def overhead_percent(self) -> float:
        """Communication overhead as Blink's Fig 5 has it: exposed communication in percent of the step."""
        return 100.0 * self.exposed_s / self.total_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same step with our AllReduce and with theirs. Reductions are fractions of theirs: below 0 ours is slower."""

    ours: TrainingStep
    theirs: TrainingStep

    @property
    def step_reduction(self) -> float:
        """Blink's Fig 18, end to end: 1 - our step / their step."""
        return 1.0 - self.ours.total_s / self.theirs.total_s

    @property
    def communication_reduction(self) -> float:
        """Blink's Fig 18, communication: of the time spent in AllReduce, hidden or not.

        The text does not say which of the two it means; its 87 % is what the 8-fold AllReduce of its Fig 17 saves.
        """
        return 1.0 - self.ours.communication_s / self.theirs.communication_s


def step_time(
    model: NeuralNetwork,
    compute: Compute,
    allreduce_seconds: Seconds,
    overlap: bool = True,
    bucket_bytes: tuple[int, int] = DDP_BUCKET_BYTES,
) -> TrainingStep:
    """A step of data-parallel training: forward, backward, and an AllReduce of every bucket of gradients.

    Gradients come in the reverse order of the parameters, a layer's all at once. A bucket is full as soon as it holds
    its bytes or more; it is ready when its last gradient is. Buckets are reduced one after another. Without ``overlap``
    none is sent before the backward pass is over. The buckets are those that PyTorch has from its second iteration on,
    when it has seen in which order gradients come.
    """
    seconds = cache(allreduce_seconds)
    gradients = list(_gradients(model, compute))
    sizes = [tensor.elements * model.element_bytes for tensor, _ in gradients]
    communicator = _Communicator(0.0 if overlap else compute.total_s)
    for begin, end in _cut(sizes, *bucket_bytes):
        names = tuple(tensor.name for tensor, _ in gradients[begin:end])
        communicator.run("allreduce", names, sum(sizes[begin:end]), gradients[end - 1][1], seconds)
    return communicator.step(compute, compute.total_s)


def zero3_step(
    model: NeuralNetwork,
    compute: Compute,
    allgather_seconds: Seconds,
    reduce_scatter_seconds: Seconds,
    overlap: bool = True,
    unit_bytes: int = 1,
    ahead: int = 1,
) -> TrainingStep:
    """A step of ZeRO stage 3, or of fully sharded data parallelism: every rank keeps 1 / N of the parameters.

    Each unit's parameters are gathered before its forward pass, dropped, gathered again before its backward pass, and
    its gradients reduce-scattered after it. A unit is layers of ``unit_bytes`` or more in forward order, with 1 each by
    itself; so many units ``ahead`` are gathered while an earlier one computes, and without ``overlap`` one thing is
    done at a time. That moves 3 (N-1)/N · S per rank, 3/2 of an AllReduce's 2 (N-1)/N · S: what it saves is memory, not
    traffic (ZeRO, SC 2020, §7.2.2; the NCCL notes, §10, have ReduceScatter move S / N).
    """
    gather, scatter = cache(allgather_seconds), cache(reduce_scatter_seconds)
    units = list(_units(model, compute, unit_bytes))
    passes = [(unit, unit.forward_s, False) for unit in units]
    passes += [(unit, unit.backward_s, True) for unit in reversed(units)]
    ahead = ahead if overlap else 0
    communicator = _Communicator(0.0)
    gathered = [
        communicator.run("allgather", unit.tensors, unit.size_bytes, 0.0, gather) for unit, _, _ in passes[: ahead + 1]
    ]
    now = 0.0
    for i, (unit, busy_s, backward) in enumerate(passes):
        now = max(now, gathered[i]) + busy_s
        if i + ahead + 1 < len(passes):
            # Before the gradients: arithmetic waits for parameters, and only the optimizer for gradients.
            after = passes[i + ahead + 1][0]
            gathered.append(communicator.run("allgather", after.tensors, after.size_bytes, now, gather))
        if backward:
            communicator.run("reduce_scatter", unit.tensors, unit.size_bytes, now, scatter)
        if not overlap:
            now = max(now, communicator.free_s)
    return communicator.step(compute, now)


class _Communicator:
    """Runs one collective after another, in the order in which they are given to it."""

    def __init__(self, free_s: float) -> None:
        self.free_s = free_s
        self._busy: list[float] = []
        self._buckets: list[Bucket] = []

    def run(self, collective: str, tensors: tuple[str, ...], size_bytes: int, ready_s: float, took: Seconds) -> float:
        """When the collective is done."""
        start_s = max(self.free_s, ready_s)
        self._busy.append(took(size_bytes) if size_bytes else 0.0)
        self.free_s = start_s + self._busy[-1]
        self._buckets.append(Bucket(collective, tensors, size_bytes, ready_s, start_s, self.free_s))
        return self.free_s

    def step(self, compute: Compute, computed_s: float) -> TrainingStep:
        """The step whose arithmetic ended at ``computed_s``, and which ends when the last collective has, too."""
        total_s = max(computed_s, self.free_s, compute.total_s)  # a sum of units may be a rounding below the whole
        busy_s, exposed_s = math.fsum(self._busy), total_s - compute.total_s
        return TrainingStep(compute.total_s, busy_s, exposed_s, total_s, tuple(self._buckets))


@dataclass(frozen=True, slots=True)
class _Unit:
    """Layers whose parameters are gathered together."""

    tensors: tuple[str, ...]
    size_bytes: int
    forward_s: float
    backward_s: float


def _units(model: NeuralNetwork, compute: Compute, unit_bytes: int) -> Iterator[_Unit]:
    sizes = [sum(tensor.elements for tensor in layer.tensors) * model.element_bytes for layer in model.layers]
    for begin, end in _cut(sizes, unit_bytes, unit_bytes):
        layers = model.layers[begin:end]
        yield _Unit(
            tuple(tensor.name for layer in layers for tensor in layer.tensors),
            sum(sizes[begin:end]),
            compute.forward_s * (sum(layer.forward_flops for layer in layers) / model.forward_flops),
            compute.backward_s * (sum(layer.backward_flops for layer in layers) / model.backward_flops),
        )


def _gradients(model: NeuralNetwork, compute: Compute) -> Iterator[tuple[Tensor, float]]:
    """Every tensor, last first, with the time at which its gradient is there."""
    layers = model.layers[::-1]
    for layer, done in zip(layers, accumulate(layer.backward_flops for layer in layers), strict=True):
        # Rounded once, so that the last gradient is there exactly when the backward pass ends.
        ready_s = float(Fraction(compute.forward_s) + Fraction(compute.backward_s) * done / model.backward_flops)
        for tensor in reversed(layer.tensors):
            yield tensor, ready_s


def _cut(sizes: list[int], first_bytes: int, then_bytes: int) -> Iterator[tuple[int, int]]:
    """Consecutive runs, each closed by the size that fills it; what is left over is the last one."""
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
    overlap: bool
    by_name: Mapping[str, TrainingStep]

    def document(self) -> list[dict[str, Any]]:
        """For the JSON of ``blink sim --model``."""
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

    def text(self, paint: Paint) -> str:
        """For people, the shortest step first."""
        ordered = sorted(self.by_name.items(), key=lambda item: item[1].total_s)
        table = [
            [
                name,
                *(seconds_text(part) for part in (step.total_s, step.exposed_s, step.communication_s)),
                f"{step.overhead_percent:.1f}",
            ]
            for name, step in ordered
        ]
        lines = columns(("algorithm", "step", "exposed", "allreduce", "overhead %"), table, left=(0,))
        lines = [paint(line, "bold") if n == 1 else line for n, line in enumerate(lines)]
        compute = seconds_text(ordered[0][1].compute_s)
        how = "while the backward pass goes on" if self.overlap else "after the backward pass"
        head = f"a step of {self.model} on {self.gpu.upper()}s: {compute} of compute, "
        return f"\n{head}gradients reduced in buckets of 25 MiB {how}\n\n" + "\n".join(lines) + "\n"


def training_steps(field: JobCandidates, model: str, gpu: str, overlap: bool = True) -> StepTable:
    """A data-parallel training step of ``model`` on GPUs called ``gpu``, with each candidate's AllReduce."""
    name = field.request.collective.name
    if name != "allreduce":
        raise UnsupportedError(f"a data-parallel step reduces gradients by allreduce, not by {name}")
    chosen, compute = network(model), compute_time(model, gpu)

    def seconds(one: Prepared) -> Seconds:
        return lambda size_bytes: one.at(size_bytes).seconds

    steps = {one.name: step_time(chosen, compute, seconds(one), overlap) for one in field.prepared}
    return StepTable(model, gpu, overlap, steps)
