"""Hand-written MSCCL++ plans in a short form, for tests of their reader: two GPUs with equal programs.

An operation is a dictionary; the functions at the end make it.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from blinkccl.collectives.ops import fold, operation
from blinkccl.collectives.oracle import Array, Buffers, check_inputs
from blinkccl.errors import ScheduleError
from blinkccl.formats.foreign import mscclpp
from blinkccl.formats.foreign.execute import PlanExecution
from blinkccl.formats.foreign.instructions import InstructionList
from blinkccl.formats.foreign.verify import ForeignAudit, audit

Json = dict[str, Any]


def plan(coll: str, chunks: tuple[int, int, int], blocks: Sequence[Sequence[list[Json]]], **choices: Any) -> Json:
    """Return a plan of two GPUs; each thread block has the memory channel (or ``kind``) with its own number.

    ``buffers``: the types of the other GPU's buffers, which operations name by index.
    """
    kind, buffers = choices.get("kind", "memory"), choices.get("buffers", ("i", "o", "s"))
    return {
        "name": "by hand",
        "collective": coll,
        "protocol": choices.get("protocol", "Simple"),
        "inplace": choices.get("in_place", False),
        "gpus": [
            {
                "id": rank,
                "input_chunks": chunks[0],
                "output_chunks": chunks[1],
                "scratch_chunks": chunks[2],
                "threadblocks": [
                    {
                        "id": number,
                        "ops": ops,
                        "channels": [{"channel_type": kind, "channel_ids": [number]}],
                        "remote_buffer_refs": [
                            {"access_channel_type": kind, "remote_buffer_ids": list(range(len(buffers)))}
                        ],
                    }
                    for number, ops in enumerate(listed)
                ],
                "channels": [{"channel_type": kind, "connected_to": [1 - rank] * len(listed)}],
                "remote_buffers": [{"rank": 1 - rank, "type": b, "access_channel_types": [kind]} for b in buffers],
                "semaphores": [{"init_value": 0}],
            }
            for rank, listed in enumerate(blocks)
        ],
    }


def op(name: str, *ends: str, kind: str = "memory", **more: Any) -> Json:
    """Return an operation: ``"i0"`` or ``"i0*2"`` is local, ``"@2:0"`` chunk 0 of remote buffer 2, ``">"`` a result."""
    sides: tuple[list[Json], list[Json]] = [], []
    side = 0
    for end in ends:
        if end == ">":
            side = 1
            continue
        head, _, size = end.partition("*")
        if head[0] == "@":
            buffer, _, index = head[1:].partition(":")
            sides[side].append({"buffer_id": int(buffer), "index": int(index), "size": int(size or 1)})
        else:
            sides[side].append({"type": head[0], "index": int(head[1:]), "size": int(size or 1)})
    fields: Json = {"name": name, "src_buff": sides[0], "dst_buff": sides[1], "channel_type": kind, **more}
    return {key: value for key, value in fields.items() if value != []}


NOP: Json = {"name": "nop"}


def sync(name: str, kind: str = "memory") -> Json:
    return {"name": name, "channel_ids": [0], "channel_type": kind}


def begun(kind: str = "memory") -> list[Json]:
    """Wait until both GPUs have begun."""
    return [sync("rlxsignal", kind), sync("rlxwait", kind), NOP]


def met(kind: str = "memory") -> list[Json]:
    """Make all earlier writes visible to the other GPU."""
    return [NOP, sync("signal", kind), sync("wait", kind), NOP]


def read_allreduce() -> Json:
    """Each GPU copies to scratch, reads the other's, adds, and writes its half to both. In place."""
    blocks = [
        [
            [
                op("copy", f"i{1 - rank}", ">", f"s{1 - rank}"),
                *met(),
                op("rres", f"i{rank}", f"@2:{rank}", ">", f"i{rank}", f"@0:{rank}"),
                *met(),
            ]
        ]
        for rank in range(2)
    ]
    return plan("allreduce", (2, 2, 2), blocks, in_place=True)


def put_reduce_scatter() -> Json:
    """Contributions are put into scratch; another thread block adds them after a semaphore."""
    blocks = [
        [
            [
                *begun(),
                op("put", f"i{1 - rank}", ">", "@2:0"),
                *met(),
                {"name": "sem_release", "semaphore_ids": [0]},
            ],
            [{"name": "sem_acquire", "semaphore_ids": [0]}, NOP, op("re", f"i{rank}", "s0", ">", "o0")],
        ]
        for rank in range(2)
    ]
    document = plan("reducescatter", (2, 1, 1), blocks)
    for gpu in document["gpus"]:
        gpu["channels"][0]["connected_to"].pop()
        gpu["threadblocks"][1]["channels"] = []
    return document


def port_allgather() -> Json:
    """Port channels, whose proxies read later, in two thread blocks joined by a barrier."""
    blocks = [
        [
            [
                *begun("port"),
                op("put", "i0", ">", f"@1:{rank}", kind="port", channel_ids=[0]),
                sync("signal", "port"),
                sync("flush", "port"),
                sync("wait", "port"),
                NOP,
                {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2},
            ],
            [op("copy", "i0", ">", f"o{rank}"), {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}],
        ]
        for rank in range(2)
    ]
    return plan("allgather", (1, 2, 0), blocks, kind="port")


def packet_allreduce() -> Json:
    """Packets with flags, without other waits."""
    blocks = [
        [[op("ppkt", "i0*2", ">", "@2:0*2"), op("repkt", "i0*2", "s0*2", ">", "o0*2", kind="none")]] for _ in range(2)
    ]
    return plan("allreduce", (2, 2, 2), blocks, protocol="LL")


def grouped_allreduce() -> Json:
    """Two thread blocks share each operation; in place."""
    blocks = [
        [
            [
                *begun(),
                op("put", f"i{1 - rank}", ">", f"@2:{1 - rank}", tbg_info={"tb_id": part, "tbg_size": 2}),
                *met(),
                op(
                    "res",
                    f"i{rank}",
                    f"s{rank}",
                    ">",
                    f"i{rank}",
                    f"@0:{rank}",
                    tbg_info={"tb_id": part, "tbg_size": 2},
                ),
                *met(),
            ]
            for part in range(2)
        ]
        for rank in range(2)
    ]
    return plan("allreduce", (2, 2, 2), blocks, in_place=True)


#: Bytes per round.
UNIT = 4096


def pipelined_allreduce() -> Json:
    """Rounds: one thread block puts into scratch, the other adds and puts the sum, behind a semaphore. In place."""
    blocks = [
        [
            [
                *begun(),
                rounds(
                    op("put", f"i{1 - rank}", ">", "@2:0"),
                    *met(),
                    {"name": "sem_release", "semaphore_ids": [0]},
                ),
            ],
            [
                rounds(
                    {"name": "sem_acquire", "semaphore_ids": [0]},
                    NOP,
                    op("res", f"i{rank}", "s0", ">", f"i{rank}", f"@0:{rank}"),
                    *met(),
                ),
            ],
        ]
        for rank in range(2)
    ]
    return plan("allreduce", (2, 2, 1), blocks, in_place=True)


def rounds(*ops: Json, unit: int = UNIT, chunks: int = 1) -> Json:
    return {"name": "pipeline", "iter_context": {"unit_size": unit, "num_chunks": chunks}, "ops": list(ops)}


def switch_allreduce(last: str = "signal") -> Json:
    """Each GPU reduces its half in the switch and stores it to both. In place; ``last`` is the final signal."""
    ends = {"signal": met(), "rlxsignal": [NOP, *begun()]}
    blocks = [[[*begun(), through_switch("glres", group(rank), group(rank)), *ends[last]]] for rank in range(2)]
    return _with_switch(plan("allreduce", (2, 2, 0), blocks, in_place=True), "i")


def switch_allgather() -> Json:
    """Each GPU stores its data to all GPUs through the switch."""
    blocks = [
        [[*begun(), through_switch("gstore", {"type": "i", "index": 0, "size": 1}, group(rank)), *met()]]
        for rank in range(2)
    ]
    return _with_switch(plan("allgather", (1, 2, 0), blocks), "o")


def group(index: int) -> Json:
    return {"switch_channel_id": 0, "index": index, "size": 1}


def through_switch(name: str, source: Json, target: Json) -> Json:
    return {"name": name, "src_buff": [source], "dst_buff": [target], "channel_type": "switch"}


def _with_switch(document: Json, buffer: str) -> Json:
    for gpu in document["gpus"]:
        gpu["channels"].append(
            {"channel_type": "switch", "buffer_type": buffer, "rank_groups": [{"size": 2, "ranks": [0, 1]}]}
        )
        gpu["threadblocks"][0]["channels"].append({"channel_type": "switch", "channel_ids": [0]})
    return document


def text(document: Json) -> str:
    return json.dumps(document)


def mscclpp_examples() -> dict[str, Json]:
    """Return valid MSCCL++ plans, one per transfer method."""
    return {
        "read": read_allreduce(),
        "put": put_reduce_scatter(),
        "port": port_allgather(),
        "packet": packet_allreduce(),
        "group": grouped_allreduce(),
        "rounds": pipelined_allreduce(),
        "switch": switch_allreduce(),
        "store": switch_allgather(),
    }


def audited(text: str) -> ForeignAudit:
    """Return the audit of a file; ScheduleError if no runtime accepts it."""
    return audit(mscclpp.read(text.encode(), "x.json"))


def run(plan: InstructionList, inputs: Sequence[Array | None], op: str = "sum", seed: int | None = None) -> Buffers:
    """Execute ``plan`` on arrays: per rank its output, as :func:`blinkccl.collectives.oracle.oracle` returns it.

    Each input block holds a multiple of the plan's chunks. ``op`` is one of sum, prod, min, max; ``seed`` draws the
    order of the thread blocks. Raises ScheduleError with the first fault of the execution.
    """
    count, dtype = check_inputs(plan.collective, inputs)
    if count % plan.chunks:
        raise ScheduleError(f"a block of {count} elements cannot be cut into {plan.chunks} equal chunks")
    each, chosen = count // plan.chunks, operation(op)

    unset = np.zeros(each, dtype.storage)

    def load(rank: int, index: int) -> Array:
        source = inputs[rank]
        return unset if source is None else source[index * each : (index + 1) * each]

    def combine(one: Array, other: Array, _where: str) -> Array:
        return fold(dtype, chosen, [one, other], [], 1)

    done = PlanExecution(plan, load, combine, unset, seed)
    if done.faults:
        raise ScheduleError(done.faults[0])
    outputs: Buffers = []
    for rank in range(plan.collective.world_size):
        blocks = plan.collective.output_blocks(rank)
        whole = np.empty(blocks * count, dtype.storage) if blocks else None
        for index in range(blocks * plan.chunks):
            assert whole is not None
            whole[index * each : (index + 1) * each] = done.value(rank, index)
        outputs.append(whole)
    return outputs
