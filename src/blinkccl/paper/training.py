"""The time of a training step, given how long its collectives take.

A step is a forward pass, a backward pass from the last layer to the first, and the exchange of gradients. Gradients
are sent while earlier layers still compute: wait-free backpropagation (Zhang et al. 2017, which Blink, MLSys 2020,
§2.1, cites), or in buckets as PyTorch's DistributedDataParallel does (Li et al. 2020, §3.2). What does not hide behind
the backward pass is the communication overhead of Blink's Fig 5, and what a faster AllReduce can save in its Fig 18.

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
from functools import cached_property
from itertools import accumulate
from typing import Any

from blinkccl.baselines.candidate import Prepared
from blinkccl.baselines.registry import Field
from blinkccl.errors import UnsupportedError
from blinkccl.paper.models import Compute, NeuralNetwork, Tensor, compute_time, network
from blinkccl.report.paint import Paint
from blinkccl.report.table import columns
from blinkccl.report.units_text import seconds_text
from blinkccl.units import GB, bus_factor

Seconds = Callable[[int], float]

#: DistributedDataParallel's defaults: buckets of 25 MiB, the first of 1 MiB so that sending begins early.
DDP_BUCKET_BYTES = 25 * 2**20
DDP_FIRST_BUCKET_BYTES = 2**20


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
    ``exposed_s`` the part of it that compute does not hide, ``total_s`` = compute + exposed + optimizer.
    ``buckets`` are in the order in which they are sent.
    """

    world_size: int
    compute_s: float
    communication_s: float
    exposed_s: float
    optimizer_s: float
    total_s: float
    buckets: tuple[Bucket, ...]

    @property
    def overhead_percent(self) -> float:
        """Communication overhead as Blink's Fig 5 has it: exposed communication in percent of the step."""
        return 100.0 * self.exposed_s / self.total_s if self.total_s else 0.0

    @cached_property
    def volume_bytes(self) -> Fraction:
        """What a rank sends if every collective sends no more than it must: S times its busbw factor, summed."""
        return sum(
            (bus_factor(bucket.collective, self.world_size) * bucket.size_bytes for bucket in self.buckets),
            Fraction(0),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same step with our collectives and with theirs.

    Reductions are fractions of theirs: below 0 ours is slower, and None where theirs is 0.
    """

    ours: TrainingStep
    theirs: TrainingStep

    @property
    def step_reduction(self) -> float | None:
        """Blink's Fig 18, end to end: 1 - our step / their step."""
        return _reduction(self.ours.total_s, self.theirs.total_s)

    @property
    def communication_reduction(self) -> float | None:
        """Blink's Fig 18, communication: of the time spent in AllReduce, hidden or not.

        The text does not say which of the two it means; its 87 % is what the 8-fold AllReduce of its Fig 17 saves.
        """
        return _reduction(self.ours.communication_s, self.theirs.communication_s)

    @property
    def exposed_reduction(self) -> float | None:
        """Of the communication that compute does not hide."""
        return _reduction(self.ours.exposed_s, self.theirs.exposed_s)

    @property
    def overhead_percent(self) -> tuple[float, float]:
        """Fig 5's overhead, ours and theirs."""
        return self.ours.overhead_percent, self.theirs.overhead_percent


@dataclass(frozen=True, slots=True)
class GradientExchange:
    """How a step exchanges its gradients; the defaults are DistributedDataParallel's.

    Parameters
    ----------
    bucket_bytes
        Gradients are sent together as soon as they are so many bytes. None sends every tensor by itself, which is
        wait-free backpropagation as first described.
    first_bucket_bytes
        Size of the bucket that is sent first. PyTorch takes ``bucket_bytes`` for it if a user sets that.
    overlap
        False sends nothing before the backward pass is over.
    optimizer_s
        On top of compute. Leave it out with published throughputs, which contain it.
    """

    bucket_bytes: int | None = DDP_BUCKET_BYTES
    first_bucket_bytes: int = DDP_FIRST_BUCKET_BYTES
    overlap: bool = True
    optimizer_s: float = 0.0

    def __post_init__(self) -> None:
        first, then = self.first_bucket_bytes, self.bucket_bytes
        if first < 1 or (then is not None and then < 1):
            raise UnsupportedError(f"a bucket has at least one byte, got {first} and then {then}")
        if not (math.isfinite(self.optimizer_s) and self.optimizer_s >= 0):
            raise UnsupportedError(f"the optimizer takes {self.optimizer_s} s; expected a finite time >= 0")


def step_time(
    model: NeuralNetwork,
    gpu: str | Compute,
    world_size: int,
    allreduce_seconds: Seconds,
    exchange: GradientExchange | None = None,
) -> TrainingStep:
    """A step of data-parallel training: forward, backward, and an AllReduce of every bucket of gradients.

    Gradients come in the reverse order of the parameters, a layer's all at once. A bucket is full as soon as it holds
    its bytes or more; it is ready when its last gradient is. Buckets are reduced one after another, and the optimizer
    waits for the last.

    Parameters
    ----------
    gpu
        ``"p100"`` or ``"v100"`` for a network of :data:`~blinkccl.paper.models.NETWORKS` at the original paper's
        minibatch, or the times themselves.
    world_size
        Ranks, ≥ 1. One rank sends nothing.
    allreduce_seconds
        Time of an AllReduce of so many bytes; asked once per size.
    exchange
        None for :class:`GradientExchange` as it is.

    Notes
    -----
    Cost: one pass over the tensors. The buckets are those that PyTorch has from its second iteration on, when it has
    seen in which order gradients come.
    """
    exchange = exchange or GradientExchange()
    compute = _compute(model, gpu, world_size)
    seconds = _Price(allreduce_seconds, world_size)
    gradients = list(_gradients(model, compute))
    sizes = [tensor.elements * model.element_bytes for tensor, _ in gradients]
    whole = exchange.bucket_bytes
    limits = (1, 1) if whole is None else (exchange.first_bucket_bytes, whole)
    communicator = _Communicator(0.0 if exchange.overlap else compute.total_s)
    for begin, end in _cut(sizes, *limits):
        size_bytes = sum(sizes[begin:end])
        names = tuple(tensor.name for tensor, _ in gradients[begin:end])
        communicator.run("allreduce", names, size_bytes, gradients[end - 1][1], seconds(size_bytes))
    return communicator.step(world_size, compute, compute.total_s, exchange.optimizer_s)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a step of fully sharded data parallelism goes.

    Parameters
    ----------
    unit_bytes
        Layers are gathered together, in forward order, until they have so many bytes. With 1 each is a unit, which
        for :func:`~blinkccl.paper.models.transformer` is a block.
    ahead
        Units that are gathered while an earlier one computes, ≥ 0; memory limits it.
    overlap
        False does one thing at a time.
    """

    unit_bytes: int = 1
    ahead: int = 1
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.unit_bytes < 1 or self.ahead < 0:
            raise UnsupportedError(
                f"needs units of at least one byte and ahead >= 0, got {self.unit_bytes} and {self.ahead}"
            )


def zero3_step(
    model: NeuralNetwork,
    gpu: str | Compute,
    world_size: int,
    allgather_seconds: Seconds,
    reduce_scatter_seconds: Seconds,
    sharding: Sharding | None = None,
) -> TrainingStep:
    """A step of ZeRO stage 3, or of fully sharded data parallelism: every rank keeps 1 / N of the parameters.

    Each unit's parameters are gathered before its forward pass, dropped, gathered again before its backward pass, and
    its gradients reduce-scattered after it. That moves 3 (N-1)/N · S per rank, 3/2 of an AllReduce's 2 (N-1)/N · S:
    what it saves is memory, not traffic (ZeRO, SC 2020, §7.2.2; the NCCL notes, §10, have ReduceScatter move S / N).

    Parameters
    ----------
    gpu, world_size
        As for :func:`step_time`.
    allgather_seconds, reduce_scatter_seconds
        Time for so many bytes S, all ranks' blocks together.
    sharding
        None for :class:`Sharding` as it is.
    """
    sharding = sharding or Sharding()
    compute = _compute(model, gpu, world_size)
    gather, scatter = _Price(allgather_seconds, world_size), _Price(reduce_scatter_seconds, world_size)
    units = list(_units(model, compute, sharding.unit_bytes))
    passes = [(unit, unit.forward_s, False) for unit in units]
    passes += [(unit, unit.backward_s, True) for unit in reversed(units)]
    ahead = sharding.ahead if sharding.overlap else 0
    communicator = _Communicator(0.0)
    gathered = [
        communicator.run("allgather", unit.tensors, unit.size_bytes, 0.0, gather(unit.size_bytes))
        for unit, _, _ in passes[: ahead + 1]
    ]
    now = 0.0
    for i, (unit, busy_s, backward) in enumerate(passes):
        now = max(now, gathered[i]) + busy_s
        if i + ahead + 1 < len(passes):
            # Before the gradients: arithmetic waits for parameters, and only the optimizer for gradients.
            after = passes[i + ahead + 1][0]
            seconds = gather(after.size_bytes)
            gathered.append(communicator.run("allgather", after.tensors, after.size_bytes, now, seconds))
        if backward:
            communicator.run("reduce_scatter", unit.tensors, unit.size_bytes, now, scatter(unit.size_bytes))
        if not sharding.overlap:
            now = max(now, communicator.free_s)
    return communicator.step(world_size, compute, computed_s=now)


def compare(
    model: NeuralNetwork,
    gpu: str | Compute,
    world_size: int,
    ours: Seconds,
    theirs: Seconds,
    exchange: GradientExchange | None = None,
) -> Comparison:
    """The same step with two AllReduces, as Blink's Fig 18 compares Blink and NCCL; raises as :func:`step_time`.

    Parameters
    ----------
    ours, theirs
        Time of an AllReduce of so many bytes. The others are those of :func:`step_time`.
    """
    return Comparison(*(step_time(model, gpu, world_size, seconds, exchange) for seconds in (ours, theirs)))


def ddp_volume_bytes(size_bytes: int, world_size: int) -> Fraction:
    """What data-parallel training sends per rank and step for S bytes of gradients: 2 (N-1)/N · S."""
    return bus_factor("allreduce", world_size) * size_bytes


def zero3_volume_bytes(size_bytes: int, world_size: int) -> Fraction:
    """What ZeRO stage 3 sends per rank and step: two AllGathers and a ReduceScatter, 3 (N-1)/N · S."""
    return (2 * bus_factor("allgather", world_size) + bus_factor("reduce_scatter", world_size)) * size_bytes


def transformer_step_flops(parameters: int, tokens: int) -> int:
    """Work of one training step: 6 FLOPs per parameter and token (Kaplan et al. 2020, §2.1; the NCCL notes, §10)."""
    return 6 * parameters * tokens


def roofline_seconds(size_bytes: int, world_size: int, gb_per_s: float, collective: str = "allreduce") -> float:
    """The least time of a collective of S bytes on links of ``gb_per_s`` GB/s per rank and direction, without latency.

    S times the busbw factor over the rate: 2 (N-1)/N · S / B for AllReduce. The NCCL notes, §10, divide by (N-1)/N
    instead and leave out the 2.
    """
    return float(bus_factor(collective, world_size) * size_bytes) / (gb_per_s * GB)


@dataclass(frozen=True, slots=True)
class _Unit:
    """Layers whose parameters are gathered together."""

    tensors: tuple[str, ...]
    size_bytes: int
    forward_s: float
    backward_s: float


class _Communicator:
    """Runs one collective after another, in the order in which they are given to it."""

    def __init__(self, free_s: float) -> None:
        self.free_s = free_s
        self._busy: list[float] = []
        self._buckets: list[Bucket] = []

    def run(self, collective: str, tensors: tuple[str, ...], size_bytes: int, ready_s: float, seconds: float) -> float:
        """When the collective is done."""
        start_s = max(self.free_s, ready_s)
        self.free_s = start_s + seconds
        self._busy.append(seconds)
        self._buckets.append(Bucket(collective, tensors, size_bytes, ready_s, start_s, self.free_s))
        return self.free_s

    def step(self, world_size: int, compute: Compute, computed_s: float, optimizer_s: float = 0.0) -> TrainingStep:
        """The step whose arithmetic ended at ``computed_s``, and which ends when the last collective has, too."""
        done_s = max(computed_s, self.free_s, compute.total_s)  # a sum of many units may be a rounding below the whole
        return TrainingStep(
            world_size=world_size,
            compute_s=compute.total_s,
            communication_s=math.fsum(self._busy),
            exposed_s=done_s - compute.total_s,
            optimizer_s=optimizer_s,
            total_s=done_s + optimizer_s,
            buckets=tuple(self._buckets),
        )


class _Price:
    """A caller's time for so many bytes, asked once per size."""

    def __init__(self, seconds: Seconds, world_size: int) -> None:
        self._seconds = seconds
        self._alone = world_size == 1
        self._known: dict[int, float] = {}

    def __call__(self, size_bytes: int) -> float:
        if self._alone or size_bytes == 0:
            return 0.0
        if size_bytes not in self._known:
            time_s = float(self._seconds(size_bytes))
            if not (math.isfinite(time_s) and time_s >= 0):
                raise UnsupportedError(
                    f"the time given for a collective of {size_bytes} bytes is {time_s} s; expected a finite time >= 0"
                )
            self._known[size_bytes] = time_s
        return self._known[size_bytes]


def _compute(model: NeuralNetwork, gpu: str | Compute, world_size: int) -> Compute:
    if world_size < 1:
        raise UnsupportedError(f"a job has at least one rank, got {world_size}")
    compute = compute_time(model.name, gpu) if isinstance(gpu, str) else gpu
    if model.forward_flops < 1 or model.parameters < 1:
        raise UnsupportedError(f"network {model.name!r} has no work or no parameters; expected both")
    for name, time_s in (("forward", compute.forward_s), ("backward", compute.backward_s)):
        if not (math.isfinite(time_s) and time_s >= 0):
            raise UnsupportedError(f"the {name} pass takes {time_s} s; expected a finite time >= 0")
    return compute


def _gradients(model: NeuralNetwork, compute: Compute) -> Iterator[tuple[Tensor, float]]:
    """Every tensor, last first, with the time at which its gradient is there."""
    layers = model.layers[::-1]
    for layer, done in zip(layers, accumulate(layer.backward_flops for layer in layers), strict=True):
        # Rounded once, so that the last gradient is there exactly when the backward pass ends.
        ready_s = float(Fraction(compute.forward_s) + Fraction(compute.backward_s) * done / model.backward_flops)
        for tensor in reversed(layer.tensors):
            yield tensor, ready_s


def _units(model: NeuralNetwork, compute: Compute, unit_bytes: int) -> Iterator[_Unit]:
    sizes = [layer.parameters * model.element_bytes for layer in model.layers]
    for begin, end in _cut(sizes, unit_bytes, unit_bytes):
        layers = model.layers[begin:end]
        yield _Unit(
            tuple(tensor.name for layer in layers for tensor in layer.tensors),
            sum(sizes[begin:end]),
            compute.forward_s * (sum(layer.forward_flops for layer in layers) / model.forward_flops),
            compute.backward_s * (sum(layer.backward_flops for layer in layers) / model.backward_flops),
        )


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


def _reduction(ours: float, theirs: float) -> float | None:
    return 1.0 - ours / theirs if theirs > 0 else None


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


def training_steps(field: Field, model: str, gpu: str, overlap: bool = True) -> StepTable:
    """A data-parallel training step of ``model`` with each candidate's AllReduce.

    Parameters
    ----------
    model, gpu
        Names of networks and GPUs whose throughput was published.
    """
    name, size = field.request.collective.name, len(field.request.ranks)
    if name != "allreduce":
        raise UnsupportedError(f"a data-parallel step reduces gradients by allreduce, not by {name}")
    chosen, exchange = network(model), GradientExchange(overlap=overlap)

    def seconds(one: Prepared) -> Seconds:
        return lambda size_bytes: one.at(size_bytes).seconds

    steps = {one.name: step_time(chosen, gpu, size, seconds(one), exchange) for one in field.prepared}
    return StepTable(model, gpu, overlap, steps)
