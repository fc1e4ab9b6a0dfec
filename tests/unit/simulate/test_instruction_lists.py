"""Plans of other runtimes in the simulator: times by hand, what waits for what, and who is slower."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median

import pytest

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.errors import TopologyError, UsageError
from blinkccl.export.registry import Choices, format_of
from blinkccl.foreign import msccl, mscclpp
from blinkccl.foreign.formats import audits
from blinkccl.foreign.instructions import InstructionList
from blinkccl.foreign.verify import SERVED
from blinkccl.schedule.lower import lower
from blinkccl.simulate import kernel
from blinkccl.simulate.calibration import Calibration, calibration, parse_calibration
from blinkccl.simulate.instructions import listed_run, shortest
from blinkccl.simulate.run import simulate
from blinkccl.topology.spec import parse_spec
from support import foreign_files as files
from support import reference_kernel
from support.planned import asked, plan_or_reason

#: A message: 3 us before it, 1 us on a link, 25 GB/s, and 2 us until it is known; combining two: 5 us, at 50 GB/s.
COSTS = parse_calibration(
    """
    schema_version = 2
    name = "by hand"
    about = "round numbers"
    engine.launch_us = { value = 7.0, source = "assumed" }
    engine.issue_us = { value = 3.0, source = "assumed" }
    engine.signal_us = { value = 2.0, source = "assumed" }
    engine.reduce_us = { value = 5.0, source = "assumed" }
    engine.reduce_gb_per_s = { value = 50.0, source = "assumed" }
    link = [{ kind = "nvlink", nominal_gb_per_s = 25.0, gb_per_s = { value = 25.0, source = "nominal" },
              latency_us = { value = 1.0, source = "assumed" } }]
    """.replace("\n              ", " "),
    "by hand",
)
START, MESSAGE, STORE, SIGNAL, SUM = 7e-6, 6e-6, 4e-6, 3e-6, 5e-6
#: Bytes that a link moves in a millisecond.
MS = 25_000_000


def plan_of(text: str) -> InstructionList:
    """The first plan of a file without faults."""
    found = (audits(text.encode(), "by hand") or ())[0]
    assert found.faults == ()
    return found.plan


def seconds(
    plan: InstructionList, size: int, spec: str = "clique:3", message: int = 2**40, costs: Calibration = COSTS
) -> float:
    topology = parse_spec(spec)
    workload = listed_run(plan, topology.ranks, topology, costs).at(size, message)
    for sharing in ("fifo", "fair"):
        assert kernel.run(workload, sharing).seconds == reference_kernel.run(workload, sharing).seconds
    return kernel.run(workload).seconds


def broadcast(blocks: Sequence[Sequence[files.Tb]], chunks: int = 1) -> InstructionList:
    """From GPU 0, out of place."""
    tbs = [(chunks, chunks, 0, list(each)) for each in blocks]
    return plan_of(files.algorithm("broadcast", chunks, tbs))


COPY: files.Tb = (-1, -1, 0, ["cpy i0 o0"])
SIDE_BY_SIDE = broadcast(
    [
        [(1, -1, 0, ["s i0 -"]), (2, -1, 0, ["s i0 -"]), COPY],
        [(-1, 0, 0, ["r - o0"])],
        [(-1, 0, 0, ["r - o0"])],
    ]
)
ON_A_CHAIN = broadcast(
    [[(1, -1, 0, ["s i0 -"]), COPY], [(2, 0, 0, ["rcs - o0"])], [(-1, 1, 0, ["r - o0"])]],
)


def test_thread_blocks_are_side_by_side_and_a_chain_is_not() -> None:
    assert seconds(SIDE_BY_SIDE, MS) == pytest.approx(START + MESSAGE + 1e-3)
    assert seconds(ON_A_CHAIN, MS) == pytest.approx(START + 2 * MESSAGE + 2e-3)


def test_passes_make_a_pipeline_of_a_chain() -> None:
    assert seconds(ON_A_CHAIN, MS, message=MS // 8) == pytest.approx(START + 9 * STORE + 2 * 2e-6 + 9 / 8 * 1e-3)
    plan = ON_A_CHAIN
    assert (plan.slots, plan.message_bytes) == (2, 2**21)
    topology = parse_spec("clique:3")
    run = listed_run(plan, topology.ranks, topology, COSTS)
    assert [run.passes(size) for size in (0, 4, 2**21, 2**21 + 4, 2**26)] == [1, 1, 1, 2, 32]


def test_steps_of_a_thread_block_come_one_after_the_other() -> None:
    """Two chunks, in two steps of one thread block or of two: on one link these take turns all the same."""
    one = broadcast(
        [
            [(1, -1, 0, ["s i0 -", "s i1 -"]), (2, -1, 0, ["s i0 - *2"]), (-1, -1, 0, ["cpy i0 o0 *2"])],
            [(-1, 0, 0, ["r - o0", "r - o1"])],
            [(-1, 0, 0, ["r - o0 *2"])],
        ],
        chunks=2,
    )
    assert seconds(one, MS) == pytest.approx(START + 2 * MESSAGE - 2e-6 + 1e-3)  # the last is known 2 us later, once


def test_a_ring_takes_its_hops_and_sums() -> None:
    plan = plan_of(files.ring_allreduce(3))
    hop = MESSAGE + 1e-3 / 3
    assert seconds(plan, MS) == pytest.approx(START + 4 * hop + 2 * (SUM + MS / 3 / 50e9))


def test_a_step_waits_for_another_thread_blocks() -> None:
    """Both messages come side by side, and are added one after the other, in a third thread block."""
    plan = plan_of(files.gathered_reduce_scatter())
    assert seconds(plan, MS) == pytest.approx(START + MESSAGE + 1e-3 / 3 + 2 * (SUM + MS / 3 / 50e9))


def test_a_sender_waits_for_room() -> None:
    """Four messages to who takes the first after a long one from elsewhere: two come before that, two after it."""
    sends = [(1, -1, 0, [f"s i{k} -" for k in range(4)]), (2, -1, 0, ["s i0 - *4"]), (-1, -1, 0, ["cpy i0 o0 *4"])]
    takes = [(-1, 0, 0, ["r - s0 <1.0", *(f"r - o{k}" for k in range(1, 4))]), (-1, 2, 0, ["r - o0 !"])]
    other = [(-1, 0, 0, ["r - o0 *4 !"]), (1, -1, 0, ["s o0 - <0.0"])]
    gpus = [(4, 4, 0, sends), (4, 4, 1, takes), (4, 4, 0, other)]
    plan = plan_of(files.algorithm("broadcast", 4, gpus))  # type: ignore[arg-type]
    released = START + 2 * MESSAGE + 1e-3 + 1e-3 / 4  # the long one, and what is passed on of it
    assert seconds(plan, MS) == pytest.approx(released + 2 * MESSAGE - 2e-6 + 2 / 4 * 1e-3)


def test_puts_signals_and_reads() -> None:
    """Both begin; put half, which takes no time to be known; signal; add, and put the sum; signal."""
    plan = plan_of(files.text(files.grouped_allreduce()))
    quarter = MS / 4  # of a link that two thread blocks share
    put = STORE + 2 * quarter / 25e9
    total = START + SIGNAL + put + SIGNAL + SUM + quarter / 50e9 + put + SIGNAL
    assert seconds(plan, MS, "clique:2") == pytest.approx(total, rel=0.01)
    read = plan_of(files.text(files.read_allreduce()))
    half = MS / 2 / 25e9
    total = START + SIGNAL + (MESSAGE + half) + SUM + MS / 2 / 50e9 + STORE + half + SIGNAL
    assert seconds(read, MS, "clique:2") == pytest.approx(total)


def test_semaphores_barriers_and_proxies() -> None:
    plan = plan_of(files.text(files.put_reduce_scatter()))
    total = START + SIGNAL + STORE + MS / 2 / 25e9 + SIGNAL + SUM + MS / 2 / 50e9
    assert seconds(plan, MS, "clique:2") == pytest.approx(total)
    port = plan_of(files.text(files.port_allgather()))
    assert seconds(port, MS, "clique:2") == pytest.approx(START + SIGNAL + STORE + MS / 2 / 25e9 + SIGNAL)


def test_a_pass_begins_when_the_one_before_is_over() -> None:
    """A thread block that sends and then receives: no pass of it is under way beside another."""
    there = [(1, 1, 0, ["s i0 -", "r - o0"])]
    back = [(0, 0, 0, ["rrcs i0 o0"])]
    plan = plan_of(files.algorithm("allreduce", 1, [(1, 1, 0, there), (1, 1, 0, back)]))  # type: ignore[list-item]
    for passes in (1, 4):
        round_trip = 2 * (MESSAGE + 1e-3 / passes) + SUM + MS / passes / 50e9
        assert seconds(plan, MS, "clique:2", MS // passes) == pytest.approx(START + passes * round_trip)


def _by_two_proxies(between: list[files.Json]) -> InstructionList:
    """AllGather of two chunks, each by a proxy of its own; ``between`` stands between the two puts."""

    def both(name: str) -> list[files.Json]:
        return [{"name": name, "channel_ids": [each], "channel_type": "port"} for each in (0, 1)]

    blocks = [
        [
            [
                *files.begun("port"),
                files.op("put", "i0", ">", f"@1:{2 * rank}", kind="port", channel_ids=[0]),
                *between,
                files.op("put", "i1", ">", f"@1:{2 * rank + 1}", kind="port", channel_ids=[1]),
                *both("signal"),
                *both("flush"),
                *both("wait"),
                files.NOP,
                files.op("copy", "i0*2", ">", f"o{2 * rank}*2", kind="none"),
            ],
        ]
        for rank in range(2)
    ]
    document = files.plan("allgather", (2, 4, 0), blocks, kind="port")
    for rank, gpu in enumerate(document["gpus"]):
        gpu["channels"][0]["connected_to"] = [1 - rank, 1 - rank]
        gpu["threadblocks"][0]["channels"][0]["channel_ids"] = [0, 1]
    return plan_of(files.text(document))


def test_proxies_work_side_by_side_until_a_flush() -> None:
    flush = {"name": "flush", "channel_ids": [0], "channel_type": "port"}
    half, begun = MS / 2 / 25e9, START + SIGNAL
    assert seconds(_by_two_proxies([]), MS, "clique:2") == pytest.approx(begun + STORE + half + SIGNAL, abs=1e-6)
    flushed = seconds(_by_two_proxies([flush, files.NOP]), MS, "clique:2")
    assert flushed == pytest.approx(begun + 2 * STORE + half + SIGNAL, abs=1e-6)


def test_links_at_who_combines_are_slower() -> None:
    """Both directions are in use, and two send to each that combines: as for a program of ours."""
    costs = calibration("v100-copy-engine")
    topology = parse_spec("clique:3")
    run = listed_run(plan_of(files.gathered_reduce_scatter()), topology.ranks, topology, costs)
    assert run.table.rates == pytest.approx([22e9 * 0.903 * 0.957] * 6)
    assert listed_run(ON_A_CHAIN, topology.ranks, topology, costs).table.rates == [22e9] * 2


@pytest.mark.parametrize("plan", [ON_A_CHAIN, SIDE_BY_SIDE], ids=["chain", "side by side"])
def test_nothing_is_taken_before_its_turn(plan: InstructionList) -> None:
    """What every actor waits for first is the instruction before it."""
    topology = parse_spec("clique:3")
    run = listed_run(plan, topology.ranks, topology, COSTS)
    firsts = [run.hops[actor.receives[0]] for actor in run.actors if actor.receives]
    assert all(hop.route is None and hop.tail == hop.head - 1 for hop in firsts)


def test_rounds_are_those_of_the_size() -> None:
    """Two thread blocks of either GPU: an actor for each of five instructions, and with it what arrives elsewhere."""
    plan = plan_of(files.text(files.pipelined_allreduce()))
    topology = parse_spec("clique:2")
    run = listed_run(plan, topology.ranks, topology, COSTS)
    once, thrice = (len(run.of_size(size).actors) for size in (2 * files.UNIT, 6 * files.UNIT))
    assert len(run.actors) == once
    per_round = 4 + 1 + 5 + 1  # put, signal, wait, release; where it is put; acquire, add, signal, wait, and again
    assert thrice - once == 2 * 2 * (per_round - 1)
    large = plan_of(files.text(files.pipelined_allreduce()).replace(f": {files.UNIT}", f": {2**20}"))
    whole = plan_of(files.text(files.pipelined_allreduce()).replace(f": {files.UNIT}", f": {2**31}"))
    # Puts, sums and puts of the sum, 4 + 2 + 4 ms, of which rounds do the sums while the links are in use.
    assert seconds(whole, 8 * MS, "clique:2") == pytest.approx(10e-3, abs=5 * MESSAGE)
    assert seconds(large, 8 * MS, "clique:2") < 9e-3


def test_a_switch_takes_from_all_at_once_and_gives_to_all() -> None:
    """Loads take the links of both GPUs to the switch, stores those from it: none of the four has room for another."""
    plan = plan_of(files.text(files.switch_allreduce()))
    server = parse_spec("dgx-h100")
    run = listed_run(plan, (0, 1), server, COSTS)
    (rate,) = set(run.table.rates)
    assert kernel_seconds(run.at(MS)) == pytest.approx(START + 2 * MS / rate, abs=4 * MESSAGE)
    store = plan_of(files.text(files.switch_allgather()))
    assert kernel_seconds(listed_run(store, (0, 1), server, COSTS).at(MS)) == pytest.approx(
        START + MS / rate, abs=3 * MESSAGE
    )
    with pytest.raises(TopologyError, match=r"adds up or multicasts in a switch, and .* has none that does so"):
        listed_run(plan, (0, 1), parse_spec("dgx-a100"), COSTS)


def test_packets_are_waited_for() -> None:
    plan = plan_of(files.text(files.packet_allreduce()))
    assert seconds(plan, MS, "clique:2") == pytest.approx(START + MESSAGE + 1e-3 + SUM + MS / 50e9)


def test_ways_lead_over_switches_and_never_through_memories() -> None:
    dgx = parse_spec("dgx-2")
    assert shortest(dgx, 0, 5) == (0, 16, 5)
    ring = parse_spec("ring:4")
    assert (shortest(ring, 0, 1), shortest(ring, 0, 2)) == ((0, 1), None)
    with pytest.raises(TopologyError, match=r"GPU 0, thread block 1, step 0 moves data from GPU 0 to GPU 2, which are"):
        listed_run(SIDE_BY_SIDE, (0, 1, 2), ring, COSTS)
    assert listed_run(ON_A_CHAIN, (0, 1, 2), ring, COSTS).legs == {(0, 1): (((0, 1),),), (1, 2): (((1, 2),),)}
    with pytest.raises(UsageError, match="a plan for 3 GPUs, but 4 are given"):
        listed_run(ON_A_CHAIN, (0, 1, 2, 3), ring, COSTS)


def test_a_run_keeps_to_its_budget() -> None:
    topology = parse_spec("clique:3")
    run = listed_run(ON_A_CHAIN, topology.ranks, topology, COSTS)
    with pytest.raises(UsageError, match=r"1,073,741,824 bytes in 512 passes are .* than the budget of 1,000; take"):
        run.at(2**30, None, 1000)


#: A switch, no ring, no symmetry; a plan that goes over PCIe beside NVLink has no ways on these links.
JOBS = {"dgx-1v": "1,4,5,6", "dgx-a100": "0,3,5,6", "ring:5": None, "random:5:seed=3": None}
PASSES = 8


def test_our_plans_take_as_long_as_themselves() -> None:
    """Exported, read back, in as many chunks: half of them to a thousandth, nine of ten from -15 to +30 %.

    They differ where a thread block has several things to do, for up and down or for several trees: it does so in
    turn, and begins a pass when the one before is over, so that the pipeline has gaps (up to +75 %). They are faster
    where messages come to a link in another order.
    """
    found = [
        part
        for spec, gpus in JOBS.items()
        for name in SERVED
        for algorithm in ALGORITHMS
        if algorithm != "hybrid"
        for part in _part(asked(spec, name, gpus, root=2), algorithm)
    ]
    assert len(found) > 60
    assert min(found) > 0.85
    assert max(found) < 1.75
    assert sorted(found)[len(found) * 9 // 10] < 1.30
    assert median(found) == pytest.approx(1, rel=1e-3)
    assert sum(abs(part - 1) < 1e-3 for part in found) >= len(found) / 2


def _part(request: Request, algorithm: str) -> list[float]:
    """How long the exported plan takes, of how long the plan does."""
    costs, size = calibration("nominal"), 2**26
    forest = plan_or_reason(algorithm, request)
    if isinstance(forest, str):
        return []
    program = lower(forest)
    text = format_of("msccl").write_as(Choices())(program, forest, None)[0].text
    run = listed_run(plan_of(text), forest.ranks, forest.topology, costs)
    theirs = kernel_seconds(run.at(size, -(-round(run.chunk_bytes(size)) // PASSES)))
    largest = max(part.stop - part.start for part in program.slices) / program.collective.total_blocks()
    ours = simulate(program, forest.topology, costs, size, chunk_bytes=int(largest * size / PASSES) + 16)
    return [theirs / ours.seconds]


@pytest.mark.parametrize(("spec", "gpus"), [("dgx-1v", "1,4,5,6"), ("dgx-a100", "0,3,5,6")])
def test_rounds_of_our_plans_overlap(spec: str, gpus: str) -> None:
    """As JSON of MSCCL++ an AllReduce takes what the plan takes; stages of trees one by one would take twice that."""
    costs, size = calibration("nominal"), 2**27
    forest = ALGORITHMS["optimal"].plan(asked(spec, "allreduce", gpus))
    text = format_of("mscclpp").write_as(Choices())(lower(forest), forest, None)[0].text
    theirs = kernel_seconds(listed_run(plan_of(text), forest.ranks, forest.topology, costs).at(size))
    assert theirs < 1.15 * simulate(lower(forest), forest.topology, costs, size, chunk_bytes=2**19).seconds


def kernel_seconds(workload: object) -> float:
    from blinkccl.simulate.run import run

    return run(workload, "fifo").seconds  # type: ignore[arg-type]


def test_a_file_that_is_made_slower_is_slower() -> None:
    request = asked("dgx-1v", "allgather", "1,4,5,6")
    forest = ALGORITHMS["optimal"].plan(request)
    for name, module, change in (
        ("msccl", msccl, lambda text: text.replace('proto="Simple"', 'proto="LL"')),
        ("mscclpp", mscclpp, _one_thread_block_after_the_other),
    ):
        text = format_of(name).write_as(Choices())(lower(forest), forest, None)[0].text
        assert change(text) != text
        before, after = (
            listed_run(module.read(one.encode(), "x")[0], forest.ranks, forest.topology, COSTS)
            for one in (text, change(text))
        )
        assert kernel_seconds(after.at(2**24)) > 1.2 * kernel_seconds(before.at(2**24))


def _one_thread_block_after_the_other(text: str) -> str:
    """Everything is sent twice; the second time for nothing."""
    document = json.loads(text)
    for gpu in document["gpus"]:
        for block in gpu["threadblocks"]:
            for body in (op["ops"] for op in block["ops"] if op["name"] == "pipeline"):
                body[:] = [op for each in body for op in [each] * (1 + (each["name"] in ("put", "res")))]
    return json.dumps(document)
