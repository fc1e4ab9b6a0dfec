"""Candidates of a benchmark: N rank processes each, which sleep between commands.

A :class:`RunningCandidate` starts the processes, reads their hellos, sends commands and collects replies
(:mod:`blinkccl.bench.protocol`). Every wait has a timeout, and ``close`` leaves no process or directory behind. With
:func:`ended_by_signals`, candidates are also closed after SIGTERM and SIGHUP.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from blinkccl.bench.protocol import (
    HELLO,
    REPLY,
    UNSUPPORTED_CODE,
    Command,
    Kind,
    RankHello,
    Reply,
    ReplyStatus,
    read_hello,
    read_reply,
    reply_bytes,
)
from blinkccl.errors import CommunicationError, UnsupportedError
from blinkccl.runtime import timeline

#: Timeouts in seconds: until all ranks have started; until they have ended after QUIT; and the same if they still write
#: the timelines that ``BLINK_TIMELINE`` requests, which takes seconds.
START_S = 60.0
END_S = 3.0
WRITE_S = 60.0
#: Timeout in seconds after SIGTERM, and after SIGKILL.
KILL_S = 2.0
#: Linux's directory for files in memory.
_SHARED_MEMORY = "/dev/shm"
#: Longest TMPDIR for a socket: its name has at most 107 bytes, and a batch system's TMPDIR may be longer.
_LONGEST = 107 - len("/blink-bench-12345678/socket")
#: Seconds that a reply may take beyond the rank's own timeout.
GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process to start: its command line, and its variables beside those of this process."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CandidateLaunch:
    """The start of a candidate of ``world_size`` ranks, which is ``variant`` of library ``name``.

    ``processes`` takes the socket's path and a private directory. The ranks' hello must contain ``library``, so that
    no library is measured under another's name. ``of_blink``: blink's own ranks, with known exit codes. ``in_memory``:
    put the directory in memory, because libraries keep shared files there and some leave them behind when killed.
    """

    name: str
    world_size: int
    processes: Callable[[Path, Path], Sequence[Process]]
    variant: str = ""
    library: str = ""
    of_blink: bool = False
    in_memory: bool = False

    @property
    def title(self) -> str:
        """Name and variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The ranks' replies: ``seconds`` by rank and iteration, and the sum of wrong elements.

    ``variant`` is the execution that was chosen for this run, if there was a choice.
    """

    seconds: NDArray[np.float64]
    wrong: int
    variant: str = ""


def measured(replies: Sequence[Reply], whose: str = "") -> RankTimes:
    """The times in the replies of all ranks; raises the error of the first rank with the worst status."""
    worst = max(replies, key=lambda reply: reply.status)
    reason = f"{whose}rank {replies.index(worst)}: {worst.text}"
    if worst.status is ReplyStatus.UNSUPPORTED:
        raise UnsupportedError(reason)
    if worst.status is ReplyStatus.FAILED:
        raise CommunicationError(reason)
    rows = [np.frombuffer(reply.seconds, np.float64) for reply in replies]
    return RankTimes(np.stack(rows), sum(reply.wrong for reply in replies))


def _place(in_memory: bool) -> str:
    """The parent directory of a launch: in memory, or for temporary files, unless that makes socket names too long."""
    if in_memory and os.access(_SHARED_MEMORY, os.W_OK):
        return _SHARED_MEMORY
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST else "/tmp"


class RunningCandidate:
    """A running launch."""

    def __init__(self, launch: CandidateLaunch, start_s: float = START_S) -> None:
        self.launch = launch
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._hellos: list[RankHello] = []
        where = _place(launch.in_memory)
        self._room = tempfile.TemporaryDirectory(prefix="blink-bench-", dir=where, ignore_cleanup_errors=True)
        self._directory = Path(self._room.name)
        self._log: IO[bytes] = (self._directory / "output").open("w+b")
        try:
            self._start(time.monotonic() + start_s)
        except BaseException:
            self.close()
            raise

    @property
    def library(self) -> str:
        """The library's name and version, from the ranks' hello."""
        return self._hellos[0].library

    @property
    def pids(self) -> list[int]:
        """The ranks' process ids."""
        return [hello.pid for hello in self._hellos]

    def run(self, commands: Sequence[Command]) -> RankTimes:
        """Send each rank its command and wait for all replies."""
        if not self._sockets:
            raise CommunicationError(f"{self.launch.title} has ended")
        until = time.monotonic() + max(command.deadline_s for command in commands) + GRACE_S
        try:
            return self._exchange(commands, until)
        except UnsupportedError:
            raise
        except CommunicationError as error:
            output = self._output()
            self.close()
            raise CommunicationError(f"{error}{output}") from None
        except BaseException:
            self.close()
            raise

    def _exchange(self, commands: Sequence[Command], until: float) -> RankTimes:
        for rank, (peer, command) in enumerate(zip(self._sockets, commands, strict=True)):
            self._send(rank, peer, command.pack(), until)
        replies = []
        for rank, peer in enumerate(self._sockets):
            head = self._receive(rank, peer, REPLY.size, until)
            replies.append(read_reply(head + self._receive(rank, peer, reply_bytes(head), until)))
        return measured(replies, f"{self.launch.title}, ")

    def _send(self, rank: int, peer: socket.socket, data: bytes, until: float) -> None:
        try:
            peer.settimeout(max(0.01, until - time.monotonic()))
            peer.sendall(data)
        except OSError as error:
            raise self._lost(f"cannot send a command to rank {rank} ({error})") from None

    def _receive(self, rank: int, peer: socket.socket, size: int, until: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                peer.settimeout(max(0.01, until - time.monotonic()))
                part = peer.recv(size - len(data))
            except TimeoutError:
                raise self._lost(f"rank {rank} did not reply in time") from None
            except OSError as error:
                raise self._lost(f"rank {rank} is lost ({error})") from None
            if not part:
                raise self._lost(f"rank {rank} ended before it replied")
            data += part
        return bytes(data)

    def _start(self, until: float) -> None:
        path = self._directory / "socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(self.launch.world_size)
            for process in self.launch.processes(path, self._directory):
                self._spawn(process)
            arrived: dict[int, tuple[RankHello, socket.socket]] = {}
            try:
                while len(arrived) < self.launch.world_size:
                    peer = self._accept(listener, arrived, until)
                    hello = self._greet(peer, arrived, until)
                    arrived[hello.rank] = (hello, peer)
            finally:
                self._sockets = [arrived[rank][1] for rank in sorted(arrived)]
                self._hellos = [arrived[rank][0] for rank in sorted(arrived)]

    def _spawn(self, process: Process) -> None:
        try:
            with _signals_wait():  # A signal before the append would leave this process behind.
                self._processes.append(
                    subprocess.Popen(
                        list(process.command),
                        env={**os.environ, **process.environment},
                        stdin=subprocess.DEVNULL,
                        stdout=self._log,
                        stderr=self._log,
                        process_group=0,
                    )
                )  # No session of its own: Linux shares cores among sessions first, so yields would have no effect.
        except OSError as error:
            raise self._lost(f"cannot start {process.command[0]}: {error.strerror or error}") from None

    def _accept(self, listener: socket.socket, arrived: Mapping[int, Any], until: float) -> socket.socket:
        """The connection of the next rank; a process that ends meanwhile raises its error at once."""
        while True:
            if select.select([listener], [], [], 0.05)[0]:
                return listener.accept()[0]
            missing = sorted(set(range(self.launch.world_size)) - set(arrived))
            names = ", ".join(map(str, missing))
            ended = [code for process in self._processes if (code := process.poll()) is not None]
            if UNSUPPORTED_CODE in ended and self.launch.of_blink:
                raise UnsupportedError(f"ranks cannot run here{self._output()}")
            if ended:
                raise self._lost(f"a process exited with {ended[0]} before ranks {names} connected{self._output()}")
            if time.monotonic() > until:
                raise self._lost(f"ranks {names} did not connect before the timeout{self._output()}")

    def _greet(self, peer: socket.socket, arrived: Mapping[int, Any], until: float) -> RankHello:
        try:
            hello = read_hello(self._receive(len(arrived), peer, HELLO.size, until))
            size = self.launch.world_size
            if hello.world_size != size or not 0 <= hello.rank < size or hello.rank in arrived:
                got = f"rank {hello.rank} of {hello.world_size}"
                raise self._lost(f"expected {size} ranks, each once; got {got}{self._output()}")
            if self.launch.library not in hello.library:
                raise self._lost(f"expected {self.launch.library}, got {hello.library}")
        except BaseException:
            peer.close()
            raise
        return hello

    def _lost(self, reason: str) -> CommunicationError:
        return CommunicationError(f"{self.launch.title}: {reason}")

    def _output(self) -> str:
        """The last lines that the processes printed, for an error message."""
        self._log.flush()
        with open(self._log.name, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 2000))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return "; it printed:\n  " + "\n  ".join(lines[-8:]) if lines else ""

    def close(self) -> None:
        """Send QUIT to the ranks, and kill those that do not end. May be called again."""
        for peer in self._sockets:
            with contextlib.suppress(OSError):
                peer.settimeout(0.1)
                peer.sendall(Command(Kind.QUIT).pack())
            peer.close()
        patience_s = (WRITE_S if timeline.VARIABLE in os.environ else END_S) if self._sockets else 0.0
        self._sockets = []
        self._end_processes(patience_s)
        for pid in self.pids:
            self._end_rank(pid)  # A killed launcher may have left it behind.
        self._processes, self._hellos = [], self._hellos[:1]
        self._log.close()
        self._room.cleanup()

    def _end_processes(self, patience_s: float) -> None:
        """Wait for all processes; then send SIGTERM to launchers, then SIGKILL to the remaining process groups."""
        for how, wait_s in ((0, patience_s), (signal.SIGTERM, KILL_S), (signal.SIGKILL, KILL_S)):
            left = [process for process in self._processes if process.poll() is None]
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
            until = time.monotonic() + wait_s
            for process in left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))

    def _end_rank(self, pid: int) -> None:
        """Kill ``pid`` if it is still a rank of this launch: the socket's name is in its command line."""
        with contextlib.suppress(OSError):
            if str(self._directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP, unless ignored, raise SystemExit(128 + number) in the body, so candidates are closed."""

    def end(number: int, frame: object) -> NoReturn:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # A second signal must not interrupt the cleanup.
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    signals = [one for one in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(one) is signal.SIG_DFL]
    before = {one: signal.signal(one, end) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay Python's signal handlers until the end of the body."""
    received: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))

    main = threading.current_thread() is threading.main_thread()
    handlers = {}
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ():
        handler = signal.getsignal(one)
        if callable(handler):
            handlers[one] = handler
            signal.signal(one, note)
    try:
        yield
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
    for number, frame in received[:1]:
        handlers[signal.Signals(number)](number, frame)
