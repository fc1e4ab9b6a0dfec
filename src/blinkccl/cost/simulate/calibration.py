"""Calibrations: rates and costs of a machine's links and GPUs, in data files with a source for each number.

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

A link class serves all links of its kind whose nominal rate is a multiple of ``nominal_gb_per_s``, the rate of a lane.
Its rate is proportional to the lanes: two lanes reach twice ``gb_per_s``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import structs

from blinkccl.errors import TopologyError
from blinkccl.schema import upgraded, version_fault
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.limits import MAX_FILE_BYTES, check_labels
from blinkccl.topology.model import LINK_KINDS, READ_PROVENANCES, Link, Topology

#: The calibration of machines without their own: links at their nominal rates.
FALLBACK = "nominal"
#: The calibration of machines whose GPUs have PCIe alone.
PCIE = "pcie"
#: Limits of GB/s in a file: below, times overflow; above, no hardware exists.
LEAST_NOMINAL_GB_PER_S, LEAST_GB_PER_S, MOST_GB_PER_S = 1e-3, 1e-6, 1e6


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number and its source: a document and place, "measured: …", "fitted: …" or "assumed: …"."""

    value: float
    source: str


class LinkClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rates and latency of links of one kind.

    - ``nominal_gb_per_s``: GB/s per direction of one lane, of which a link's rate in the topology is a multiple. 0
      serves links of any rate.
    - ``gb_per_s``: the rate of one lane without data in the other direction. With a ``nominal_gb_per_s`` of 0 it is the
      part of a link's nominal rate that is reached.
    - ``latency_us``: the latency that each such link adds to a transfer.
    - ``duplex``: the part of ``gb_per_s`` that remains if the plan uses both directions and one of the two GPUs
      reduces. Copies alone reach the full rate in both directions.
    - ``kernels``: the rate was measured on NCCL's rings and limits kernels too. Otherwise kernels reach NCCL's count,
      independently of the rate of copies.
    """

    kind: str
    nominal_gb_per_s: float
    gb_per_s: Number
    latency_us: Number
    duplex: Number = Number(1.0, "full duplex")
    kernels: bool = False


_NOTHING = Number(0.0, "not modelled")
_WHOLE = Number(1.0, "not modelled")
_PEER_ACCESS = Number(310.0, "assumed: implied by Blink, MLSys 2020, Fig 21, for V100s")


class EngineCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs of operations on a GPU.

    - ``launch_us``: from a rank's call to its start, the launch of a kernel;
    - ``issue_us``: before each transfer in its stream, to issue the copy and to wait for its dependencies;
    - ``signal_us``: from the end of a transfer to its notice at the receiver;
    - ``reduce_us``, ``reduce_gb_per_s``: the fixed cost of each reduction, and its rate for two operands (0: no limit).
      A kernel reads every operand and writes once, so n operands take (n + 1) / 3 as long;
    - ``combining``: the part of a link's rate that remains at a GPU that reduces messages of several other GPUs;
    - ``peer_access_us``: T_dpa per GPU, to switch peer access off and on so that copies use PCIe instead of NVLink;
    - ``copy_engines``: concurrent transfers of a GPU, an integer; 0 for no limit;
    - ``memory_gb_per_s``: the sum of reads and writes of staged data in a host's memory; 0 for no limit;
    - ``gpu_gb_per_s``: the sum of sends and receives of a GPU over all its NVLinks; 0 for no limit.
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
    """A calibration file; ``machines`` are the catalog's names of the machines that it serves.

    ``arch``: the architecture of NVIDIA's GPUs whose NVLinks have its rates also in other machines; "" for none.
    """

    schema_version: int
    name: str
    about: str
    engine: EngineCosts
    link: tuple[LinkClass, ...]
    machines: tuple[str, ...] = ()
    arch: str = ""

    def link_class(self, link: Link) -> LinkClass:
        """The class that serves ``link``; TopologyError if no class does."""
        of_kind = [row for row in self.link if row.kind == link.kind]
        for row in of_kind:
            if _is_multiple(link.gb_per_s, row.nominal_gb_per_s):
                return row
        where = f"calibration {self.name}"
        if not of_kind:
            has = ", ".join(dict.fromkeys(row.kind for row in self.link)) or "none"
            raise TopologyError(
                f"{where} has no link class for {link.kind} (link {link.src} → {link.dst}, {link.gb_per_s:g} GB/s); it "
                f'has {has}. Add a [[link]] with kind = "{link.kind}", or use --calibration {FALLBACK}'
            )
        lanes = ", ".join(f"{row.nominal_gb_per_s:g}" for row in of_kind)
        raise TopologyError(
            f"{where}: the {link.kind} link {link.src} → {link.dst} has {link.gb_per_s:g} GB/s, no multiple of its "
            f"lanes ({lanes} GB/s); add a [[link]] for that rate, or use --calibration {FALLBACK}"
        )

    def serves(self, topology: Topology) -> bool:
        """True if every link of ``topology`` has a class."""
        return self.serves_links(topology.links)

    def serves_links(self, links: Iterable[Link]) -> bool:
        """True if each of ``links`` has a class."""
        try:
            for link in links:
                self.link_class(link)
        except TopologyError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The cost of one link: latency, and bytes per second without and with the factor ``duplex``."""

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
    """The calibration ``name`` of the package, or else of the file ``name``."""
    if name in calibration_names():
        text = files("blinkccl.cost.simulate").joinpath("calibrations").joinpath(f"{name}.toml").read_text("utf-8")
        return parse_calibration(text, name)
    path = Path(name)
    try:
        # The limit cannot rely on the file's size, which is 0 for an endless device.
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise TopologyError(f"{name}: larger than {MAX_FILE_BYTES >> 20} MiB; a calibration is a short TOML file")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TopologyError(
            f"no calibration {name!r}: expected one of {', '.join(calibration_names())}, or a TOML file ({reason})"
        ) from None
    return parse_calibration(text, name)


def parse_calibration(text: str, name: str) -> Calibration:
    """The calibration in ``text``; messages begin with ``name``."""
    try:
        read = msgspec.convert(upgraded(tomllib.loads(text)), Calibration)
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"{name}: not a TOML file: {error}") from None
    except msgspec.ValidationError as error:
        raise TopologyError(f"{name}: {error}; see blinkccl/cost/simulate/calibrations for examples") from None
    except (RecursionError, ValueError):
        raise TopologyError(f"{name}: not a calibration: nested too deeply, or a number with too many digits") from None
    fault = version_fault(read.schema_version)
    if fault is not None:
        raise TopologyError(f"{name}: {fault}")
    check_labels(name, [("name", read.name), ("about", read.about), *(("machines:", each) for each in read.machines)])
    for fault in _faults(read):
        raise TopologyError(f"{name}: {fault}")
    return read


def _faults(read: Calibration) -> list[str]:
    """Messages about values out of range."""
    faults = []
    for number, row in enumerate(read.link):
        where = f"link {number} ({row.kind})"
        nominal, rate = row.nominal_gb_per_s, row.gb_per_s.value
        if row.kind not in LINK_KINDS:
            faults.append(f"{where}: unknown kind; expected one of {', '.join(LINK_KINDS)}")
        if nominal != 0 and not LEAST_NOMINAL_GB_PER_S <= nominal < MOST_GB_PER_S:
            within = f"0 (any rate), or from {LEAST_NOMINAL_GB_PER_S:g} to below {MOST_GB_PER_S:g} GB/s"
            faults.append(f"{where}: nominal_gb_per_s must be {within}, got {nominal:g}")
        if not LEAST_GB_PER_S <= rate < MOST_GB_PER_S:
            within = f"from {LEAST_GB_PER_S:g} to below {MOST_GB_PER_S:g} GB/s"
            faults.append(f"{where}: gb_per_s must be {within}, got {rate:g}")
        if not 0 <= row.latency_us.value < 1e9:
            faults.append(f"{where}: latency_us must not be negative, got {row.latency_us.value:g}")
        if not 0 < row.duplex.value <= 1:
            faults.append(f"{where}: duplex must be in (0, 1], got {row.duplex.value:g}")
    engine = {field: getattr(read.engine, field).value for field in EngineCosts.__struct_fields__}
    combining = engine.pop("combining")
    for field, value in engine.items():
        if not 0 <= value < 1e9:
            faults.append(f"engine: {field} must not be negative, got {value:g}")
    for field in ("reduce_gb_per_s", "memory_gb_per_s", "gpu_gb_per_s"):
        if 0 < engine[field] < LEAST_GB_PER_S:
            within = f"0 (no limit), or at least {LEAST_GB_PER_S:g} GB/s"
            faults.append(f"engine: {field} must be {within}, got {engine[field]:g}")
    if not engine["copy_engines"].is_integer():
        faults.append(f"engine: copy_engines must be an integer (0: no limit), got {engine['copy_engines']:g}")
    if not 0 < combining <= 1:
        faults.append(f"engine: combining must be in (0, 1], got {combining:g}")
    if not read.link:
        faults.append("it has no [[link]]")
    return faults


def machine_name(topology: Topology) -> str:
    """The catalog's name of a topology's servers: ``dgx-1v`` for ``2x dgx-1v @ 40Gbps``."""
    return topology.name.split("@")[0].split("x ", 1)[-1].strip()


def calibration_for(topology: Topology) -> Calibration:
    """The calibration of a topology's machine, else one for its links between GPUs, else ``nominal``.

    The first that names the machine and has all its links serves it. A machine that is read from a tool's output has
    the NVLinks or xGMI links of some calibrated machine; its other links then get their nominal rates.
    """
    machine = machine_name(topology)
    for name in calibration_names():
        candidate = calibration(name)
        if machine in candidate.machines and candidate.serves(topology):
            return candidate
    return _of_alike_links(topology) or calibration(FALLBACK)


def _for_kernels(known: Calibration, link: Link) -> bool:
    """True if kernels have the calibration's rate of ``link`` too, since it limits them or is the nominal one."""
    row = known.link_class(link)
    return row.kernels or link.kind == "net" or row.gb_per_s.value == (row.nominal_gb_per_s or 1)


def _of_alike_links(topology: Topology) -> Calibration | None:
    """A calibration with the rates of a machine whose GPUs have the same links; None for machines by rule or hand."""
    fast = [x for x in topology.links if x.kind in ("nvlink", "xgmi")]
    if not any(x.provenance in READ_PROVENANCES for x in topology.links):
        return None
    if not fast:
        pcie = calibration(PCIE)
        return pcie if pcie.serves(topology) and all(_for_kernels(pcie, link) for link in topology.links) else None
    arch = guess_arch(topology)
    for known in map(calibration, calibration_names()):
        rows = tuple(row for row in known.link if row.kind == fast[0].kind and row.nominal_gb_per_s)
        alike = structs.replace(known, link=rows)
        same_gpus = known.arch == arch if fast[0].kind == "nvlink" else bool(known.machines)
        if rows and same_gpus and alike.serves_links(fast):
            about = f"as {known.name} between GPUs; other links at their nominal rates"
            return structs.replace(alike, about=about, link=rows + calibration(FALLBACK).link)
    return None
