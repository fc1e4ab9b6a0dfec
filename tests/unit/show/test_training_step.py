"""The training step by its definition: cases by hand, invariants, and a simulation by ticks."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.show.models import (
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
    work_of,
)
from blinkccl.show.training import DDP_BUCKET_BYTES, TrainingStep, step_time
from reproduction.notes import roofline_seconds
from support.examples import examples
from support.extras import needs


def small(*layers: tuple[int, tuple[int, ...]]) -> NeuralNetwork:
    """Layers as (work, sizes of their tensors in bytes); the backward pass has twice the work."""
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


#: Three layers; their gradients are ready at 6 + 6 = 12, 16 and 18.
THREE = small((1, (5,)), (2, (10, 20)), (3, (40,)))
#: Bytes of the first bucket and of the others for it, and bytes that put each tensor into a bucket of its own.
BUCKETS, SINGLE = (40, 30), (1, 1)


# by hand


def test_three_layers_by_hand() -> None:
    step = step_time(THREE, times(THREE), lambda size: size / 10, bucket_bytes=BUCKETS)
    assert [(b.tensors, b.size_bytes, b.ready_s, b.start_s, b.end_s) for b in step.buckets] == [
        (("l2.0",), 40, 12.0, 12.0, 16.0),
        (("l1.1", "l1.0"), 30, 16.0, 16.0, 19.0),
        (("l0.0",), 5, 18.0, 19.0, 19.5),
    ]
    assert (step.compute_s, step.communication_s, step.exposed_s, step.total_s) == (18.0, 7.5, 1.5, 19.5)
    assert step.overhead_percent == pytest.approx(100 * 1.5 / 19.5)


def test_layers_without_parameters_or_work_are_fine() -> None:
    model = small((0, (4,)), (2, ()), (3, (8,)), (1, ()))
    step = step_time(model, times(model), lambda size: float(size), bucket_bytes=SINGLE)
    assert [(b.size_bytes, b.ready_s) for b in step.buckets] == [(8, 6.0 + 8.0), (4, 6.0 + 12.0)]


# the definition, tick by tick


@dataclass
class Job:
    """A collective in the simulation by ticks."""

    size: int
    ready: int
    left: int
    start: int | None = None
    end: int | None = None


class Wire:
    """A communicator that processes its queue one tick at a time."""

    def __init__(self) -> None:
        self.queue: deque[Job] = deque()
        self.done: list[Job] = []

    def add(self, size: int, now: int, ticks: int) -> Job:
        self.queue.append(Job(size, now, ticks))
        return self.queue[-1]

    def settle(self, now: int) -> None:
        """Begin the jobs that can begin, and end those without remaining ticks."""
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
    """A simulated step: one unit of work per tick, gradients collected in a bucket, buckets sent in order."""
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
    """Whole seconds: a latency, a rate, and a step, since real collectives are not linear in size."""
    latency, per_byte, bump, at = (draw(st.integers(0, high)) for high in (4, 2, 5, 12))
    return lambda size: latency + per_byte * size + (bump if size >= at else 0)


def rows(step: TrainingStep) -> list[tuple[float, ...]]:
    return [(b.size_bytes, b.ready_s, b.start_s, b.end_s) for b in step.buckets]


@examples(300)
@given(models, costs(), st.integers(1, 12), st.integers(1, 20), st.booleans())
def test_ddp_matches_a_simulation_by_ticks(
    model: NeuralNetwork, cost: Callable[[int], int], first: int, rest: int, overlap: bool
) -> None:
    step = step_time(model, times(model), cost, overlap, (first, rest))
    buckets, total = ddp_ticks(model, cost, first, rest, overlap)
    assert rows(step) == buckets
    assert step.total_s == total
    assert step.total_s == step.compute_s + step.exposed_s
    assert 0 <= step.exposed_s <= step.communication_s
    assert step.total_s <= step.compute_s + step.communication_s
    assert 0 <= step.overhead_percent < 100


@given(models, costs(), costs(), st.booleans(), st.integers(1, 30))
def test_slower_communication_never_makes_a_faster_step(
    model: NeuralNetwork, cost: Callable[[int], int], more: Callable[[int], int], overlap: bool, rest: int
) -> None:
    fast = step_time(model, times(model), cost, overlap, (rest, rest))
    slow = step_time(model, times(model), lambda size: cost(size) + more(size), overlap, (rest, rest))
    assert slow.total_s >= fast.total_s
    assert slow.communication_s >= fast.communication_s


# the networks


@needs("torch")
@pytest.mark.parametrize("name", NETWORKS)
def test_buckets_are_pytorchs(name: str) -> None:
    """They hold every gradient once, last layer first, and each is closed by the tensor that fills it."""
    import torch
    import torch.distributed as distributed

    tensors = [tensor for layer in reversed(network(name).layers) for tensor in reversed(layer.tensors)]
    gradients = [torch.empty(tensor.elements, device="meta") for tensor in tensors]
    assert DDP_BUCKET_BYTES[0] == distributed._DEFAULT_FIRST_BUCKET_BYTES
    expected, _ = distributed._compute_bucket_assignment_by_size(gradients, list(DDP_BUCKET_BYTES))
    step = step_time(network(name), compute_time(name, "v100"), nothing)
    assert [bucket.tensors for bucket in step.buckets] == [
        tuple(tensors[i].name for i in bucket) for bucket in expected
    ]
    assert [b.size_bytes for b in step.buckets] == [sum(4 * tensors[i].elements for i in bucket) for bucket in expected]


def test_the_time_of_a_size_is_computed_once() -> None:
    sizes: list[int] = []
    compute = compute_time("resnet50", "v100")
    step = step_time(network("resnet50"), compute, lambda size: sizes.append(size) or 1e-4, bucket_bytes=SINGLE)
    assert len(sizes) == len(set(sizes)) == len({bucket.size_bytes for bucket in step.buckets})
    assert step.communication_s == pytest.approx(161e-4)


def test_the_notes_example_in_seconds() -> None:
    """NCCL notes, §10, claim N8: computing takes longer than sending, and hides most of it."""
    model = transformer(70 * 10**9)
    compute = compute_at(model, 4 * 2048, peak_flops_per_s("h200"))
    assert compute.total_s == pytest.approx(6 * 70 * 10**9 * 4 * 2048 / peak_flops_per_s("h200"))
    step = step_time(model, compute, roofline_seconds)
    assert step.communication_s == pytest.approx(0.544, abs=0.0005)
    assert step.exposed_s < 0.02 * step.communication_s
    alone = step_time(model, compute, roofline_seconds, overlap=False)
    assert alone.overhead_percent == pytest.approx(100 * 0.5444 / (3.479 + 0.5444), abs=0.02)


@pytest.mark.parametrize("overlap", [True, False])
def test_an_eighth_of_the_send_time_is_an_eighth_of_communication(overlap: bool) -> None:
    model, compute = network("vgg16"), compute_time("vgg16", "v100")
    fast, slow = (step_time(model, compute, lambda size, s=s: size * s, overlap) for s in (1e-10 / 8, 1e-10))
    assert 1 - fast.communication_s / slow.communication_s == pytest.approx(0.875)
    if not overlap:
        seconds = 4 * 138_357_544 * 1e-10
        assert 1 - fast.total_s / slow.total_s == pytest.approx(0.875 * seconds / (compute.total_s + seconds))
        assert slow.overhead_percent == pytest.approx(100 * seconds / (compute.total_s + seconds))


@pytest.mark.parametrize("gpu", ["p100", "v100"])
@pytest.mark.parametrize("name", ["resnet152", "densenet201"])
def test_networks_without_times_take_the_time_of_their_flops(name: str, gpu: str) -> None:
    model, compute = work_of(name, gpu)
    like, known = network("resnet50"), compute_time("resnet50", gpu)
    work = [one.forward_flops + one.backward_flops for one in (model, like)]
    assert compute.total_s / known.total_s == pytest.approx(work[0] / work[1])


def test_names_of_networks_and_transformers() -> None:
    assert work_of("vgg16", "v100") == (network("vgg16"), compute_time("vgg16", "v100"))
    model, compute = work_of("transformer:350M:24:1000", "a100")
    assert (model, compute) == (
        transformer(350 * 10**6, 24),
        compute_at(transformer(350 * 10**6, 24), 1000, 0.45 * 312e12),
    )
    for text in ("lenet", "transformer", "transformer:7B", "transformer:7:32:1", "transformer:0.0001M:1:1:1", "a:b"):
        with pytest.raises(UsageError):
            work_of(text, "v100")
    with pytest.raises(UnsupportedError, match="no peak rate is known for p100 GPUs"):
        work_of("transformer:7B:32:1", "p100")
