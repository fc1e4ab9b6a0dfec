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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any

from blinkccl.baselines.candidate import Prepared
from blinkccl.baselines.registry import JobCandidates
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.paper.models import PART_OF_PEAK, Compute, NeuralNetwork, Tensor, work_of
from blinkccl.report.text import Paint, columns, fit, seconds_text
from blinkccl.units import size_text

#: Time of a collective of so many bytes.
Seconds = Callable[[int], float]

#: Bytes at which DistributedDataParallel closes its first bucket, so that sending begins early, and the others.
DDP_BUCKET_BYTES = (2**20, 25 * 2**20)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that one AllReduce moves. It may begin at ``ready_s`` and ran from ``start_s`` to ``end_s``.

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


def zero3_step(
    model: NeuralNetwork, compute: Compute, allgather_seconds: Seconds, reduce_scatter_seconds: Seconds
) -> TrainingStep:
    """A step with parameters, gradients and optimizer states in shards (ZeRO-3: Rajbhandari et al. 2020, §5.3, §7.2.2).

    Every layer's parameters are gathered before its forward pass and again before its backward pass, and its gradient
    is reduced and scattered after that: half as many bytes again as an AllReduce of all gradients moves. One collective
    runs at a time, in the order in which it is asked for; a layer's parameters are asked for as soon as the layer
    before it begins to compute, so that two layers' are there at once.
    """
    gathered, scattered = cache(allgather_seconds), cache(reduce_scatter_seconds)
    sizes = [sum(tensor.elements for tensor in layer.tensors) * model.element_bytes for layer in model.layers]
    forward = [compute.forward_s * layer.forward_flops / model.forward_flops for layer in model.layers]
    backward = [compute.backward_s * layer.backward_flops / model.backward_flops for layer in model.layers]
    order = range(len(sizes))
    passes = [*((i, forward[i], False) for i in order), *((i, backward[i], True) for i in reversed(order))]
    busy = [gathered(sizes[layer]) for layer, _, _ in passes]
    free_s = there_s = busy[0]
    done_s = 0.0
    for number, (layer, takes_s, reduces) in enumerate(passes):
        begins_s = max(done_s, there_s)
        if number + 1 < len(passes):
            free_s = there_s = max(free_s, begins_s) + busy[number + 1]
        done_s = begins_s + takes_s
        if reduces:
            busy.append(scattered(sizes[layer]))
            free_s = max(free_s, done_s) + busy[-1]
    total_s = max(done_s, free_s)
    return TrainingStep(compute.total_s, math.fsum(busy), total_s - compute.total_s, total_s, ())


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


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step exchanges what it computes: DDP in buckets of so many bytes after the first, or ZeRO-3."""

    overlap: bool = True
    bucket_bytes: int = DDP_BUCKET_BYTES[1]
    zero3: bool = False
    part_of_peak: float = PART_OF_PEAK

    def words(self) -> str:
        """For people."""
        if self.zero3:
            return "parameters gathered for each pass and gradients scattered, layer by layer (ZeRO-3)"
        how = "while the backward pass goes on" if self.overlap else "after the backward pass"
        return f"gradients reduced in buckets of {size_text(self.bucket_bytes)} {how}"


@dataclass(frozen=True)
class StepTable:
    """A training step of ``model`` on ``gpu`` with each candidate's AllReduce."""

    model: str
    gpu: str
    options: StepOptions
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

    def text(self, paint: Paint, width: int | None = None) -> str:
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
        sent = "collectives" if self.options.zero3 else "allreduce"
        header = ("algorithm", "step", "exposed", sent, "overhead %")
        lines = columns(header, table, (0,), width, look=lambda n, line: paint(line, "bold") if n == 1 else line)
        compute = seconds_text(ordered[0][1].compute_s)
        head = f"a step of {self.model} on {self.gpu.upper()}s: {compute} of compute, {self.options.words()}"
        return fit(f"\n{head}\n\n", width) + "\n".join(lines) + "\n"


def training_steps(
    fields: Sequence[JobCandidates], model: str, gpu: str, options: StepOptions = StepOptions()
) -> StepTable:
    """A data-parallel training step of ``model`` on GPUs called ``gpu``, with each candidate's collectives.

    ``fields`` are those of AllReduce, or for ZeRO-3 of AllGather and ReduceScatter: who serves both is asked.
    """
    wanted = ["allgather", "reduce_scatter"] if options.zero3 else ["allreduce"]
    names = [field.request.collective.name for field in fields]
    if names != wanted:
        raise UnsupportedError(f"a data-parallel step reduces gradients by {' and '.join(wanted)}, not by {names[0]}")
    chosen, compute = work_of(model, gpu, options.part_of_peak)
    if options.zero3 and ":" not in model:
        raise UsageError(
            f"--zero3 gathers a transformer's blocks, got {model}: give transformer:PARAMETERS:BLOCKS:TOKENS"
        )

    def seconds(one: Prepared) -> Seconds:
        return lambda size_bytes: one.at(size_bytes).seconds

    by_name = [{one.name: seconds(one) for one in field.prepared} for field in fields]
    shared = [name for name in by_name[0] if all(name in times for times in by_name)]
    if options.zero3:
        steps = {name: zero3_step(chosen, compute, *(times[name] for times in by_name)) for name in shared}
    else:
        buckets = DDP_BUCKET_BYTES[0], options.bucket_bytes
        steps = {name: step_time(chosen, compute, by_name[0][name], options.overlap, buckets) for name in shared}
    return StepTable(model, gpu, options, steps)
