"""Rates stated by the user for a topology file without them: ``node7.txt @ nvlink=50GB/s, pcie=gen5, nic=400Gbps``.

``nvidia-smi topo -m`` and similar tools list links but few rates. A reader uses the stated rate (its links are then
*declared*), else a usual one, and records its choice in a note of the topology.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from blinkccl.errors import TopologyError
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.model import LINK_KINDS, Topology
from blinkccl.topology.nccl_constants import PCI_DEFAULT_WIDTH, PCI_SPEED_OF, pcie_gb_per_s
from blinkccl.units import parse_gb_per_s

#: Limit of a network's rate in GB/s.
MAX_NETWORK_GB_PER_S = 100_000
_PCIE = re.compile(r"gen([1-6])(?:x(1|2|4|8|12|16|32))?")
_LINK_KINDS = {"nic": "net"}
_EXAMPLES = {"nvlink": "50GB/s", "xgmi": "64GB/s", "pcie": "gen5", "smp": "22GB/s", "nic": "400Gbps"}
#: The item that lists the NICs of the network, and an example.
NICS, _NICS_EXAMPLE = "nics", "mlx5_0+mlx5_1"
TO_COUNT = f'"FILE @ {NICS}={_NICS_EXAMPLE}"'


@dataclass(frozen=True, slots=True)
class Stated:
    """GB/s per direction of one NVLink, one xGMI link, a GPU's PCIe link, the bus between processors, and each NIC.

    ``nics``: the names of the NICs that form the network between servers; empty if the reader decides.
    """

    nvlink: Fraction | None = None
    xgmi: Fraction | None = None
    pcie: Fraction | None = None
    smp: Fraction | None = None
    nic: Fraction | None = None
    nics: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """The names of the stated rates."""
        rates = (field.name for field in fields(self) if field.name != NICS)
        return [name for name in rates if getattr(self, name) is not None]

    def counts(self, name: str) -> bool:
        """True if the user lists the NIC ``name``, or none."""
        return not self.nics or name in self.nics

    def check_nics(self, known: Collection[str], source: str) -> None:
        """Raise TopologyError for a listed NIC that the file does not have."""
        for name in self.nics:
            if name not in known:
                has = ", ".join(known) or "none"
                raise TopologyError(f"{source}: {NICS}={'+'.join(self.nics)}: no NIC {name!r}; the file has {has}")

    def rate(self, box: Assembly, key: str, what: str, usual: Fraction | int, basis: str = "") -> Fraction:
        """GB/s of ``what``: as stated, else ``usual``, with ``basis`` as the reason; a note records the choice."""
        stated: Fraction | None = getattr(self, key)
        if stated is not None:
            box.notes.append(f"{what}: {float(stated):g} GB/s, as stated")
            return stated
        why = f" ({basis})" if basis else ""
        box.notes.append(
            f"{what} is assumed to have {float(usual):g} GB/s{why}, as {box.provenance} does not say; to state it: "
            f'"FILE @ {key}={_EXAMPLES[key]}"'
        )
        return Fraction(usual)

    def declare(self, box: Assembly) -> None:
        """Mark links with a stated rate as declared; add a note for a stated rate without links."""
        for key in self.names():
            mine = [ends for ends, link in box.links.items() if link.kind == _LINK_KINDS.get(key, key)]
            for ends in mine:
                box.links[ends] = replace(box.links[ends], provenance="declared")
            if not mine and key != "nic":  # a NIC's rate may be for a network added later
                box.notes.append(f"a rate for {key} is stated, but there is no {key} link")


NOTHING = Stated()

#: The end of a reader's note about something that it left out.
PERHAPS_A_LINK = "perhaps a link"
#: A note of :meth:`Stated.rate` about a rate that was not stated.
_TAKEN = re.compile(r'(?P<what>.*) is assumed to have (?P<rate>\S+ GB/s).* "FILE @ (?P<key>\w+)=')


def assumed(topology: Topology, kinds: Container[str] = LINK_KINDS) -> list[str]:
    """The assumed rates of the links of these kinds, from the topology's notes: ``an NVLink lane 25 GB/s``."""
    present = {link.kind for link in topology.links if link.kind in kinds}
    taken = [match for note in topology.notes if (match := _TAKEN.match(note)) is not None]
    return [f"{one['what']} {one['rate']}" for one in taken if _LINK_KINDS.get(one["key"], one["key"]) in present]


def perhaps_missing(topology: Topology) -> list[str]:
    """The notes of the topology by which links may be missing from it."""
    return [note for note in topology.notes if note.endswith(PERHAPS_A_LINK)]


def to_state_all(topology: Topology) -> str:
    """The form that states all rates that the notes call assumed; "" for fewer than two."""
    keys = dict.fromkeys(match["key"] for note in topology.notes if (match := _TAKEN.match(note)) is not None)
    items = ", ".join(f"{key}={_EXAMPLES[key]}" for key in keys if key in _EXAMPLES)
    return f'to state all assumed rates: "FILE @ {items}"' if "," in items else ""


def parse_stated(text: str, where: str) -> Stated:
    """The rates stated in ``text``: ``"nvlink=50GB/s, pcie=gen5x8, nic=400Gbps"``; a rate alone is that of each NIC.

    Messages begin with ``where``. TopologyError for unknown or duplicate names, and for invalid rates.
    """
    rates: dict[str, Fraction] = {}
    nics: tuple[str, ...] = ()
    for item in text.split(","):
        key, equals, value = item.partition("=")
        key, value = (key.strip().lower(), value.strip()) if equals else ("nic", item.strip())
        if key == NICS and not nics and value:
            nics = tuple(name.strip() for name in value.split("+"))
            continue
        if key not in _EXAMPLES:
            raise TopologyError(
                f"{where}: {key!r} is no known rate; expected {', '.join(f'{k}={v}' for k, v in _EXAMPLES.items())}, "
                f"or {NICS}={_NICS_EXAMPLE}"
            )
        if key in rates:
            raise TopologyError(f"{where}: {key} is stated twice")
        rates[key] = _gb_per_s(key, value, where)
    return Stated(**rates, nics=nics)


def _gb_per_s(key: str, value: str, where: str) -> Fraction:
    generation = _PCIE.fullmatch(value) if key == "pcie" else None
    if generation is not None:
        return pcie_gb_per_s(PCI_SPEED_OF[int(generation[1])], int(generation[2] or PCI_DEFAULT_WIDTH))
    try:
        gb_per_s = parse_gb_per_s(value)
    except ValueError as error:
        hint = ", or a generation: gen4, gen5x8" if key == "pcie" else ""
        raise TopologyError(f"{where}: {error}{hint}") from None
    if not 0 < gb_per_s <= MAX_NETWORK_GB_PER_S:
        what = "a network" if key == "nic" else key
        raise TopologyError(
            f"{where}: {value} is no valid rate for {what}; expected more than 0 and at most "
            f"{MAX_NETWORK_GB_PER_S * 8}Gbps"
        )
    return gb_per_s
