"""Readers of MSCCL XML: files by hand are judged right, planted faults are named, hostile ones refused."""

from __future__ import annotations

import pytest

from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.errors import ScheduleError
from blinkccl.foreign import msccl
from blinkccl.foreign.formats import audits
from blinkccl.foreign.verify import run
from support import foreign_files as files

FILES = {
    "ring": files.ring_allreduce(),
    "scatter": files.gathered_reduce_scatter(),
    "gather": files.pair_allgather(),
    "all to all": files.relayed_alltoall(),
    "broadcast": files.broadcast_from_1(),
}
SAYS = {
    "ring": "allreduce among 3 ranks, out of place",
    "scatter": "reduce_scatter among 3 ranks, out of place",
    "gather": "allgather among 2 ranks, in place",
    "all to all": "alltoall among 3 ranks, out of place",
    "broadcast": "broadcast among 3 ranks, root 1, in place",
}


def faults(text: str) -> str:
    found = audits(text.encode(), "x.xml")
    assert found is not None
    return "\n".join(fault for one in found for fault in one.faults)


@pytest.mark.parametrize("name", FILES)
def test_what_is_right_is_proved_and_runs(name: str) -> None:
    (found,) = audits(FILES[name].encode(), "x.xml") or ()
    assert found.faults == ()
    assert found.text().startswith(SAYS[name] + "\n")
    plan = found.plan
    inputs = make_inputs(plan.collective, 3 * plan.chunks, "float32")
    for seed in (None, *range(5)):
        assert mismatch(run(plan, inputs, seed=seed), oracle(plan.collective, inputs), 3 * plan.chunks) is None


def test_a_loop_of_dependences_is_a_deadlock() -> None:
    blocks: list[files.Tb] = [(-1, -1, 0, ["cpy i0 o0 <1.0 !"]), (-1, -1, 0, ["cpy i0 s0 <0.0 !"])]
    said = faults(files.algorithm("allreduce", 1, [(1, 1, 1, blocks)]))
    assert "deadlock: 2 thread block(s) wait for ever: GPU 0, thread block 0, step 0 for the flag" in said


def test_sends_without_room_are_a_deadlock_where_chunks_are_large() -> None:
    """Both GPUs send three chunks before they receive, and a connection holds two."""
    gpus = [[(1 - r, 1 - r, 0, [f"s o{3 * r} - *3", f"r - o{3 - 3 * r} *3"])] for r in range(2)]
    text = files.algorithm("allgather", 6, [(0, 6, 0, tbs) for tbs in gpus], in_place=True)
    assert "for room on channel 0 from GPU 0 to GPU 1" in faults(text)
    assert faults(text.replace('maxBytes="0"', 'maxBytes="65536"')) == ""  # all of a step in one message
    assert faults(text.replace("Simple", "LL")) == ""


def test_both_ways_of_a_call_are_judged() -> None:
    both = files.ring_allreduce().replace('inplace="0"', 'inplace="1"')
    found = audits(both.encode(), "x.xml") or ()
    assert [(one.plan.in_place, one.ok) for one in found] == [(False, True), (True, True)]


@pytest.mark.parametrize("in_place", [False, True])
def test_files_for_the_first_runtime_go_by_inplace_alone(in_place: bool) -> None:
    file = files.ring_allreduce().replace('inplace="0"', f'inplace="{int(in_place)}"').replace(' outofplace="1"', "")
    assert "outofplace" not in file
    found = audits(file.encode(), "x.xml") or ()
    assert [(one.plan.in_place, one.ok) for one in found] == [(in_place, True)]


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><algo name="&b;"/>'
REFUSED = [
    (BOMB, "a document type or entities"),
    ("<algo", "not well-formed XML"),
    ("<algo>" * 80, "nested deeper than 64"),
    ('<algo nchannels="1"/>', "<algo> has no 'ngpus': a runtime would ignore the file without a word"),
    (
        files.ring_allreduce().replace("allreduce", "custom"),
        "collective 'custom' is not judged; expected one of allreduce",
    ),
    (files.ring_allreduce().replace('proto="Simple"', 'proto="Fast"'), "proto 'Fast' is not one of Simple, LL, LL128"),
    (files.ring_allreduce().replace(' deps="-1"', "", 1), "line 4: <step> has no 'deps'"),
    (files.ring_allreduce().replace('cnt="1"', 'cnt="72"', 1), "cnt of <step>: expected 0 … 71, got '72'"),
    (files.ring_allreduce().replace('chan="0"', 'chan="1"', 1), "chan of <tb>: expected 0 … 0, got '1'"),
    (files.ring_allreduce().replace('<step s="1"', '<step s="7"', 1), "step s=7, expected 1"),
    (files.ring_allreduce().replace('send="1"', 'send="0"', 1), "GPU 0 and send 0: no thread block has its own GPU"),
    (files.ring_allreduce().replace('send="1"', 'send="-1"', 1), "type 's', but its thread block has send -1"),
    (files.ring_allreduce().replace('srcoff="2"', 'srcoff="3"', 1), "chunks 3 … 3 of i, which has 3 chunks"),
    (files.ring_allreduce().replace('i_chunks="3"', 'i_chunks="4"', 1), "i_chunks of GPU 0: expected 3 or 0, got 4"),
    (files.ring_allreduce().replace('type="rrs"', 'type="ra"', 1), "type 'ra' is not one of s, r, rcs"),
    (files.ring_allreduce().replace('gpu id="1"', 'gpu id="2"', 1), "expected a <gpu> for each of 0 … 2 in order"),
    (files.ring_allreduce().replace('outofplace="1"', 'outofplace="0"'), "inplace and outofplace are both 0"),
    (files.ring_allreduce().replace('depid="-1"', 'depid="4"', 1), "depid of <step>: expected -1 … 0, got '4'"),
    (files.ring_allreduce().replace('ngpus="3"', 'ngpus="1e9"', 1), "ngpus of <algo>: expected 1 … 256"),
    (files.ring_allreduce().replace("by hand", "x" * 300), "a text of more than 255 characters"),
    (
        files.gathered_reduce_scatter().replace('depid="1" deps="1"', 'depid="-1" deps="-1"', 1),
        "the last of several dependences must be on the step itself",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_what_no_runtime_reads_is_refused(text: str, said: str) -> None:
    with pytest.raises(ScheduleError) as error:
        msccl.read(text.encode(), "x.xml")
    assert said in str(error.value)
    assert str(error.value).startswith("x.xml")


def test_limits_are_named() -> None:
    many = files.algorithm("allreduce", 1, [(1, 1, 0, [(-1, -1, 0, ["cpy i0 o0"] * 257)])])
    with pytest.raises(ScheduleError, match="257 steps, expected at most 256"):
        msccl.read(many.encode(), "x.xml")
    wide = files.algorithm("allreduce", 1, [(1, 1, 0, [(-1, -1, 0, ["cpy i0 o0"] * 200)] * 30)])
    with pytest.raises(ScheduleError, match="a rank loads 6032 nodes of this file, expected at most 4096"):
        msccl.read(wide.encode(), "x.xml")
    fan = [(34, 34, 0, [(peer, -1, 0, [f"s i{peer} -"]) for peer in range(1, 34)])]
    fan += [(34, 34, 0, [(-1, 0, 0, [f"r - o{rank}"])]) for rank in range(1, 34)]
    with pytest.raises(ScheduleError, match="33 thread blocks of GPU 0 send on channel 0, expected at most 32"):
        msccl.read(files.algorithm("alltoall", 34, fan).encode(), "x.xml")
    with pytest.raises(ScheduleError, match="expected at most 64 MiB, got 100"):
        msccl.read(b"<algo>" + b" " * (100 << 20), "x.xml")


def test_what_would_take_hours_is_refused() -> None:
    steps = ["cpy i0 o0 *71"] * 256
    text = files.algorithm("allreduce", 71, [(71, 71, 0, [(-1, -1, 0, steps)] * 8)] * 32)
    with pytest.raises(
        ScheduleError,
        match=r"288 thread blocks and agents with [0-9]+ instructions on 4655328 chunks: too many to judge",
    ):
        audits(text.encode(), "x.xml")


def test_chunks_of_one_step_that_overlap_are_in_no_order() -> None:
    text = files.algorithm("allreduce", 3, [(3, 3, 0, [(-1, -1, 0, ["cpy i0 o0 *3", "cpy o0 o1 *2"])])])
    assert (
        "race: GPU 0, thread block 0, step 1 reads o[1] of GPU 0, and GPU 0, thread block 0, step 1 writes it"
        in faults(text)
    )


def test_a_huge_job_is_refused() -> None:
    text = files.algorithm("alltoall", 257, [(257, 257, 0, [])] * 257)
    with pytest.raises(ScheduleError, match=r"ngpus of <algo>: expected 1 … 256, got '257'"):
        msccl.read(text.encode(), "x.xml")
