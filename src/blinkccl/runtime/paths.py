"""Whether hosts reach each other: tried before a library tries it, which would wait long and name nobody.

The first rank of each host listens at the address that the network will take, and connects to those of all other
hosts. A path that lacks is an error on all ranks, with the same words.
"""

from __future__ import annotations

import errno
import os
import platform
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import msgspec

from blinkccl.errors import CommunicationError
from blinkccl.runtime.hierarchy import Hosts

#: So long a connection is waited for, but no longer than a third of the deadline.
REACH_S = 5.0
_SHOWN = 4


class RankPlace(msgspec.Struct, frozen=True):
    """Where a rank listens; ``problem`` is why it cannot."""

    host: str
    address: str
    port: int = 0
    problem: str = ""


def check_paths(hosts: Hosts, rank: int, own: str, timeout_s: float, exchange: Callable[[bytes], list[bytes]]) -> None:
    """All ranks call it; ``own`` is this rank's address, and ``exchange`` gives everybody everybody's bytes.

    CommunicationError, on all ranks, that names pairs of ranks between whose hosts there is no path.
    """
    firsts = [members[0] for members in hosts.members]
    with ExitStack() as undo:
        place = RankPlace(platform.node(), own)
        if rank in firsts:
            try:
                family, *_ = socket.getaddrinfo(own, 0, type=socket.SOCK_STREAM)[0]
                listener = undo.enter_context(socket.create_server((own, 0), family=family, backlog=len(firsts)))
                address, port, *_ = listener.getsockname()
                place = msgspec.structs.replace(place, address=address, port=port)
            except OSError as error:
                place = msgspec.structs.replace(place, problem=_reason(error.errno))
        places = [_PLACES.decode(word) for word in exchange(_ENCODER.encode(place))]
        others = {} if rank not in firsts else {r: places[r] for r in firsts if r != rank and not places[r].problem}
        problems = _unreached(others, min(REACH_S, timeout_s / 3))
        found = [_PROBLEMS.decode(word) for word in exchange(_ENCODER.encode(problems))]  # nobody closes before
    said = [f"{_who(r, places[r])} cannot listen there: {places[r].problem}" for r in firsts if places[r].problem]
    for r, unreached in enumerate(found):
        said += [
            f"{_who(r, places[r])} does not reach {_who(peer, places[peer])}: {why}" for peer, why in unreached.items()
        ]
    if not said:
        return
    more = f"; and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    raise CommunicationError(
        f"{'; '.join(said[:_SHOWN])}{more}. Each two hosts need a path between these addresses, at all ports: open the "
        "firewall, or name the interface that leads to all hosts, GLOO_SOCKET_IFNAME=… on each"
    )


def _who(rank: int, place: RankPlace) -> str:
    return f"rank {rank} ({place.address} on {place.host})"


def _unreached(places: Mapping[int, RankPlace], timeout_s: float) -> dict[int, str]:
    """Which of these cannot be connected to, and why."""
    failed: dict[int, str] = {}
    end = time.monotonic() + timeout_s
    with ExitStack() as undo:
        selector = undo.enter_context(selectors.DefaultSelector())
        for rank, place in places.items():
            family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
            connection = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            connection.setblocking(False)
            code = connection.connect_ex((place.address, place.port))
            if code not in (0, errno.EINPROGRESS):
                failed[rank] = _reason(code)
            elif code:
                selector.register(connection, selectors.EVENT_WRITE, rank)
        while selector.get_map() and (left_s := end - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                if code := key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    failed[key.data] = _reason(code)
                selector.unregister(key.fileobj)
        for key in selector.get_map().values():
            failed[key.data] = f"no answer within {timeout_s:.3g} s"
    return failed


def _reason(code: int | None) -> str:
    return os.strerror(code) if code else "unknown address"


_ENCODER = msgspec.msgpack.Encoder()
_PLACES, _PROBLEMS = msgspec.msgpack.Decoder(RankPlace), msgspec.msgpack.Decoder(dict[int, str])
