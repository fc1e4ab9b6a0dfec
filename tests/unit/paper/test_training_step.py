"""The training step by its definition: hand-made cases, invariants, and simulations that count ticks one by one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import UnsupportedError
from blinkccl.paper.models import (
    NETWORKS,
    Compute,
    Layer,
    NeuralNetwork,
    Tensor,
    compute_at,
    compute_time,
    network,
    peak_flops_per_s,
    transformer,
)
from blinkccl.paper.training import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    GradientExchange,
    Sharding,
    TrainingStep,
    compare,
    ddp_volume_bytes,
    roofline_seconds,
    step_time,
    transformer_step_flops,
    zero3_step,
    zero3_volume_bytes,
)
from support.examples import examples


def small(*layers: tuple[int, tuple[int, ...]]) -> NeuralNetwork:
    """Layers as (work, sizes of its tensors in bytes); the backward pass has twice the work."""
    return NeuralNetwork(
        "small",
        tuple(
            Layer(f"l{i}", tuple(Tensor(f"l{i}.{j}", size) for j, size in enumerate(sizes)), work)
            for i, (work, sizes) in enumerate(layers)
        ),
        element_bytes=1,
    )


def times(model: NeuralNetwork) -> Compute:
    """A unit of work takes a second."""
    return Compute(float(model.forward_flops), float(model.backward_flops))


def nothing(size_bytes: int) -> float:
    return 0.0


#: Three layers; their gradients are there at 6 + 6 = 12, 16 and 18.
THREE = small((1, (5,)), (2, (10, 20)), (3, (40,)))


# by hand


def test_three_layers_by_hand() -> None:
    step = step_time(THREE, times(THREE), 2, lambda size: size / 10, GradientExchange(30, 40))
    assert [(b.tensors, b.size_bytes, b.ready_s, b.start_s, b.end_s) for b in step.buckets] == [
        (("l2.0",), 40, 12.0, 12.0, 16.0),
        (("l1.1", "l1.0"), 30, 16.0, 16.0, 19.0),
        (("l0.0",), 5, 18.0, 19.0, 19.5),
    ]
    assert (step.compute_s, step.communication_s, step.exposed_s, step.total_s) == (18.0, 7.5, 1.5, 19.5)
    assert step.overhead_percent == pytest.approx(100 * 1.5 / 19.5)


def test_without_overlap_sending_begins_when_computing_ends() -> None:
    step = step_time(THREE, times(THREE), 2, lambda size: size / 10, GradientExchange(30, 40, False))
    assert [(b.ready_s, b.start_s, b.end_s) for b in step.buckets] == [
        (12.0, 18.0, 22.0),
        (16.0, 22.0, 25.0),
        (18.0, 25.0, 25.5),
    ]
    assert (step.exposed_s, step.total_s) == (7.5, 25.5)


def test_wait_free_backpropagation_sends_each_tensor_by_itself() -> None:
    step = step_time(THREE, times(THREE), 2, nothing, GradientExchange(None))
    assert [b.tensors for b in step.buckets] == [("l2.0",), ("l1.1",), ("l1.0",), ("l0.0",)]


def test_the_optimizer_waits_for_the_last_bucket() -> None:
    step = step_time(THREE, times(THREE), 2, lambda size: 100.0, GradientExchange(None, optimizer_s=2.0))
    assert step.total_s == 12.0 + 4 * 100.0 + 2.0
    assert step.optimizer_s == 2.0
    assert step.exposed_s == 412.0 - 18.0


# the definition, tick by tick


@dataclass
class Job:
    """A collective in a brute-force simulation."""

    size: int
    ready: int
    left: int
    start: int | None = None
    end: int | None = None


class Wire:
    """A communicator that works off its queue one tick at a time."""

    def __init__(self) -> None:
        self.queue: deque[Job] = deque()
        self.done: list[Job] = []

    def add(self, size: int, now: int, ticks: int) -> Job:
        self.queue.append(Job(size, now, ticks))
        return self.queue[-1]

    def settle(self, now: int) -> None:
        """Begin what can begin and end what has no tick left."""
        while self.queue:
            job = self.queue[0]
            if job.start is None:
                job.start = now
            if job.left:
                return
            job.end = now
            self.done.append(self.queue.popleft())

    def tick(self) -> None:
        if self.queue:
            self.queue[0].left -= 1


def ddp_ticks(
    model: NeuralNetwork, cost: Callable[[int], int], first: int, rest: int, overlap: bool
) -> tuple[list[tuple[int, int, int, int]], int]:
    """A step as it happens: one unit of work per tick, gradients put into an open bucket, buckets sent in turn."""
    wire, closed = Wire(), []
    held, limit, now = 0, first, 0
    todo = [(layer, layer.backward_flops) for layer in reversed(model.layers)]
    forward = model.forward_flops
    while True:
        while not forward and todo and not todo[0][1]:
            layer = todo.pop(0)[0]
            for tensor in reversed(layer.tensors):
                held += tensor.elements
                if held >= limit:
                    closed.append((held, now))
                    held, limit = 0, rest
        if not todo and held:
            closed.append((held, now))
            held = 0
        if overlap or not todo:
            for size, ready in closed:
                wire.add(size, ready, cost(size))
            closed.clear()
        wire.settle(now)
        if not forward and not todo and not wire.queue:
            return [(job.size, job.ready, job.start or 0, job.end or 0) for job in wire.done], now
        wire.tick()
        if forward:
            forward -= 1
        elif todo:
            todo[0] = (todo[0][0], todo[0][1] - 1)
        now += 1


tensors = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
layer_lists = st.lists(st.tuples(st.integers(0, 4), tensors), min_size=1, max_size=6).filter(
    lambda layers: any(work for work, _ in layers)
)
models = layer_lists.map(lambda layers: small(*layers))


@st.composite
def costs(draw: st.DrawFn) -> Callable[[int], int]:
    """Whole seconds: a latency, a rate, and a bump, since real collectives are not linear in size."""
    latency, per_byte, bump, at = (draw(st.integers(0, high)) for high in (4, 2, 5, 12))
    return lambda size: latency + per_byte * size + (bump if size >= at else 0)


def rows(step: TrainingStep) -> list[tuple[float, ...]]:
    return [(b.size_bytes, b.ready_s, b.start_s, b.end_s) for b in step.buckets]


@examples(300)
@given(models, costs(), st.integers(1, 12), st.integers(1, 20), st.booleans())
def test_ddp_is_what_happens_tick_by_tick(
    model: NeuralNetwork, cost: Callable[[int], int], first: int, rest: int, overlap: bool
) -> None:
    step = step_time(model, times(model), 3, cost, GradientExchange(rest, first, overlap))
    buckets, total = ddp_ticks(model, cost, first, rest, overlap)
    assert rows(step) == buckets
    assert step.total_s == total


# invariants


@given(models, costs(), st.integers(1, 12), st.none() | st.integers(1, 30), st.booleans(), st.integers(0, 3))
def test_invariants_of_a_step(
    model: NeuralNetwork, cost: Callable[[int], int], first: int, rest: int | None, overlap: bool, optimizer_s: int
) -> None:
    step = step_time(model, times(model), 5, cost, GradientExchange(rest, first, overlap, float(optimizer_s)))
    busy = step.total_s - optimizer_s
    assert max(step.compute_s, step.communication_s) <= busy <= step.compute_s + step.communication_s
    assert step.total_s == step.compute_s + step.exposed_s + optimizer_s
    assert 0 <= step.exposed_s <= step.communication_s
    assert 0 <= step.overhead_percent < 100
    if not overlap:
        assert busy == step.compute_s + step.communication_s
    # One after another, none before it is ready.
    assert all(bucket.start_s >= bucket.ready_s for bucket in step.buckets)
    assert all(a.end_s <= b.start_s for a, b in zip(step.buckets, step.buckets[1:], strict=False))


@given(models, costs(), costs(), st.booleans(), st.none() | st.integers(1, 30))
def test_slower_communication_never_makes_a_faster_step(
    model: NeuralNetwork, cost: Callable[[int], int], more: Callable[[int], int], overlap: bool, rest: int | None
) -> None:
    fast = step_time(model, times(model), 2, cost, GradientExchange(rest, overlap=overlap))
    slow = step_time(
        model, times(model), 2, lambda size: cost(size) + more(size), GradientExchange(rest, overlap=overlap)
    )
    assert slow.total_s >= fast.total_s
    assert slow.communication_s >= fast.communication_s


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bucket_bytes", [None, 2**20, DDP_BUCKET_BYTES, 2**40])
def test_buckets_hold_every_gradient_once_last_layer_first(name: str, bucket_bytes: int | None) -> None:
    model = network(name)
    step = step_time(model, "v100", 8, nothing, GradientExchange(bucket_bytes))
    sent = [tensor for bucket in step.buckets for tensor in bucket.tensors]
    assert sent == [tensor.name for tensor in reversed(model.tensors)]
    assert sum(bucket.size_bytes for bucket in step.buckets) == model.gradient_bytes
    size_of = {tensor.name: 4 * tensor.elements for tensor in model.tensors}
    for i, bucket in enumerate(step.buckets):
        assert bucket.size_bytes == sum(size_of[tensor] for tensor in bucket.tensors)
        limit = 1 if bucket_bytes is None else DDP_FIRST_BUCKET_BYTES if i == 0 else bucket_bytes
        # Closed by the tensor that filled it, no later.
        assert bucket.size_bytes - size_of[bucket.tensors[-1]] < limit
        assert bucket.size_bytes >= limit or i == len(step.buckets) - 1
    if bucket_bytes is None:
        assert len(step.buckets) == len(model.tensors)


@pytest.mark.parametrize("name", NETWORKS)
def test_buckets_are_pytorchs(name: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    distributed = pytest.importorskip("torch.distributed", reason="needs PyTorch's distributed")
    model = network(name)
    gradients = [torch.empty(tensor.elements, device="meta") for tensor in reversed(model.tensors)]
    limits = [distributed._DEFAULT_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES]
    theirs, _ = distributed._compute_bucket_assignment_by_size(gradients, limits)
    names = [tensor.name for tensor in reversed(model.tensors)]
    step = step_time(model, "v100", 8, nothing)
    assert [bucket.tensors for bucket in step.buckets] == [tuple(names[i] for i in bucket) for bucket in theirs]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("gpu", ["p100", "v100"])
def test_infinite_bandwidth_leaves_compute(name: str, gpu: str) -> None:
    step = step_time(network(name), gpu, 8, nothing)
    assert step.total_s == step.compute_s == compute_time(name, gpu).total_s
    assert (step.communication_s, step.exposed_s, step.overhead_percent) == (0.0, 0.0, 0.0)


def test_one_rank_sends_nothing() -> None:
    def never(size_bytes: int) -> float:
        raise AssertionError("one rank has nobody to send to")

    step = step_time(network("resnet18"), "v100", 1, never)
    assert step.total_s == step.compute_s
    assert step.volume_bytes == 0


def test_a_time_is_asked_once_per_size() -> None:
    asked: list[int] = []
    step = step_time(network("resnet50"), "v100", 8, lambda size: asked.append(size) or 1e-4, GradientExchange(None))
    assert len(asked) == len(set(asked)) == len({bucket.size_bytes for bucket in step.buckets})
    assert step.communication_s == pytest.approx(161e-4)


# volumes


@given(models, st.integers(1, 64), st.integers(1, 40))
def test_volumes_are_those_of_the_formulas(model: NeuralNetwork, world_size: int, bucket_bytes: int) -> None:
    size = model.gradient_bytes
    ddp = step_time(model, times(model), world_size, nothing, GradientExchange(bucket_bytes)).volume_bytes
    assert ddp == ddp_volume_bytes(size, world_size) == Fraction(2 * (world_size - 1), world_size) * size
    assert zero3_volume_bytes(size, world_size) == Fraction(3, 2) * ddp


# the notes' example


def test_the_notes_example_in_seconds() -> None:
    """NCCL notes, §10: 70 billion parameters, 4 × 2048 tokens. They print 1.7 ms and 355 ms."""
    flops = transformer_step_flops(70 * 10**9, 4 * 2048)
    assert flops == 6 * 70 * 10**9 * 4 * 2048
    assert flops / peak_flops_per_s("h200", sparse=True) == pytest.approx(1.74, abs=0.005)
    assert flops / peak_flops_per_s("h200") == pytest.approx(3.48, abs=0.005)
    assert roofline_seconds(140 * 10**9, 8, 450.0) == pytest.approx(0.544, abs=0.0005)
    # So computing takes longer than sending, and most of the sending hides behind it.
    model = transformer(70 * 10**9)
    compute = compute_at(model, 4 * 2048, peak_flops_per_s("h200"))
    assert compute.total_s == pytest.approx(flops / peak_flops_per_s("h200"))
    step = step_time(model, compute, 8, lambda size: roofline_seconds(size, 8, 450.0))
    assert step.communication_s == pytest.approx(0.544, abs=0.0005)
    assert step.exposed_s < 0.02 * step.communication_s
    alone = step_time(model, compute, 8, lambda size: roofline_seconds(size, 8, 450.0), GradientExchange(overlap=False))
    assert alone.overhead_percent == pytest.approx(100 * 0.5444 / (3.479 + 0.5444), abs=0.02)


@given(st.integers(1, 10**12), st.integers(2, 1024))
def test_roofline_of_zero3_is_one_and_a_half_of_ddps(size: int, world_size: int) -> None:
    ddp = roofline_seconds(size, world_size, 450.0)
    zero3 = sum(roofline_seconds(size, world_size, 450.0, c) for c in ("allgather", "allgather", "reduce_scatter"))
    assert zero3 == pytest.approx(1.5 * ddp)
    assert ddp == pytest.approx(2 * (world_size - 1) / world_size * size / 450e9)


# comparison


def test_an_eightfold_allreduce_saves_seven_eighths() -> None:
    theirs_s = 1e-10
    for overlap in (True, False):
        sides = (lambda size: size * theirs_s / 8), (lambda size: size * theirs_s)
        both = compare(network("vgg16"), "v100", 8, *sides, GradientExchange(overlap=overlap))
        assert both.communication_reduction == pytest.approx(0.875)
    seconds = network("vgg16").gradient_bytes * theirs_s
    compute_s = compute_time("vgg16", "v100").total_s
    assert both.step_reduction == pytest.approx(0.875 * seconds / (compute_s + seconds))
    assert both.exposed_reduction == pytest.approx(0.875)
    ours, theirs = both.overhead_percent
    assert theirs == pytest.approx(100 * seconds / (compute_s + seconds))
    assert ours == pytest.approx(100 * seconds / 8 / (compute_s + seconds / 8))


def test_comparison_of_equals_and_of_worse() -> None:
    def slow(size: int) -> float:
        return 1e-3 + size * 1e-10

    same = compare(network("alexnet"), "p100", 4, slow, slow)
    assert (same.step_reduction, same.communication_reduction, same.exposed_reduction) == (0.0, 0.0, 0.0)
    worse = compare(network("alexnet"), "p100", 4, lambda size: 2 * slow(size), slow)
    assert worse.communication_reduction == pytest.approx(-1.0)
    assert worse.step_reduction is not None
    assert worse.step_reduction < 0


def test_a_reduction_of_nothing_is_none() -> None:
    both = compare(network("alexnet"), "p100", 4, nothing, nothing)
    assert both.communication_reduction is None
    assert both.exposed_reduction is None
    assert both.step_reduction == 0.0


def test_options_reach_both_steps() -> None:
    exchange = GradientExchange(30, 40, False, 1.0)
    both = compare(THREE, times(THREE), 2, nothing, lambda size: size / 10, exchange)
    assert both.theirs == step_time(THREE, times(THREE), 2, lambda size: size / 10, exchange)
    assert both.ours.buckets[0].tensors == both.theirs.buckets[0].tensors
    assert both.ours.total_s == 19.0


# mistakes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step_time(THREE, times(THREE), 0, nothing), "at least one rank, got 0"),
        (
            lambda: step_time(THREE, times(THREE), 2, nothing, GradientExchange(0)),
            "at least one byte, got 1048576 and then 0",
        ),
        (
            lambda: step_time(THREE, times(THREE), 2, nothing, GradientExchange(first_bucket_bytes=0)),
            "at least one byte, got 0",
        ),
        (
            lambda: step_time(THREE, times(THREE), 2, nothing, GradientExchange(optimizer_s=-1.0)),
            "optimizer takes -1.0 s",
        ),
        (lambda: step_time(THREE, times(THREE), 2, lambda size: -1.0), "collective of 75 bytes is -1.0 s"),
        (lambda: step_time(THREE, times(THREE), 2, lambda size: math.inf), "collective of 75 bytes is inf s"),
        (lambda: step_time(THREE, times(THREE), 2, lambda size: math.nan), "collective of 75 bytes is nan s"),
        (lambda: step_time(THREE, Compute(1.0, -1.0), 2, nothing), "the backward pass takes -1.0 s"),
        (lambda: step_time(THREE, Compute(math.nan, 1.0), 2, nothing), "the forward pass takes nan s"),
        (lambda: step_time(THREE, "v100", 2, nothing), "no minibatch is listed for 'small'"),
        (lambda: step_time(network("vgg16"), "k80", 2, nothing), "no training throughput is listed"),
        (lambda: step_time(small((0, (4,))), Compute(1.0, 2.0), 2, nothing), "'small' has no work or no parameters"),
        (lambda: step_time(small((1, ())), Compute(1.0, 2.0), 2, nothing), "'small' has no work or no parameters"),
    ],
)
def test_mistakes_are_said(call: Callable[[], TrainingStep], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        call()


def test_layers_without_parameters_or_work_are_fine() -> None:
    model = small((0, (4,)), (2, ()), (3, (8,)), (1, ()))
    step = step_time(model, times(model), 2, lambda size: float(size), GradientExchange(None))
    assert [(b.size_bytes, b.ready_s) for b in step.buckets] == [(8, 6.0 + 8.0), (4, 6.0 + 12.0)]


# fully sharded data parallelism


def test_zero3_by_hand() -> None:
    """Two equal units; a gather takes 3, a forward pass 1, a backward pass 2, a reduce-scatter 5."""
    model = small((1, (8,)), (1, (8,)))
    step = zero3_step(model, times(model), 4, lambda size: 3.0, lambda size: 5.0)
    assert [(b.collective, b.tensors[0], b.ready_s, b.start_s, b.end_s) for b in step.buckets] == [
        ("allgather", "l0.0", 0.0, 0.0, 3.0),
        ("allgather", "l1.0", 0.0, 3.0, 6.0),
        # l0 computes from 3 to 4, and makes room for the next gather; l1 from 6 to 7.
        ("allgather", "l1.0", 4.0, 6.0, 9.0),
        ("allgather", "l0.0", 7.0, 9.0, 12.0),
        # Backward: l1 from 9 to 11, l0 from 12 to 14.
        ("reduce_scatter", "l1.0", 11.0, 12.0, 17.0),
        ("reduce_scatter", "l0.0", 14.0, 17.0, 22.0),
    ]
    assert (step.compute_s, step.communication_s, step.exposed_s, step.total_s) == (6.0, 22.0, 16.0, 22.0)


def zero3_ticks(
    model: NeuralNetwork, gather: Callable[[int], int], scatter: Callable[[int], int], ahead: int, overlap: bool
) -> tuple[list[tuple[int, int, int, int]], int]:
    """ZeRO-3 as it happens, every layer a unit. Passes are numbered 0 … 2U - 1, forward and then backward."""
    wire, now = Wire(), 0
    sizes = [layer.parameters for layer in model.layers]
    work = [layer.forward_flops for layer in model.layers] + [layer.backward_flops for layer in model.layers[::-1]]
    sizes += sizes[::-1]
    count = len(work)
    arrivals = [wire.add(sizes[i], 0, gather(sizes[i])) for i in range(min(count, ahead + 1))]
    current, running = 0, False
    while True:
        moved = True
        while moved:
            moved = False
            wire.settle(now)
            free = overlap or not wire.queue
            if current < count and not running and arrivals[current].end is not None and free:
                running = moved = True
            if current < count and running and work[current] == 0:
                if current + ahead + 1 < count:
                    coming = sizes[current + ahead + 1]
                    arrivals.append(wire.add(coming, now, gather(coming)))
                if current >= count // 2:
                    wire.add(sizes[current], now, scatter(sizes[current]))
                current, running, moved = current + 1, False, True
        if current == count and not wire.queue:
            return [(job.size, job.ready, job.start or 0, job.end or 0) for job in wire.done], now
        wire.tick()
        if running:
            work[current] -= 1
        now += 1


@examples(300)
@given(models, costs(), costs(), st.integers(0, 3), st.booleans())
def test_zero3_is_what_happens_tick_by_tick(
    model: NeuralNetwork, gather: Callable[[int], int], scatter: Callable[[int], int], ahead: int, overlap: bool
) -> None:
    step = zero3_step(model, times(model), 3, gather, scatter, Sharding(ahead=ahead, overlap=overlap))
    buckets, total = zero3_ticks(model, gather, scatter, ahead if overlap else 0, overlap)
    assert [value for row in rows(step) for value in row] == pytest.approx([value for row in buckets for value in row])
    assert step.total_s == pytest.approx(total)


@given(models, costs(), costs(), st.integers(0, 3), st.booleans())
def test_invariants_of_zero3(
    model: NeuralNetwork, gather: Callable[[int], int], scatter: Callable[[int], int], ahead: int, overlap: bool
) -> None:
    step = zero3_step(model, times(model), 5, gather, scatter, Sharding(ahead=ahead, overlap=overlap))
    both = step.compute_s + step.communication_s
    assert max(step.compute_s, step.communication_s) <= step.total_s <= both + 1e-9
    if not overlap:
        assert step.total_s == pytest.approx(both)
    every = sorted(tensor.name for tensor in model.tensors)
    for collective, often in (("allgather", 2), ("reduce_scatter", 1)):
        moved = [name for b in step.buckets if b.collective == collective for name in b.tensors]
        assert sorted(moved) == sorted(every * often)


@given(models, costs(), costs(), st.integers(0, 3))
def test_gathering_further_ahead_never_loses(
    model: NeuralNetwork, gather: Callable[[int], int], more: Callable[[int], int], ahead: int
) -> None:
    near = zero3_step(model, times(model), 2, gather, nothing, Sharding(ahead=ahead))
    far = zero3_step(model, times(model), 2, gather, nothing, Sharding(ahead=ahead + 1))
    assert far.total_s <= near.total_s + 1e-9


def test_a_reduce_scatter_moves_far_more_than_one_nth() -> None:
    """The NCCL notes, §10, say that ZeRO-3 sends S / N; its ReduceScatter alone sends N - 1 times that."""
    size, ranks = 140 * 10**9, 8
    step = zero3_step(transformer(70 * 10**9), Compute(1.0, 2.0), ranks, nothing, nothing)
    scattered = sum(b.size_bytes for b in step.buckets if b.collective == "reduce_scatter")
    assert scattered == size
    assert Fraction(ranks - 1, ranks) * scattered == (ranks - 1) * Fraction(size, ranks)


def test_layers_are_gathered_together_until_a_unit_is_full() -> None:
    step = zero3_step(THREE, times(THREE), 2, nothing, nothing, Sharding(35))
    assert [(b.collective, b.tensors) for b in step.buckets] == [
        ("allgather", ("l0.0", "l1.0", "l1.1")),
        ("allgather", ("l2.0",)),
        ("allgather", ("l2.0",)),
        ("allgather", ("l0.0", "l1.0", "l1.1")),
        ("reduce_scatter", ("l2.0",)),
        ("reduce_scatter", ("l0.0", "l1.0", "l1.1")),
    ]


@given(models, costs(), costs(), st.booleans())
def test_slower_gathers_never_make_a_faster_step(
    model: NeuralNetwork, cost: Callable[[int], int], more: Callable[[int], int], overlap: bool
) -> None:
    sharding = Sharding(overlap=overlap)
    fast = zero3_step(model, times(model), 2, cost, cost, sharding)
    slow = zero3_step(model, times(model), 2, lambda size: cost(size) + more(size), cost, sharding)
    assert slow.total_s >= fast.total_s - 1e-9


@given(models, st.integers(1, 64), st.integers(1, 40))
def test_volume_of_zero3_is_that_of_the_formula(model: NeuralNetwork, world_size: int, unit_bytes: int) -> None:
    step = zero3_step(model, times(model), world_size, nothing, nothing, Sharding(unit_bytes))
    assert step.volume_bytes == zero3_volume_bytes(model.gradient_bytes, world_size)


def test_zero3_of_one_rank_and_of_free_collectives_is_compute() -> None:
    def never(size_bytes: int) -> float:
        raise AssertionError("one rank has nobody to send to")

    model = network("resnet18")
    assert zero3_step(model, "v100", 1, never, never).communication_s == 0
    free = zero3_step(model, "v100", 8, nothing, nothing)
    assert free.total_s == pytest.approx(compute_time("resnet18", "v100").total_s)


def test_zero3_of_layers_without_parameters_or_work() -> None:
    model = small((0, (4,)), (2, ()), (3, (8,)), (1, ()))
    step = zero3_step(model, times(model), 2, lambda size: float(size), lambda size: float(size))
    assert step.communication_s == 3 * 12.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zero3_step(THREE, times(THREE), 0, nothing, nothing), "at least one rank, got 0"),
        (lambda: Sharding(0), "units of at least one byte"),
        (lambda: Sharding(ahead=-1), "ahead >= 0, got 1 and -1"),
        (lambda: zero3_step(THREE, times(THREE), 2, nothing, lambda size: -1.0), "expected a finite time >= 0"),
    ],
)
def test_mistakes_of_zero3_are_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        call()
