"""A rank process of a benchmark in Python: ``python -m blinkccl.bench.worker LIBRARY SOCKET``.

LIBRARY is ``blink`` or ``gloo``; the environment has rank, size and rendezvous.
"""

from __future__ import annotations

import os
import socket
import sys

from blinkccl.bench.perform import Library, Performer
from blinkccl.bench.protocol import COMMAND, UNSUPPORTED_CODE, Kind, RankHello, read_command
from blinkccl.errors import BlinkError, CommunicationError, UnsupportedError

LIBRARIES = ("blink", "gloo")


def serve(peer: socket.socket, library: Library, rank: int, size: int) -> None:
    """Answer commands until QUIT."""
    performer = Performer(library)
    peer.sendall(RankHello(rank, size, os.getpid(), library.title).pack())
    while True:
        command, pattern, expected = read_command(_receive(peer, COMMAND.size))
        if command.kind is Kind.QUIT:
            return
        reply = performer.perform(command, _receive(peer, pattern), _receive(peer, expected))
        peer.sendall(reply.pack())


def _receive(peer: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes. Has no timeout: an idle rank sleeps until a command comes or the socket closes."""
    data = peer.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise CommunicationError("the coordinator of the benchmark has ended")
    return data


def main() -> int:
    """Join, serve and leave; exit code 0, 3 if this machine cannot run it, 1 for other errors, 2 for usage."""
    if len(sys.argv) != 3 or sys.argv[1] not in LIBRARIES:
        print(f"usage: python -m blinkccl.bench.worker {'|'.join(LIBRARIES)} SOCKET", file=sys.stderr)
        return 2
    try:
        from blinkccl.bench.libraries import GlooLibrary, OwnLibrary

        deadline_s = float(os.environ.get("BLINK_BENCH_DEADLINE_S", "60"))
        library = OwnLibrary(deadline_s) if sys.argv[1] == "blink" else GlooLibrary()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.connect(sys.argv[2])
                serve(peer, library, library.rank, library.size)
        finally:
            library.close()
    except (BlinkError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return UNSUPPORTED_CODE if isinstance(error, UnsupportedError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
