"""Calibrations: what links and GPUs of a machine reach, in data files with a source for each number.

A calibration is a TOML file. Every number is a table ``{ value = …, source = "…" }``::

    schema_version = 2
    name = "v100-copy-engine"
    about = "a copy, an event and a reduction kernel per chunk"
    machines = ["dgx-1v"]

    [engine]
    issue_us = { value = 10.0, source = "…" }
    …

    [[link]]
    kind = "nvlink"
    nominal_gb_per_s = 25.0
    gb_per_s = { value = 22.0, source = "…" }
    latency_us = { value = 0.0, source = "…" }

A link class serves all links of its kind whose nominal rate is a multiple of ``nominal_gb_per_s`` (its lanes), and
scales with it: two lanes reach twice ``gb_per_s``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec

from blinkccl.errors import TopologyError
from blinkccl.schema import upgraded, version_fault
from blinkccl.topology.limits import MAX_FILE_BYTES, check_labels
from blinkccl.topology.model import LINK_KINDS, Link, Topology

#: What is used where no calibration knows the machine: links as they are sold.
FALLBACK = "nominal"
#: GB/s that a file may say: below, times overflow; above, there is no hardware.
LEAST_NOMINAL_GB_PER_S, LEAST_GB_PER_S, MOST_GB_PER_S = 1e-3, 1e-6, 1e6


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number and where it is from: a document and place, "measured: …", "fitted: …" or "assumed: …"."""

    value: float
    source: str


class LinkClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How links of one kind behave.

    ``nominal_gb_per_s`` is that of one lane, GB/s per direction: what the topology says of a link is a multiple of it.
    0 takes any rate, and ``gb_per_s`` is then what part of it a link reaches; else what one lane reaches with nothing
    in the other direction. ``latency_us`` is what each such link adds to the latency of a transfer. ``duplex`` is what
    part of ``gb_per_s`` remains where the plan uses both directions and one of the two GPUs combines messages; copies
    alone pass each other at full rate. ``kernels``: measured on NCCL's rings, so that no kernel is taken to reach more;
    else kernels reach what NCCL counts, whatever copies do.
    """

    kind: str
    nominal_gb_per_s: float
    gb_per_s: Number
    latency_us: Number
    duplex: Number = Number(1.0, "full duplex")
    kernels: bool = False


_NOTHING = Number(0.0, "not modelled")
_WHOLE = Number(1.0, "not modelled")
_PEER_ACCESS = Number(310.0, "assumed: what Blink, MLSys 2020, Fig 21 implies for V100s")


class EngineCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a GPU's side of each operation costs.

    - ``launch_us``: from a rank's call until it begins, the launch of a kernel;
    - ``issue_us``: before each transfer, in its stream, issuing the copy and waiting for what it depends on;
    - ``signal_us``: from the end of a transfer until the receiver knows;
    - ``reduce_us``, ``reduce_gb_per_s``: per execution that combines messages, and the rate of combining two operands
      (0: no limit). A kernel reads every operand and writes once, so that n of them take (n + 1) / 3 as long;
    - ``combining``: what part of a link's rate remains at a GPU that combines messages of several other GPUs;
    - ``peer_access_us``: T_dpa per GPU, switching peer access off and on, so that copies take PCIe instead of NVLink;
    - ``copy_engines``: transfers that a GPU can have under way at once, a whole number; 0 for no limit;
    - ``memory_gb_per_s``: what a host's memory takes and gives, added up, of what is staged there; 0 for no limit;
    - ``gpu_gb_per_s``: what a GPU sends and receives, added up, over all its NVLinks at once; 0 for no limit.
    """

    launch_us: Number = _NOTHING
    issue_us: Number = _NOTHING
    signal_us: Number = _NOTHING
    reduce_us: Number = _NOTHING
    reduce_gb_per_s: Number = _NOTHING
    combining: Number = _WHOLE
    peer_access_us: Number = _PEER_ACCESS
    copy_engines: Number = _NOTHING
    memory_gb_per_s: Number = _NOTHING
    gpu_gb_per_s: Number = _NOTHING


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A calibration file; ``machines`` are the catalog names that it is for."""

    schema_version: int
    name: str
    about: str
    engine: EngineCosts
    link: tuple[LinkClass, ...]
    machines: tuple[str, ...] = ()

    def link_class(self, link: Link) -> LinkClass:
        """The class that serves ``link``."""
        of_kind = [row for row in self.link if row.kind == link.kind]
        for row in of_kind:
            if _is_multiple(link.gb_per_s, row.nominal_gb_per_s):
                return row
        where = f"calibration {self.name}"
        if not of_kind:
            has = ", ".join(dict.fromkeys(row.kind for row in self.link)) or "none"
            raise TopologyError(
                f"{where} has no link class for {link.kind} (link {link.src} → {link.dst}, {link.gb_per_s:g} GB/s); it "
                f'has {has}. Add a [[link]] with kind = "{link.kind}", or take --calibration {FALLBACK}'
            )
        lanes = ", ".join(f"{row.nominal_gb_per_s:g}" for row in of_kind)
        raise TopologyError(
            f"{where}: the {link.kind} link {link.src} → {link.dst} has {link.gb_per_s:g} GB/s, no multiple of the "
            f"lanes that it knows ({lanes} GB/s); add a [[link]] for that rate, or take --calibration {FALLBACK}"
        )

    def serves(self, topology: Topology) -> bool:
        """Whether every link of ``topology`` has a class."""
        try:
            for link in topology.links:
                self.link_class(link)
        except TopologyError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class LinkCost:
    """What a class says of one link: bytes per second alone and where ``duplex`` applies, and latency."""

    rate: float
    duplex_rate: float
    latency_s: float


def link_cost(calibration: Calibration, link: Link) -> LinkCost:
    """The cost of ``link``."""
    row = calibration.link_class(link)
    if row.nominal_gb_per_s:
        rate = link.gb_per_s / row.nominal_gb_per_s * row.gb_per_s.value * 1e9
    else:
        rate = link.gb_per_s * row.gb_per_s.value * 1e9
    return LinkCost(rate, rate * row.duplex.value, row.latency_us.value * 1e-6)


def _is_multiple(gb_per_s: float, lane: float) -> bool:
    if lane == 0:
        return True
    lanes = gb_per_s / lane
    return lanes > 0.5 and abs(lanes - round(lanes)) < 1e-6 * lanes


def calibration_names() -> tuple[str, ...]:
    """The calibrations that come with the package, in alphabetical order."""
    folder = files("blinkccl.cost.simulate").joinpath("calibrations")
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml")))


@lru_cache(maxsize=64)
def calibration(name: str) -> Calibration:
    """The calibration ``name`` of the package, or that of the file ``name``."""
    if name in calibration_names():
        text = files("blinkccl.cost.simulate").joinpath("calibrations").joinpath(f"{name}.toml").read_text("utf-8")
        return parse_calibration(text, name)
    path = Path(name)
    try:
        # Not by the size that the system tells: a device has 0 and never ends.
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise TopologyError(f"{name}: larger than {MAX_FILE_BYTES >> 20} MiB; a calibration is a short TOML file")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise TopologyError(
            f"no calibration {name!r}: expected one of {', '.join(calibration_names())}, or a TOML file ({reason})"
        ) from None
    return parse_calibration(text, name)


def parse_calibration(text: str, name: str) -> Calibration:
    """The calibration that ``text`` holds; ``name`` is what messages call it."""
    try:
        read = msgspec.convert(upgraded(tomllib.loads(text)), Calibration)
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"{name}: not a TOML file: {error}") from None
    except msgspec.ValidationError as error:
        raise TopologyError(f"{name}: {error}; see blinkccl/cost/simulate/calibrations for examples") from None
    except (RecursionError, ValueError):
        raise TopologyError(f"{name}: not a calibration: nested too deeply, or a number of too many digits") from None
    fault = version_fault(read.schema_version)
    if fault is not None:
        raise TopologyError(f"{name}: {fault}")
    check_labels(name, [("name", read.name), ("about", read.about), *(("machines:", each) for each in read.machines)])
    for fault in _faults(read):
        raise TopologyError(f"{name}: {fault}")
    return read


def _faults(read: Calibration) -> list[str]:
    """What is out of range."""
    found = []
    for number, row in enumerate(read.link):
        where = f"link {number} ({row.kind})"
        nominal, rate = row.nominal_gb_per_s, row.gb_per_s.value
        if row.kind not in LINK_KINDS:
            found.append(f"{where}: unknown kind; expected one of {', '.join(LINK_KINDS)}")
        if nominal != 0 and not LEAST_NOMINAL_GB_PER_S <= nominal < MOST_GB_PER_S:
            within = f"0 (any rate), or from {LEAST_NOMINAL_GB_PER_S:g} to below {MOST_GB_PER_S:g} GB/s"
            found.append(f"{where}: nominal_gb_per_s must be {within}, got {nominal:g}")
        if not LEAST_GB_PER_S <= rate < MOST_GB_PER_S:
            within = f"from {LEAST_GB_PER_S:g} to below {MOST_GB_PER_S:g} GB/s"
            found.append(f"{where}: gb_per_s must be {within}, got {rate:g}")
        if not 0 <= row.latency_us.value < 1e9:
            found.append(f"{where}: latency_us must not be negative, got {row.latency_us.value:g}")
        if not 0 < row.duplex.value <= 1:
            found.append(f"{where}: duplex must be in (0, 1], got {row.duplex.value:g}")
    engine = {field: getattr(read.engine, field).value for field in EngineCosts.__struct_fields__}
    combining = engine.pop("combining")
    for field, value in engine.items():
        if not 0 <= value < 1e9:
            found.append(f"engine: {field} must not be negative, got {value:g}")
    for field in ("reduce_gb_per_s", "memory_gb_per_s", "gpu_gb_per_s"):
        if 0 < engine[field] < LEAST_GB_PER_S:
            within = f"0 (no limit), or at least {LEAST_GB_PER_S:g} GB/s"
            found.append(f"engine: {field} must be {within}, got {engine[field]:g}")
    if not engine["copy_engines"].is_integer():
        found.append(f"engine: copy_engines must be a whole number (0: no limit), got {engine['copy_engines']:g}")
    if not 0 < combining <= 1:
        found.append(f"engine: combining must be in (0, 1], got {combining:g}")
    if not read.link:
        found.append("it has no [[link]]")
    return found


def machine_name(topology: Topology) -> str:
    """The catalog's name of the server that a topology is made of: ``dgx-1v`` for ``2x dgx-1v @ 40Gbps``."""
    return topology.name.split("@")[0].split("x ", 1)[-1].strip()


def calibration_for(topology: Topology) -> Calibration:
    """The calibration of a topology's machine: the first that names it and has all its links, else ``nominal``."""
    machine = machine_name(topology)
    for name in calibration_names():
        found = calibration(name)
        if machine in found.machines and found.serves(topology):
            return found
    return calibration(FALLBACK)
