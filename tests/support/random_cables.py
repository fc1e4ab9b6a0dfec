"""Machines with random cables between them."""

from fractions import Fraction
from itertools import pairwise
from random import Random

from blinkccl.topology.catalog import machine
from blinkccl.topology.fabric import Cable, CabledServer, Port, cabled, ports_of
from blinkccl.topology.model import Topology


def random_cabling(seed: int) -> Topology:
    """Two to five machines of one or two kinds, joined by a random tree of cables and random further cables between
    free ports.
    """
    dice = Random(seed)
    kinds = [machine(dice.choice(["dgx-spark", "mac-studio"])) for _ in range(dice.randint(2, 5))]
    servers = [CabledServer(f"m{i}", kind) for i, kind in enumerate(kinds)]
    free: list[list[Port]] = [[(i, port) for port in ports_of(kind)] for i, kind in enumerate(kinds)]
    for ports in free:
        dice.shuffle(ports)
    cables: list[Cable] = []

    def join(a: int, b: int) -> None:
        if free[a] and free[b]:
            rate = dice.choice([None, None, Fraction(5), Fraction(25, 2)])
            cables.append(Cable(free[a].pop(), free[b].pop(), rate))

    order = list(range(len(servers)))
    dice.shuffle(order)
    for a, b in pairwise(order):
        join(a, b)
    for _ in range(dice.randint(0, 6)):
        join(*dice.sample(order, 2))
    return cabled(f"random cables {seed}", servers, cables)
