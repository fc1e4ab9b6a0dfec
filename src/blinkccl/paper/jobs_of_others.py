"""The jobs that the claims of documents B to E ask about: their plans, what these do, and how long they take.

Plans are kept, as they depend on the topology alone; times are computed anew each time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from blinkccl.algorithms.registry import Request, algorithm
from blinkccl.baselines.candidate import Conditions, planned
from blinkccl.baselines.nccl_search import Channels, search
from blinkccl.collectives.oracle import make_inputs, oracle
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import reference
from blinkccl.forest.model import Forest
from blinkccl.paper.allocations import Gpus
from blinkccl.paper.claim import Context
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from blinkccl.simulate.chunk_search import best_chunk
from blinkccl.topology.spec import parse_spec

KIB, MIB, GIB = 2**10, 2**20, 2**30


@lru_cache(maxsize=1024)
def request(spec: str, collective: str, gpus: Gpus | None = None) -> Request:
    """A job on the topology that ``spec`` names; its root or source is its first GPU, its destination the second."""
    topology = parse_spec(spec)
    ranks = topology.ranks if gpus is None else gpus
    given = {"root": 0, "src": 0, "dst": 1}
    asked = Collective(collective, len(ranks), **{key: given[key] for key in COLLECTIVES[collective].parameters})
    return Request(topology, asked, ranks)


@lru_cache(maxsize=1024)
def plan(how: str, spec: str, collective: str, gpus: Gpus | None = None) -> Forest:
    """The forest of the algorithm ``how``."""
    return algorithm(how).plan(request(spec, collective, gpus))


@lru_cache(maxsize=8)
def channels(spec: str) -> Channels:
    """The channels that NCCL 2.30 sets up among all GPUs."""
    topology = parse_spec(spec)
    return search(topology, topology.ranks)


def conditions(context: Context, calibration: str) -> Conditions:
    """How a job is timed on a calibration of the context."""
    return Conditions(context.calibration(calibration), named=context.calibration)


def seconds(context: Context, forest: Forest, calibration: str, size_bytes: int) -> float:
    """The time of a plan at the fastest chunk that a search finds."""
    asked = conditions(context, calibration)
    side = planned(forest.algorithm, forest, asked)
    chunk_bytes = best_chunk(side.program, forest.topology, asked.calibration, size_bytes)
    return replace(side, conditions=replace(asked, chunk_bytes=chunk_bytes)).at(size_bytes).seconds


def wrong_elements(forest: Forest, count: int) -> int:
    """In how many elements a run of the plan on real buffers differs from what the collective means.

    Integers on the reference engine, ``count`` per block. A program that is invalid has all of them wrong.
    """
    program = lower(forest)
    inputs = make_inputs(program.collective, count, "int32", 0, "sum")
    expected = oracle(program.collective, inputs)
    if violations(program, forest.topology):
        return sum(block.size for block in expected if block is not None)
    outputs = reference.run(program, inputs, count=count, dtype="int32", chunk_bytes=64)
    return sum(
        int((output != block).sum())
        for output, block in zip(outputs, expected, strict=True)
        if output is not None and block is not None
    )
