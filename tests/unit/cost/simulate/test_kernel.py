"""The native kernel on cases with results by hand, and with links in turn compared bit by bit with Python.

Rates are one-digit bytes per second, so that all times are exact in binary.
"""

from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.cost.simulate.kernel import run
from blinkccl.cost.simulate.workload import SHARINGS, Outcome, Trace, Workload
from blinkccl.errors import InternalError
from support import reference_kernel
from support.examples import examples
from support.programs import random_program
from support.random_workloads import LATENCIES, random_lowered, random_plan, random_translation, random_workload
from support.timed import bits
from support.workload_rows import ActorRow, HopRow, workload


@pytest.fixture(scope="module", params=SHARINGS)
def sharing(request):
    return request.param


def chain(
    links: int = 1,
    *,
    chunks: int = 1,
    size: int = 8,
    last: int | None = None,
    rates: tuple[float, ...] = (),
    **hop: object,
) -> Workload:
    """A relay: actor i sends to actor i + 1 over link i."""
    actors = [ActorRow(chunks, size, last) for _ in range(links + 1)]
    hops = [HopRow(i, i + 1, (i,), **hop) for i in range(links)]
    return workload(actors, hops, rates or (4.0,) * links)


def fan(count: int, *, sizes: tuple[int, ...] = (), weights: tuple[float, ...] = ()) -> Workload:
    """``count`` pairs of actors whose transfers all cross one link."""
    sizes, weights = sizes or (8,) * count, weights or (1.0,) * count
    actors = [ActorRow(1, sizes[i // 2]) for i in range(2 * count)]
    hops = [HopRow(2 * i, 2 * i + 1, (0,), weight=weights[i]) for i in range(count)]
    return workload(actors, hops, (4.0,))


def rows(trace: Trace | None) -> list[tuple[object, ...]]:
    """(hop, actor, chunk, begin, move, end, cause, holder) of every task."""
    assert trace is not None
    return list(zip(*(getattr(trace, field.name).tolist() for field in fields(Trace)[:8]), strict=True))


def ends(outcome: Outcome) -> list[float]:
    assert outcome.trace is not None
    return outcome.trace.end_s.tolist()


# One transfer.


def test_a_transfer_takes_latency_and_bytes_over_rate(sharing) -> None:
    done = run(chain(latency_s=0.5), sharing)
    assert (done.seconds, done.transfers, done.executions) == (0.5 + 8 / 4, 1, 0)
    assert done.actor_s.tolist() == [0.0, 2.5]
    assert done.busy_s.tolist() == [2.0]
    assert done.trace is None


def test_the_receiver_knows_when_the_signal_is_there(sharing) -> None:
    done = run(chain(2, signal_s=0.25), sharing, True)
    assert done.seconds == 2 * (2 + 0.25)
    assert ends(done) == [2.0, 4.25]
    assert [row[6] for row in rows(done.trace)] == [-1, 0]  # the next hop begins with it


def test_no_links_and_no_bytes_cost_their_latency(sharing) -> None:
    nowhere = workload([ActorRow(1, 8)] * 2, [HopRow(0, 1, (), latency_s=0.5)], (4.0,))
    assert run(nowhere, sharing).seconds == 0.5
    assert run(chain(size=0, latency_s=0.5), sharing).seconds == 0.5


def test_nothing_to_do_ends_at_once(sharing) -> None:
    for empty in (workload([], [], ()), chain(2, chunks=0, latency_s=0.5)):
        done = run(empty, sharing, True)
        assert (done.seconds, done.transfers, done.executions) == (0.0, 0, 0)
        assert rows(done.trace) == []


def test_slices_without_chunks_leave_the_others_alone(sharing) -> None:
    actors = [ActorRow(0, 8, start_s=9.0), ActorRow(0, 8), ActorRow(1, 8), ActorRow(1, 8)]
    both = workload(actors, [HopRow(0, 1), HopRow(2, 3)], (4.0,))
    assert run(both, sharing).actor_s.tolist() == [0.0, 0.0, 0.0, 2.0]


def test_a_path_of_several_links_is_as_fast_as_its_slowest(sharing) -> None:
    """Cut-through: bytes are on all links of a path at once."""
    for path in ((0, 1), (1, 0)):
        through = workload([ActorRow(1, 8)] * 2, [HopRow(0, 1, path, latency_s=0.5)], (8.0, 2.0))
        done = run(through, sharing)
        assert done.seconds == 0.5 + 8 / 2
        assert done.busy_s.tolist() == [1.0, 4.0]


# The chunk pipeline.


@pytest.mark.parametrize("chunks", [1, 2, 7])
def test_a_chain_takes_its_stages_and_its_slowest_per_chunk(sharing, chunks) -> None:
    """T = Σt + (k − 1)·max t: the chunk pipeline model."""
    stages = [0.5 + 8 / 4, 0.5 + 8 / 2, 0.5 + 8 / 8]
    done = run(chain(3, chunks=chunks, rates=(4.0, 2.0, 8.0), latency_s=0.5), sharing)
    assert done.seconds == sum(stages) + (chunks - 1) * max(stages)
    assert done.transfers == 3 * chunks


def test_a_shorter_last_chunk_takes_less(sharing) -> None:
    done = run(chain(2, chunks=3, last=2), sharing, True)
    # Hop 0 ends at 2, 4, 4.5; hop 1 a chunk later: 4, 6, 6.5.
    assert done.seconds == 6.5
    assert done.busy_s.tolist() == [(8 + 8 + 2) / 4] * 2


def test_a_sender_waits_while_its_slots_hold_messages(sharing) -> None:
    """Hop 0 takes 1 and hop 1 takes 4: the relay receives a message, then waits for a slot of hop 1 to forward it."""
    begins = {}
    for slots in (1, 2):
        done = run(chain(2, chunks=7, rates=(8.0, 2.0), slots=slots), sharing, True)
        begins[slots] = [row[3] for row in rows(done.trace) if row[0] == 0]
        assert done.seconds == 1 + 7 * 4
    # Hop 1 ends at 5, 9, 13, …: then the relay continues with the next message, and hop 0 has a slot.
    assert begins[1] == [0.0, 1.0, 2.0, 5.0, 9.0, 13.0, 17.0]
    assert begins[2] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 9.0]


def test_slots_hold_messages_that_are_not_received_yet(sharing) -> None:
    """While a receiver waits for a slow sender, a fast sender fills its slots and then waits."""
    actors = [ActorRow(3, 8), ActorRow(3, 8), ActorRow(3, 8, receives=(0, 1))]
    hops = [HopRow(0, 2, (0,)), HopRow(1, 2, (1,), slots=2)]
    done = run(workload(actors, hops, (1.0, 8.0)), sharing, True)
    begins = [row[3] for row in rows(done.trace) if row[0] == 1]
    assert begins == [0.0, 1.0, 8.0]
    assert done.seconds == 24.0


def stored(chunks: int, slots: int, rates: tuple[float, float] = (4.0, 4.0)) -> Workload:
    """A sender, a memory with ``slots``, and a receiver that reads from the memory."""
    hops = [HopRow(0, 1, (0,), slots=slots), HopRow(1, 2, (1,), slots=1, frees=0)]
    return workload([ActorRow(chunks, 8)] * 3, hops, rates)


@pytest.mark.parametrize(("slots", "seconds"), [(1, 7 * (2 + 2)), (2, (7 + 1) * 2), (3, (7 + 1) * 2)])
def test_store_and_forward_takes_a_chunk_more_and_with_one_slot_twice_as_long(sharing, slots, seconds) -> None:
    assert run(stored(7, slots), sharing).seconds == seconds


def test_a_stored_message_keeps_its_slot_until_it_has_been_read(sharing) -> None:
    """Writing takes 1, reading 4: a slot becomes free after each read, at 5, 9, 13, …"""
    done = run(stored(5, 2, (8.0, 2.0)), sharing, True)
    assert [row[3] for row in rows(done.trace) if row[0] == 0] == [0.0, 1.0, 5.0, 9.0, 13.0]
    assert [row[3] for row in rows(done.trace) if row[0] == 1] == [1.0, 5.0, 9.0, 13.0, 17.0]


# Links that transfers share.


FAIR = {
    "transfers of equal size end together": (fan(3), [6.0] * 3),
    # Processor sharing at rate 4.
    "shares grow when a transfer ends": (fan(3, sizes=(4, 8, 16)), [3.0, 5.0, 7.0]),
    # Alone until 1 with 4 bytes gone; halves until the 4 bytes of the second are over; the other 8 at full rate.
    "shares shrink when a transfer begins": (
        workload(
            [ActorRow(1, 16), ActorRow(1, 16), ActorRow(1, 4, start_s=1.0), ActorRow(1, 4)],
            [HopRow(0, 1), HopRow(2, 3)],
            (4.0,),
        ),
        [1 + 2 + 8 / 4, 1 + 4 / 2],
    ),
    # 3 and 1 bytes per second; the first ends at 4, the rest of the second moves at 4.
    "weights divide a link": (fan(2, sizes=(12, 8), weights=(3.0, 1.0)), [4.0, 5.0]),
    # A long flow over both links, one more on each: 2 and 2 on the first link, 6 left on the second.
    "rates are max-min over several links": (
        workload(
            [ActorRow(1, size) for size in (8, 8, 8, 8, 24, 24)],
            [HopRow(0, 1, (0, 1)), HopRow(2, 3, (0,)), HopRow(4, 5, (1,))],
            (4.0, 8.0),
        ),
        [4.0, 4.0, 4.0],
    ),
    # As above with weights 1, 3 and 1: 1 and 3 on the first link, 7 left on the second.
    "rates are max-min by weight over several links": (
        workload(
            [ActorRow(1, size) for size in (8, 8, 24, 24, 56, 56)],
            [HopRow(0, 1, (0, 1)), HopRow(2, 3, (0,), weight=3.0), HopRow(4, 5, (1,))],
            (4.0, 8.0),
        ),
        [8.0, 8.0, 8.0],
    ),
}


@pytest.mark.parametrize("case", FAIR)
def test_fair(case) -> None:
    given_, expected = FAIR[case]
    assert ends(run(given_, "fair", True)) == expected


def test_fifo_serves_one_transfer_after_the_other() -> None:
    """The holder is the transfer that used the link; weights have no effect."""
    done = run(fan(3, sizes=(8, 4, 16), weights=(1.0, 9.0, 1.0)), "fifo", True)
    moves = [(row[4], row[5], row[7]) for row in rows(done.trace)]
    assert moves == [(0.0, 2.0, -1), (2.0, 3.0, 0), (3.0, 7.0, 1)]


def test_fifo_serves_in_the_order_of_beginning() -> None:
    """The first transfer has the longer latency, and the link waits for it."""
    hops = [HopRow(0, 1, latency_s=3.0), HopRow(2, 3, latency_s=1.0)]
    done = run(workload([ActorRow(1, 8)] * 4, hops, (4.0,)), "fifo", True)
    assert [(row[3], row[4], row[5]) for row in rows(done.trace)] == [(0.0, 3.0, 5.0), (0.0, 5.0, 7.0)]


def test_fifo_lets_a_transfer_wait_at_each_link_of_its_path() -> None:
    """Cut-through over busy links: the transfer is on link 0 at once, and on link 1 when that becomes free."""
    hops = [HopRow(0, 1, (1,)), HopRow(2, 3, (0, 1)), HopRow(4, 5, (0,))]
    done = run(workload([ActorRow(1, 8)] * 6, hops, (4.0, 2.0)), "fifo", True)
    # Link 1: the first until 4, the second until 8. Link 0: the second until 2, the third until 4.
    assert [row[4:] for row in rows(done.trace)] == [(0.0, 4.0, -1, -1), (0.0, 8.0, -1, 0), (2.0, 4.0, -1, 1)]
    assert done.trace.held_s.tolist() == [0.0, 4.0, 2.0]


def test_a_fifo_link_serves_in_the_order_of_arrival_not_of_request() -> None:
    """The second was requested before the third but waits for link 0, so link 1 serves the third first."""
    hops = [HopRow(0, 1, (0,)), HopRow(2, 3, (0, 1)), HopRow(4, 5, (1,))]
    done = run(workload([ActorRow(1, 8)] * 6, hops, (2.0, 4.0)), "fifo", True)
    assert ends(done) == [4.0, 8.0, 2.0]
    assert done.trace.held_s.tolist() == [0.0, 4.0, 0.0]


# Streams, executions and copy engines.


def test_a_stream_does_one_thing_after_the_other(sharing) -> None:
    """Two sends over separate links run concurrently in two streams, and in turn in one."""
    actors = [ActorRow(1, 8)] * 3
    for streams, seconds in (((0, 1), 2.5), ((0, 0), 5.0)):
        hops = [HopRow(0, head, (head - 1,), stream=streams[head - 1], latency_s=0.5) for head in (1, 2)]
        assert run(workload(actors, hops, (4.0, 4.0)), sharing).seconds == seconds


def test_an_actor_sends_in_its_own_order(sharing) -> None:
    actors = [ActorRow(1, 8, sends=(1, 0)), ActorRow(1, 8), ActorRow(1, 8)]
    hops = [HopRow(0, 1, (0,), stream=0), HopRow(0, 2, (1,), stream=0)]
    done = run(workload(actors, hops, (4.0, 4.0)), sharing)
    assert done.actor_s.tolist() == [0.0, 4.0, 2.0]


def test_an_execution_takes_its_turn_in_the_stream_of_the_send(sharing) -> None:
    """Reduce and forward: 0.5 + 8/8 in the stream before each copy of 2; the stream has no gap after the first."""
    actors = [ActorRow(3, 8), ActorRow(3, 8, stream=1, launch_s=0.5, pace_s_per_byte=1 / 8), ActorRow(3, 8)]
    done = run(workload(actors, [HopRow(0, 1, (0,)), HopRow(1, 2, (1,))], (4.0, 4.0)), sharing, True)
    assert done.seconds == 2 + 3 * (1.5 + 2)
    assert (done.transfers, done.executions) == (6, 3)
    stream = [(row[0], row[2], row[3], row[5]) for row in rows(done.trace) if row[1] == 1]
    assert stream == [
        *((-1, 0, 2.0, 3.5), (1, 0, 3.5, 5.5)),
        *((-1, 1, 5.5, 7.0), (1, 1, 7.0, 9.0)),
        *((-1, 2, 9.0, 10.5), (1, 2, 10.5, 12.5)),
    ]


def test_an_execution_in_a_stream_of_its_own_overlaps_with_the_sends(sharing) -> None:
    actors = [ActorRow(3, 8), ActorRow(3, 8, stream=2, launch_s=0.5, pace_s_per_byte=1 / 8), ActorRow(3, 8)]
    done = run(workload(actors, [HopRow(0, 1, (0,)), HopRow(1, 2, (1,))], (4.0, 4.0)), sharing)
    assert done.seconds == 2 + 1.5 + 2 + 2 * 2


def test_the_last_event_may_be_an_execution(sharing) -> None:
    actors = [ActorRow(1, 8), ActorRow(1, 8, stream=1, launch_s=0.5)]
    done = run(workload(actors, [HopRow(0, 1)], (4.0,)), sharing, True)
    assert done.seconds == done.actor_s[1] == 2.5
    assert [row[0] for row in rows(done.trace)] == [0, -1]


def test_copy_engines_limit_transfers_in_flight(sharing) -> None:
    """Four sends over separate links take 2.5 each; an engine is in use from the latency on."""
    for engines, seconds in ((1, 10.0), (2, 5.0), (3, 5.0), (4, 2.5)):
        actors = [ActorRow(1, 8)] * 5
        hops = [HopRow(0, i + 1, (i,), pool=0, latency_s=0.5) for i in range(4)]
        assert run(workload(actors, hops, (4.0,) * 4, (engines,)), sharing).seconds == seconds


def test_copy_engines_are_assigned_in_the_order_of_requests(sharing) -> None:
    """Actor 2 requests the busy engine before actor 0's stream requests it for its second chunk."""
    actors = [ActorRow(2, 8), ActorRow(2, 8), ActorRow(1, 8, start_s=1.0), ActorRow(1, 8)]
    hops = [HopRow(0, 1, (0,), pool=0), HopRow(2, 3, (1,), pool=0)]
    done = run(workload(actors, hops, (4.0, 4.0), (1,)), sharing)
    assert done.actor_s.tolist() == [0.0, 6.0, 1.0, 4.0]


# Ranks that start late.


def test_a_late_receiver_receives_nothing_before_its_start(sharing) -> None:
    """Two messages fill the slots at 2 and 4; the relay receives them from 9 on."""
    actors = [ActorRow(3, 8), ActorRow(3, 8, start_s=9.0), ActorRow(3, 8)]
    done = run(workload(actors, [HopRow(0, 1, (0,)), HopRow(1, 2, (1,))], (4.0, 4.0)), sharing, True)
    assert [row[3] for row in rows(done.trace) if row[0] == 0] == [0.0, 2.0, 9.0]
    assert [row[3] for row in rows(done.trace) if row[0] == 1] == [9.0, 11.0, 13.0]
    assert done.seconds == 15.0


# The trace.


def test_the_trace_names_the_cause_of_each_begin(sharing) -> None:
    """Causes of a relay with a cost: start, arrival, stream, execution, stream."""
    actors = [ActorRow(2, 8), ActorRow(2, 8, stream=1, launch_s=0.5), ActorRow(2, 8)]
    hops = [HopRow(0, 1, (0,), latency_s=0.5), HopRow(1, 2, (1,), latency_s=0.5)]
    done = run(workload(actors, hops, (4.0, 4.0)), sharing, True)
    assert rows(done.trace) == [
        (0, 0, 0, 0.0, 0.5, 2.5, -1, -1),  # begins at the start
        (0, 0, 1, 2.5, 3.0, 5.0, 0, -1),  # the stream was busy with task 0
        (-1, 1, 0, 2.5, 2.5, 3.0, 0, -1),  # message 0 arrived
        (1, 1, 0, 3.0, 3.5, 5.5, 2, -1),  # the execution was done
        (-1, 1, 1, 5.5, 5.5, 6.0, 3, -1),  # message 1 arrived at 5, the stream was free after task 3
        (1, 1, 1, 6.0, 6.5, 8.5, 4, -1),
    ]


def test_the_cause_of_a_begin_may_be_a_slot_or_an_engine(sharing) -> None:
    slow = run(chain(2, chunks=4, rates=(8.0, 2.0), slots=1), sharing, True)
    assert [(row[0], row[2], row[3], row[6]) for row in rows(slow.trace)] == [
        (0, 0, 0.0, -1),
        (1, 0, 1.0, 0),
        (0, 1, 1.0, 0),
        (0, 2, 2.0, 2),
        (1, 1, 5.0, 1),
        (0, 3, 5.0, 1),  # the idle stream waited for the slot that the end of task 1 freed
        (1, 2, 9.0, 4),
        (1, 3, 13.0, 6),
    ]
    actors = [ActorRow(1, 8)] * 3
    hops = [HopRow(0, head, (head - 1,), pool=0) for head in (1, 2)]
    limited = run(workload(actors, hops, (4.0, 4.0), (1,)), sharing, True)
    assert [row[6] for row in rows(limited.trace)] == [-1, 0]


@examples(60)
@given(seed=st.integers(0, 2**32))
def test_traces_are_consistent(sharing, seed) -> None:
    given_ = random_workload(Random(seed))
    done = run(given_, sharing, True)
    trace = done.trace
    assert len(trace.hop) == given_.tasks == done.transfers + done.executions
    assert (trace.hop >= 0).sum() == done.transfers == given_.transfers
    assert (trace.begin_s <= trace.move_s).all()
    assert (trace.move_s <= trace.end_s).all()
    assert done.seconds == max(trace.end_s.max(), done.actor_s.max())
    assert (trace.move_s[trace.hop < 0] == trace.begin_s[trace.hop < 0]).all()
    # The cause of a task ended, or arrived, at its begin at the latest.
    caused = trace.cause >= 0
    assert (trace.end_s[trace.cause[caused]] <= trace.begin_s[caused]).all()
    # Each actor's tasks of one hop are its chunks in order, in sequence in its stream.
    for hop in range(len(given_.hops.tail)):
        mine = trace.hop == hop
        assert trace.chunk[mine].tolist() == list(range(int(given_.actors.chunks[given_.hops.tail[hop]])))
        assert (trace.end_s[mine][:-1] <= trace.begin_s[mine][1:]).all()
    held = trace.holder >= 0
    assert (trace.hop[trace.holder[held]] >= 0).all()
    assert not held.any() or sharing == "fifo"


# Faults of workloads.


def circle() -> Workload:
    """Two actors that wait for each other's message first."""
    return workload([ActorRow(2, 8)] * 2, [HopRow(0, 1), HopRow(1, 0)], (4.0,))


@pytest.mark.parametrize(
    ("stuck", "actor", "chunk", "at_s"),
    [
        (circle(), 0, "0 of 2", 0.0),
        (chain(2, chunks=3, slots=0), 0, "0 of 3", 0.0),
        # Both wait for chunk 1: the head waits for a message that its tail cannot send without a slot.
        (
            workload(
                [ActorRow(2, 8, sends=(0, 1)), ActorRow(2, 8, receives=(1, 0)), ActorRow(1, 8), ActorRow(1, 8)],
                [HopRow(0, 1), HopRow(0, 1, slots=0), HopRow(2, 3, latency_s=8.0)],
                (4.0,),
            ),
            0,
            "0 of 2",
            10.0,
        ),
        # A message arrives after the last end, and an actor starts after the message.
        (
            workload([ActorRow(1, 8)] * 4, [HopRow(0, 1, slots=0), HopRow(2, 3, signal_s=0.5)], (4.0,)),
            *(0, "0 of 1", 2.5),
        ),
        (
            workload([ActorRow(1, 8, start_s=9.0), ActorRow(1, 8)], [HopRow(0, 1, slots=0)], (4.0,)),
            *(0, "0 of 1", 9.0),
        ),
    ],
)
def test_a_workload_that_is_not_live_is_an_error_that_says_where(sharing, stuck, actor, chunk, at_s) -> None:
    with pytest.raises(InternalError, match=f"actor {actor} is in chunk {chunk}: the workload is not live") as raised:
        run(stuck, sharing)
    assert f"the simulation stopped at {at_s} s" in str(raised.value)


def test_an_unknown_sharing_is_refused() -> None:
    with pytest.raises(InternalError, match="unknown sharing 'first'; expected one of fifo, fair"):
        run(chain(), "first")


# The two kernels.


def assert_same_bits(given_: Workload) -> None:
    one, other = reference_kernel.run(given_, True), run(given_, "fifo", True)
    assert bits(one) == bits(other)
    untraced = run(given_, "fifo")
    assert untraced.seconds == one.seconds
    assert untraced.trace is None


@examples(300)
@given(seed=st.integers(0, 2**32), latencies=st.sampled_from(LATENCIES), memories=st.booleans())
def test_both_kernels_give_the_same_bits_on_layers(seed, latencies, memories) -> None:
    assert_same_bits(random_workload(Random(seed), latencies, memories))


@examples(80)
@given(seed=st.integers(0, 2**32), latencies=st.sampled_from(LATENCIES))
@pytest.mark.parametrize("made", [random_lowered, random_program, random_plan], ids=lambda made: made.__name__)
def test_both_kernels_give_the_same_bits_on_programs(seed, latencies, made) -> None:
    random = Random(seed)
    assert_same_bits(random_translation(random, made(random), latencies))


@examples(150)
@given(seed=st.integers(0, 2**32))
def test_both_kernels_give_the_same_bits_at_one_instant(seed) -> None:
    """Costs of one digit cause ties, which both kernels must decide in the same way."""
    random = Random(seed)
    assert_same_bits(coarse(random, random_workload(random)))


def coarse(random: Random, given_: Workload) -> Workload:
    """The same actors and hops with few values of costs, zero among them."""
    actors, hops = given_.actors, given_.hops

    def few(like: np.ndarray, *values: float) -> np.ndarray:
        return np.asarray([random.choice(values) for _ in like], like.dtype)

    size = few(actors.bytes, 0, 4, 8)
    return replace(
        given_,
        actors=replace(
            actors,
            bytes=size,
            last_bytes=np.minimum(size, few(size, 0, 4)),
            launch_s=few(actors.launch_s, 0, 1),
            pace_s_per_byte=few(actors.pace_s_per_byte, 0, 0.25),
            start_s=few(actors.start_s, 0, 1, 2),
        ),
        hops=replace(
            hops,
            latency_s=few(hops.latency_s, 0, 1),
            signal_s=few(hops.signal_s, 0, 0, 1),
        ),
        rates=few(given_.rates, 2, 4),
    )
