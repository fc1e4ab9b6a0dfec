"""Topologies by rule: ``ring:8``, ``torus:4x4``, ``random:12:seed=3``. One link is one NVLink lane, 25 GB/s."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod

from blinkccl.errors import TopologyError
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.model import Topology

LANE_GB_PER_S = 25
MAX_RANKS = 1024
#: Limit for families with a link for nearly every pair.
MAX_DENSE_RANKS = 256
#: Limit for a torus; with more sides than this, some have length 1.
MAX_SIDES = 10


Builder = Callable[[Assembly, str], None]


@dataclass(frozen=True, slots=True)
class Family:
    """A registry row: ``form`` is the syntax for users."""

    form: str
    about: str
    build: Builder


def synthetic(spec: str) -> Topology:
    """The topology for a ``spec`` as in :data:`FAMILIES`, equal on any machine; TopologyError if invalid."""
    name, _, rest = spec.strip().partition(":")
    family = FAMILIES.get(name)
    if family is None:
        forms = ", ".join(f.form for f in FAMILIES.values())
        raise TopologyError(f"no synthetic topology {spec!r}; expected one of {forms}")
    box = Assembly(spec.strip(), "synthetic")
    family.build(box, rest)
    return box.finish()


def _wrong(box: Assembly, why: str) -> TopologyError:
    name = box.name.partition(":")[0]
    return TopologyError(f"{box.name!r}: {why}; expected {FAMILIES[name].form}")


def _size(box: Assembly, text: str, least: int = 2, most: int = MAX_RANKS, what: str = "GPUs") -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise _wrong(box, f"{text!r} is not a number of {what}")
    if len(text) > 9 or int(text) > most:
        raise _wrong(box, f"too many {what}: at most {most}")
    if int(text) < least:
        raise _wrong(box, f"{int(text)} is too few {what}: at least {least}")
    return int(text)


def _lane(box: Assembly, a: int, b: int, lanes: int = 1) -> None:
    box.join(a, b, lanes * LANE_GB_PER_S, "nvlink")


def _by_pairs(pairs: Callable[[int], Iterable[tuple[int, int]]], most: int = MAX_RANKS) -> Builder:
    """N GPUs, and a lane both ways for each pair that ``pairs`` yields."""

    def build(box: Assembly, text: str) -> None:
        n = _size(box, text, most=most)
        box.add_many("gpu", n, "GPU")
        for a, b in pairs(n):
            _lane(box, a, b)

    return build


def circle_pairs(n: int) -> list[tuple[int, int]]:
    """Neighbours in a circle; a circle of two has one pair."""
    return [(i, (i + 1) % n) for i in range(n if n > 2 else 1)]


def _oneway(box: Assembly, text: str) -> None:
    n = _size(box, text)
    box.add_many("gpu", n, "GPU")
    for i in range(n):
        box.arc(i, (i + 1) % n, LANE_GB_PER_S, "nvlink")


def _star(box: Assembly, text: str) -> None:
    gpus = box.add_many("gpu", _size(box, text), "GPU")
    box.join_all(gpus, box.add("switch", "SWITCH"), LANE_GB_PER_S, "nvlink")


def _torus(box: Assembly, text: str) -> None:
    """Wrap-around grid; along a side of length 2, both directions lead to the same neighbour and count as one link."""
    sides = [_size(box, side, least=1) for side in text.split("x")]
    if len(sides) > MAX_SIDES or not 2 <= prod(sides) <= MAX_RANKS:
        raise _wrong(box, f"at most {MAX_SIDES} sides with a product in 2 … {MAX_RANKS}")
    box.add_many("gpu", prod(sides), "GPU")
    for a, b in torus_pairs(*sides):
        _lane(box, a, b)


def torus_pairs(*sides: int) -> list[tuple[int, int]]:
    """Neighbours on a wrap-around grid, numbered along the last side first; along a side of length 2 each pair once."""
    pairs: dict[tuple[int, int], None] = {}
    strides = [(prod(sides[i + 1 :]), side) for i, side in enumerate(sides)]
    for vertex in range(prod(sides)):
        for stride, side in reversed(strides):
            neighbour = vertex + stride if vertex // stride % side < side - 1 else vertex - stride * (side - 1)
            if neighbour != vertex:
                pairs[min(vertex, neighbour), max(vertex, neighbour)] = None
    return list(pairs)


def _hypercube(box: Assembly, text: str) -> None:
    dimensions = _size(box, text, least=1, most=10, what="dimensions")
    box.add_many("gpu", 2**dimensions, "GPU")
    for i in range(2**dimensions):
        for d in range(dimensions):
            if not i >> d & 1:
                _lane(box, i, i | 1 << d)


def _random(box: Assembly, text: str) -> None:
    """A random tree (``directed``: a random cycle) joins all GPUs; each other pair gets a link with probability 0.3."""
    size, *options = text.split(":")
    n, seed, directed = _size(box, size, most=MAX_DENSE_RANKS), 0, False
    for option in options:
        key, _, value = option.partition("=")
        if key == "seed" and re.fullmatch(r"[0-9]{1,18}", value):
            seed = int(value)
        elif option == "directed":
            directed = True
        else:
            raise _wrong(box, f"{option!r} is no option of random")
    dice = random.Random(seed)
    box.add_many("gpu", n, "GPU")
    order = list(range(n))
    dice.shuffle(order)
    if directed:
        _random_arcs(box, dice, order)
    else:
        _random_links(box, dice, order)


def _random_links(box: Assembly, dice: random.Random, order: list[int]) -> None:
    n = len(order)
    tree = [(order[i], order[dice.randrange(i)]) for i in range(1, n)]
    taken = {(min(a, b), max(a, b)) for a, b in tree}
    for a, b in tree:
        _lane(box, a, b, dice.randint(1, 3))
    for a in range(n):
        for b in range(a + 1, n):
            if (a, b) not in taken and dice.random() < 0.3:
                _lane(box, a, b, dice.randint(1, 3))


def _random_arcs(box: Assembly, dice: random.Random, order: list[int]) -> None:
    n = len(order)
    for i in range(n):
        box.arc(order[i], order[(i + 1) % n], dice.randint(1, 3) * LANE_GB_PER_S, "nvlink")
    for a in range(n):
        for b in range(n):
            if a != b and (a, b) not in box.links and dice.random() < 0.3:
                box.arc(a, b, dice.randint(1, 3) * LANE_GB_PER_S, "nvlink")


#: The registry, in the order in which it is listed.
FAMILIES: dict[str, Family] = {
    "ring": Family("ring:N", "N GPUs in a circle, links both ways (ring:2 is one link)", _by_pairs(circle_pairs)),
    "oneway": Family("oneway:N", "N GPUs in a circle, links one way only", _oneway),
    "chain": Family("chain:N", "N GPUs in a row", _by_pairs(lambda n: pairwise(range(n)))),
    "clique": Family(
        "clique:N", "a link for every pair", _by_pairs(lambda n: combinations(range(n), 2), MAX_DENSE_RANKS)
    ),
    "star": Family("star:N", "N GPUs around one switch", _star),
    "torus": Family("torus:AxB", "A × B GPUs on a wrap-around grid; A×B×C and more sides too", _torus),
    "hypercube": Family("hypercube:D", "2^D GPUs, a link where the numbers differ in one bit", _hypercube),
    "random": Family("random:N:seed=S[:directed]", "connected, capacities 1 to 3", _random),
}
