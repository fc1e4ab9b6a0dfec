"""Runs a Program with a process per rank on this host, over gloo: :class:`TorchP2P` behind the registry's form.

The processes stay for the next call, one set per number of ranks, and end with this one. The first call on a number of
ranks costs their start; every call pickles its buffers to them and back.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.ops import element_type, operation, scalars
from blinkccl.engines.buffers import allocate, check_roles, filled
from blinkccl.engines.torch_p2p_processes import LocalGroup
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES, bind
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import program_hash

if TYPE_CHECKING:
    import torch

    from blinkccl.engines.torch_p2p import TorchP2P

Array = NDArray[Any]

_groups: dict[int, LocalGroup] = {}
_lock = Lock()


def run(
    program: Program,
    inputs: Sequence[Array | None],
    *,
    count: int,
    dtype: str,
    op: str = "sum",
    scales: Sequence[float] | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    in_place: bool = False,
    deadline_s: float = 60.0,
) -> list[Array | None]:
    """Runs a collective once; see :class:`blinkccl.engines.registry.Run`.

    Raises
    ------
    UnsupportedError
        Also if there is no PyTorch, or no fork.
    PeerLostError
        If a rank's process ended.
    """
    row, chosen = element_type(dtype), operation(op)
    filled(program.collective, inputs, count, dtype, in_place)  # says what does not fit, here where it can be read
    bind(program, count, row.itemsize, chunk_bytes)
    row.combine(chosen)
    scalars(chosen, row, scales, program.collective.world_size)
    check_roles(program)
    call = (count, dtype, op, chunk_bytes, in_place, deadline_s)
    arguments = [
        (program, rank, None if given is None else given.view(np.uint8), scales[rank] if scales else None, *call)
        for rank, given in enumerate(inputs)
    ]
    with _lock:
        outputs = _call(program.collective.world_size, arguments, deadline_s)
    return [None if output is None else output.view(row.storage) for output in outputs]


def _call(size: int, arguments: list[tuple[Any, ...]], deadline_s: float) -> list[Any]:
    if size not in _groups:
        _groups[size] = LocalGroup(size)
    try:
        return _groups[size].call(_run_here, arguments, deadline_s)
    except BaseException:  # gloo's connections do not survive a call that one rank has left
        _groups.pop(size).close()
        raise


@atexit.register
def close() -> None:
    """Ends all processes; the next call starts new ones."""
    while _groups:
        _groups.popitem()[1].close()


#: In a rank's process: the execution of the last program.
_last: dict[str, TorchP2P] = {}


def _run_here(
    program: Program,
    rank: int,
    given: Array | None,
    scale: float | None,
    count: int,
    dtype: str,
    op: str,
    chunk_bytes: int,
    in_place: bool,
    deadline_s: float,
) -> Array | None:
    """In a rank's process: this rank's part. Arrays come and go as bytes, which all types have."""
    import torch

    from blinkccl.engines.torch_p2p import TorchP2P

    key = program_hash(program)
    if key not in _last:
        _last.clear()
        _last[key] = TorchP2P(program, deadline_s=deadline_s)
    buffers = allocate(program.collective, count, element_type(dtype), in_place)
    source, target = buffers.inputs[rank], buffers.outputs[rank]
    if source is not None and given is not None:
        source.view(np.uint8)[:] = given
    _last[key].run(
        _tensor(source, dtype),
        _tensor(target, dtype),
        count,
        op,
        chunk_bytes,
        scale=scale,
        dtype=getattr(torch, dtype),
        deadline_s=deadline_s,
    )
    return None if target is None else target.view(np.uint8)


def _tensor(array: Array | None, dtype: str) -> torch.Tensor | None:
    """The same memory as a tensor."""
    import torch

    return None if array is None else torch.from_numpy(array.view(np.uint8)).view(getattr(torch, dtype))
