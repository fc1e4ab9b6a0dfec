"""What the ranks of ``test_torch_p2p.py`` do, each in its own process; imported there by name."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from blinkccl.engines.torch_p2p import TorchP2P
from blinkccl.schedule.program import Program

Array = NDArray[Any]


def run_ahead(program: Program, given: Array, count: int, op: str, ahead: int) -> Array:
    """An AllReduce out of place whose messages may take ``ahead`` rounds."""
    out = torch.empty(count, dtype=torch.float32)
    TorchP2P(program, ahead=ahead).run(torch.from_numpy(given), out, count, op, 64)
    return out.numpy()


def ring(program: Program, count: int, dtype: str, op: str, layout: str) -> tuple[int, bool]:
    """An AllReduce in place against the library's: elements that differ, and whether the tensor kept its layout."""
    given = torch.arange(count).reshape(-1, 5 if layout != "flat" else 1).to(getattr(torch, dtype)) % 7
    given += dist.get_rank()
    mine = {
        "flat": lambda: given.clone(),
        "turned": lambda: given.clone().t(),
        "every second": lambda: given.repeat_interleave(2, dim=1)[:, ::2],
    }[layout]()
    theirs = mine.clone()
    strides = mine.stride()
    TorchP2P(program).run(mine, mine, count, op, 64)
    library = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN}
    if op == "avg":  # gloo has none
        dist.all_reduce(theirs)
        theirs /= dist.get_world_size()
    else:
        dist.all_reduce(theirs, library.get(op, dist.ReduceOp.MAX))
    return int((mine != theirs).sum()), mine.stride() == strides


def sub_group(program: Program, members: list[int]) -> list[float] | None:
    """Two groups at once, neither beginning at rank 0; what an AllReduce of the own global rank gives."""
    others = [rank for rank in range(dist.get_world_size()) if rank not in members]
    groups = [dist.new_group(members), dist.new_group(others)]
    group = groups[0] if dist.get_rank() in members else groups[1]
    if dist.get_rank() in others and len(others) != len(members):
        return None
    tensor = torch.full((5,), float(dist.get_rank()))
    TorchP2P(program, group).run(tensor, tensor, 5)
    return [float(x) for x in tensor]


def not_a_member(program: Program) -> None:
    """The last rank uses a group that it is not in."""
    last = dist.get_world_size() - 1
    group = dist.new_group(list(range(last)))
    if dist.get_rank() == last:
        TorchP2P(program, group)


def memory(program: Program, counts: list[int]) -> tuple[list[int], int]:
    """Staging bytes by count, and by how much the process's peak memory grows with the last call, in bytes."""
    execution = TorchP2P(program)
    staging = []
    for count in counts[:-1]:
        execution.run(tensor := torch.ones(count), tensor, count)
        staging.append(execution.staging_bytes)
    tensor = torch.ones(counts[-1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    execution.run(tensor, tensor, counts[-1])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return [*staging, execution.staging_bytes], 1024 * grown


def many_calls(program: Program, counts: list[int]) -> int:
    """One execution, many sizes and types; elements that are wrong."""
    execution = TorchP2P(program)
    wrong = 0
    for count in counts:
        for dtype in (torch.float32, torch.uint8, torch.bool, torch.bfloat16):
            tensor = torch.ones(count, dtype=dtype)
            execution.run(tensor, tensor, count, "max", 64)
            wrong += int((tensor != torch.ones(count, dtype=dtype)).sum())
    return wrong


def prepare(programs: list[Program]) -> None:
    """Each rank comes with its own program."""
    TorchP2P(programs[dist.get_rank()], deadline_s=5)


def disturbed(program: Program, how: str, culprit: int, deadline_s: float) -> float:
    """A long AllReduce in which one rank does not do its part; the seconds that it took."""
    execution = TorchP2P(program)
    count = 100_000
    tensor = torch.ones(count)
    execution.run(tensor, tensor, count, chunk_bytes=4096, deadline_s=deadline_s)
    began = time.monotonic()
    if dist.get_rank() == culprit:
        if how == "dies":
            os._exit(3)
        if how == "stays away":
            return 0.0
        if how == "other count":
            tensor, count = torch.ones(count // 2), count // 2
    try:
        execution.run(tensor, tensor, count, chunk_bytes=4096, deadline_s=deadline_s)
    except Exception as error:
        error.add_note(f"took {time.monotonic() - began:.3f} s")
        try:
            execution.run(tensor, tensor, count, deadline_s=deadline_s)
        except Exception as second:
            error.add_note(f"then: {second}")
        raise
    return time.monotonic() - began


def wrong_call(program: Program) -> tuple[str, bool]:
    """A call that all ranks get wrong is refused before anything is sent, and does no harm."""
    execution = TorchP2P(program)
    tensor = torch.ones(10)
    try:
        execution.run(tensor, tensor, 11)
    except Exception as error:
        execution.run(tensor, tensor, 10)
        return str(error), bool((tensor == dist.get_world_size()).all())
    return "", False


def as_bytes(given: Array) -> Array:
    """What came through the pipe, for the pool's own test."""
    return np.asarray(given) + dist.get_rank()


def fail(rank: int) -> int:
    """One rank raises what no other module knows."""

    class StrangeError(Exception):
        pass

    if dist.get_rank() == rank:
        raise StrangeError("as planned")
    return dist.get_rank()


def sleep(seconds: float) -> None:
    """Does not answer."""
    time.sleep(seconds)
