"""Which vertex of a topology is which GPU: by PCI bus ids and UUIDs, from NVML or from NCCL's topology XML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from blinkccl.errors import UnsupportedError
from blinkccl.topology.model import Topology
from blinkccl.topology.nvml_errors import NO_GPUS, nvml_error
from blinkccl.topology.xml_tree import parse_xml


def canonical(bus_id: str) -> str:
    """``0000:1a:00.0``: lower case, a domain of four digits at least, a function.

    CUDA, NVML and NCCL write the same id with a domain of four or eight digits, and in either case.
    """
    domain, _, rest = bus_id.lower().partition(":")
    short = domain.lstrip("0").rjust(4, "0")
    return f"{short}:{rest}" if "." in rest else f"{short}:{rest}.0"


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU as NVML knows it; ``uuid`` in 32 hexadecimal digits, as in PeerInfo, and ``mig`` its mode."""

    bus_id: str
    uuid: str
    mig: bool


def seen_by_nvml(nvml: Any = None) -> tuple[Seen, ...]:
    """This machine's GPUs by NVML's numbers, which are the vertices that :func:`~blinkccl.topology.probe.probe` gives.

    Parameters
    ----------
    nvml
        A module with the functions of ``pynvml``; by default that of nvidia-ml-py.

    Raises
    ------
    TopologyError, UnsupportedError
        If NVML fails; UnsupportedError too where it is not there or has no GPUs.
    """
    driver = import_module("pynvml") if nvml is None else nvml
    try:
        driver.nvmlInit()
    except driver.NVMLError as error:
        if error.value in NO_GPUS:
            raise UnsupportedError(
                "NVML is not there or knows no GPUs, so nobody tells their links; give the topology with BLINK_TOPO"
            ) from error
        raise nvml_error(error.value, "starting") from error
    try:
        return tuple(_seen(driver, index) for index in range(driver.nvmlDeviceGetCount()))
    except driver.NVMLError as error:
        raise nvml_error(error.value, "asking for the bus ids of GPUs") from error
    finally:
        driver.nvmlShutdown()


def _seen(driver: Any, index: int) -> Seen:
    handle = driver.nvmlDeviceGetHandleByIndex(index)
    bus_id, uuid = driver.nvmlDeviceGetPciInfo(handle).busId, driver.nvmlDeviceGetUUID(handle)
    try:
        current, _ = driver.nvmlDeviceGetMigMode(handle)
    except driver.NVMLError:  # a GPU that has no such mode
        current = 0
    digits = re.sub("[^0-9a-f]", "", _text(uuid).lower().removeprefix("gpu-"))
    return Seen(canonical(_text(bus_id)), digits, current == 1)


def _text(raw: bytes | str) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw


def bus_ids_of_xml(text: str, topology: Topology) -> dict[str, int]:
    """Vertex by bus id, for the GPUs of the NCCL XML ``text`` that ``topology`` was read from.

    GPUs are named by their ``dev`` there; what several servers of one file have in common is left out.

    Raises
    ------
    TopologyError
        If it is not well-formed.
    """
    named: dict[str, list[int]] = {}
    for rank in topology.ranks:
        named.setdefault(topology.vertex[rank].name, []).append(rank)
    found: dict[str, list[int]] = {}
    for gpu in parse_xml(text, topology.name).below("gpu"):
        bus_id = "" if gpu.parent is None else gpu.parent.attributes.get("busid", "")
        if bus_id:
            found.setdefault(canonical(bus_id), []).extend(named.get(f"GPU{gpu.attributes.get('dev')}", []))
    return {bus_id: vertices[0] for bus_id, vertices in found.items() if len(vertices) == 1}
