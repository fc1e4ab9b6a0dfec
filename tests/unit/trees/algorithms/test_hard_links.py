"""Links that are hard for arithmetic or theorems: unbalanced switches, large primes, ranks reached in one direction."""

from typing import Any

import pytest

from blinkccl.api.plan import plan_of
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import TopologyError
from blinkccl.topology.json_format import from_fields
from blinkccl.topology.model import Topology
from blinkccl.trees.packing.equal_trees import LOSS
from support.planned import asked, assert_sound

#: The largest prime below 10^10.
PRIMES = (9999999967, 9999999943, 9999999929, 9999999881, 9999999851)
Links = list[tuple[int, int, int]]


def topology(name: str, ranks: int, switches: int, links: Links) -> Topology:
    """A topology of GPUs, then switches."""
    kinds = ["gpu"] * ranks + ["switch"] * switches
    fields: dict[str, Any] = {
        "schema_version": 2,
        "name": name,
        "unit_gb_per_s": 1e-8,
        "vertices": [{"id": i, "kind": kind} for i, kind in enumerate(kinds)],
        "links": [{"src": u, "dst": v, "capacity": c, "kind": "nvlink"} for u, v, c in links],
    }
    return from_fields(fields, name)


def joined(u: int, v: int, forward: int, back: int | None = None) -> Links:
    return [(u, v, forward), (v, u, forward if back is None else back)]


def around(ranks: range, switch: int, widths: tuple[int, ...], back: tuple[int, ...]) -> Links:
    return [link for i in ranks for link in joined(i, switch, widths[i % len(widths)], back[(i * i) % len(back)])]


PAIRS = [(i, j) for i in range(6) for j in range(i)]
HARD = {
    "a switch that sends three times what it gets": topology("fan", 4, 1, around(range(4), 4, (1,), (3,))),
    "two switches, neither Eulerian": topology(
        "two", 6, 2, [*around(range(3), 6, (5,), (3,)), *around(range(3, 6), 7, (2,), (7,)), *joined(6, 7, 4, 9)]
    ),
    "primes, both ways alike": topology(
        "alike", 6, 0, [link for i, j in PAIRS for link in joined(i, j, PRIMES[(i + j) % 5])]
    ),
    "primes, each way another": topology(
        "other", 4, 0, [link for i, j in PAIRS[:6] for link in joined(i, j, PRIMES[(i + j) % 5], PRIMES[i * j % 5])]
    ),
    "primes through switches": topology(
        "through", 8, 2,
        [*around(range(4), 8, PRIMES, PRIMES), *around(range(4, 8), 9, PRIMES, PRIMES), *joined(8, 9, *PRIMES[:2])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("links", HARD)
def test_they_are_planned_and_proved(links: str, name: str) -> None:
    planned = plan_of(asked(HARD[links], name), timeout_s=300)
    assert_sound(planned.forest)
    assert planned.forest.rate >= planned.forest.bound * (1 - LOSS)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize(
    "links",
    [
        topology("unreached", 3, 0, [*joined(0, 1, 2), (2, 0, 1)]),
        topology("unreached behind a switch", 3, 1, [*joined(0, 3, 2), *joined(1, 3, 2), (2, 3, 1)]),
    ],
)
def test_a_rank_that_cannot_be_reached_is_named(links: Topology, name: str) -> None:
    with pytest.raises(TopologyError, match=r"\{0,1\} and \{2\} \(some links lead only one way\)"):
        plan_of(asked(links, name), timeout_s=300)
