"""The addresses of this host, at which other hosts reach it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from fcntl import ioctl
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path

_SIOCGIFADDR, _SIOCGIFNETMASK, _SIOCGIFFLAGS = 0x8915, 0x891B, 0x8913
_RUNNING = 1 << 6
_IPV6 = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = 0
#: A reserved address, to which only the default route leads.
_ANYWHERE = "192.0.2.1"


def is_local(host: str) -> bool:
    """True if ``host`` is a loopback name or address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def loopback_of(name: str) -> str | None:
    """The loopback address that a host's name means on this host, as 127.0.1.1 in many hosts files; None: another."""
    with suppress(OSError):
        for *_, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            if is_local(str(address[0])) and not is_local(name):
                return str(address[0])
    return None


def is_own(host: str) -> bool:
    """True if ``host`` is an address of this host, or a name of one."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(address)
                return True
    return False


def own_interfaces(allowed: str = "") -> dict[str, str]:
    """The interfaces of this host that have a carrier and an address, without loopback; IPv4 if one has both.

    ``allowed`` restricts them to the devices of a UCX_NET_DEVICES, if it names any.
    """
    addresses: dict[str, IPv4Interface | IPv6Interface] = dict(_with_ipv6())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                row = struct.pack("256s", name.encode()[:15])
                if not struct.unpack_from("H", ioctl(probe.fileno(), _SIOCGIFFLAGS, row), 16)[0] & _RUNNING:
                    addresses.pop(name, None)
                    continue
                address, mask = (
                    socket.inet_ntoa(ioctl(probe.fileno(), request, row)[20:24])
                    for request in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
                addresses[name] = IPv4Interface(f"{address}/{mask}")
    names = {device.partition(":")[0] for device in allowed.split(",")} - {"", "all"}
    return {
        name: str(address)
        for name, address in sorted(addresses.items())
        if not address.is_loopback and (not names or name in names)
    }


def _with_ipv6() -> dict[str, IPv6Interface]:
    with suppress(OSError):
        rows = [line.split() for line in _IPV6.read_text().splitlines()]
        return {
            name: IPv6Interface((bytes.fromhex(address), int(bits, 16)))
            for address, _, bits, scope, _, name in rows
            if int(scope, 16) == _GLOBAL_SCOPE
        }
    return {}


def own_addresses(towards: str = _ANYWHERE) -> list[str]:
    """This process's addresses for ranks of other hosts: on the route to ``towards``, by default, then of interfaces.

    Loopback addresses count only towards one. A name of this host may resolve to one (127.0.1.1 in many hosts files).
    """
    if is_local(towards):
        return [_source_address(towards) or towards]
    interfaces = (str(ip_interface(address).ip) for address in own_interfaces().values())
    addresses = (_source_address(towards), _source_address(_ANYWHERE), *interfaces)
    return list(dict.fromkeys(address for address in addresses if address and not is_local(address)))


def _source_address(host: str) -> str | None:
    """The source address of packets to ``host``; IPv4 if it has both."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            return str(probe.getsockname()[0])
    return None
