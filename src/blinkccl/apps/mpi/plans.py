"""Plans that an MPI program will need, made before it starts: during the run, all ranks would wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from blinkccl.errors import BlinkError
from blinkccl.runtime.host_bundle import MOST_RANKS, ensure, existing

_RANKS = ("-n", "-np", "--np", "-c")


def known_bundles(command: Sequence[str]) -> str:
    """The value of ``BLINK_MPI_BUNDLES``: a line "RANKS PATH" for each bundle on this host.

    A missing bundle for the launcher's ``-n`` is made; if that fails, rank 0 tries again and reports the reason.
    """
    for option, value in pairwise(command):
        if option in _RANKS and value.isdecimal() and 2 <= int(value) <= MOST_RANKS:
            with suppress(BlinkError):
                ensure(int(value))
    return "\n".join(f"{ranks} {path}" for ranks, path in sorted(existing().items()))
