"""Construction of a layout with ``ip`` and ``tc``: namespaces, shaped links, routes.

The namespaces have no name. Descriptors of this process and of its processes inside hold them. When the last of these
ends, in any way, the kernel removes them with every device, route and qdisc in them. So nothing remains, and nothing of
others is touched. To inspect one: ``nsenter -n -t PID``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path

from blinkccl.apps.lab.layout import HOST_DEVICE, Layout, Port, Route, device_of, other_end
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.runtime import ucx

_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
#: The request for a device's flags, the flag of one that runs, and the most seconds until it does.
_GET_FLAGS, _RUNNING, _UP_S = 0x8913, 0x40, 10.0
#: Bytes of a bucket and of queues. A bucket must hold a packet with its headers, and is credit: with much more, data
#: would exceed its rate. A queue that drops packets costs whole retransmission timeouts.
_BURST, _QUEUE, _SHORT_QUEUE = 33000, 8388608, 65600
#: Packets of 16 KiB: larger ones take long on a slow link, smaller ones take the processor's time.
_PACKET = "mtu 16384 gso_max_size 16384"
#: Those that fill a queue. Nothing is dropped here, so which of them makes no difference; not all may be allowed.
_CONGESTION_CONTROLS = ("cubic", "reno")
_SYSCTLS = {
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}


def lacking() -> str | None:
    """The reason why this machine cannot run a laboratory, with a remedy; None: it can."""
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            return f"it needs the command {tool}, which is not there; install {package}"
    try:
        ucx.find()
        with _unshared() as number:
            os.close(number)
    except BlinkError as error:
        return str(error)
    except OSError as error:
        return f"it makes network namespaces, which this process may not ({error.strerror}); run it as root"
    return None


@contextmanager
def _unshared() -> Iterator[int]:
    """A descriptor of a new namespace, which the calling thread is in meanwhile."""
    with _elsewhere("unshare", _CLONE_NEWNET):
        yield os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _elsewhere(name: str, *arguments: int) -> Iterator[None]:
    """A context in which the calling thread is in the namespace that this system call selects."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call(name, *arguments)
        try:
            yield
        finally:
            _call("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


class Namespaces:
    """A namespace per vertex of a layout, with its links up; closing it removes them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stack = ExitStack()
        self._number: dict[int, int] = {}
        try:
            for vertex in layout.vertices:
                with _unshared() as number:
                    self._stack.callback(os.close, number)
                    self._number[vertex] = number
            for vertex in layout.vertices:
                self._build(vertex)
            for vertex in layout.vertices:
                self._raise(vertex)
            for vertex in layout.vertices:
                names = [port.device for pair in layout.links for port in pair if port.vertex == vertex]
                self._await(vertex, [*names, *map(device_of, layout.addresses[vertex])])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def inside(self, vertex: int) -> AbstractContextManager[None]:
        """A context in which the calling thread, and processes that it starts, are in the namespace of ``vertex``."""
        return _elsewhere("setns", self._number[vertex], _CLONE_NEWNET)

    def run(self, vertex: int, tool: str, lines: Iterable[str]) -> None:
        """Pass ``lines`` to ``ip`` or ``tc`` in a namespace; UnsupportedError with the tool's message."""
        batch = "".join(f"{line}\n" for line in lines)
        with self.inside(vertex):
            done = subprocess.run([tool, "-batch", "-"], input=batch, capture_output=True, text=True, check=False)
        if done.returncode:
            message = "; ".join(done.stderr.split("\n")[:2])
            raise UnsupportedError(f"{tool} refused to build the links of vertex {vertex}: {message}")

    def _build(self, vertex: int) -> None:
        """Create the pairs whose first end is here, and set the system's parameters."""
        me = os.getpid()
        made = [pair for pair in self._layout.links if pair[0].vertex == vertex]
        self.run(
            vertex,
            "ip",
            [
                f"link add name {near.device} {_PACKET} type veth peer name {far.device} {_PACKET} "
                f"netns /proc/{me}/fd/{self._number[far.vertex]}"
                for near, far in made
            ],
        )
        with self.inside(vertex):
            for name, value in _SYSCTLS.items():
                Path("/proc/sys", name).write_text(value)
            for name in _CONGESTION_CONTROLS:
                with suppress(PermissionError):
                    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text(name)
                    break
            if self._layout.forwards(vertex):
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def _raise(self, vertex: int) -> None:
        """Set addresses, shapes and routes, when both ends of every link exist."""
        layout = self._layout
        ports = [port for pair in layout.links for port in pair if port.vertex == vertex]
        lines = ["link set lo up"]
        for address in layout.addresses[vertex]:
            name = device_of(address)  # a pair, since few kernels have dummy devices, and a bridge has no carrier
            lines += [
                f"link add name {name} type veth peer name {name}b",
                f"link set {name}b up",
                f"link set {name} up",
            ]
            lines.append(f"addr add {address}/32 dev {name}")
            # UCX requires a route from the device; packets take the one over links, which has a lower metric.
            lines.append(f"route add {other_end(address)}/32 dev {name} metric 1000")
        if vertex in layout.hosts:
            lines += [f"link add name {HOST_DEVICE} type bridge", f"link set {HOST_DEVICE} up"]
            lines.append(f"addr add {layout.hosts[vertex]}/32 dev {HOST_DEVICE}")
        for port in ports:
            lines += [f"addr add {port.address}/31 dev {port.device}", f"link set {port.device} up"]
        self.run(vertex, "ip", [*lines, *map(_line, layout.routes[vertex])])
        self.run(vertex, "tc", [shape(port) for port in ports])

    def _await(self, vertex: int, names: Iterable[str]) -> None:
        """Wait until these devices run: the kernel reports a new link up to a second late, and UCX needs the report."""
        deadline = time.monotonic() + _UP_S
        with self.inside(vertex), socket.socket() as any_socket:
            for name in names:
                request = struct.pack("16sH22x", name.encode(), 0)
                while not struct.unpack("16sH22x", ioctl(any_socket, _GET_FLAGS, request))[1] & _RUNNING:
                    if time.monotonic() > deadline:
                        raise UnsupportedError(f"device {name} of vertex {vertex} is not up after {_UP_S:g} s")
                    time.sleep(0.01)

    def turn(self, a: int, b: int, up: bool) -> None:
        """Take a link up or down; the routes of an end that is down are lost, so they are added again."""
        for port in (self._layout.port[a, b], self._layout.port[b, a]):
            routes = [route for route in self._layout.routes[port.vertex] if route.port == port]
            back = map(_line, routes) if up else ()
            self.run(port.vertex, "ip", [f"link set dev {port.device} {'up' if up else 'down'}", *back])
        if up:
            self._await(a, [self._layout.port[a, b].device])
            self._await(b, [self._layout.port[b, a].device])


def _line(route: Route) -> str:
    """The line for ``ip`` that adds a route."""
    source = f" src {route.source}" if route.source else ""
    port = route.port
    return f"route replace {route.destination}/32 via {port.gateway} dev {port.device} onlink{source}"


def shape(port: Port, part: float = 1.0, verb: str = "add", lossy: bool = False) -> str:
    """The line for ``tc`` that shapes a port to ``part`` of its rate; ``lossy``: with a queue of four packets."""
    rate, queue = round(port.bit_per_s * part), _SHORT_QUEUE if lossy else _QUEUE
    return f"qdisc {verb} dev {port.device} root tbf rate {rate}bit burst {_BURST} limit {queue}"
