"""N processes of this host that form a gloo group and call functions: for tests, and to run programs from one process.

One process imports PyTorch and forks the N ranks, so that a group costs one import (a second or two) and no more.
Each rank has a socket to the process that made the group and ends when that socket closes, however it closes.

This module does not import PyTorch: only the ranks do.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from blinkccl.errors import CommunicationError, DeadlineError, PeerLostError, UnsupportedError

#: Seconds that a rank has, after a call's deadline, to say that it has passed it.
GRACE_S = 5.0


class LocalGroup:
    """A gloo group of ``size`` processes.

    Parameters
    ----------
    size
        Ranks, ≥ 1.
    start_s
        Seconds for them to start and meet.

    Raises
    ------
    UnsupportedError
        If there is no PyTorch, or no fork on this system.
    DeadlineError, PeerLostError
        If the ranks do not come up.
    """

    def __init__(self, size: int, start_s: float = 60.0) -> None:
        if importlib.util.find_spec("torch") is None:
            raise UnsupportedError("this needs PyTorch: pip install 'blink-ccl[torch]'")
        if not hasattr(os, "fork"):
            raise UnsupportedError("local gloo groups need fork, which this system does not have")
        self.size = size
        self._directory = tempfile.mkdtemp(prefix="blink-gloo-")
        pairs = [socket.socketpair() for _ in range(size)]
        self._ends = [Connection(ours.detach()) for ours, _ in pairs]
        theirs = [end.fileno() for _, end in pairs]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path or os.getcwd() for path in sys.path))
        if sys.platform == "linux":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nothing to look up, nothing to be reached from outside
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._directory, *map(str, theirs)],
            pass_fds=theirs,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that close() can end all of them by their group
        )
        for _, end in pairs:
            end.close()
        try:
            self.pids: list[int] = self.call(os.getpid, [()] * size, start_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], deadline_s: float = 60.0
    ) -> list[Any]:
        """Calls ``function(*arguments[rank])`` in every rank at once; what they return, by rank.

        Parameters
        ----------
        function
            Importable by its name in the ranks.

        Raises
        ------
        DeadlineError
            If a rank has not answered ``GRACE_S`` seconds after the deadline; the group is closed then.
        PeerLostError
            If a rank's process ended; the group is closed then.
        Exception
            What a rank raised: the first that is no communication error, since those tend to follow from others.
        """
        replies = self.replies(function, arguments, deadline_s)
        failures = [reply for reply in replies if isinstance(reply, BaseException)]
        if not failures:
            return replies
        raise next((error for error in failures if not isinstance(error, CommunicationError)), failures[0])

    def replies(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], deadline_s: float = 60.0
    ) -> list[Any]:
        """As :meth:`call`, but what ranks raised stands in their places, and a PeerLostError for one that ended.

        Raises
        ------
        DeadlineError, PeerLostError
            If others do not answer: ``GRACE_S`` seconds after the deadline, or after a rank has ended.
        """
        deadline = time.monotonic() + deadline_s + GRACE_S
        answers: list[Any] = [None] * self.size
        lost: PeerLostError | None = None
        waiting: dict[Any, int] = {}
        for rank, end in enumerate(self._ends):
            try:
                end.send((function, arguments[rank]))
                waiting[end] = rank
            except OSError:
                lost = answers[rank] = self._lost(rank)
                deadline = min(deadline, time.monotonic() + GRACE_S)
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                if lost is not None:
                    raise lost
                raise DeadlineError(
                    f"rank(s) {', '.join(map(str, sorted(waiting.values())))} of a local group did not answer within "
                    f"{deadline_s + GRACE_S:g} s; the group has been ended"
                )
            for rank in [waiting.pop(end) for end in ready]:
                try:
                    answers[rank] = _answer(*self._ends[rank].recv())
                except (EOFError, OSError):
                    lost = answers[rank] = self._lost(rank)
                    deadline = min(deadline, time.monotonic() + GRACE_S)  # the others may wait for this one
        return answers

    def close(self) -> None:
        """Ends all ranks; nothing is left behind."""
        for end in self._ends:
            end.close()
        for patience_s, then in ((0.5, signal.SIGTERM), (5.0, signal.SIGKILL), (None, None)):
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:  # the ranks are busy, or wait for each other
                assert then is not None
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, then)
            else:
                break
        shutil.rmtree(self._directory, ignore_errors=True)

    def _lost(self, rank: int) -> PeerLostError:
        pids = getattr(self, "pids", None)
        return PeerLostError(rank, "its process ended during a call", pids[rank] if pids else None)


def _serve(end: Connection) -> None:
    """A rank: answers calls until nobody is there to make any."""
    while True:
        try:
            function, arguments = end.recv()
        except (EOFError, OSError):
            return
        answer: tuple[Any, tuple[Exception, list[str]] | None]
        try:
            answer = function(*arguments), None
        except Exception as error:  # it belongs to the caller, whatever it is
            answer = None, _portable(error)
        try:
            end.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


def _portable(error: Exception) -> tuple[Exception, list[str]]:
    """The error itself where it can travel, else one with its text; and its notes, which errors may leave behind.

    The last note is the trace that it had here.
    """
    trace = "".join(traceback.format_exception(error))
    notes = [*getattr(error, "__notes__", ()), f"in a rank's process:\n{trace}"]
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a foreign exception's __reduce__ does
        error = CommunicationError(f"a rank failed with {type(error).__name__}: {error}")
    return error, notes


def _answer(value: Any, failed: tuple[Exception, list[str]] | None) -> Any:
    """What a rank returned, or the error that it raised."""
    if failed is None:
        return value
    error, notes = failed
    error.__notes__ = notes
    return error


def _main(directory: str, descriptors: list[int]) -> None:
    """The process that forks the ranks, and waits for them."""
    importlib.import_module("torch.distributed")  # the one import that all share
    for rank in range(len(descriptors)):
        if os.fork() == 0:
            code = 1
            try:
                _rank(directory, rank, descriptors)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # that is for the ranks; this one sees them all go
    for descriptor in descriptors:
        os.close(descriptor)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)  # taking PyTorch down properly takes longer than all the rest


def _rank(directory: str, rank: int, descriptors: list[int]) -> None:
    import torch
    import torch.distributed as dist

    for other, descriptor in enumerate(descriptors):
        if other != rank:
            os.close(descriptor)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/store",
        rank=rank,
        world_size=len(descriptors),
        timeout=timedelta(seconds=60),
    )
    _serve(Connection(descriptors[rank]))


if __name__ == "__main__":
    _main(sys.argv[1], [int(text) for text in sys.argv[2:]])
