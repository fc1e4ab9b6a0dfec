"""The addresses of this host: its interfaces, and the one at which other hosts reach it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from fcntl import ioctl

_SIOCGIFADDR = 0x8915


def is_local(host: str) -> bool:
    """True if ``host`` is a loopback name or address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_own(host: str) -> bool:
    """True if ``host`` is an address of this host, or a name of one."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(address)
                return True
    return False


def own_addresses() -> list[str]:
    """This host's IPv4 addresses, of all interfaces but the loopback's."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                row = ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses.append(socket.inet_ntoa(row[20:24]))
    return [address for address in addresses if not is_local(address)]


def own_address_towards(host: str) -> str:
    """This host's address on the route to ``host``; its name if there is no route.

    If ``host`` is this host under a name that resolves to a loopback address (127.0.1.1 in many hosts files), the
    address of another route.
    """
    source = _source_address(host)
    if source is None or is_local(host) or not is_local(source):
        return source or socket.gethostname()
    elsewhere = _source_address("192.0.2.1")  # a reserved address, so the default route
    others = [address for address in (elsewhere, *own_addresses()) if address and not is_local(address)]
    return next(iter(others), source)


def _source_address(host: str) -> str | None:
    """The source address of packets to ``host``; IPv4 if it has both."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            return str(probe.getsockname()[0])
    return None
