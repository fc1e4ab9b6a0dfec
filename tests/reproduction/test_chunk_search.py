"""The search for a chunk gets rates of runs alone; a double of the laboratory is fastest with one chunk."""

from typing import Any, cast

import pytest

from blinkccl.apps.lab.experiment import Field, prepare
from blinkccl.apps.lab.laboratory import Laboratory, Run
from reproduction.chunk_search import FIRST_BYTES, MOST_BYTES, entry, search
from reproduction.jobs import request

SIZE = 16 << 20


class _Laboratory:
    """A chunk costs its bytes to fill a pipeline, and a fixed time per chunk."""

    def __init__(self, best_bytes: int) -> None:
        self.best_bytes, self.chunks = best_bytes, list[int]()

    def open(self, program: object) -> int:
        return 7

    def run(self, number: int, pattern: Any, chunk_bytes: int, deadline_s: float) -> Run:
        assert number == 7
        self.chunks.append(chunk_bytes)
        return Run(1.0 + chunk_bytes / self.best_bytes + self.best_bytes / chunk_bytes, 0, 0.5)


@pytest.fixture(scope="module")
def field() -> Field:
    return prepare(request("dgx-1v", "broadcast", (0, 1, 2, 3)), ["optimal"], 100.0)


@pytest.mark.parametrize("best_bytes", [FIRST_BYTES, 3 * FIRST_BYTES, 16 * FIRST_BYTES, MOST_BYTES])
def test_the_chosen_chunk_is_near_the_best(field: Field, best_bytes: int) -> None:
    lab = _Laboratory(best_bytes)
    outcome = search(field, cast(Laboratory, lab), SIZE, 2)
    assert outcome.chosen.chunk_bytes == pytest.approx(best_bytes, rel=0.5)
    assert outcome.part >= 0.94  # of any power of two: 1.061 times as long, as Miad's text derives
    first = [one.chunk_bytes for one in outcome.iterations]
    assert first[:2] == [FIRST_BYTES, 2 * FIRST_BYTES]
    assert lab.chunks == [FIRST_BYTES, *(chunk for chunk in first for _ in range(3)), *lab.chunks[1 + 3 * len(first) :]]


def test_the_entry_has_every_rate(field: Field) -> None:
    outcome = search(field, cast(Laboratory, _Laboratory(1 << 14)), SIZE, 2)
    rates = cast(dict[str, Any], entry(field, outcome)["algbw_gb_per_s"])
    assert list(rates)[:3] == ["search", "chosen", "4K"]
    assert {len(row) for name, row in rates.items() if name != "search"} == {3}
    assert {row[0] for row in rates.values()} == {100.0}
