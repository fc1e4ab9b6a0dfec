"""The plans that an MPI program will want, made before it starts: in it their making would be a wait of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from blinkccl.errors import BlinkError
from blinkccl.runtime.host_bundle import MOST_RANKS, ensure, existing

_RANKS = ("-n", "-np", "--np", "-c")


def known_bundles(command: Sequence[str]) -> str:
    """For ``BLINK_MPI_BUNDLES``: "RANKS PATH" a line. Those for the launcher's ``-n`` are made if they are not there.

    Where they cannot be made, rank 0 tries again, and says why its communicators are left to the MPI library.
    """
    for option, value in pairwise(command):
        if option in _RANKS and value.isdecimal() and 2 <= int(value) <= MOST_RANKS:
            with suppress(BlinkError):
                ensure(int(value))
    return "\n".join(f"{ranks} {path}" for ranks, path in sorted(existing().items()))
