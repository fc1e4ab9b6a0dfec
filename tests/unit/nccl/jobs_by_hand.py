"""Jobs for tests of the planner: peer info of ranks."""

import json
from collections.abc import Sequence
from typing import Any

from blinkccl.nccl.peer_info import GpuJob, read_peer_info


def uuid(device: int) -> str:
    """The UUID of a GPU in the double of CUDA's driver."""
    return f"{b'test-double-gpu'.hex()}{device % 256:02x}"


def peer(rank: int, **changes: Any) -> dict[str, Any]:
    """Peer info of rank ``rank`` on GPU ``rank`` of a host."""
    device = changes.get("device", rank)
    return {
        "rank": rank,
        "boot_id": "0d15ea5e-0000",
        "pid": 4000 + rank,
        "device": device,
        "uuid": uuid(device),
        "bus_id": f"0000:{device:02x}:00.0",
        "name": "A GPU",
        "major": 9,
        "minor": 0,
        "multiprocessors": 132,
        "driver_version": 13000,
        "nccl_version": 23007,
        "blink_version": "unknown",
        "arch": "sm_90",
        "settings": {"algo": "", "topo": "", "nccl_topo_file": ""},
    } | changes


def peers(size: int, **changes: Any) -> list[dict[str, Any]]:
    """Peer info of ranks 0 … size − 1; ``changes`` may hold functions of the rank."""
    return [
        peer(rank, **{key: value(rank) if callable(value) else value for key, value in changes.items()})
        for rank in range(size)
    ]


def settings(**chosen: str) -> dict[str, str]:
    return {"algo": "", "topo": "", "nccl_topo_file": ""} | chosen


def job(size: int, **changes: Any) -> GpuJob:
    return read_peer_info(json.dumps(peers(size, **changes)).encode())


def on(topo: str, devices: Sequence[int], **changes: Any) -> GpuJob:
    """A job on GPUs of a machine of the catalogue."""
    usual: dict[str, Any] = {
        "device": lambda rank: devices[rank],
        "uuid": lambda rank: uuid(devices[rank]),
        "bus_id": lambda rank: f"0000:{devices[rank]:02x}:00.0",
        "settings": settings(topo=topo),
    }
    return job(len(devices), **(usual | changes))
