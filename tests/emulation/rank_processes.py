"""Ranks as processes: started from a server process, observed, and always ended."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

#: Forks from a server process without threads (numpy's library would start some), which has imported only the modules
#: that every rank needs, so a rank starts in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pytest", "blinkccl.runtime.communicator", "blinkccl.trees.algorithms.registry", "blinkccl.schedule.lower"]
)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@dataclass(frozen=True)
class Outcome:
    """The end of a rank: with a value, with an error, or (neither) killed."""

    value: Any = None
    error: BaseException | None = None
    exitcode: int | None = None


def _play(connection: Connection, function: Callable[..., Any], arguments: Sequence[Any], gate: Any) -> None:
    try:
        if gate is not None:
            gate.wait(20)
        connection.send(Outcome(value=function(*arguments)))
    except Exception as error:
        connection.send(Outcome(error=error))


class RankProcess:
    """A process that runs ``function(*arguments)`` after all have reached ``gate`` (a barrier of :data:`CONTEXT`)."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, gate: Any = None) -> None:
        self._receiver, sender = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=_play, args=(sender, function, arguments, gate), daemon=True)
        self.process.start()
        sender.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)

    def outcome(self, within_s: float) -> Outcome:
        """Return its outcome; fail after ``within_s``."""
        try:
            assert self._receiver.poll(within_s), f"a rank did not end within {within_s} s"
            return self._receiver.recv()
        except EOFError:
            self.process.join(10)
            return Outcome(exitcode=self.process.exitcode)
        finally:
            self.kill()


def outcomes(ranks: Sequence[RankProcess]) -> list[Outcome]:
    """Return the outcomes of all ranks; none is left running."""
    end = time.monotonic() + 20
    try:
        return [rank.outcome(max(0.0, end - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
