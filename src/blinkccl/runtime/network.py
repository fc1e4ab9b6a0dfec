"""Networks between hosts: bytes from rank to rank.

By default collectives go over TCP connections of our own (``tcp``), messages over gloo's send and receive, through
torch, or without torch over MPI. ``BLINK_NETWORK`` names a library for both: ``gloo``, another backend of torch that
has send and receive (mpi, ucc, or a plugin), or ``mpi`` where torch has none: then MPI itself, through mpi4py.
"""

from __future__ import annotations

import ctypes as c
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from blinkccl.errors import CommunicationError, DeadlineError, UnsupportedError
from blinkccl.runtime.bootstrap import own_address_towards
from blinkccl.runtime.hierarchy import Hosts, partners
from blinkccl.runtime.monitor import check_paths
from blinkccl.runtime.store import Store, TorchStore, own_addresses
from blinkccl.runtime.tcp_network import connect
from blinkccl.runtime.timeouts import positive_number

_NAME = "BLINK_NETWORK"
#: Before the name of the library for messages, where collectives go over connections of our own.
_TCP = "tcp+"
_NO_LIBRARY = "!ranks on several hosts need torch (for gloo) or mpi4py (for MPI); pip install one, on all hosts"
_RATE = "BLINK_NIC_GBITS"
#: Gigabits per second of an interface that does not say its speed, as virtual ones do not.
DEFAULT_GBITS = 10.0
_INTERFACES = Path("/sys/class/net")


class Pending(Protocol):
    """A message under way."""

    def wait(self, timeout_s: float) -> int:
        """Waits for its end, and returns its source, for a received one.

        DeadlineError after ``timeout_s``: the network is then of no more use; CommunicationError if it broke.
        """
        ...


class Network(Protocol):
    """One rank's end of a network among the ranks of a group; only for messages threads may use it side by side.

    Messages from one rank to another with one tag, of 31 bits, come in order; MPI takes the lower 15. ``abort``
    ends all that wait, here and, where the library can, at the peers.
    """

    def send(self, address: int, nbytes: int, peer: int, tag: int) -> Pending: ...
    def receive(self, address: int, nbytes: int, peer: int | None, tag: int) -> Pending: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


#: Opens a network by name; the flag: it is for messages, which all pairs of ranks may exchange, at any time.
Opened = Callable[[str, bool], Network]


def opener(store: Store, rank: int, hosts: Hosts, timeout_s: float, exchange: Callable[[bytes], list[bytes]]) -> Opened:
    """What opens networks by name; all ranks call it, and ``exchange`` gives everybody everybody's bytes.

    On all ranks: UnsupportedError if there is no such library, or ranks want different ones; CommunicationError if
    TCP is wanted and two hosts do not reach each other.
    """
    wanted, problem = _wanted()
    tcp, library = wanted.startswith(_TCP), wanted.removeprefix(_TCP)
    host = store.host() or "127.0.0.1"
    torch_store: Any = store.inner if isinstance(store, TorchStore) else None
    mine = problem
    if not mine and library == "mpi4py":
        mine = f"{wanted} {_mpi_rank()}"
    elif not mine and torch_store is None and rank == 0:
        torch_store = _torch_store(own_address_towards(host), 0, True, timeout_s)
        mine = f"{wanted} {torch_store.host} {torch_store.port}"
    elif not mine:
        mine = wanted
    given = [word.decode() for word in exchange(mine.encode())]
    _check_given(given, problem)
    own = own_address_towards(host)
    if tcp or library == "gloo":
        check_paths(hosts, rank, _gloo_address(own), timeout_s, exchange)
    if library == "mpi4py":
        by_library = _by_mpi([int(word.split()[1]) for word in given])
    else:
        if torch_store is None:
            _, address, port = given[0].split()
            torch_store = _torch_store(address, int(port), False, timeout_s)
        by_library = _by_torch(library, torch_store, own, rank, hosts.size, timeout_s)

    def opened(name: str, messages: bool) -> Network:
        if messages or not tcp:
            return by_library(name, messages)
        deadline = time.monotonic() + timeout_s
        return connect(rank, partners(hosts, rank), _gloo_address(own), deadline, exchange)

    return opened


def _by_mpi(world: Sequence[int]) -> Opened:
    if len(set(world)) < len(world):
        raise UnsupportedError(
            "the ranks are no ranks of one MPI job, which BLINK_NETWORK=mpi needs, as do several hosts without "
            "torch; start them with mpirun, or install torch for gloo"
        )
    return lambda name, _: MpiNetwork(world, name)


def _by_torch(library: str, store: Any, own: str, rank: int, size: int, timeout_s: float) -> Opened:
    def opened(name: str, messages: bool) -> Network:
        prefixed, timeout = torch_distributed().PrefixStore(f"{name}/", store), timedelta(seconds=timeout_s)
        try:
            if library == "gloo":
                return TorchNetwork(_gloo_at(own, prefixed, rank, size, timeout, not messages), True)
            return TorchNetwork(torch_backend(library, prefixed, rank, size, timeout, list(range(size)), name), False)
        except RuntimeError as error:
            raise CommunicationError(f"rank {rank} could not open {library} on {own}: {_line(error)}") from error

    return opened


def _wanted() -> tuple[str, str]:
    """The library's name, after "tcp+" if it is for messages alone, and the problem there is with it: "!" and more."""
    name = os.environ.get(_NAME, "tcp").lower()
    has_torch = find_spec("torch") is not None
    if name == "tcp":
        has_other = has_torch or find_spec("mpi4py") is not None
        return _TCP + ("gloo" if has_torch else "mpi4py"), "" if has_other else _NO_LIBRARY
    if name == "mpi" and not (has_torch and torch_distributed().is_mpi_available()):
        has_mpi = find_spec("mpi4py") is not None
        return "mpi4py", "" if has_mpi else f"!{_NAME}=mpi needs mpi4py; pip install mpi4py, on all hosts"
    if has_torch:
        return name, _lacking(name)
    return name, _NO_LIBRARY


def _lacking(name: str) -> str:
    """The problem where this torch has no such network for a host's memory; gloo is not looked for: it takes time."""
    if name == "gloo":
        return ""
    dist = torch_distributed()
    plugins = {plugin.lower() for plugin in dist.Backend._plugins} - {"blink", "nccl", "fake"}
    built = {"gloo": dist.is_gloo_available(), "ucc": dist.is_ucc_available(), "mpi": dist.is_mpi_available()}
    has = sorted(plugins | {each for each, available in built.items() if available})
    if name in has:
        return ""
    why = "it carries the memory of GPUs only" if name == "nccl" else "torch has no such backend here"
    return (
        f"!{_NAME}={name}: {why}; take one of {', '.join(has)}, or mpi, with mpi4py and under mpirun. A torch that was "
        "built with UCC or MPI has ucc or mpi, and a backend of somebody else's is registered by importing it"
    )


def _check_given(given: Sequence[str], problem: str) -> None:
    if problem:
        raise UnsupportedError(problem[1:])
    for rank, word in enumerate(given):
        if word.startswith("!"):
            raise UnsupportedError(f"rank {rank}: {word[1:]}")
        if word.split()[0] != given[0].split()[0]:
            raise UnsupportedError(
                f"ranks disagree on the network between hosts: rank 0 takes {given[0].split()[0]}, rank {rank} "
                f"{word.split()[0]}; set {_NAME} to the same for all, and install the same on all hosts"
            )


def torch_distributed() -> Any:
    """torch's module, imported only here."""
    return import_module("torch.distributed")


def _torch_store(host: str, port: int, serves: bool, timeout_s: float) -> Any:
    try:
        return torch_distributed().TCPStore(
            host, port, None, serves, timedelta(seconds=timeout_s), wait_for_workers=False
        )
    except RuntimeError as error:
        raise CommunicationError(f"torch's store at {host}:{port}, which rank 0 serves, failed: {error}") from error


# ---- torch


def torch_backend(
    name: str, store: Any, rank: int, size: int, timeout: timedelta, global_ranks: list[int], group_name: str
) -> Any:
    """A backend object of torch; UnsupportedError if it cannot be made beside ours."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    plugin = dist.Backend._plugins.get(name.upper())  # from torch 2.14 on all are plugins
    if plugin is not None and name != "blink":
        if not plugin.extended_api:
            return plugin.creator_fn(store, rank, size, timeout)
        given = distributed_c10d._DistributedBackendOptions()
        given.store, given.group_rank, given.group_size, given.timeout = store, rank, size, timeout
        given.group_id, given.global_ranks_in_group = group_name, global_ranks
        return plugin.creator_fn(given, None)
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


def _gloo_at(address: str, store: Any, rank: int, size: int, timeout: timedelta, lazy: bool) -> Any:
    """Gloo over the interface that leads to rank 0; if ``lazy`` two ranks connect when both have a first message."""
    import torch.distributed as dist

    kind = dist.ProcessGroupGloo
    options = kind._Options()
    options._timeout = timeout
    named = _gloo_interface()
    options._devices = [
        kind.create_device(interface=named, lazy_init=lazy)
        if named
        else kind.create_device(hostname=address, lazy_init=lazy)
    ]
    return kind(store, rank, size, options)


def _gloo_interface() -> str:
    """What the job says gloo shall take; else ""."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]


def _gloo_address(own: str) -> str:
    """Where gloo will listen: ``own``, or the address of the named interface."""
    return own_addresses().get(_gloo_interface(), own)


class TorchNetwork:
    """Send and receive of a process group of torch, which its books need not know."""

    def __init__(self, group: Any, gloo: bool) -> None:
        self._torch: Any = import_module("torch")
        self._group, self._gloo = group, gloo
        self._peers: set[int] = set()

    def send(self, address: int, nbytes: int, peer: int, tag: int) -> Pending:
        return self._post(peer, lambda: self._group.send([self._bytes(address, nbytes)], peer, tag))

    def receive(self, address: int, nbytes: int, peer: int | None, tag: int) -> Pending:
        """Gloo ends the process if a message is longer."""
        if peer is None:
            return self._post(None, lambda: self._group.recv_anysource([self._bytes(address, nbytes)], tag))
        return self._post(peer, lambda: self._group.recv([self._bytes(address, nbytes)], peer, tag))

    def abort(self) -> None:
        if self._gloo:
            self._end_waits()
        else:
            with suppress(RuntimeError, AttributeError):
                self._group.abort()

    def close(self) -> None:
        """What is still wanted ends with its time-out."""
        self._group = None

    def _end_waits(self) -> None:
        """Gloo ends all its connections when one wait for a message has lasted too long; nothing else does."""
        word = self._torch.zeros(1, dtype=self._torch.uint8)
        for peer in sorted(self._peers):
            try:
                self._group.recv([word], peer, _NEVER_SENT).wait(timedelta(milliseconds=1))
            except (RuntimeError, AttributeError) as error:
                if "time" in str(error).lower():
                    return  # else this peer's connection was broken already

    def _post(self, peer: int | None, post: Callable[[], Any]) -> Pending:
        if peer is not None:
            self._peers.add(peer)
        try:
            return _TorchPending(post(), peer)
        except (RuntimeError, AttributeError) as error:
            raise _explained(error) from error

    def _bytes(self, address: int, nbytes: int) -> Any:
        if not nbytes:
            return self._torch.empty(0, dtype=self._torch.uint8)
        return self._torch.frombuffer((c.c_uint8 * nbytes).from_address(address), dtype=self._torch.uint8)


#: A tag that no message has.
_NEVER_SENT = 1 << 15
#: What MPI promises at least.
_MPI_TAGS = 1 << 15


class _TorchPending:
    def __init__(self, work: Any, peer: int | None) -> None:
        self._work, self._peer = work, peer

    def wait(self, timeout_s: float) -> int:
        try:
            self._work.wait(timedelta(seconds=max(0.001, timeout_s)))
            return int(self._work._source_rank()) if self._peer is None else self._peer
        except RuntimeError as error:
            raise _explained(error) from error


def _explained(error: Exception) -> CommunicationError:
    reason = _line(error)
    late = "timed out" in reason.lower() or "timeout" in reason.lower()
    return (DeadlineError if late else CommunicationError)(reason)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


# ---- MPI


def _mpi_rank() -> int:
    return int(import_module("mpi4py.MPI").COMM_WORLD.Get_rank())


class MpiNetwork:
    """Messages of MPI; ``world`` are the group's ranks in MPI_COMM_WORLD."""

    def __init__(self, world: Sequence[int], name: str) -> None:
        self._mpi: Any = import_module("mpi4py.MPI")
        if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE:
            raise UnsupportedError("this MPI serves one thread only; set BLINK_NETWORK=gloo, or use another MPI")
        everybody = self._mpi.COMM_WORLD.Get_group()
        self._comm = self._mpi.COMM_WORLD.Create_group(everybody.Incl(world), sum(name.encode()) % 1000)
        self._aborted = threading.Event()

    def send(self, address: int, nbytes: int, peer: int, tag: int) -> Pending:
        return _MpiPending(
            self._comm.Isend(self._bytes(address, nbytes), peer, tag % _MPI_TAGS), self._mpi, self._aborted
        )

    def receive(self, address: int, nbytes: int, peer: int | None, tag: int) -> Pending:
        source = self._mpi.ANY_SOURCE if peer is None else peer
        return _MpiPending(
            self._comm.Irecv(self._bytes(address, nbytes), source, tag % _MPI_TAGS), self._mpi, self._aborted
        )

    def abort(self) -> None:
        self._aborted.set()

    def close(self) -> None:
        """MPI frees it at its end: to free it now all ranks would have to take part."""
        self._aborted.set()

    def _bytes(self, address: int, nbytes: int) -> Any:
        return [(c.c_char * nbytes).from_address(address) if nbytes else b"", nbytes, self._mpi.BYTE]


class _MpiPending:
    def __init__(self, request: Any, mpi: Any, aborted: threading.Event) -> None:
        self._request, self._status, self._aborted = request, mpi.Status(), aborted

    def wait(self, timeout_s: float) -> int:
        end = time.monotonic() + timeout_s
        while not self._request.Test(self._status):
            if self._aborted.is_set():
                raise CommunicationError("the network was closed")
            if time.monotonic() > end:
                raise DeadlineError(f"timed out after {timeout_s:g} s")
            time.sleep(0)
        return int(self._status.Get_source())


# ---- interfaces


def interface_bytes_per_s(host: str) -> float:
    """Of the interface that leads to ``host``: what BLINK_NIC_GBITS says, or sysfs, or the default.

    LaunchError if the variable is no positive number.
    """
    if (gbits := positive_number(_RATE, "gigabits per second")) is not None:
        return gbits * 1e9 / 8
    own = own_address_towards(host)
    name = next((name for name, address in own_addresses().items() if address == own), "")
    megabits = 0
    with suppress(OSError, ValueError):
        megabits = int((_INTERFACES / name / "speed").read_text())
    return (megabits / 1e3 if megabits > 0 else DEFAULT_GBITS) * 1e9 / 8


def is_rate_given() -> bool:
    """Whether BLINK_NIC_GBITS says what hosts reach: then nothing is measured in its place."""
    return bool(os.environ.get(_RATE))
