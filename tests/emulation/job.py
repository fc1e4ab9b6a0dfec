"""A job of ranks that are processes with a communicator: started, observed from outside, and always ended.

A rank runs a function of a test file with its communicator as argument. The function returns a result for the test, or
raises: :class:`~rank_processes.Outcome`.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import several_hosts
from rank_processes import Outcome, RankProcess, outcomes

from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.store import FileStore, Pauses, Store, open_store

#: Timeout for ranks that all take part, on a machine with other load.
PATIENT_S = 20.0


class Interrupted(Exception):  # noqa: N818
    """A rank's KeyboardInterrupt in a form that can be sent to the test."""


def member(
    url: str,
    rank: int,
    size: int,
    deadline_s: float,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    host: str = "",
) -> Any:
    """Run one rank's process, in the namespace ``host`` if one is given."""
    if host:
        several_hosts.enter(host)
    store = several_hosts.SharedDirectory(url.removeprefix("file://")) if host else None
    try:
        with open_communicator(url, rank, size, deadline_s, store) as comm:
            return function(comm, *arguments)
    except KeyboardInterrupt as error:
        raise Interrupted(str(error)) from None


def open_communicator(
    url: str, rank: int, size: int, deadline_s: float = PATIENT_S, store: Store | None = None
) -> closing[Communicator]:
    """Return a communicator for a ``with`` statement; its ``store`` is for words to the test and to other ranks."""
    opened = store or open_store(url, rank, time.monotonic() + deadline_s)
    comm = Communicator.create(opened, rank, size, deadline_s=deadline_s)
    comm.store = opened
    return closing(comm)


def tell(comm: Communicator, word: str) -> None:
    """Notify the test that this rank has reached a point; see :meth:`Job.hear`."""
    comm.store.set(f"said/{word}/{comm.rank}", b"")


def wait_for(store: Store, key: str) -> bytes:
    """Return the value of ``key`` as soon as a rank has set it."""
    pauses = Pauses(time.monotonic() + PATIENT_S)
    while (value := store.peek(key)) is None:
        assert pauses.pause(), f"nobody has said {key}"
    return value


class Job:
    """Ranks that run ``function(communicator, *arguments)``, each in a process of its own; the store is a directory.

    ``on`` names a namespace for each rank; without it all ranks are on this host.
    """

    def __init__(
        self,
        directory: Path,
        size: int,
        function: Callable[..., Any],
        *arguments: Any,
        deadline_s: float = PATIENT_S,
        on: Sequence[str] = (),
    ) -> None:
        self.url = f"file://{directory}"
        self.store = FileStore(directory)
        self.ranks = [
            RankProcess(member, self.url, rank, size, deadline_s, function, arguments, host)
            for rank, host in enumerate(on or [""] * size)
        ]

    def pid(self, rank: int) -> int:
        return self.ranks[rank].process.pid

    def hear(self, word: str, *ranks: int) -> None:
        """Wait until these ranks (default: all) have told ``word``."""
        for rank in ranks or range(len(self.ranks)):
            wait_for(self.store, f"said/{word}/{rank}")

    def signal(self, rank: int, number: int) -> float:
        """Send a signal; return its time (``time.monotonic()``, the same clock for all processes of a host)."""
        at = time.monotonic()
        os.kill(self.pid(rank), number)
        return at

    def outcomes(self, *ranks: int) -> list[Outcome]:
        """Return the outcomes of these ranks (default: all), and end them."""
        return outcomes([self.ranks[rank] for rank in ranks or range(len(self.ranks))])

    def values(self, *ranks: int) -> list[Any]:
        """Return the results of these ranks; fail the test if one of them raised."""
        ended = self.outcomes(*ranks)
        for rank, outcome in zip(ranks or range(len(self.ranks)), ended, strict=True):
            assert outcome.error is None, f"rank {rank}: {outcome.error!r}"
            assert outcome.exitcode is None, f"rank {rank} ended with {outcome.exitcode}"
        return [outcome.value for outcome in ended]

    def errors(self, *ranks: int) -> list[BaseException]:
        """Return the exceptions of these ranks; fail the test if one of them raised none."""
        ended = self.outcomes(*ranks)
        for rank, outcome in zip(ranks or range(len(self.ranks)), ended, strict=True):
            assert outcome.error is not None, f"rank {rank} raised nothing: {outcome}"
        return [outcome.error for outcome in ended]

    def end(self) -> None:
        """Kill the remaining processes, also stopped ones."""
        for rank in self.ranks:
            rank.kill()


#: The fixtures of conftest.py.
Start = Callable[..., Job]
Ran = Callable[..., list[Any]]
