"""A file with a line per cable, for machines that no switch joins::

    # four Sparks in a ring
    machine dgx-spark: spark0 spark1 spark2 spark3
    spark0:p0  spark1:p1  200Gbps
    spark1:p0  spark2:p1
    spark2:p0  spark3:p1
    spark3:p0  spark0:p1

``machine`` gives the machines of one kind their names: a kind of the catalog, or a rule (``clique:2``). A cable has two
ends, ``NAME:PORT``, and a rate, where it is not that of the slower port. What follows a ``#`` is for people.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import PurePath

from blinkccl.errors import TopologyError, did_you_mean
from blinkccl.topology.catalog import ALIASES, CATALOG, machine
from blinkccl.topology.fabric import MAX_CABLES, MAX_SERVERS, Cable, CabledServer, Port, cabled, ports_of
from blinkccl.topology.limits import label_fault, shortened
from blinkccl.topology.model import Topology
from blinkccl.topology.synthetic import FAMILIES, synthetic
from blinkccl.units import parse_gb_per_s

#: A word and its column, from 1.
Word = tuple[str, int]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_GB_PER_S = 100_000


def looks_like(text: str) -> bool:
    """Whether the first line that says something names machines."""
    return next((words[0][0] == "machine" for _, words in _lines(text)), False)


def parse(text: str, source: str) -> Topology:
    """The topology of a cables file.

    Raises
    ------
    TopologyError
        With line and column: words that are no line of such a file, machines or ports that are not there, a name or a
        port that is used twice, a cable from a machine to itself, and what is no rate; or as
        :func:`~blinkccl.topology.fabric.cabled`.
    """
    reader = _CablesReader(source)
    for number, words in _lines(text):
        reader.line = number
        if words[0][0] == "machine":
            reader.machines(words[1:])
        else:
            reader.cable(words)
    if not reader.cables:
        raise TopologyError(f"{source}: no cable; expected a line like {reader.example()}")
    return cabled(_name(source, reader.servers.values()), list(reader.servers.values()), reader.cables)


def _name(source: str, servers: Collection[CabledServer]) -> str:
    """``4x dgx-spark @ cables=ring.txt``, where all are of one kind: so that it has their calibration."""
    kinds = {server.machine.name for server in servers}
    file = PurePath(source).name
    if len(kinds) > 1 or label_fault(file) is not None:
        return source
    return f"{len(servers)}x {kinds.pop()} @ cables={file}"


def _lines(text: str) -> Iterator[tuple[int, list[Word]]]:
    """The lines that say something, with their words; a colon that ends a word is a word."""
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0]
        words = [(found[0], found.start() + 1) for found in re.finditer(r":(?=\s|$)|\S+?(?=:?(?:\s|$))", said)]
        if words:
            yield number, words


@dataclass
class _CablesReader:
    """What has been read up to ``line``."""

    source: str
    line: int = 0
    servers: dict[str, CabledServer] = field(default_factory=dict)
    #: Their places, by name.
    place: dict[str, int] = field(default_factory=dict)
    cables: list[Cable] = field(default_factory=list)
    #: Where each port has its cable.
    taken: dict[Port, int] = field(default_factory=dict)

    def wrong(self, column: int, text: str) -> TopologyError:
        return TopologyError(f"{self.source}, line {self.line}, column {column}: {text}")

    def example(self) -> str:
        """Two ends, of machines that are there if two are."""
        if len(self.servers) < 2:
            return "spark0:p0 spark1:p0"
        first = list(self.servers.values())[:2]
        return " ".join(f"{server.name}:{next(iter(ports_of(server.machine)), 'p0')}" for server in first)

    def machines(self, words: list[Word]) -> None:
        """``dgx-spark : spark0 spark1``: their kind, and a name for each."""
        texts = [text for text, _ in words]
        if texts[1:2] != [":"] or len(words) < 3:
            column = words[0][1] if words else 1
            raise self.wrong(
                column, "expected machine, a kind, a colon and names, as in machine dgx-spark: spark0 spark1"
            )
        kind = self._kind(*words[0])
        for name, column in words[2:]:
            if not _NAME.fullmatch(name):
                raise self.wrong(column, f"{_quoted(name)} is no name; use letters, digits, and - _ . in it")
            if name in self.servers:
                raise self.wrong(column, f"there is a machine {name} already; give each a name of its own")
            if len(self.servers) >= MAX_SERVERS:
                raise self.wrong(column, f"more than {MAX_SERVERS} machines, the most we take")
            self.place[name] = len(self.servers)
            self.servers[name] = CabledServer(name, kind)

    def _kind(self, name: str, column: int) -> Topology:
        name = ALIASES.get(name, name)
        if name in CATALOG:
            return machine(name)
        if name.partition(":")[0] in FAMILIES:
            try:
                return synthetic(name)
            except TopologyError as error:
                raise self.wrong(column, str(error)) from None
        near = did_you_mean(name, [*CATALOG, *ALIASES, *FAMILIES])
        raise self.wrong(column, f"unknown machine {_quoted(name)}{near}; blink topo --list has all")

    def cable(self, words: list[Word]) -> None:
        """``spark0:p0 spark1:p1 200Gbps``: two ends, and what it carries."""
        if not 2 <= len(words) <= 3:
            column = words[3][1] if len(words) > 3 else words[0][1]
            raise self.wrong(column, f"expected two ends and at most a rate, as in {self.example()} 200Gbps")
        if len(self.cables) >= MAX_CABLES:
            raise self.wrong(words[0][1], f"more than {MAX_CABLES} cables, the most we take")
        a, b = (self._end(*word) for word in words[:2])
        if a[0] == b[0]:
            raise self.wrong(
                words[1][1],
                f"this cable joins {words[1][0].partition(':')[0]} to itself; plug one end into another machine",
            )
        self.cables.append(Cable(a, b, self._rate(*words[2]) if len(words) == 3 else None))

    def _end(self, text: str, column: int) -> Port:
        name, colon, port = text.partition(":")
        if not colon or not _NAME.fullmatch(port):
            raise self.wrong(
                column, f"{_quoted(text)} is no end of a cable; expected NAME:PORT, as in {self.example()}"
            )
        if name not in self.servers:
            near = did_you_mean(name, self.servers)
            raise self.wrong(
                column, f"no machine is called {_quoted(name)}{near}; name it in a line machine KIND: NAME …"
            )
        ports = ports_of(self.servers[name].machine)
        if ports and port not in ports:
            raise self.wrong(column, f"{name} has no port {_quoted(port)}; it has {', '.join(ports)}")
        end = self.place[name], port
        if end in self.taken:
            free = [p for p in ports if (end[0], p) not in self.taken]
            rest = (
                f"free are {', '.join(free)}" if free else f"all ports of {name} are taken" if ports else "name another"
            )
            raise self.wrong(column, f"{text} has a cable already, that of line {self.taken[end]}; {rest}")
        self.taken[end] = self.line
        return end

    def _rate(self, text: str, column: int) -> Fraction:
        try:
            rate = parse_gb_per_s(text)
        except ValueError as error:
            raise self.wrong(column, shortened(str(error))) from None
        if not 0 < rate <= MAX_GB_PER_S:
            raise self.wrong(
                column,
                f"{_quoted(text)} is no rate of a cable; expected more than 0 and at most {8 * MAX_GB_PER_S}Gbps",
            )
        return rate


def _quoted(text: str) -> str:
    return repr(shortened(text, 80))
