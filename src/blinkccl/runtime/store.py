"""Where do the ranks of a job meet? In a store, named by URL.

| URL                    | kind             | for                                                            |
|------------------------|------------------|----------------------------------------------------------------|
| `file:///directory`    | `FileStore`      | ranks of one host: a file per key, in a directory of mode 0700 |
| `tcp://host:port`      | `TcpStore`       | any ranks: rank 0 serves                                       |
| `torch://host:port`    | `TorchTcpStore`  | torch's own store, which rank 0 serves                         |
| `torchrun://host:port` | `TorchTcpStore`  | torch's own store, which torchrun's agent serves               |

and `TorchStore` for a store of torch that somebody else made.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from blinkccl.errors import LaunchError
from blinkccl.runtime.file_store import FileStore
from blinkccl.runtime.job_directory import prepare
from blinkccl.runtime.store_contract import Store
from blinkccl.runtime.tcp_store import TcpStore
from blinkccl.runtime.torch_store import TorchStore, TorchTcpStore

__all__ = ["FileStore", "Store", "TcpStore", "TorchStore", "TorchTcpStore", "open_store"]


def open_store(url: str, rank: int, deadline: float) -> Store:
    """The store that ``url`` names; where the ranks serve it themselves, rank 0 does.

    Parameters
    ----------
    url
        See the module's table.
    rank
        This process's.
    deadline
        A reading of ``time.monotonic()``, for reaching the server.

    Raises
    ------
    LaunchError
        If the URL is none of these, its directory is not this user's alone, or its port is taken.
    RendezvousTimeout
        If nobody serves there in time.
    UnsupportedError
        If it is torch's, and torch cannot be imported.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if not rest.startswith("/"):
            raise LaunchError(f"store {url!r}: expected file:///absolute/directory, with three slashes")
        prepare(Path(rest), os.environ, rank)
        return FileStore(rest)
    if scheme not in ("tcp", "torch", "torchrun"):
        raise LaunchError(f"store {url!r}: expected file:///directory, tcp://host:port or torch://host:port")
    host, port = _address(url, rest)
    if scheme == "tcp":
        return TcpStore(host, port, server=rank == 0, deadline=deadline)
    return TorchTcpStore(host, port, server=scheme == "torch" and rank == 0, deadline=deadline)


def _address(url: str, rest: str) -> tuple[str, int]:
    """Host and port; a host with colons (IPv6) stands in brackets."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\[\]:/@?#\s]+)):([0-9]{1,5})/?", rest)
    port = int(match[3]) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise LaunchError(f"store {url!r}: expected {url.partition(':')[0]}://HOST:PORT, PORT from 1 to 65535")
    return match[1] or match[2], port
