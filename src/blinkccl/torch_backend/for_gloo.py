"""The switch ``BLINK_FOR=gloo``: a program that says "gloo" gets blink for its CPU tensors, unchanged.

A group of gloo is a group whose backend string names gloo for every device. It becomes a group of blink that has gloo
beside it for the other devices. ``dist.get_backend()`` remains "gloo", because programs compare that name. C++ reads
"blink": DDP's logger would ask a group named "gloo" for gloo's own object. The switch leaves these:

- groups of several backends (``"cpu:gloo,cuda:nccl"``), because every call of NCCL would pass through Python;
- objects that a program makes of torch's class ``ProcessGroupGloo`` itself, among them those of RPC;
- stores, which need no group;
- all groups if torch gives every backend's name to torchcomms.

If blink cannot make a group, the program gets that error, and a note that names the switch. A rank that silently took
gloo instead would wait for the others until its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any

from torch.distributed import distributed_c10d

NAME = "gloo"
_NOTE = "BLINK_FOR=gloo gave this group to backend blink; unset the variable on all ranks to have gloo serve it"


def serve() -> None:
    """Serve the groups of gloo that this process makes from now on.

    AttributeError if this torch makes groups in another function.
    """
    distributed_c10d._new_process_group_helper = _served(distributed_c10d._new_process_group_helper)


@contextmanager
def serving() -> Iterator[None]:
    """Serve the groups of gloo that the block makes."""
    before = distributed_c10d._new_process_group_helper
    serve()
    try:
        yield
    finally:
        distributed_c10d._new_process_group_helper = before


def _served(make: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function that makes a group, with blink in place of gloo."""
    if getattr(make, "serves_gloo", False):
        return make
    parameters = signature(make)

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        wanted = call.arguments["backend"]
        named = in_place_of_gloo(wanted)
        if named is None:
            return make(*args, **kwargs)
        call.arguments["backend"] = distributed_c10d.Backend(named)
        try:
            group, store = make(*call.args, **call.kwargs)
        except Exception as error:  # of torch's checks too
            error.add_note(_NOTE)
            raise
        if group in distributed_c10d._world.pg_map:  # this rank is a member
            distributed_c10d._world.pg_map[group] = wanted, store
        return group, store

    vars(made)["serves_gloo"] = True
    return made


def in_place_of_gloo(backend: str) -> str | None:
    """The backend string in place of ``backend``, e.g. ``"cpu:blink,cuda:gloo"``; None: not a group of gloo."""
    if getattr(distributed_c10d, "_use_torchcomms_enabled", bool)():  # torch 2.11 knows no torchcomms
        return None
    named = distributed_c10d.BackendConfig(distributed_c10d.Backend(backend)).get_device_backend_map()
    if "cpu" not in named or set(named.values()) != {NAME}:
        return None
    return ",".join(f"{device}:{'blink' if device == 'cpu' else NAME}" for device in named)
