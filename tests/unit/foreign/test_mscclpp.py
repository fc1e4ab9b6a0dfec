"""Readers of MSCCL++ execution plans: files by hand are judged right, planted faults named, hostile ones refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.errors import ScheduleError
from blinkccl.foreign import mscclpp
from blinkccl.foreign.formats import audits
from blinkccl.foreign.verify import run
from support import foreign_files as files

FILES = {
    "read": files.read_allreduce(),
    "put": files.put_reduce_scatter(),
    "port": files.port_allgather(),
    "packet": files.packet_allreduce(),
    "group": files.grouped_allreduce(),
}


def test_one_operation_for_put_signal_and_flush() -> None:
    changed = json.loads(files.text(FILES["port"]))
    for gpu in changed["gpus"]:
        ops = gpu["threadblocks"][0]["ops"]
        ops[3]["name"] = "pwsf"
        del ops[4:6]
    (found,) = audits(files.text(changed).encode(), "x.json") or ()
    assert found.faults == ()
    changed["gpus"][0]["threadblocks"][0]["ops"][3]["name"] = "pws"
    (found,) = audits(files.text(changed).encode(), "x.json") or ()
    assert found.faults == (
        "race: GPU 0, thread block 0, operation 3 reads i[0] of GPU 0, and GPU 0 may be done: no wait holds it",
    )


def test_a_proxy_is_given_things_by_one_thread() -> None:
    changed = json.loads(files.text(FILES["port"]))
    gpu = changed["gpus"][0]
    gpu["threadblocks"][0]["channels"][0]["channel_ids"] = [0, 1]
    ops = gpu["threadblocks"][0]["ops"]
    ops[4]["channel_ids"] = [1, 0]
    with pytest.raises(ScheduleError, match="operation 4: port channel 0 was used at another place of channel_ids"):
        mscclpp.read(files.text(changed).encode(), "x.json")
    ops[4:5] = [files.NOP, ops[4], files.NOP]
    mscclpp.read(files.text(changed).encode(), "x.json")


def test_a_pipeline_is_judged_by_one_round() -> None:
    changed = json.loads(files.text(FILES["read"]))
    for gpu in changed["gpus"]:
        tb = gpu["threadblocks"][0]
        tb["ops"] = [{"name": "pipeline", "iter_context": {"unit_size": 1024, "num_chunks": 1}, "ops": tb["ops"]}]
    (found,) = audits(files.text(changed).encode(), "x.json") or ()
    assert found.faults == ()
    del changed["gpus"][0]["threadblocks"][0]["ops"][0]["ops"][3]
    (found,) = audits(files.text(changed).encode(), "x.json") or ()
    assert "GPU 0, thread block 0, operation 0.4 " in found.faults[0]


@pytest.mark.parametrize("name", FILES)
def test_what_is_right_is_proved_and_runs(name: str) -> None:
    (found,) = audits(files.text(FILES[name]).encode(), "x.json") or ()
    assert found.faults == ()
    plan = found.plan
    inputs = make_inputs(plan.collective, 2 * plan.chunks, "int32")
    for seed in (None, *range(5)):
        assert mismatch(run(plan, inputs, seed=seed), oracle(plan.collective, inputs), 2 * plan.chunks) is None


I0 = {"type": "i", "index": 0, "size": 1}
#: (file, thread block and operation of GPU 0, what stands there now: None for nothing, or keys to set; what is said).
FAULTS: list[tuple[str, int, int, dict[str, Any] | None, str]] = [
    ("read", 0, 3, None, "GPU 1 may not have begun: no wait says so"),
    ("read", 0, 1, None, "operation 5 reads s[1] of GPU 0, and GPU 0, thread block 0, operation 0 writes it"),
    ("read", 0, 4, None, "race: GPU 0, thread block 0, operation 4 reads s[0] of GPU 1"),
    ("read", 0, 2, None, "and only 1 of 2 ever come"),
    ("read", 0, 8, None, "GPU 0 may be done: no wait holds it"),
    ("read", 0, 5, {"name": "rre", "dst_buff": [I0]}, "o[0] of GPU 1 is chunk 0 of rank 1"),
    ("read", 0, 5, {"src_buff": [I0, {"buffer_id": 2, "index": 1, "size": 1}]}, "memory that nothing has written"),
    ("read", 0, 0, {"dst_buff": [{"type": "s", "index": 0, "size": 1}]}, "memory that nothing has written"),
    ("put", 0, 1, None, "GPU 1 may not have begun: no wait says so"),
    ("put", 0, 6, None, "operation 2 reads s[0] of GPU 0, and GPU 1, thread block 0, operation 3 writes it"),
    ("put", 0, 8, None, "GPU 0, thread block 1, operation 0 for semaphore 0 of GPU 0, and only 0 of 1 ever come"),
    ("put", 1, 0, None, "operation 3 writes s[0] of GPU 0, and GPU 0, thread block 1, operation 1 reads it"),
    ("put", 1, 2, {"src_buff": [I0, I0]}, "the contribution of rank 0 twice, by GPU 0, thread block 1, operation 2"),
    ("port", 0, 5, None, "operation 3 reads i[0] of GPU 0, and GPU 0 may be done"),
    ("port", 0, 4, None, "GPU 1, thread block 0, operation 6 for the signals of port channel 0 from GPU 0 to GPU 1"),
    ("port", 0, 8, None, "GPU 0, thread block 1, operation 1 for barrier 0 of GPU 0"),
    ("packet", 0, 0, None, "GPU 1, thread block 0, operation 1 for the packet s[0] of GPU 1"),
    (
        "packet",
        0,
        0,
        {"dst_buff": [{"buffer_id": 2, "index": 0, "size": 1}], "src_buff": [I0]},
        "for the packet s[1] of GPU 1",
    ),
    (
        "group",
        0,
        3,
        {"tbg_info": {"tb_id": 1, "tbg_size": 2}},
        "operation 3 writes s[3] of GPU 1, and GPU 0, thread block 0, operation 3 writes it",
    ),
]


@pytest.mark.parametrize(("name", "block", "place", "planted", "said"), FAULTS)
def test_planted_faults_are_named(name: str, block: int, place: int, planted: dict[str, Any] | None, said: str) -> None:
    changed = json.loads(files.text(FILES[name]))
    ops = changed["gpus"][0]["threadblocks"][block]["ops"]
    if planted is None:
        del ops[place]
    else:
        ops[place].update(planted)
    (found,) = audits(files.text(changed).encode(), "x.json") or ()
    assert any(said in fault for fault in found.faults), found.text()


def test_a_signal_that_nobody_waits_for_spoils_the_next_run() -> None:
    changed = json.loads(files.text(FILES["read"]))
    changed["gpus"][0]["threadblocks"][0]["ops"].append(files.sync("signal"))
    (found,) = audits(files.text(changed).encode(), "x.json") or ()
    counter = "the signals of memory channel 0 from GPU 0 to GPU 1"
    assert found.faults == (f"{counter} are 3, and 2 are waited for: the next run begins with the rest",)


def _with(path: str, value: Any, name: str = "read") -> str:
    """The file with one value changed: ``gpus/0/id``; a key that is not there is added, None takes it away."""
    changed = json.loads(files.text(FILES[name]))
    *way, last = path.split("/")
    at: Any = changed
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is None:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return files.text(changed)


TB = "gpus/0/threadblocks/0"
REFUSED = [
    ('{"name": "x", "more": ' + "[" * 100_000, "nested too deeply"),
    ('{"gpus": [', "truncated"),
    (_with("inplace", None), "missing required field `inplace`"),
    (_with("gpus/0/id", "0"), "Expected `int`, got `str` - at `$.gpus[0].id`"),
    (_with("gpus/0/id", 1), "gpus[0] has id 1"),
    (_with("collective", "sendrecv"), "collective 'sendrecv' is not judged"),
    (_with("protocol", "LL128"), "protocol 'LL128' is not one of Simple, LL"),
    (_with("gpus/1/input_chunks", 3), "GPU 1 has 3 input and 2 output chunks, expected 2 and 2"),
    (_with("gpus/0/channels/0/channel_type", "switch"), "reduction in switches is not judged"),
    (_with("gpus/0/channels/0/connected_to", [7]), "a channel to GPU 7, expected another of 0 … 1"),
    (_with(f"{TB}/id", 3), "threadblocks[0] has id 3"),
    (_with(f"{TB}/channels/0/channel_ids", [5]), "number 5 of the 1 memory channels of the GPU"),
    (_with(f"{TB}/ops/2/channel_ids", [1]), "number 1 of the 1 memory channels of the thread block"),
    (_with(f"{TB}/ops/2/channel_ids", [0, 0]), "channel_ids names one channel twice"),
    (_with(f"{TB}/ops/0/name", "glre"), "operation 'glre': the parser has no such name"),
    (_with(f"{TB}/ops/0/src_buff/0/index", 2), "chunks 2 … 2 of i of GPU 0, which has 2"),
    (_with(f"{TB}/ops/0/src_buff/0/size", 2), "chunks 1 … 2 of i"),
    (_with(f"{TB}/ops/5/src_buff/1/buffer_id", 9), "number 9 of the 3 remote buffers of the thread block"),
    (_with("gpus/0/remote_buffers/2/rank", 2), "number 2 of the 2 GPUs"),
    (_with(f"{TB}/remote_buffer_refs/0/remote_buffer_ids", [0, 1, 8]), "number 8 of the 3 remote buffers of the GPU"),
    (_with(f"{TB}/ops", [files.NOP] * 65), "65 operations, expected at most 64"),
    (_with(f"{TB}/ops/0/dst_buff/0/size", 1, "packet"), "wrong count: its buffers have [1, 2] chunks"),
    (_with(f"{TB}/ops/3/name", "pws", "put"), "pws over a memory channel sends no signal"),
    (_with("gpus/1/threadblocks/1/ops/0/semaphore_ids", [1], "put"), "number 1 of the 1 semaphores of the GPU"),
    (_with(f"{TB}/ops/8/num_threadblocks", 3, "port"), "num_threadblocks 2, expected 3 as elsewhere"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_what_no_runtime_reads_is_refused(text: str, said: str) -> None:
    with pytest.raises(ScheduleError) as error:
        mscclpp.read(text.encode(), "x.json")
    assert said in str(error.value)
    assert str(error.value).startswith("x.json")


def test_large_files_are_refused() -> None:
    with pytest.raises(ScheduleError, match="expected at most 64 MiB, got 100"):
        mscclpp.read(b" " * (100 << 20), "x.json")
