"""The maximum number of channels that fit into a server at one speed, for each step of NCCL's search.

A channel is an order of the server's GPUs: a ring or a chain, inside one server or between two network cards. It loads
every link that it crosses with its speed. The largest number of channels at once has two cases:

- *Copies of one order*: the first order, by the numbers of the GPUs, that fits as often as any other.
- *Different orders*: an integer program packs as many as possible of all orders that fit. Its solution is checked
  exactly; the claim that no more fit rests on HiGHS.

An NVSwitch needs no search: any order fits equally, and only each GPU's own links limit the channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import islice, pairwise
from math import lcm

from blinkccl.cost.baselines.nccl_links import NVL, PHB, PXN
from blinkccl.cost.baselines.nccl_system import Arc, NcclHop, NcclMachine, NcclNic
from blinkccl.errors import InternalError
from blinkccl.trees.packing.solver import Model, solve, whole

#: Maximum channels: half of those that NCCL can run, as it runs two for each of its search (device.h, init.cc).
MOST_CHANNELS = 32
#: Maximum orders in the integer program: enough for all rings of 8 GPUs; of more chains the first are used.
MOST_ORDERS = 5040
#: Above this many GPUs only their own order and its reverse are tried, unless they share an NVSwitch.
EXACT_GPUS = 8
#: Copies of its first chain that NCCL's search can undo on an NVSwitch; the last one only with spare links.
MOST_TAKEN_BACK = 4


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A step of the search: the farthest ``kind`` of path between GPUs, and ``net_kind`` to a network card.

    ``same``: all channels have the same order. ``crossing``: a ring may enter and leave by different cards if its
    neighbour uses them the other way.
    """

    kind: int
    same: bool
    net_kind: int | None = None
    crossing: bool = False


@dataclass(frozen=True, slots=True)
class ServerChannel:
    """One channel in a server: its order, its hops between GPUs, and its hops from and to the network with shares."""

    order: tuple[int, ...]
    hops: tuple[NcclHop, ...]
    net: tuple[tuple[NcclHop, Fraction], ...] = ()


@dataclass(frozen=True)
class Packing:
    """Channels of one kind on one server at one speed, inside the server and towards the network.

    ``tree``: chains rather than rings. Across servers a chain enters and leaves by the same card. Half of its data
    leaves from each of its first two GPUs; from Hopper on, all from the first.
    """

    server: NcclMachine
    stage: SearchStep
    tree: bool
    gb_per_s: Fraction
    net_gb_per_s: Fraction = field(default=Fraction(0))

    def most(self, least: int, most: int = MOST_CHANNELS) -> tuple[ServerChannel, ...]:
        """The channels that fit, at most ``most``; an empty tuple if fewer than ``least`` ≥ 1 fit.

        Cost: up to (n−1)! orders for a ring of n ≤ 8 GPUs and n! for a chain; on the NVLinks of a DGX-1 10 ms.
        """
        most = min(most, self._bound())
        if most < least:
            return ()
        if self.server.switched:
            return self._on_nvswitch(least, most)
        if len(self.server.gpus) > EXACT_GPUS:
            return self._few_orders(least, most)
        return self._copies(least, most) if self.stage.same or most == 1 else self._mixed(least, most)

    @cached_property
    def question(self) -> tuple[object, ...]:
        """A key that is equal for stages with the same result at one speed, as farther kinds often have."""
        everywhere = all(set(nic.gpus) == set(self.server.gpus) for nic in self.server.nics)
        reach = self.stage.net_kind if self._across and not everywhere else None
        return tuple(self._hops), len(self._cards), reach, self.stage.same, self.stage.crossing

    @property
    def _across(self) -> bool:
        return self.stage.net_kind is not None

    @cached_property
    def _cards(self) -> tuple[NcclNic, ...]:
        """The network cards that the stage's kind of path reaches."""
        return tuple(nic for nic in self.server.nics if nic.kind <= (self.stage.net_kind or 0))

    @cached_property
    def _hops(self) -> dict[Arc, NcclHop]:
        return {
            pair: hop
            for pair, hop in self.server.hops.items()
            if hop.kind <= self.stage.kind and hop.gb_per_s >= self.gb_per_s
        }

    def _bound(self) -> int:
        """An upper bound on channels by the network cards and by the links at the GPUs.

        A channel needs a link out of every GPU and one into it, except where a chain begins and ends.
        """
        limit = MOST_CHANNELS
        if self._across:
            limit = min(limit, sum(int(nic.gb_per_s / self.net_gb_per_s) for nic in self._cards))
        arcs = sorted({arc for hop in self._hops.values() for arc, _ in hop.load})
        fits = {arc: int(self.server.capacity[arc] / self.gb_per_s) for arc in arcs}
        lanes = [[sum(fits[arc] for arc in arcs if arc[end] == gpu) for gpu in self.server.gpus] for end in (0, 1)]
        spared = 1 if self.tree or self._across else 0
        while limit and any(sum(max(0, limit - lane) for lane in side) > spared * limit for side in lanes):
            limit -= 1
        return limit

    def _copies(self, least: int, most: int) -> tuple[ServerChannel, ...]:
        for count in range(most, least - 1, -1):
            way = next(self._ways(count), None)
            if way is not None:
                return (way,) * count
        return ()

    def _mixed(self, least: int, most: int) -> tuple[ServerChannel, ...]:
        ways = list(islice(self._ways(1), MOST_ORDERS))
        counts = self._solved(ways, least, most) if ways else None
        return () if counts is None else tuple(w for w, count in zip(ways, counts, strict=True) for _ in range(count))

    def _solved(self, ways: Sequence[ServerChannel], least: int, most: int) -> list[int] | None:
        """The copies of each way, in all as many as fit; None if fewer than ``least`` fit."""
        loads = [self._load(way) for way in ways]
        arcs = sorted({arc for load in loads for arc in load})
        row = {arc: 1 + i for i, arc in enumerate(arcs)}
        columns = [{0: 1, **{row[arc]: units for arc, units in load.items()}} for load in loads]
        lower: list[int | None] = [least, *(None for _ in arcs)]
        upper = [most, *(self._room[arc] for arc in arcs)]
        values = solve(Model(columns, lower, upper, [-1.0] * len(columns), integer=True))
        counts = None if values is None else whole(values)
        if counts is None:
            return None
        used = [sum(c.get(i, 0) * times for c, times in zip(columns, counts, strict=True)) for i in range(len(upper))]
        if used[0] < least or any(x > limit for x, limit in zip(used, upper, strict=True)):
            raise InternalError(f"HiGHS packs {used[0]} channels that do not fit")
        return counts

    @cached_property
    def _scale(self) -> int:
        """Units of load per GB/s that make all loads and capacities integers."""
        cards = [hop for nic in self.server.nics for way in (nic.enter, nic.leave) for hop in way.values()]
        hops = [*self.server.hops.values(), *cards]
        of_shares = 2 * lcm(1, *(share.denominator for hop in hops for _, share in hop.load))
        of_speeds = lcm(self.gb_per_s.denominator, self.net_gb_per_s.denominator)
        return lcm(of_shares * of_speeds, *(gb_per_s.denominator for gb_per_s in self.server.capacity.values()))

    @cached_property
    def _room(self) -> dict[Arc, int]:
        return {arc: int(gb_per_s * self._scale) for arc, gb_per_s in self.server.capacity.items()}

    @cached_property
    def _taken(self) -> dict[Arc, tuple[tuple[Arc, int], ...]]:
        """Units of load of one channel on the links of each hop between two GPUs."""
        return {
            pair: tuple((arc, int(share * self.gb_per_s * self._scale)) for arc, share in hop.load)
            for pair, hop in self._hops.items()
        }

    def _load(self, way: ServerChannel) -> dict[Arc, int]:
        """Units of load of one channel on every link."""
        load: dict[Arc, int] = {}
        for hop in way.hops:
            for arc, units in self._taken[hop.path[0], hop.path[-1]]:
                load[arc] = load.get(arc, 0) + units
        for hop, part in way.net:
            for arc, share in hop.load:
                load[arc] = load.get(arc, 0) + int(share * part * self.net_gb_per_s * self._scale)
        return load

    def _fits(self, ways: Sequence[ServerChannel], count: int) -> bool:
        """True if ``count`` copies of all of ``ways`` fit together."""
        total: dict[Arc, int] = {}
        for way in ways:
            for arc, units in self._load(way).items():
                total[arc] = total.get(arc, 0) + units * count
        return all(units <= self._room[arc] for arc, units in total.items())

    def _few_orders(self, least: int, most: int) -> tuple[ServerChannel, ...]:
        """Copies of the GPUs' own order, and of its reverse where orders may differ."""
        orders = (self.server.gpus,) if self.stage.same else (self.server.gpus, self.server.gpus[::-1])
        ways = []
        for order in orders:
            if all(pair in self._hops for pair in pairwise(order)):
                ways += list(self._finished(order, tuple(self._hops[pair] for pair in pairwise(order))))[:1]
        for count in range(most // len(orders), 0, -1):
            if len(ways) == len(orders) and count * len(orders) >= least and self._fits(ways, count):
                return tuple(ways) * count
        return ()

    def _ways(self, count: int) -> Iterator[ServerChannel]:
        """The orders that fit ``count`` times, in the order of the GPUs."""
        starts = self.server.gpus[:1] if not (self._across or self.tree) else self.server.gpus
        room = {arc: units // count for arc, units in self._room.items()}

        def extend(order: tuple[int, ...], hops: tuple[NcclHop, ...]) -> Iterator[ServerChannel]:
            if len(order) == len(self.server.gpus):
                yield from (way for way in self._finished(order, hops) if self._fits((way,), count))
                return
            for following in self.server.gpus:
                taken = () if following in order else self._taken.get((order[-1], following), ())
                if not taken or any(room[arc] < units for arc, units in taken):
                    continue
                for arc, units in taken:
                    room[arc] -= units
                yield from extend((*order, following), (*hops, self._hops[order[-1], following]))
                for arc, units in taken:
                    room[arc] += units

        for start in starts:
            yield from extend((start,), ())

    def _finished(self, order: tuple[int, ...], hops: tuple[NcclHop, ...]) -> Iterator[ServerChannel]:
        """The channels through the GPUs in this order: closed, open, or from and to the network."""
        if self._across:
            for nic in self._cards:
                net = self._net(nic, order)
                if net is not None:
                    yield ServerChannel(order, hops, net)
        elif self.tree:
            yield ServerChannel(order, hops)
        elif (order[-1], order[0]) in self._hops:
            yield ServerChannel(order, (*hops, self._hops[order[-1], order[0]]))

    def _net(self, nic: NcclNic, order: tuple[int, ...]) -> tuple[tuple[NcclHop, Fraction], ...] | None:
        """The hops from ``nic`` into the first GPU and back out; None if they are farther than allowed."""
        if order[0] not in nic.gpus:
            return None
        whole_of_it = Fraction(1)
        leaving = [(order[-1], whole_of_it)]
        if self.tree:
            half = self.server.arch.sm < 90 and len(order) > 1
            leaving = [(gpu, Fraction(1, 2)) for gpu in order[:2]] if half else [(order[0], whole_of_it)]
        hops = [(nic.enter[order[0]], whole_of_it)]
        for gpu, share in leaving:
            if gpu in nic.gpus:
                hops.append((nic.leave[gpu], share))
                continue
            onward = next((hop for g in nic.gpus if (hop := self._towards(gpu, g)) is not None), None)
            if onward is None:
                return None
            hops += [(onward, share), (nic.leave[onward.path[-1]], share)]
        return tuple(hops)

    def _towards(self, gpu: int, beside: int) -> NcclHop | None:
        """The hop from ``gpu`` to a card beside another GPU.

        Over NVLink that GPU forwards the data (PXN). Over PCIe the data reaches the card without that GPU's own link.
        """
        hop = self.server.hops.get((gpu, beside))
        # A tree also receives from the card, and never over NVLink.
        least = PHB if self.tree else PXN
        if hop is None or max(hop.kind, least) > (self.stage.net_kind or 0):
            return None
        if hop.kind == NVL:
            return hop
        return NcclHop(hop.path, hop.kind, hop.gb_per_s, tuple(x for x in hop.load if x[0] != (hop.path[-2], beside)))

    def _on_nvswitch(self, least: int, most: int) -> tuple[ServerChannel, ...]:
        """Rotations of the GPUs' own order. The last GPU of a chain needs no link out, so one more chain may fit."""
        lanes = int(min(hop.gb_per_s for hop in self.server.hops.values()) / self.gb_per_s)
        for count in range(min(most, lanes + lanes // (len(self.server.gpus) - 1) + 1), least - 1, -1):
            ways = self._turns(count)
            if len(ways) == count and self._fits(ways, 1) and (self._across or self._in_reach(count, lanes)):
                return ways
        return ()

    def _in_reach(self, count: int, lanes: int) -> bool:
        """True if NCCL's search reaches the rotations of the GPUs' order within its number of steps.

        It begins with as many copies of one order as fit, ``lanes``, and undoes the last ones one by one. More chains
        end at other GPUs, so only ``lanes - back`` copies may stay. NCCL's wheels gave the limit.
        """
        gpus = len(self.server.gpus)
        back = (gpus - 2) * (count - lanes)
        spare = gpus * lanes - (gpus - 1) * count
        return back < MOST_TAKEN_BACK or (back == MOST_TAKEN_BACK and spare >= MOST_TAKEN_BACK)

    def _turns(self, count: int) -> tuple[ServerChannel, ...]:
        gpus = self.server.gpus
        if self._across:
            return tuple(way for turn in self._entries(count) for way in self._through(*turn))
        starts = [0 if self.stage.same or not self.tree else c % len(gpus) for c in range(count)]
        orders = [gpus[s:] + gpus[:s] for s in starts]
        return tuple(way for o in orders for way in self._finished(o, self._along(o)))

    def _along(self, order: tuple[int, ...]) -> tuple[NcclHop, ...]:
        return tuple(self.server.hops[pair] for pair in pairwise(order))

    def _entries(self, count: int) -> list[tuple[NcclNic, NcclNic, int, int | None]]:
        """For each channel: the cards by which it enters and leaves, its first GPU, and its last GPU if that matters.

        Cards take turns up to their capacity, and so do the GPUs beside a card.
        """
        rounds = [int(nic.gb_per_s / self.net_gb_per_s) for nic in self._cards]
        cards = [nic for r in range(max(rounds)) for nic, n in zip(self._cards, rounds, strict=True) if n > r]
        if self.stage.same:
            cards = [nic for nic in cards if cards[0].gpus[0] in nic.gpus]
        entered = dict.fromkeys(self.server.gpus, 0)
        entries: list[tuple[NcclNic, NcclNic, int, int | None]] = []
        for nic in cards[:count]:
            start = min(nic.gpus, key=lambda g: (entered[g], nic.gpus.index(g)))
            if self.stage.same:
                start = cards[0].gpus[0]
            entered[start] += 1
            entries.append((nic, nic, start, next((g for g in nic.gpus if g != start), None)))
        return self._crossed(entries) if self.stage.crossing else entries

    def _crossed(
        self, entries: list[tuple[NcclNic, NcclNic, int, int | None]]
    ) -> list[tuple[NcclNic, NcclNic, int, int | None]]:
        """The entries with the leaving cards of neighbours exchanged; the last of an odd count takes the first's."""
        partner = [c ^ 1 if c ^ 1 < len(entries) else 0 for c in range(len(entries))]
        return [
            (nic, entries[p][0], start, entries[p][2]) for (nic, _, start, _), p in zip(entries, partner, strict=True)
        ]

    def _through(self, enter: NcclNic, leave: NcclNic, start: int, end: int | None) -> Iterator[ServerChannel]:
        """The channel from ``start`` in turn through all GPUs. A ring ends at ``end``; a tree leaves there, so it is
        second.

        A tree whose first two GPUs are in descending order stays descending, so that chains end at different GPUs.
        """
        gpus = self.server.gpus
        at = gpus.index(start)
        rest = [g for g in gpus[at + 1 :] + gpus[:at] if g != end]
        if self.tree and end == gpus[at - 1]:
            rest = rest[::-1]
        last = [] if end is None or end == start else [end]
        order = (start, *last, *rest) if self.tree else (start, *rest, *last)
        if enter.vertex == leave.vertex:
            net = self._net(enter, order)
        elif order[-1] in leave.gpus:
            net = ((enter.enter[start], Fraction(1)), (leave.leave[order[-1]], Fraction(1)))
        else:
            net = None
        if net is not None:
            yield ServerChannel(order, self._along(order), net)
