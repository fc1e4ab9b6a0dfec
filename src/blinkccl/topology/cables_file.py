"""Files with one cable per line, for machines that are joined without a switch::

    # four Sparks in a ring
    machine dgx-spark: spark0 spark1 spark2 spark3
    spark0:p0  spark1:p1  200Gbps
    spark1:p0  spark2:p1
    spark2:p0  spark3:p1
    spark3:p0  spark0:p1

``machine`` names machines of one kind, which is a catalog entry or a rule (``clique:2``). A cable has two ends,
``NAME:PORT``, and an optional rate; the default is the rate of its slower port. A ``#`` begins a comment.
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
    """True if the first line with content declares machines."""
    return next((words[0][0] == "machine" for _, words in _lines(text)), False)


def parse(text: str, source: str) -> Topology:
    """The topology of a cables file.

    Raises
    ------
    TopologyError
        With line and column: unknown lines, unknown machines or ports, duplicate names or ports, a cable from a
        machine to itself, invalid rates; also the errors of :func:`~blinkccl.topology.fabric.cabled`.
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
    """``4x dgx-spark @ cables=ring.txt`` for machines of one kind, which selects the calibration of that kind."""
    kinds = {server.machine.name for server in servers}
    file = PurePath(source).name
    if len(kinds) > 1 or label_fault(file) is not None:
        return source
    return f"{len(servers)}x {kinds.pop()} @ cables={file}"


def _lines(text: str) -> Iterator[tuple[int, list[Word]]]:
    """Lines with content, as words; a colon at the end of a word is a separate word."""
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0]
        words = [(word[0], word.start() + 1) for word in re.finditer(r":(?=\s|$)|\S+?(?=:?(?:\s|$))", content)]
        if words:
            yield number, words


@dataclass
class _CablesReader:
    """State of the parser after ``line``."""

    source: str
    line: int = 0
    servers: dict[str, CabledServer] = field(default_factory=dict)
    #: Index of each server, by name.
    place: dict[str, int] = field(default_factory=dict)
    cables: list[Cable] = field(default_factory=list)
    #: Line of the cable in each port.
    taken: dict[Port, int] = field(default_factory=dict)

    def wrong(self, column: int, text: str) -> TopologyError:
        return TopologyError(f"{self.source}, line {self.line}, column {column}: {text}")

    def example(self) -> str:
        """An example of a cable, with the names of the first two machines if there are two."""
        if len(self.servers) < 2:
            return "spark0:p0 spark1:p0"
        first = list(self.servers.values())[:2]
        return " ".join(f"{server.name}:{next(iter(ports_of(server.machine)), 'p0')}" for server in first)

    def machines(self, words: list[Word]) -> None:
        """``dgx-spark : spark0 spark1``: the kind, and a name for each machine."""
        texts = [text for text, _ in words]
        if texts[1:2] != [":"] or len(words) < 3:
            column = words[0][1] if words else 1
            raise self.wrong(
                column, "expected machine, a kind, a colon and names, as in machine dgx-spark: spark0 spark1"
            )
        kind = self._kind(*words[0])
        for name, column in words[2:]:
            if not _NAME.fullmatch(name):
                raise self.wrong(column, f"{_quoted(name)} is no valid name; use letters, digits, and - _ . only")
            if name in self.servers:
                raise self.wrong(column, f"the name {name} is already used; give each machine its own name")
            if len(self.servers) >= MAX_SERVERS:
                raise self.wrong(column, f"more than {MAX_SERVERS} machines, which is the limit")
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
        raise self.wrong(column, f"unknown machine {_quoted(name)}{near}; blink topo --list shows all")

    def cable(self, words: list[Word]) -> None:
        """``spark0:p0 spark1:p1 200Gbps``: two ends, and the rate."""
        if not 2 <= len(words) <= 3:
            column = words[3][1] if len(words) > 3 else words[0][1]
            raise self.wrong(column, f"expected two ends and optionally a rate, as in {self.example()} 200Gbps")
        if len(self.cables) >= MAX_CABLES:
            raise self.wrong(words[0][1], f"more than {MAX_CABLES} cables, which is the limit")
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
                column, f"no machine is named {_quoted(name)}{near}; declare it in a line machine KIND: NAME …"
            )
        ports = ports_of(self.servers[name].machine)
        if ports and port not in ports:
            raise self.wrong(column, f"{name} has no port {_quoted(port)}; it has {', '.join(ports)}")
        end = self.place[name], port
        if end in self.taken:
            free = [p for p in ports if (end[0], p) not in self.taken]
            used = f"all ports of {name} are in use" if ports else "name another"
            rest = f"free ports: {', '.join(free)}" if free else used
            raise self.wrong(column, f"{text} already has a cable, in line {self.taken[end]}; {rest}")
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
                f"{_quoted(text)} is no valid cable rate; expected more than 0 and at most {8 * MAX_GB_PER_S}Gbps",
            )
        return rate


def _quoted(text: str) -> str:
    return repr(shortened(text, 80))
