"""Faults planted in correct MSCCL++ plans, by name: each is detected, with its place, its kind and a remedy.

The audit reports plans that run but are wrong, with a remedy for the kind of fault. Files that no runtime reads are
refused. The plans are written by hand (:mod:`support.foreign_files`) from the documentation of the format.
"""

import json
import re
from typing import Any, NamedTuple

import pytest

from blinkccl.errors import ScheduleError
from blinkccl.formats.foreign.execute import REMEDIES
from support import foreign_files as files

JSON = files.mscclpp_examples()


class Fault(NamedTuple):
    """``edits``: (path, value; None removes it).

    One sentence must contain both ``where`` and ``what``. ``kind`` is a key of REMEDIES, or the advice of a refusal.
    """

    name: str
    file: str
    edits: list[tuple[str, Any]]
    where: str
    what: str
    kind: str


I0 = {"type": "i", "index": 0, "size": 1}


def at(gpu: int, block: int, op: int | str, key: str = "") -> str:
    """The path of an operation, or of a field in it."""
    return f"gpus/{gpu}/threadblocks/{block}/ops/{op}{key and '/'}{key}"


NOBODY = "unwritten memory"
FAULTS = [
    Fault(
        "no wait for the other to begin",
        "put",
        [(at(0, 0, 1), None)],
        "GPU 0, thread block 0, operation 2 writes s[0] of GPU 1",
        "GPU 1 may not have begun: no wait ensures it",
        "race",
    ),
    Fault(
        "a missing signal",
        "read",
        [(at(0, 0, 2), None)],
        "GPU 1, thread block 0, operation 8 for the signals of memory channel 0 from GPU 0 to GPU 1",
        "but only 1 of 2 are ever sent",
        "deadlock",
    ),
    Fault(
        "a missing wait",
        "read",
        [(at(0, 0, 8), None)],
        "GPU 1, thread block 0, operation 5 writes i[1] of GPU 0",
        "GPU 0 may have ended: no wait prevents it",
        "race",
    ),
    Fault(
        "a missing fence before a signal",
        "read",
        [(at(0, 0, 1), None)],
        "operation 5 reads s[1] of GPU 0, and GPU 0, thread block 0, operation 0 writes it",
        "nothing orders them",
        "race",
    ),
    Fault(
        "a missing fence behind a wait",
        "read",
        [(at(0, 0, 4), None)],
        "GPU 0, thread block 0, operation 4 reads s[0] of GPU 1",
        "nothing orders them",
        "race",
    ),
    Fault(
        "a relaxed signal for data",
        "put",
        [(at(0, 0, "5/name"), "rlxsignal")],
        "GPU 1, thread block 1, operation 2 reads s[0] of GPU 1, and GPU 0, thread block 0, operation 3 writes it",
        "nothing orders them",
        "race",
    ),
    Fault(
        "a signal too many",
        "read",
        [(at(0, 0, "+"), files.sync("signal"))],
        "the signals of memory channel 0 from GPU 0 to GPU 1",
        "3 sent, but only 2 waited for",
        "unbalanced",
    ),
    Fault(
        "a sum that is not sent",
        "read",
        [(at(0, 0, 5, "name"), "rre"), (at(0, 0, 5, "dst_buff"), [I0])],
        "o[0] of GPU 1",
        "is chunk 0 of rank 1; expected chunk 0 of ranks 0, 1",
        "wrong result",
    ),
    Fault(
        "the wrong chunk of a remote buffer",
        "read",
        [(at(0, 0, 5, "src_buff/1/index"), 1)],
        "o[0] of GPU 0",
        NOBODY,
        "wrong result",
    ),
    Fault(
        "the wrong remote buffer",
        "put",
        [(at(0, 0, 3, "dst_buff/0/buffer_id"), 1)],
        "o[0] of GPU 1",
        f"is {NOBODY}",
        "wrong result",
    ),
    Fault(
        "an operation left out",
        "put",
        [(at(0, 0, 3), None)],
        "o[0] of GPU 1",
        f"is {NOBODY}, written by GPU 1, thread block 1, operation 2; expected chunk 1 of ranks 0, 1",
        "wrong result",
    ),
    Fault(
        "an operand twice",
        "put",
        [(at(0, 1, 2, "src_buff"), [I0, I0])],
        "by GPU 0, thread block 1, operation 2",
        "the contribution of rank 0 twice",
        "wrong result",
    ),
    Fault(
        "a semaphore that is not released",
        "put",
        [(at(0, 0, 8), None)],
        "GPU 0, thread block 1, operation 0 for semaphore 0 of GPU 0",
        "but only 0 of 1 are ever sent",
        "deadlock",
    ),
    Fault(
        "a semaphore that is not acquired",
        "put",
        [(at(0, 1, 0), None)],
        "operation 3 writes s[0] of GPU 0, and GPU 0, thread block 1, operation 1 reads it",
        "nothing orders them",
        "race",
    ),
    Fault(
        "a proxy that does not signal",
        "port",
        [(at(0, 0, 4), None)],
        "GPU 1, thread block 0, operation 6 for the signals of port channel 0 from GPU 0 to GPU 1",
        "but only 1 of 2 are ever sent",
        "deadlock",
    ),
    Fault(
        "a semaphore that begins too high",
        "put",
        [("gpus/0/semaphores/0/init_value", 1)],
        "GPU 1, thread block 0, operation 3 writes s[0] of GPU 0",
        "nothing orders them",
        "race",
    ),
    Fault(
        "a semaphore that nobody has",
        "put",
        [(at(1, 1, 0, "semaphore_ids"), [1])],
        "GPU 1, thread block 1, operation 0",
        "number 1 of the 1 semaphores of the GPU",
        "number 1 of the 1",
    ),
    Fault(
        "a barrier that one misses",
        "port",
        [(at(0, 0, 8), None)],
        "GPU 0, thread block 1, operation 1 for barrier 0 of GPU 0",
        "but only 1 of 2 are ever sent",
        "deadlock",
    ),
    Fault(
        "a barrier of different sizes",
        "port",
        [(at(0, 0, 8, "num_threadblocks"), 3)],
        "GPU 0, thread block 1, operation 1",
        "num_threadblocks 2, expected 3 as elsewhere",
        "expected",
    ),
    Fault(
        "a proxy that is not flushed",
        "port",
        [(at(0, 0, 5), None)],
        "operation 3 reads i[0] of GPU 0",
        "GPU 0 may have ended",
        "race",
    ),
    Fault(
        "a channel of a thread block that is not there",
        "read",
        [("gpus/0/threadblocks/0/channels/0/channel_ids", [5])],
        "GPU 0, thread block 0, operation 2",
        "number 5 of the 1 memory channels of the GPU",
        "number 5 of the 1",
    ),
    Fault(
        "a channel to the GPU itself",
        "read",
        [("gpus/0/channels/0/connected_to", [0])],
        "GPU 0 has a channel to GPU 0",
        "expected another of 0 … 1",
        "expected",
    ),
    Fault(
        "a packet that nobody sends",
        "packet",
        [(at(0, 0, 0), None)],
        "GPU 1, thread block 0, operation 1 for the packet s[0] of GPU 1",
        "wait forever",
        "deadlock",
    ),
    Fault(
        "packets without their scratch",
        "packet",
        [("protocol", "Simple")],
        "GPU 0, thread block 0, operation 0: ppkt in protocol Simple",
        "only protocol LL has that scratch",
        "protocol LL",
    ),
    Fault(
        "the other's part of a group",
        "group",
        [(at(0, 0, 3, "tbg_info"), {"tb_id": 1, "tbg_size": 2})],
        "operation 3 writes s[3] of GPU 1, and GPU 0, thread block 0, operation 3 writes it",
        "nothing orders them",
        "race",
    ),
    Fault(
        "out of place where it was made for one buffer",
        "read",
        [("inplace", False)],
        "o[0] of GPU 0",
        NOBODY,
        "wrong result",
    ),
    Fault(
        "buffers that do not fit the collective",
        "read",
        [("gpus/1/input_chunks", 3)],
        "GPU 1 has 3 input and 2 output chunks",
        "expected 2 and 2",
        "expected",
    ),
    Fault(
        "a chunk out of range of its buffer",
        "read",
        [(at(0, 0, 0, "src_buff/0/index"), 2)],
        "GPU 0, thread block 0, operation 0: chunks 2 … 2 of i of GPU 0",
        "which has 2",
        "which has 2",
    ),
    Fault(
        "a protocol of NCCL's",
        "read",
        [("protocol", "LL128")],
        "x.json: protocol",
        "'LL128' is not one of Simple, LL",
        "is not one of",
    ),
    Fault(
        "a number of 30 digits",
        "read",
        [("gpus/0/scratch_chunks", 10**30)],
        "GPU 0",
        "scratch_chunks is 1000000000000000000000000000000",
        "expected 0 … ",
    ),
    Fault(
        "an operation that the parser refuses",
        "read",
        [(at(0, 0, 0, "name"), "glre")],
        "GPU 0, thread block 0, operation 0",
        "operation 'glre': unknown to MSCCL++'s parser",
        "unknown to MSCCL++",
    ),
    # Pipelines
    Fault(
        "a pipeline without a context",
        "rounds",
        [(at(0, 0, 3, "iter_context"), None)],
        "GPU 0, thread block 0, operation 3",
        "a pipeline without iter_context",
        "expected its unit_size in bytes and its num_chunks",
    ),
    Fault(
        "units that differ",
        "rounds",
        [(at(0, 1, 0, "iter_context/unit_size"), 2 * files.UNIT)],
        "GPU 1, thread block 0, operation 3.0, round 2 of 2 reads i[1] of GPU 1",
        "nothing orders them",
        "race",
    ),
    Fault(
        "a unit that cuts vectors",
        "rounds",
        [(at(0, 0, 3, "iter_context/unit_size"), 1000)],
        "GPU 0, thread block 0, operation 3",
        "unit_size 1000, expected a multiple of 16",
        "expected",
    ),
    Fault(
        "rounds beyond the end",
        "rounds",
        [(at(0, 1, 0, "iter_context/num_chunks"), 2)],
        "GPU 0, thread block 1, operation 0.2",
        "1 chunk(s) in a pipeline whose num_chunks is 2",
        "expected 2",
    ),
    Fault(
        "rounds that leave the rest",
        "read",
        [(at(0, 0, 0), files.rounds(files.op("copy", "i0*2", ">", "s0*2")))],
        "o[1] of GPU 0",
        NOBODY,
        "wrong result",
    ),
    Fault(
        "a signal that is outside of its rounds",
        "rounds",
        [(at(0, 0, 3, "ops/2"), None), (at(0, 0, "+"), files.NOP), (at(0, 0, "+"), files.sync("signal"))],
        "GPU 1, thread block 0, operation 3.3, round 1 of 2 for the signals of memory channel 0 from GPU 0 to GPU 1",
        "wait forever",
        "deadlock",
    ),
    Fault(
        "packets in a pipeline",
        "packet",
        [(at(0, 0, 0), files.rounds(files.op("ppkt", "i0", ">", "@2:0")))],
        "GPU 0, thread block 0, operation 0.0: ppkt in a pipeline",
        "packets are moved whole in every round",
        "moved whole",
    ),
    Fault(
        "a pipeline in a pipeline",
        "rounds",
        [(at(0, 0, 3, "ops/0"), files.rounds(files.NOP))],
        "GPU 0, thread block 0, operation 3.0",
        "a pipeline in a pipeline",
        "which the kernel does not support",
    ),
    # Switches
    Fault(
        "a group that one is not in",
        "switch",
        [("gpus/0/channels/1/rank_groups/0/ranks", [1])],
        "GPU 0: switch channel of GPUs [1]",
        "expected distinct ones of 0 … 1, including this one",
        "expected",
    ),
    Fault(
        "a group that one does not join",
        "switch",
        [("gpus/1/channels/1/rank_groups", []), (at(1, 0, 3), None)],
        "GPU 0 has 1 switch channel(s) over i of GPUs [0, 1], but GPU 1 has 0",
        "with unequal numbers",
        "the GPUs of the group block each other",
    ),
    Fault(
        "a switch without a signal",
        "switch",
        [(at(0, 0, 5), None)],
        "GPU 1, thread block 0, operation 6 for the signals of memory channel 0 from GPU 0 to GPU 1",
        "but only 1 of 2 are ever sent",
        "deadlock",
    ),
    Fault(
        "a switch whose stores nobody waits for",
        "switch",
        [(at(0, 0, 6), None)],
        "GPU 1, thread block 0, operation 3 writes i[1] of GPU 0",
        "GPU 0 may have ended: no wait prevents it",
        "race",
    ),
    Fault(
        "the other's chunk through a switch",
        "switch",
        [(at(0, 0, 3, "src_buff/0/index"), 1), (at(0, 0, 3, "dst_buff/0/index"), 1)],
        "GPU 0",
        "nothing orders them",
        "race",
    ),
    Fault(
        "a store to the wrong chunk of all",
        "store",
        [(at(0, 0, 3, "dst_buff/0/index"), 1)],
        "o[0] of GPU 0",
        f"is {NOBODY}; expected chunk 0 of rank 0",
        "wrong result",
    ),
    Fault(
        "a switch channel that is not there",
        "store",
        [(at(0, 0, 3, "dst_buff/0/switch_channel_id"), 1)],
        "GPU 0, thread block 0, operation 3",
        "number 1 of the 1 switch channels of the thread block",
        "number 1 of the 1",
    ),
]


def changed(fault: Fault) -> str:
    """The file with the planted fault; an edit without effect fails."""
    document = json.loads(files.text(JSON[fault.file]))
    for path, value in fault.edits:
        *way, last = path.split("/")
        place: Any = document
        for key in way:
            place = place[int(key)] if isinstance(place, list) else place[key]
        if last == "+":
            place.append(value)
        elif value is None:
            del place[int(last) if isinstance(place, list) else last]
        else:
            place[int(last) if isinstance(place, list) else last] = value
    return files.text(document)


def test_the_table_has_distinct_faults_in_correct_plans() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    for name, document in JSON.items():
        assert files.audited(files.text(document)).faults == (), name
    assert {fault.file for fault in FAULTS} == {*JSON}


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_each_fault_is_reported(fault: Fault) -> None:
    text = changed(fault)
    if fault.kind in REMEDIES:
        audit = files.audited(text)
        sentences = [each for each in audit.faults if fault.where in each and fault.what in each]
        assert sentences, audit.text()
        assert any(each.startswith(f"{fault.kind}: ") for each in sentences), sentences
        assert f"to do   {fault.kind}: {REMEDIES[fault.kind]}" in audit.text()
        assert all(each.partition(":")[0] in REMEDIES for each in audit.faults)
    else:
        with pytest.raises(ScheduleError) as error:
            files.audited(text)
        for fragment in (fault.where, fault.what, fault.kind):
            assert fragment in str(error.value)
        assert re.match(r"x\.json", str(error.value))
