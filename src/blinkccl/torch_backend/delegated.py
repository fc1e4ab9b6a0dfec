"""Delegated groups: other backends for tensors that blink does not serve, on other devices or sparse.

With ``"cpu:blink,cuda:nccl"``, torch uses our process group as a whole, so calls on tensors of the other device arrive
here. They go to a plain process group with the other backends of that string; sparse tensors of the CPU go to gloo.
The first call that needs a backend creates it. This call is a collective or, on NCCL, a message between two ranks, for
which NCCL creates a communicator of these two: so no rank waits for one that does not call.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from blinkccl.errors import UnsupportedError
from blinkccl.torch_backend.failure import for_torch
from blinkccl.torch_backend.memory import SharedBlocks

#: Error for a device for which the user named blink.
CPU_ALONE = (
    'backend blink serves only CPU tensors, not those on {}: make the group with "cpu:blink,cuda:nccl", and start the '
    "program with blink run, so that NCCL's calls use trees"
)


class Capabilities:
    """Capabilities of a backend that torch queries; ours provides memory."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False

    _blocks = SharedBlocks()

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """True if tensors can be allocated in shared memory for faster communication. FSDP2 asks, if enabled."""
        return str(device.type) == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a tensor of ``size`` elements in shared memory."""
        return self._blocks.empty(size, dtype)

    def name(self) -> str:
        """The backend's name."""
        return "blink"


class DelegatedGroup:
    """The process group beside a group of blink; ``global_ranks`` is empty for the world itself."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, global_ranks: list[int]) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._global_ranks = global_ranks
        self._group: Any = None
        self._pid = os.getpid()
        self._made: dict[str, Any] = {}

    def group(self, ours: dist.ProcessGroup, device: str) -> Any:
        """The process group for tensors on ``device``; UnsupportedError if the backend string names none."""
        self.backend(ours, device)
        assert self._group is not None  # made with its first backend
        return self._group

    def backend(self, ours: dist.ProcessGroup, device: str) -> Any:
        """The backend object for tensors on ``device``."""
        if device not in self._made:
            self._made[device] = self._make(_who(devices(ours), device), device, ours.group_name)
        return self._made[device]

    def shutdown(self) -> None:
        """Shut down the group."""
        if self._group is not None and os.getpid() == self._pid:  # a forked child has none of the group's threads
            self._group.shutdown()
        self._group = None
        self._made.clear()

    def _make(self, name: str, device: str, group_name: str) -> Any:
        store = dist.PrefixStore(f"blink/delegated/{device}/", self._store)
        if self._group is None:
            self._group = dist.ProcessGroup(store, self._rank, self._size)
            self._group._set_default_backend(dist.Backend.backend_type_map[name])
        try:
            backend = _made(name, store, self._rank, self._size, self._timeout, self._global_ranks, group_name)
        except UnsupportedError as error:
            raise for_torch(error) from error
        self._group._register_backend(torch.device(device), dist.Backend.backend_type_map[name], backend)
        return backend


def _made(
    name: str, store: Any, rank: int, size: int, timeout: timedelta, global_ranks: list[int], group_name: str
) -> Any:
    """A backend object of torch; UnsupportedError if it cannot be made beside ours."""
    plugin = dist.Backend._plugins.get(name.upper())  # from torch 2.14 on all are plugins
    if plugin is not None and name != "blink":
        if not plugin.extended_api:
            return plugin.creator_fn(store, rank, size, timeout)
        options = distributed_c10d._DistributedBackendOptions()
        options.store, options.group_rank, options.group_size, options.timeout = store, rank, size, timeout
        options.group_id, options.global_ranks_in_group = group_name, global_ranks
        return plugin.creator_fn(options, None)
    if name == "gloo" and dist.is_gloo_available():
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    if name == "ucc" and dist.is_ucc_available():
        return dist.ProcessGroupUCC(store, rank, size, timeout)
    if name == "mpi" and dist.is_mpi_available():
        return dist.ProcessGroupMPI.create(global_ranks)
    if name == "nccl" and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.global_ranks_in_group, options.group_name = global_ranks, group_name
        return dist.ProcessGroupNCCL(store, rank, size, options)
    raise UnsupportedError(
        f"backend blink cannot make a backend {name!r} beside itself here; it can make gloo, ucc, mpi, NCCL and what "
        "is registered with torch, where torch was built with them"
    )


def _who(named: dict[str, str], device: str) -> str:
    """The backend for tensors on ``device`` that blink does not serve."""
    name = named.get(device)
    if device == "cpu" and (not named or name == "blink"):
        return "gloo"  # for sparse tensors
    if name is None:
        made = ",".join(f"{kind}:{backend}" for kind, backend in named.items()) or "blink"
        example = "gloo" if device == "cpu" else "nccl"
        text = f'this group, made as "{made}", has no backend for tensors on {device}; name one, e.g. '
        raise for_torch(UnsupportedError(f'{text}"{made},{device}:{example}"'))
    if name == "blink":
        raise for_torch(UnsupportedError(CPU_ALONE.format(device)))
    return name


def devices(group: dist.ProcessGroup) -> dict[str, str]:
    """``{device: backend}`` as the user named them; empty until torch has registered the group."""
    named = distributed_c10d._world.pg_backend_config.get(group, "")
    return dict(pair.split(":", 1) for pair in named.split(",") if ":" in pair)
