"""AllReduce in the switch (NVLink SHARP) as an MSCCL++ execution plan, without a plan of Blink's.

Every rank handles an equal part of the data, in :data:`BLOCKS` pieces with a thread block each, so that loads and
stores overlap. A thread block waits until all have begun. In rounds, it then lets the switch reduce its piece and store
the sum to all (``glres``), and finally signals completion to all.
"""

from __future__ import annotations

from typing import Any

from blinkccl.errors import LimitError, UnsupportedError
from blinkccl.formats.foreign import mscclpp
from blinkccl.topology.model import Topology

Json = dict[str, Any]
#: Thread blocks of a rank.
BLOCKS = 4


def combining_switch(machine: Topology, ranks: tuple[int, ...]) -> int:
    """A vertex with in-network reduction and links to and from all ranks; UnsupportedError without one."""
    for vertex in machine.vertices:
        joined = all({(rank, vertex.id), (vertex.id, rank)} <= machine.link.keys() for rank in ranks)
        if vertex.combines and joined:
            return vertex.id
    raise UnsupportedError(
        f"{machine.name} has no switch with in-network reduction that joins GPUs {', '.join(map(str, ranks))}: give a "
        "file that blink plan -o wrote"
    )


def allreduce_gpus(count: int, in_place: bool, unit_bytes: int) -> list[Json]:
    """``gpus`` of the plan for ``count`` ranks; LimitError if a thread block would need too many channels."""
    most = mscclpp.MOST_CHANNELS
    if count - 1 > most:
        raise LimitError(
            f"a thread block holds {most} memory channels, got {count - 1}: choose at most {most + 1} GPUs with --gpus"
        )
    return [_gpu(rank, count, in_place, unit_bytes) for rank in range(count)]


def _gpu(rank: int, count: int, in_place: bool, unit_bytes: int) -> Json:
    peers = [peer for peer in range(count) if peer != rank]
    buffers = ["i"] if in_place else ["i", "o"]
    group = {"size": count, "ranks": list(range(count))}
    switches = [{"channel_type": "switch", "buffer_type": each, "rank_groups": [group]} for each in buffers]
    return {
        "id": rank,
        "input_chunks": count * BLOCKS,
        "output_chunks": count * BLOCKS,
        "scratch_chunks": 0,
        "threadblocks": [
            {
                "id": number,
                "ops": _operations(rank * BLOCKS + number, len(peers), len(buffers) - 1, unit_bytes),
                "channels": [
                    {
                        "channel_type": "memory",
                        "channel_ids": [number * len(peers) + place for place in range(len(peers))],
                    },
                    {"channel_type": "switch", "channel_ids": list(range(len(buffers)))},
                ],
                "remote_buffer_refs": [],
            }
            for number in range(BLOCKS)
        ],
        "channels": [{"channel_type": "memory", "connected_to": peers * BLOCKS}, *switches],
        "remote_buffers": [],
        "semaphores": [],
    }


def _operations(chunk: int, peers: int, target: int, unit_bytes: int) -> list[Json]:
    nop: Json = {"name": "nop"}
    add = {
        "name": "glres",
        "src_buff": [{"switch_channel_id": 0, "index": chunk, "size": 1}],
        "dst_buff": [{"switch_channel_id": target, "index": chunk, "size": 1}],
        "channel_type": "switch",
        "reduce_op": "sum",
    }
    rounds = {"name": "pipeline", "iter_context": {"unit_size": unit_bytes, "num_chunks": 1}, "ops": [add]}
    begin = [*_to_all("rlxsignal", peers), *_to_all("rlxwait", peers), nop]
    return [*begin, rounds, nop, *_to_all("signal", peers), *_to_all("wait", peers)]


def _to_all(name: str, peers: int) -> list[Json]:
    places = range(peers)
    return [
        {"name": name, "channel_ids": list(places[at : at + mscclpp.MOST_ENDS]), "channel_type": "memory"}
        for at in range(0, peers, mscclpp.MOST_ENDS)
    ]
