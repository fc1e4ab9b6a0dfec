"""A job of ranks that are processes with a communicator: started, watched from outside, and never left behind.

What a rank runs is a function of a test file, called with the rank's communicator. It returns what the test wants to
know, or raises: :class:`~rank_processes.Outcome`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rank_processes import Outcome, RankProcess, outcomes

from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.store import FileStore, Pauses, Store, open_store

#: Long enough where all ranks do their part, on a machine that is busy with other things.
PATIENT_S = 20.0


class Interrupted(Exception):  # noqa: N818
    """A rank's KeyboardInterrupt, as something that can be sent to the test."""


def member(
    url: str, rank: int, size: int, deadline_s: float, function: Callable[..., Any], arguments: Sequence[Any]
) -> Any:
    """What one process does."""
    try:
        with open_communicator(url, rank, size, deadline_s) as comm:
            return function(comm, *arguments)
    except KeyboardInterrupt as error:
        raise Interrupted(str(error)) from None


def open_communicator(url: str, rank: int, size: int, deadline_s: float = PATIENT_S) -> closing[Communicator]:
    """A communicator for the length of a ``with``."""
    store = open_store(url, rank, time.monotonic() + deadline_s)
    return closing(Communicator.create(store, rank, size, deadline_s=deadline_s))


def tell(comm: Communicator, word: str) -> None:
    """Lets the test know that this rank has come so far; see :meth:`Job.hear`."""
    comm.group.store.set(f"said/{word}/{comm.rank}", b"")


def wait_for(store: Store, key: str) -> bytes:
    """What is under ``key``, as soon as a rank has put it there."""
    pauses = Pauses(time.monotonic() + PATIENT_S)
    while (value := store.peek(key)) is None:
        assert pauses.pause(), f"nobody has said {key}"
    return value


class Job:
    """Ranks that run ``function(communicator, *arguments)``, each in a process of its own; the store is a directory."""

    def __init__(
        self, directory: Path, size: int, function: Callable[..., Any], *arguments: Any, deadline_s: float = PATIENT_S
    ) -> None:
        self.url = f"file://{directory}"
        self.store = FileStore(directory)
        self.ranks = [
            RankProcess(member, self.url, rank, size, deadline_s, function, arguments) for rank in range(size)
        ]

    def pid(self, rank: int) -> int:
        return self.ranks[rank].process.pid

    def hear(self, word: str, *ranks: int) -> None:
        """Waits until these ranks (default: all) have told ``word``."""
        for rank in ranks or range(len(self.ranks)):
            wait_for(self.store, f"said/{word}/{rank}")

    def signal(self, rank: int, number: int) -> float:
        """Sends a signal; returns when (``time.monotonic()``, which all processes of a host share)."""
        at = time.monotonic()
        os.kill(self.pid(rank), number)
        return at

    def outcomes(self, *ranks: int) -> list[Outcome]:
        """What came of these ranks (default: all), which are ended then."""
        return outcomes([self.ranks[rank] for rank in ranks or range(len(self.ranks))])

    def values(self, *ranks: int) -> list[Any]:
        """What these ranks returned; the test fails if one of them raised."""
        found = self.outcomes(*ranks)
        for rank, outcome in zip(ranks or range(len(self.ranks)), found, strict=True):
            assert outcome.error is None, f"rank {rank}: {outcome.error!r}"
            assert outcome.exitcode is None, f"rank {rank} ended with {outcome.exitcode}"
        return [outcome.value for outcome in found]

    def errors(self, *ranks: int) -> list[BaseException]:
        """What these ranks raised; the test fails if one of them did not."""
        found = self.outcomes(*ranks)
        for rank, outcome in zip(ranks or range(len(self.ranks)), found, strict=True):
            assert outcome.error is not None, f"rank {rank} raised nothing: {outcome}"
        return [outcome.error for outcome in found]

    def end(self) -> None:
        """Kills what still runs, also what was stopped."""
        for rank in self.ranks:
            rank.kill()


#: The fixtures of conftest.py.
Start = Callable[..., Job]
Ran = Callable[..., list[Any]]
