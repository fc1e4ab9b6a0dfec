"""The search for UCX, the library for messages between hosts.

A job loads it when it needs it. The order is: the file in ``BLINK_UCX_LIB``; on a machine with RDMA cards the system's
libucp, which supports them; the one inside PyPI's nixl (UCX with verbs and EFA); PyPI's libucx (TCP and shared memory),
which the extra ``blink-ccl[hosts]`` installs; the system's. Over TCP, PyPI's newer ones are faster than Debian's 1.13,
whose assertions end a rank now and then when a connection to another breaks. UCX's own variables (``UCX_TLS``,
``UCX_NET_DEVICES``, …) keep their meaning.
"""

from __future__ import annotations

import logging
import os
import sysconfig
from collections.abc import Iterator, Mapping
from ctypes.util import find_library
from pathlib import Path

from blinkccl.errors import LaunchError, UnsupportedError

VARIABLE = "BLINK_UCX_LIB"
_CARDS = Path("/sys/class/infiniband")
_log = logging.getLogger(__name__)
#: Paths of the library in PyPI's packages, below site-packages.
_PACKAGED = ("nixl*.libs/libucp*.so*", "libucx/lib/libucp.so.0", "*nixl*/**/libucp*.so*")


#: The remedy for a library that is no UCX that serves.
ANOTHER = f"name the libucp.so.0 of another UCX in {VARIABLE}, or unset it: pip install 'blink-ccl[hosts]' brings one"
#: Variables that restrict UCX to some networks.
_RESTRICTING = ("UCX_TLS", "UCX_NET_DEVICES")


def networks_of(library: str, environ: Mapping[str, str] = os.environ) -> str:
    """The library with its user's settings, and the remedy if it does not have, or reach, a network."""
    settings = " ".join(f"{name}={environ[name]}" for name in _RESTRICTING if environ.get(name))
    used = f"{library} with {settings}" if settings else library
    return (
        f"UCX is {used}; its `ucx_info -d` lists networks for {' and '.join(_RESTRICTING)}: set or unset them on all "
        f"ranks, or name a UCX with the network in {VARIABLE}"
    )


def find(environ: Mapping[str, str] = os.environ) -> str:
    """The library's file or name; LaunchError if ``BLINK_UCX_LIB`` is no file, UnsupportedError without UCX."""
    if environ.get("BLINK_NETWORK"):
        _log.warning("BLINK_NETWORK has no effect any more: UCX sends between hosts, and UCX_TLS selects networks")
    if named := environ.get(VARIABLE):
        if not Path(named).is_file():
            raise LaunchError(f"{VARIABLE}={named!r}: there is no such file; name UCX's libucp.so.0, or unset it")
        return named
    for path in _candidates():
        return path
    raise UnsupportedError(
        "ranks on several hosts need UCX, which is not installed here: pip install 'blink-ccl[hosts]' on all hosts, or "
        f"install the system's (apt install libucx0), or name a libucp.so.0 in {VARIABLE}"
    )


def _candidates() -> Iterator[str]:
    # Not loaded here: the native library sets UCX's defaults before it loads it.
    system = [library] if (library := find_library("ucp")) else []
    if _CARDS.exists():
        yield from system
    packages = Path(sysconfig.get_paths()["platlib"])
    for pattern in _PACKAGED:
        yield from sorted(str(path) for path in packages.glob(pattern))
    yield from system
