"""A monitor names the ranks that others wait for."""

import threading
import time

import msgspec
import pytest

from blinkccl.errors import RendezvousTimeout
from blinkccl.runtime.monitor import Monitor, Word


class Meetings:
    """A bootstrap of three ranks with meetings under the test's control: rank 0 is real, the others send ``words``."""

    peers = (None,) * 3

    def __init__(self, *words: Word) -> None:
        self.words, self.held = words, threading.Event()

    def all_gather(self, mine: bytes, deadline: float) -> tuple[list[bytes], list[list[int]]]:
        self.held.wait(10)
        return [mine, *map(msgspec.msgpack.encode, self.words)], [[]] * 3

    def stay(self, look: object) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(("held", "missing"), [(True, (1, 2)), (False, (2,))])
def test_an_agreement_names_the_missing_ranks_only(held: bool, missing: tuple[int, ...]) -> None:
    """Also without a meeting since: a rank that imports a large library may delay its monitor."""
    meetings = Meetings(Word(agreements=1), Word())
    monitor = Monitor(meetings, 0, lambda cause: None)
    if not held:
        meetings.held.set()
    with pytest.raises(RendezvousTimeout, match="rank 0 waited for them") as raised:
        monitor.agree(b"word", time.monotonic() + 0.5)
    assert raised.value.missing == missing
    meetings.words = (Word(leaves=True),) * 2
    meetings.held.set()
    monitor.close()
