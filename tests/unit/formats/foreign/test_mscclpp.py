"""Reader of MSCCL++ execution plans: correct files are proved, planted faults are named, hostile files are refused."""

import json
from typing import Any

import pytest

from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.errors import ScheduleError
from blinkccl.formats.foreign import mscclpp
from blinkccl.formats.foreign.instructions import Move
from support import foreign_files as files

FILES = files.mscclpp_examples()


def test_one_operation_for_put_signal_and_flush() -> None:
    changed = json.loads(files.text(FILES["port"]))
    for gpu in changed["gpus"]:
        ops = gpu["threadblocks"][0]["ops"]
        ops[3]["name"] = "pwsf"
        del ops[4:6]
    audit = files.audited(files.text(changed))
    assert audit.faults == ()
    changed["gpus"][0]["threadblocks"][0]["ops"][3]["name"] = "pws"
    audit = files.audited(files.text(changed))
    assert audit.faults == (
        "race: GPU 0, thread block 0, operation 3 reads i[0] of GPU 0, and GPU 0 may have ended: no wait prevents it",
    )


def test_a_proxy_gets_its_tasks_from_one_thread() -> None:
    changed = json.loads(files.text(FILES["port"]))
    gpu = changed["gpus"][0]
    gpu["threadblocks"][0]["channels"][0]["channel_ids"] = [0, 1]
    ops = gpu["threadblocks"][0]["ops"]
    ops[4]["channel_ids"] = [1, 0]
    with pytest.raises(ScheduleError, match="operation 4: port channel 0 was used at another position of channel_ids"):
        mscclpp.read(files.text(changed).encode(), "x.json")
    ops[4:5] = [files.NOP, ops[4], files.NOP]
    mscclpp.read(files.text(changed).encode(), "x.json")


def pipelined(document: dict[str, Any], unit: int = files.UNIT, chunks: int = 1) -> str:
    """The file with each first thread block's operations in rounds."""
    changed = json.loads(files.text(document))
    for gpu in changed["gpus"]:
        tb = gpu["threadblocks"][0]
        tb["ops"] = [files.rounds(*tb["ops"], unit=unit, chunks=chunks)]
    return files.text(changed)


def test_a_pipeline_is_checked_in_one_round_and_in_several() -> None:
    audit = files.audited(pipelined(FILES["read"]))
    assert audit.faults == ()
    assert (
        f"rounds  of its pipelines: checked for one, and for blocks of {2 * (files.UNIT + 1):,} bytes" in audit.text()
    )
    once = json.loads(pipelined(FILES["read"]))
    (tail,) = once["gpus"][0]["threadblocks"][0]["ops"][0]["ops"][-3:-2]
    assert tail["name"] == "signal"
    del once["gpus"][0]["threadblocks"][0]["ops"][0]["ops"][-3:]
    once["gpus"][0]["threadblocks"][0]["ops"] += files.met()[1:]
    audit = files.audited(files.text(once))
    assert audit.faults  # right in one round, wrong in two
    assert all("round " in fault or fault.startswith(("wrong result", "unbalanced")) for fault in audit.faults)


@pytest.mark.parametrize(("block", "moves"), [(0, 1), (2 * 4096, 1), (2 * 4096 + 1, 2), (10 * 4096, 5)])
def test_the_number_of_rounds_follows_from_the_size(block: int, moves: int) -> None:
    """Each GPU has two chunks per block, and each thread block moves one of them."""
    plan = mscclpp.read(files.text(FILES["rounds"]).encode(), "x.json")
    assert plan.sized is not None
    sized = plan.sized(block)
    assert [sum(isinstance(step, Move) for step in each.instructions) for each in sized.blocks] == [moves] * 4
    assert sized.chunks == 2 * moves
    inputs = make_inputs(plan.collective, 3 * sized.chunks, "int32")
    for seed in (None, 1, 2):
        assert mismatch(files.run(sized, inputs, seed=seed), oracle(plan.collective, inputs), 3 * sized.chunks) is None


def test_a_round_may_be_of_several_chunks_and_the_last_is_shorter() -> None:
    """Two chunks of 6 KiB in rounds of 8 KiB; another pipeline has rounds of 2 KiB, which is the size of the parts."""
    both = files.rounds(files.op("copy", "i0*2", ">", "o0*2"), unit=8192, chunks=2)
    document = files.plan("allreduce", (2, 2, 0), [[[both], [files.rounds(files.NOP, unit=2048)]]] * 2)
    plan = mscclpp.read(files.text(document).encode(), "x.json")
    assert plan.sized is not None
    assert plan.sized(2 * 6144).chunks == 6
    assert [step.size for step in plan.sized(2 * 6144).blocks[0].instructions if isinstance(step, Move)] == [4, 2]
    with pytest.raises(ScheduleError, match=r"65536 rounds, expected at most 65535; use a larger unit_size"):
        plan.sized(65536 * 4096)


def test_relaxed_signals_of_a_switch_are_trusted_and_reported() -> None:
    audit = files.audited(files.text(files.switch_allreduce("rlxsignal")))
    assert audit.faults == ()
    assert audit.assumes.startswith("relaxed signals after stores through a switch")
    assert f"assumed {audit.assumes}" in audit.text()
    audit = files.audited(files.text(files.switch_allreduce()))
    assert (audit.faults, audit.assumes) == ((), "")


@pytest.mark.parametrize("name", FILES)
def test_correct_files_are_proved_and_run(name: str) -> None:
    audit = files.audited(files.text(FILES[name]))
    assert audit.faults == ()
    plan = audit.plan
    inputs = make_inputs(plan.collective, 2 * plan.chunks, "int32")
    for seed in (None, *range(5)):
        assert mismatch(files.run(plan, inputs, seed=seed), oracle(plan.collective, inputs), 2 * plan.chunks) is None


def _with(path: str, value: Any, name: str = "read") -> str:
    """The file with one value changed, at a path like ``gpus/0/id``: a missing key is added, None removes it."""
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


def test_a_block_of_an_allgather_in_place_lies_at_its_rank() -> None:
    audit = files.audited(_with("inplace", True, "store"))
    assert (audit.plan.in_place, audit.faults) == (True, ())


TB = "gpus/0/threadblocks/0"
REFUSED = [
    ('{"name": "x", "more": ' + "[" * 100_000, "nested too deeply"),
    ('{"gpus": [', "truncated"),
    (_with("inplace", None), "missing required field `inplace`"),
    (_with("gpus/0/id", "0"), "Expected `int`, got `str` - at `$.gpus[0].id`"),
    (_with("gpus/0/id", 1), "gpus[0] has id 1"),
    (_with("collective", "sendrecv"), "collective 'sendrecv' cannot be checked"),
    (_with("protocol", "LL128"), "protocol 'LL128' is not one of Simple, LL"),
    (_with("gpus/1/input_chunks", 3), "GPU 1 has 3 input and 2 output chunks, expected 2 and 2"),
    (_with("gpus/0/channels/0/channel_type", "switch"), "switch channel with buffer_type 'None', expected i, o or s"),
    (_with("gpus/0/channels/0/channel_type", "wire"), "channel_type 'wire' is not one of memory, port, switch"),
    (_with("inplace", True, "store").replace('"buffer_type": "o"', '"buffer_type": "i"'), "use o"),
    (_with("gpus/0/channels/0/connected_to", [7]), "a channel to GPU 7, expected another of 0 … 1"),
    (_with(f"{TB}/id", 3), "threadblocks[0] has id 3"),
    (_with(f"{TB}/channels/0/channel_ids", [5]), "number 5 of the 1 memory channels of the GPU"),
    (_with(f"{TB}/ops/2/channel_ids", [1]), "number 1 of the 1 memory channels of the thread block"),
    (_with(f"{TB}/ops/2/channel_ids", [0, 0]), "channel_ids names one channel twice"),
    (_with(f"{TB}/ops/0/name", "glre"), "operation 'glre': unknown to MSCCL++'s parser"),
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


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_files_that_no_runtime_reads_are_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        mscclpp.read(text.encode(), "x.json")
    assert message in str(error.value)
    assert str(error.value).startswith("x.json")


def test_large_files_are_refused() -> None:
    with pytest.raises(ScheduleError, match="expected at most 64 MiB, got 100"):
        mscclpp.read(b" " * (100 << 20), "x.json")


def test_overlapping_chunks_of_one_operation_have_no_order() -> None:
    ops = [files.op("copy", "i0*3", ">", "o0*3", kind="none"), files.NOP]
    blocks = [[[*ops, files.op("copy", "o0*2", ">", "o1*2", kind="none")]]] * 2
    audit = files.audited(files.text(files.plan("allreduce", (3, 3, 0), blocks)))
    beginning = (
        "race: GPU 0, thread block 0, operation 2 reads o[1] of GPU 0, and GPU 0, thread block 0, operation 2 writes"
    )
    assert any(fault.startswith(beginning) for fault in audit.faults)


def test_a_huge_job_is_refused() -> None:
    document = files.plan("allreduce", (1, 1, 0), [[]] * 257)
    with pytest.raises(ScheduleError, match=r"257 GPUs, expected 1 … 256"):
        files.audited(files.text(document))


def test_plans_that_take_hours_to_check_are_refused() -> None:
    blocks = [[[files.op("copy", "i0*65536", ">", "o0*65536", kind="none")] * 64]] * 2
    with pytest.raises(ScheduleError, match=r"4 thread blocks and agents with 128 .*: too many to check"):
        files.audited(files.text(files.plan("allreduce", (2**16, 2**16, 0), blocks)))
