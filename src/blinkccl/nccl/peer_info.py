"""The ranks of a communicator as one job, from the data that libblink.so sends for each rank.

One JSON object per rank, in an array::

    {"rank": 0, "boot_id": "…", "pid": 4711, "device": 0, "uuid": "6f…", "bus_id": "0000:1a:00.0", "name": "…",
     "major": 9, "minor": 0, "multiprocessors": 132, "driver_version": 13000, "nccl_version": 23007,
     "blink_version": "0.1.0", "arch": "sm_90",
     "settings": {"algo": "", "protocol": "", "deterministic": "", "topo": "", "nccl_topo_file": "", "only_nccl": "",
                  "most_blocks": ""}}

``device`` is the GPU's number in its process and may differ in other processes; ``uuid`` and ``bus_id`` identify the
GPU itself. ``only_nccl`` names a request of the program that only NCCL supports, ``most_blocks`` is the program's limit
on blocks. With ``nccl_version`` 0 no NCCL exists, so Blink must run all calls. All fields are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from blinkccl.errors import LaunchError, UnsupportedError
from blinkccl.runtime.peer_info import package_version
from blinkccl.topology.limits import label_fault
from blinkccl.topology.select import ids_text

#: Maximum ranks of a host, more than its GPUs even with several ranks on each.
MAX_RANKS = 64
#: Maximum bytes of the array, which has some 100 KB for the maximum ranks.
MAX_PEER_INFO_BYTES = 1 << 20
#: Settings on which plans depend; a path may be long.
SETTINGS = ("algo", "protocol", "deterministic", "topo", "nccl_topo_file", "only_nccl", "most_blocks")
_MOST_SETTING = 4096


class GpuPeerInfo(msgspec.Struct, frozen=True):
    """One rank, with the fields of the module's text; ``settings`` holds environment variables, "" if not set."""

    rank: Annotated[int, Meta(ge=0, le=MAX_RANKS * 1024)]
    boot_id: Annotated[str, Meta(pattern=r"^[0-9A-Za-z-]{1,64}\Z")]
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    device: Annotated[int, Meta(ge=0, le=1024)]
    uuid: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    bus_id: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(\.[0-7])?\Z")]
    name: str
    major: Annotated[int, Meta(ge=1, le=100)]
    minor: Annotated[int, Meta(ge=0, le=9)]
    multiprocessors: Annotated[int, Meta(ge=1, le=10_000)]
    driver_version: Annotated[int, Meta(ge=1000, le=1_000_000)]
    nccl_version: Annotated[int, Meta(ge=0, le=10_000_000)]
    blink_version: Annotated[str, Meta(pattern=r"^[0-9A-Za-z.+-]{1,64}\Z")]
    arch: Annotated[str, Meta(pattern=r"^sm_[0-9]{2,3}[a-z]?\Z")]
    settings: dict[str, str] = {}


@dataclass(frozen=True)
class GpuJob:
    """The ranks of a communicator, all on this host: ``peers[i]`` is rank i."""

    peers: tuple[GpuPeerInfo, ...]

    @property
    def size(self) -> int:
        return len(self.peers)

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs, each once, in the order of the ranks."""
        return tuple(dict.fromkeys(peer.uuid for peer in self.peers))

    @property
    def shared(self) -> int:
        """The maximum number of ranks on one GPU."""
        uuids = [peer.uuid for peer in self.peers]
        return max(map(uuids.count, self.gpus))

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures of the GPUs, each once, in order."""
        return tuple(sorted({peer.arch for peer in self.peers}))

    @property
    def capability(self) -> int:
        """Compute capability of the oldest GPU: 90 for 9.0."""
        return min(10 * peer.major + peer.minor for peer in self.peers)

    @property
    def has_nccl(self) -> bool:
        """True if NCCL exists and can run calls."""
        return self.peers[0].nccl_version > 0

    @property
    def nccl_version(self) -> tuple[int, int]:
        """NCCL's version, such as (2, 30); (0, 0) without NCCL."""
        number = self.peers[0].nccl_version
        return number // 10000, number // 100 % 100

    def setting(self, name: str) -> str:
        """The value of one of :data:`SETTINGS`, on which all ranks agree."""
        return self.peers[0].settings.get(name, "")


def read_peer_info(data: bytes) -> GpuJob:
    """The job in ``data``; LaunchError for invalid JSON or ranks, UnsupportedError for ranks that do not match."""
    if len(data) > MAX_PEER_INFO_BYTES:
        raise LaunchError(f"the ranks' peer info has {len(data)} bytes, expected at most {MAX_PEER_INFO_BYTES}")
    try:
        peers = msgspec.json.decode(data.decode(errors="replace"), type=list[GpuPeerInfo])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LaunchError(f"no peer info: {error}; expected the JSON array that libblink.so writes") from None
    for position, peer in enumerate(peers):
        fault = _fault(peer)
        if fault is not None:
            raise LaunchError(f"peer {position}: {fault}")
    ordered = tuple(sorted(peers, key=lambda peer: peer.rank))
    if [peer.rank for peer in ordered] != list(range(len(ordered))):
        got = ids_text(peer.rank for peer in ordered)
        raise LaunchError(f"peer info of ranks {got}: expected each of 0 … {len(ordered) - 1} once")
    if not 2 <= len(ordered) <= MAX_RANKS:
        raise UnsupportedError(f"{len(ordered)} rank(s): expected 2 to {MAX_RANKS} ranks of one host")
    _agree(ordered)
    return GpuJob(ordered)


def _fault(peer: GpuPeerInfo) -> str | None:
    """The fault of a text of one peer, or None; the message repeats no control characters."""
    for name, value in (("name", peer.name), *peer.settings.items()):
        fault = label_fault(name) or label_fault(value, _MOST_SETTING)
        if fault is not None:
            return f"{name[:80]!r} {fault}"
    return None


#: Properties that all ranks must share: name, key of a peer, text of a peer, and advice.
_AGREED: tuple[tuple[str, Callable[[GpuPeerInfo], Hashable], Callable[[GpuPeerInfo], str], str], ...] = (
    ("hosts", lambda c: c.boot_id, lambda c: c.boot_id, "trees serve the ranks of one host"),
    ("Blink versions", lambda c: c.blink_version, lambda c: c.blink_version, "install one version everywhere"),
    ("NCCL versions", lambda c: c.nccl_version, lambda c: str(c.nccl_version), "NCCL itself needs one on all ranks"),
    (
        "driver versions",
        lambda c: c.driver_version // 1000,
        lambda c: f"CUDA {c.driver_version // 1000}.{c.driver_version % 1000 // 10}",
        "let all containers use one driver",
    ),
    (
        "settings",
        lambda c: tuple(sorted((key, value) for key, value in c.settings.items() if value)),
        lambda c: ", ".join(f"{key}={value}" for key, value in sorted(c.settings.items()) if value) or "nothing",
        "set BLINK_ALGO, BLINK_PROTOCOL, BLINK_DETERMINISTIC, BLINK_TOPO, NCCL's variables and its configuration "
        "equally on all ranks",
    ),
)


def _agree(peers: Sequence[GpuPeerInfo]) -> None:
    for name, key, show, advice in _AGREED:
        groups: dict[Hashable, list[GpuPeerInfo]] = {}
        for peer in peers:
            groups.setdefault(key(peer), []).append(peer)
        if len(groups) > 1:
            named = (f"rank {ids_text(c.rank for c in group)}: {show(group[0])}" for group in groups.values())
            raise UnsupportedError(f"the ranks have different {name} ({'; '.join(named)}); {advice}")
    python, library = package_version(), peers[0].blink_version
    if "unknown" not in (python, library) and python != library:
        raise UnsupportedError(
            f"libblink.so has Blink {library}, but the planner's Python has {python}; set BLINK_PYTHON to the Python "
            "of libblink.so's installation"
        )
