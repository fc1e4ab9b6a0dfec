"""The calls that Blink runs: those predicted faster than NCCL, with the same table for the same question."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

import pytest
from jobs_by_hand import job, on, settings

from blinkccl.codegen.channels import ChannelLoop, RoleExecution
from blinkccl.codegen.layout import ProgramGroup
from blinkccl.collectives.spec import Collective
from blinkccl.cost.choice.costs import PredictedTime, architecture, protocols_of, timing
from blinkccl.cost.choice.programs import SERVED, largest
from blinkccl.errors import LaunchError, TopologyError, UnsupportedError, UsageError
from blinkccl.nccl import choices
from blinkccl.nccl.choices import PROTOCOLS, Terms, wanted_protocol
from blinkccl.nccl.copies import MOST_OPERANDS, fault_of_job, fault_of_loops, fault_of_program
from blinkccl.nccl.geometry import Budget, budget, geometry
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.programs import (
    DEFAULT,
    FIRST,
    MOST_BESIDE,
    CandidatePrograms,
    candidates,
    collectives,
    wanted,
)
from blinkccl.nccl.topology_of_job import JobPlacement, without
from blinkccl.schedule.program import Role
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.tables import NCCL, Cell, Time
from blinkccl.units import bus_factor

MIB = 1 << 20
#: Blocks of a rank on V100s.
BLOCKS = 20


def on_machine(spec, ranks=None):
    topology = parse_spec(spec)
    return JobPlacement(topology, topology.ranks if ranks is None else ranks)


def question(where, capability=70, algorithms=DEFAULT, forced="", predictor=True, **terms):
    planned = candidates(where, algorithms, BLOCKS, {})
    against = NcclPredictor(where, capability) if predictor else None
    return planned, Terms(capability, BLOCKS, forced, **terms), against


def table(where, *arguments, **terms):
    planned, *rest = question(where, *arguments, **terms)
    return choices.table(planned, len(where.ranks), *rest)


def allreduce_rows(where, *arguments, **terms):
    """The rows of AllReduce alone, because all collectives and roots take ten times as long."""
    return choices.rows_of(Collective("allreduce", len(where.ranks)), *question(where, *arguments, **terms))


@pytest.fixture(scope="module")
def four():
    """GPUs 1, 4, 5 and 6 of a DGX-1V, where NCCL uses half of the bandwidth."""
    return table(on_machine("dgx-1v", (1, 4, 5, 6)))


def rows(choice_table, collective, root=-1):
    return [row for row in choice_table.choices if (row.collective, row.root) == (collective, root)]


def test_every_size_of_every_collective_and_root_has_one_row(four):
    for collective in collectives(4):
        own = rows(four, collective.name, -1 if collective.root is None else collective.root)
        assert own[0].least == 0
        assert own[-1].below == choices.BEYOND
        assert all(a.below == b.least for a, b in pairwise(own))
        assert all(row.least == 0 or row.least & (row.least - 1) == 0 for row in own)
        # Equal neighbours are one row, except where each class has its own search.
        way = attrgetter("ways")
        assert all(way(a) != way(b) or a.search for a, b in pairwise(own))
    assert {row.collective for row in four.choices} == set(SERVED)
    for row in four.taken:
        assert row.ways[0].chunk_bytes % 16 == 0
        assert 0 < row.ways[0].chunk_bytes <= largest(BLOCKS).capacity_bytes(row.protocol)
    searched = [row for row in four.choices if row.search]
    assert searched
    for row in searched:
        assert row.least >= choices.SEARCH_FROM_BYTES
        assert row.below in (2 * row.least, choices.BEYOND)
        assert row.protocol == "simple"


def test_trees_run_allreduce_on_half_a_dgx1_with_a_reason(four):
    own = rows(four, "allreduce")
    assert all((row.candidate is None) == (row.least == 0) for row in own if not MIB // 2 <= row.least <= MIB)
    last = own[-1]
    assert last.why == "blink optimal simple 39.8 GB/s, NCCL ring Simple 26.7 GB/s predicted at 4G"
    assert (last.protocol, last.search) == ("simple", True)
    assert own[0].why.startswith("blink optimal ll ")
    assert " us, NCCL " in own[0].why


def test_the_broadcast_that_nccl_does_as_well_stays_with_it(four):
    last = rows(four, "broadcast", 0)[-1]
    assert last.candidate is None
    assert (last.protocol, last.ways, last.search) == ("-", (), False)
    assert "blink optimal simple" in last.why
    assert "NCCL ring Simple 40 GB/s" in last.why


def test_the_same_question_has_the_same_answer(four):
    again = table(on_machine("dgx-1v", (1, 4, 5, 6)))
    strip = [(r.collective, r.root, r.least, r.below, r.protocol, r.why) for r in again.choices]
    assert strip == [(r.collective, r.root, r.least, r.below, r.protocol, r.why) for r in four.choices]


def measured(*times, size=1 << 20, below=0):
    """A cell of an AllReduce, for the class of its size alone."""
    rows = tuple(Time(*one, 9) for one in times)
    return Cell("allreduce", -1, (0, 1, 2, 3), size, size, below or 2 * size, "2026-01-01", rows)


@pytest.fixture(scope="module")
def allreduce():
    """A function from measured cells to the rows of an AllReduce on GPUs 0 to 3 of a DGX-1V."""
    where = on_machine("dgx-1v", (0, 1, 2, 3))
    planned, nccl = candidates(where, DEFAULT, BLOCKS, {}), NcclPredictor(where, 70)

    def own(*cells, against=nccl, algorithm=""):
        terms = Terms(70, BLOCKS, algorithm, measured=cells)
        return choices.rows_of(Collective("allreduce", 4), planned, terms, against), terms

    return own


def test_measurements_replace_predictions(allreduce):
    """The slowest by prediction is selected in the class in which it measured fastest, and in no other."""
    table_rows, _ = allreduce(measured(("one_shot", "ll", 50e-6), ("optimal", "ll128", 60e-6), (NCCL, "", 70e-6)))
    (row,) = [row for row in table_rows if row.measured]
    assert (row.least, row.below) == (1 << 20, 2 << 20)
    assert (row.candidate.algorithm, row.protocol) == ("one_shot", "ll")
    assert row.why == "blink one_shot ll 21 GB/s, NCCL 15 GB/s measured at 1M"
    assert 0 < row.ways[0].chunk_bytes <= largest(BLOCKS).capacity_bytes("ll")
    predicted, _ = allreduce()
    (before,) = [a for a in predicted if a.least <= 1 << 20 < a.below]
    assert before.candidate is None, "by prediction it is NCCL's"
    assert [a.why for a in table_rows if a.least > 2 << 20] == [a.why for a in predicted if a.least > 2 << 20]


@pytest.mark.parametrize(
    ("times", "taken"),
    [
        ([("optimal", "ll128", 60e-6), (NCCL, "", 55e-6)], None),
        ([("optimal", "ll128", 60e-6), (NCCL, "", 61e-6)], None),  # within the margin
        ([("optimal", "ll128", 60e-6), (NCCL, "", 62e-6)], ("optimal", "ll128")),
        ([("one_hop", "simple", 60e-6), ("optimal", "ll128", 50e-6), (NCCL, "", 55e-6)], ("optimal", "ll128")),
    ],
)
def test_nccl_keeps_classes_in_which_it_measured_as_fast(allreduce, times, taken):
    (row,) = [row for row in allreduce(measured(*times))[0] if row.measured]
    assert (None if row.candidate is None else (row.candidate.algorithm, row.protocol)) == taken
    assert row.why.endswith("measured at 1M")
    (alone,) = [row for row in allreduce(measured(*times), against=None)[0] if row.measured]
    assert alone.candidate is not None, "nobody to leave it to"


def test_where_nccl_was_not_measured_its_prediction_is_compared_at_the_measured_size(allreduce):
    table_rows, _ = allreduce(measured(("optimal", "ll128", 20e-6), below=8 << 20))
    prediction = NcclPredictor(on_machine("dgx-1v", (0, 1, 2, 3)), 70).at(Collective("allreduce", 4), 1 << 20)
    own = [row for row in table_rows if row.measured]
    assert {row.candidate.algorithm for row in own} == {"optimal"}
    assert own[-1].below == 8 << 20
    for row in own:
        assert row.why.startswith(f"blink optimal ll128 52.4 GB/s measured, {prediction.words} ")
        assert row.why.endswith(" predicted at 1M")


@pytest.mark.parametrize(("times_as_fast", "taken"), [(1.29, False), (1.31, True)])
def test_a_prediction_must_promise_more_than_a_measurement(allreduce, times_as_fast, taken):
    """Both times are of one size: NCCL's is its model's, and Blink's meets the margin or not."""
    theirs_s = NcclPredictor(on_machine("dgx-1v", (0, 1, 2, 3)), 70).at(Collective("allreduce", 4), 1 << 20).seconds
    times = [("optimal", "ll128", theirs_s / times_as_fast)]
    (row,) = [row for row in allreduce(measured(*times))[0] if row.measured]
    assert (row.candidate is not None) is taken
    assert row.margin == choices.PREDICTED_MARGIN
    (forced,) = [row for row in allreduce(measured(*times), algorithm="optimal")[0] if row.measured]
    assert forced.candidate is not None, "who names an algorithm gets it"


def test_times_of_plans_that_cannot_run_are_ignored(allreduce):
    """The times of NCCL alone, of an algorithm that is not planned, and of an unknown protocol are ignored."""
    cells = (
        measured((NCCL, "", 1e-9)),
        measured(("ring", "ll", 1e-9), size=1 << 21),
        measured(("optimal", "host", 1e-9), size=1 << 22),
    )
    assert [row.why for row in allreduce(*cells)[0]] == [row.why for row in allreduce()[0]]


def test_nothing_taken_says_that_it_was_measured(allreduce):
    every = [measured(("optimal", "simple", 1.0), (NCCL, "", 1e-6), size=1 << k) for k in range(10, 33)]
    own, terms = allreduce(*every)
    assert all(row.candidate is None for row in own)
    reason = choices.nothing_taken(choices.ChoiceTable(tuple(own)), terms, True)
    assert reason.startswith(
        "nothing is measured to be faster than NCCL or predicted to be 1.3 times as fast as NCCL (allreduce: blink "
    )


def test_a_forced_algorithm_runs_all_calls_that_it_serves():
    choice_table = table(on_machine("clique:4"), 90, wanted("one_shot"), "one_shot")
    own = rows(choice_table, "allreduce")
    assert all(row.candidate is not None and row.candidate.algorithm == "one_shot" for row in own)
    assert own[0].why.startswith("BLINK_ALGO=one_shot; blink one_shot")
    (other,) = rows(choice_table, "allgather")
    assert other.candidate is None
    assert "one_shot does not support allgather" in other.why


def test_without_nccl_the_fastest_program_runs():
    choice_table = table(on_machine("star:4"), 90, predictor=False)
    assert len(choice_table.taken) == len(choice_table.choices)
    small, large = rows(choice_table, "allreduce")[0], rows(choice_table, "allreduce")[-1]
    assert (small.candidate.algorithm, small.protocol) == ("one_shot", "ll")
    assert large.protocol == "simple"
    assert large.why.startswith("not compared with NCCL; blink ")


def test_reduction_in_the_switch_is_left_to_nccl():
    own = allreduce_rows(on_machine("hgx-h100"), 90)
    assert own[0].candidate is not None
    assert own[-1].candidate is None
    assert "NCCL NVLS 274 GB/s" in own[-1].why


def test_ranks_on_one_gpu_are_compared_with_a_ring():
    row = allreduce_rows(JobPlacement(parse_spec("clique:4"), (0, 1, 2, 3), real=False), 90)[0]
    assert row.why.endswith("(no model of NCCL here: several ranks share a GPU)")
    assert "a ring in NCCL's place" in row.why


def test_sends_of_nccl_take_their_own_paths_only():
    where = on_machine("dgx-1v")
    predictor = NcclPredictor(where, 70)
    # One GPU of a DGX-1V has six lanes of 20 GB/s by NCCL's count. They join four GPUs directly; the other three send
    # over PCIe.
    prediction = predictor.at(Collective("gather", 8, root=0), 1 << 30)
    assert prediction.words == "NCCL send/recv Simple"
    assert 60e9 < (1 << 30) / prediction.seconds < 100e9


def test_ll128_needs_nvlink_all_the_way_and_volta():
    def protocols(spec, ranks, capability):
        (one,) = candidates(on_machine(spec, ranks), ("optimal",), BLOCKS, {}).by_key["allreduce", -1]
        return protocols_of(one, capability)

    assert protocols("dgx-1v", (0, 1, 2, 3), 70) == ("ll", "ll128", "simple")
    assert protocols("hgx-h100", None, 90) == ("ll", "ll128", "simple")
    assert protocols("dgx-1v", (0, 1, 2, 3), 60) == ("ll", "simple")
    assert protocols("pcie-8gpu", None, 80) == ("ll", "simple")


def test_no_program_uses_a_pair_that_failed_the_check():
    where = on_machine("hgx-h100", (0, 1, 2, 3))
    planned = candidates(where, DEFAULT, BLOCKS, {(1, 2): "3 bytes wrong"})
    for one in planned.every:
        assert all((queue.src, queue.dst) != (1, 2) or queue.is_staged for queue in one.program.queues)
    assert ("gather", 0) in planned.by_key
    (alltoall,) = planned.by_key["alltoall", -1]
    assert {queue.is_staged for queue in alltoall.program.queues} == {True}, "its trees do without GPUs' own memories"
    without_pcie = on_machine("clique:4")
    planned = candidates(without_pcie, DEFAULT, BLOCKS, {(1, 2): "3 bytes wrong"})
    assert "rank 1 to rank 2, which failed the peer check: 3 bytes wrong" in planned.why_not(("alltoall", -1))


def test_gpus_that_reach_no_other_stage_all_messages():
    """On GPUs without peer access all messages go through the processors' memories."""
    nobody = {(a, b): "no peer access" for a in range(8) for b in range(8) if a != b}
    planned = candidates(without(on_machine("pcie-8gpu"), nobody), ("optimal",), BLOCKS, nobody)
    assert {key[0] for key in planned.by_key} == set(SERVED)
    assert all(queue.is_staged for one in planned.every for queue in one.program.queues)


def test_trees_go_round_a_direct_link_that_failed_the_check():
    where = without(on_machine("dgx-1v", (0, 1, 2, 3)), {(0, 1): "lost"})
    programs = candidates(where, ("optimal",), BLOCKS, {(0, 1): "lost"}).by_key["allreduce", -1]
    assert all({queue.src, queue.dst} != {0, 1} for one in programs for queue in one.program.queues)


def test_programs_that_are_the_same_are_planned_once():
    planned = candidates(on_machine("dgx-2"), FIRST, BLOCKS, {})
    assert [one.algorithm for one in planned.by_key["alltoall", -1]] == ["optimal"]


def test_gpus_that_nvlink_leaves_apart_are_joined_by_pcie():
    apart = on_machine("dgx-1v", (0, 1, 6))
    with pytest.raises(TopologyError):
        network_for(apart.topology, apart.ranks, "fast")
    assert ("allreduce", -1) in candidates(apart, ("optimal",), BLOCKS, {}).by_key


def test_plans_promise_rates_that_stores_can_reach():
    """An AC922's GPUs reach each other at 75 GB/s, and at as much again through a processor's memory."""
    where = on_machine("mist", (0, 1))
    for one in candidates(where, DEFAULT, BLOCKS, {}).every:
        assert all(len(queue.path) == 2 for queue in one.program.queues)
        assert one.program.rate * one.network.unit_gb_per_s * bus_factor(one.collective.name, 2) <= 75
    last = allreduce_rows(where, predictor=False)[-1]
    assert "blink optimal simple 60 GB/s" in last.why


def test_gpus_that_a_processors_memory_joins_stage_their_messages_there():
    where = on_machine("mist", (0, 2))
    for one in candidates(where, DEFAULT, BLOCKS, {(0, 1): "no peer access", (1, 0): "no peer access"}).every:
        assert all(queue.is_staged for queue in one.program.queues)
    used = {row.protocol for row in table(where, predictor=False).choices}
    assert used == {"simple", "ll"}, (
        "lines of 128 bytes do not go by way of a processor's memory, and copies are no faster there"
    )


@pytest.fixture(scope="module")
def hybrid():
    """The choices of four GPUs of a DGX-1V with NVLink among all of them, and PCIe beside it."""
    return table(on_machine("dgx-1v", (0, 1, 2, 3)), algorithms=wanted("hybrid"), forced="hybrid")


def staged(candidate):
    return [queue.is_staged for queue in candidate.program.queues]


def test_hybrid_stages_the_part_beyond_nvlinks_rate(hybrid):
    """First calls of large sizes try the split; small sizes use NVLink alone."""
    first, *_, last = rows(hybrid, "allreduce")
    assert len(first.ways) == 1
    assert not any(staged(first.candidate))
    assert not any(staged(last.candidate))
    assert any(staged(last.ways[1].candidate))
    assert not all(staged(last.ways[1].candidate))
    one = last.ways[1].candidate
    assert one.program.rate * one.network.unit_gb_per_s == 79
    assert last.why.startswith("BLINK_ALGO=hybrid; blink optimal simple ")
    assert ", first calls try hybrid simple 62.5 GB/s, " in last.why
    # Both are compiled and have memory.
    assert {one.algorithm for one in hybrid.candidates} == {"optimal", "hybrid"}
    assert "simple" in hybrid.protocols(one)


def test_programs_are_compared_by_class(hybrid):
    compared = [row for row in hybrid.choices if len(row.ways) > 1]
    assert compared
    for row in compared:
        assert row.candidate.algorithm == "optimal"
        assert row.ways[1].candidate.algorithm == "hybrid"
        assert row.ways[1].candidate.collective == row.candidate.collective
        assert row.below in (2 * row.least, choices.BEYOND)
    assert not any(row.ways[1:] for row in table(on_machine("dgx-1v", (0, 1, 2, 3)), predictor=False).choices)


def test_messages_of_both_programs_fit_into_the_memory(hybrid):
    small = replace(largest(BLOCKS), slot_bytes=4096, line_bytes=2048)
    for row in choices.clamped(hybrid, small).choices:
        assert all(way.chunk_bytes <= small.capacity_bytes(way.protocol) for way in row.ways)
    assert any(way.chunk_bytes > 4096 for row in hybrid.choices for way in row.ways[1:])


def test_of_two_programs_the_one_that_was_compiled_is_left(hybrid):
    (row,) = (row for row in rows(hybrid, "allreduce") if row.least == 16 * MIB)
    own, other = row.ways
    place = attrgetter("collective", "root", "least")

    def left(*ways):
        compiled = {(way.candidate.name, way.protocol) for way in ways}
        (remaining,) = (one for one in choices.without(hybrid, compiled).choices if place(one) == place(row))
        return remaining

    assert left(own, other) == row
    alone = left(own)
    assert alone.ways == (own,)
    assert alone.search
    assert alone.why == f"not compiled in time, but perhaps for the next job: hybrid simple; {row.why}"
    assert left(other).ways == (other,)
    nothing = left()
    assert (nothing.ways, nothing.protocol, nothing.search) == ((), "-", False)
    assert nothing.why.startswith("not compiled in time, but perhaps for the next job: optimal simple and ")


@pytest.mark.parametrize(("machine", "gpus"), [("dgx-1v", (0, 1, 2)), ("cedar", (0, 1, 2, 3))])
def test_hybrid_is_never_slower_than_nvlink_alone(machine, gpus):
    """The prediction is never slower at any size: only splits predicted faster are tried beside NVLink alone."""
    where = on_machine(machine, gpus)
    taken = allreduce_rows(where, algorithms=wanted("hybrid"), forced="hybrid")
    (alone,) = (one for one in candidates(where, ("optimal",), BLOCKS, {}).by_key["allreduce", -1])
    compared = 0
    for row in taken:
        assert [way.candidate.algorithm for way in row.ways] in (["optimal"], ["optimal", "hybrid"])
        size = max(row.least, 8)

        def seconds(candidate, protocol, size=size):
            return timing(candidate, protocol, size, 70, BLOCKS, largest(BLOCKS).capacity_bytes(protocol)).seconds

        times = [seconds(way.candidate, way.protocol) for way in row.ways]
        assert times[0] <= 1.03 * seconds(alone, row.protocol)
        assert times == sorted(times, reverse=True)
        compared += len(times) - 1
    assert compared > 8


def test_an_unknown_algorithm_is_refused_with_the_known_ones():
    assert wanted("") == wanted("auto") == wanted("best") == DEFAULT
    with pytest.raises(UsageError, match="unknown algorithm 'fastest'; expected one of auto, optimal"):
        wanted("fastest")


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        (60, "pascal"),
        (70, "volta"),
        (75, "volta"),
        (80, "ampere"),
        (89, "ampere"),
        (90, "hopper"),
        (100, "blackwell"),
        (120, "blackwell"),
    ],
)
def test_architectures_are_rows_of_nccls_tables(capability, name):
    assert architecture(capability) == name


def test_segments_keep_to_the_budget():
    where = on_machine("dgx-1v")
    every = candidates(where, ("optimal",), BLOCKS, {}).every
    group, parts = ProgramGroup([one.program for one in every]), max(one.parts(32) for one in every)
    for staging in (256 << 20, 64 << 20, 16 << 20):
        chosen = geometry(group, parts, Budget(32, staging))
        segments = group.layout(chosen).segment_bytes
        assert max(segments) <= staging
        assert max(segments) > staging // 3 or chosen.slot_bytes == 1 << 20
    with pytest.raises(UnsupportedError, match="BLINK_STAGING_BYTES"):
        geometry(group, parts, Budget(32, 64 << 10))


def test_blocks_are_shared_among_the_ranks_of_a_gpu():
    assert budget(on("", (0, 1)), {}).blocks == 32
    assert budget(on("", (0, 1), multiprocessors=80), {}).blocks == 20
    assert budget(on("", (0,) * 8), {}).blocks == 4
    assert budget(on("", (0,) * 8), {"BLINK_MAX_BLOCKS": "16"}).blocks == 16
    assert budget(on("", (0, 1)), {"BLINK_STAGING_BYTES": "64M"}).staging_bytes == 64 * MIB
    few, many = (on("", (0, 1), settings=settings(topo="", most_blocks=most)) for most in ("6", "600"))
    assert [budget(one, {"BLINK_MAX_BLOCKS": "16"}).blocks for one in (few, many)] == [6, 16]
    for wrong in ("0", "-1", "many", "99999"):
        with pytest.raises(LaunchError, match=f"BLINK_MAX_BLOCKS={wrong}"):
            budget(on("", (0, 1)), {"BLINK_MAX_BLOCKS": wrong})


def test_a_wide_program_takes_no_blocks_from_others():
    """NCCL's rings on a whole DGX-1V have two channels, and half as many blocks of each."""
    where, allreduce = on_machine("dgx-1v"), ("allreduce", -1)
    ((tree,), (ring,)) = (candidates(where, (name,), BLOCKS, {}).by_key[allreduce] for name in ("optimal", "ring"))
    assert (tree.channels, ring.channels) == (1, 2)
    for blocks in (2, 3, 8, 20, 32):
        assert all(one.channels * one.parts(blocks) <= blocks for one in (tree, ring))
    collective, terms = Collective("allreduce", 8), Terms(70, BLOCKS, "any", "simple")
    alone, both = (
        choices.rows_of(collective, CandidatePrograms({allreduce: some}), terms, None)
        for some in ([tree], [tree, ring])
    )
    assert {row.candidate for row in both} == {tree, ring}
    last = both[-1]
    assert last.candidate is tree
    assert (last.ways, last.why) == (alone[-1].ways, alone[-1].why)


def arriving(programs):
    return max(Counter(home for _, _, home in ProgramGroup([one.program for one in programs]).ways).values())


@pytest.mark.parametrize(("spec", "staging"), [("dgx-1v", 256), ("mist", 64), ("pcie-8gpu", 256)])
def test_extra_programs_need_little_of_the_first_ones_memory(spec, staging):
    notes = []
    planned = candidates(on_machine(spec), DEFAULT, BLOCKS, {}, notes.append, staging * MIB)
    first = [one for one in planned.every if one.algorithm in FIRST]
    assert {one.algorithm for one in planned.every} > {one.algorithm for one in first}
    assert arriving(first) <= arriving(planned.every) <= arriving(first) * (1 + MOST_BESIDE)
    assert any("programs of ring left out" in line for line in notes)


def test_all_programs_are_planned_if_messages_keep_their_maximum():
    """On GPUs 0, 2, 3, 4 and 6 of a DGX-1V rings need twice the connections, which fit into the memory."""
    where, limits = on_machine("dgx-1v", (0, 2, 3, 4, 6)), Budget(BLOCKS, 256 * MIB)
    planned = {}
    for names in (FIRST, DEFAULT):
        planned[names] = candidates(where, names, BLOCKS, {}).every
        group = ProgramGroup([one.program for one in planned[names]])
        assert geometry(group, BLOCKS, limits).slot_bytes == largest(BLOCKS).slot_bytes
    assert arriving(planned[DEFAULT]) > 2 * arriving(planned[FIRST])
    fewer = candidates(where, DEFAULT, BLOCKS, {}, staging_bytes=64 * MIB).every
    assert arriving(fewer) <= arriving(planned[FIRST]) * (1 + MOST_BESIDE)


def test_the_only_program_of_a_collective_is_not_left_out():
    programs = candidates(on_machine("clique:8"), ("one_shot", "ring"), BLOCKS, {}).by_key
    assert [one.algorithm for one in programs["allreduce", -1]] == ["one_shot"]
    assert [one.algorithm for one in programs["allgather", -1]] == ["ring"]


def test_a_named_algorithm_is_not_left_out():
    planned = candidates(on_machine("dgx-1v"), ("ring",), BLOCKS, {})
    assert ("allreduce", -1) in planned.by_key
    assert {one.algorithm for one in planned.every} == {"ring"}


@pytest.mark.parametrize(
    ("spec", "gpus", "collective", "size", "algorithm"),
    [
        ("dgx-1p", None, "allgather", 2 * MIB, "internal_broadcast"),
        ("dgx-a100", None, "allreduce", 128 << 10, "double_binary_tree"),
        ("dgx-1v", (0, 1, 2, 3), "allgather", 8 * MIB, "ring"),
    ],
)
def test_each_extra_program_is_fastest_somewhere(spec, gpus, collective, size, algorithm):
    where, capability = on_machine(spec, gpus), {"dgx-1p": 60, "dgx-a100": 80}.get(spec, 70)
    planned, terms = candidates(where, DEFAULT, BLOCKS, {}), Terms(capability, BLOCKS)
    request = next(one for one in collectives(len(where.ranks)) if one.name == collective)
    (row,) = (row for row in choices.rows_of(request, planned, terms, None) if row.least <= size < row.below)
    assert row.candidate.algorithm == algorithm


def test_nothing_joins_gpus_without_links():
    with pytest.raises(TopologyError):
        candidates(without(on_machine("chain:3"), {(0, 1): "lost"}), DEFAULT, BLOCKS, {})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_forced_protocol_runs_all_calls_that_it_can(protocol):
    choice_table = table(
        on_machine("dgx-1v", (1, 4, 5, 6)), algorithms=("optimal",), protocol=wanted_protocol(protocol)
    )
    assert choice_table.taken == choice_table.choices
    assert {row.protocol for row in choice_table.choices} == {protocol}
    most = largest(BLOCKS).capacity_bytes(protocol)
    assert all(0 < row.ways[0].chunk_bytes <= most for row in choice_table.choices)
    own = rows(choice_table, "allreduce")
    assert own[0].why.startswith(f"BLINK_PROTOCOL={protocol}; blink optimal {protocol} ")
    assert own[-1].why.endswith(" predicted at 4G")
    kernels = ("copies", "simple") if protocol == "copies" else (protocol,)
    assert all(choice_table.protocols(one) == kernels for one in choice_table.candidates)
    assert choice_table.copies is (protocol == "copies")


def test_algorithm_and_protocol_are_forced_together():
    choice_table = table(on_machine("clique:4"), 90, ("one_hop",), "one_hop", protocol="ll")
    row = rows(choice_table, "broadcast", 2)[0]
    assert (row.candidate.algorithm, row.protocol) == ("one_hop", "ll")
    assert row.why.startswith("BLINK_ALGO=one_hop BLINK_PROTOCOL=ll; ")


@pytest.mark.parametrize(
    ("spec", "capability", "said"),
    [
        ("pcie-8gpu", 80, "LL128 needs NVLink alone, which keeps stores of 128 bytes whole; the plan also uses pcie"),
        ("hgx-h100", 60, "compute capability 7.0 or later, whose stores of 128 bytes arrive whole; got 6.0"),
    ],
)
def test_ll128_is_not_forced_where_lines_may_be_torn(spec, capability, said):
    where = on_machine(spec)
    choice_table = table(where, capability, ("optimal",), predictor=False, protocol="ll128")
    assert not choice_table.taken
    assert all(row.why.startswith("BLINK_PROTOCOL=ll128; ") and said in row.why for row in choice_table.choices)
    terms = Terms(capability, BLOCKS, protocol="ll128")
    why = choices.nothing_taken(choice_table, terms, True)
    assert why.startswith("nothing can run with BLINK_PROTOCOL=ll128 (allreduce: LL128 needs ")


@pytest.mark.parametrize("setting", ["fast", "LL", "simple,ll", " "])
def test_an_unknown_protocol_is_refused_with_the_known_ones(setting):
    with pytest.raises(LaunchError, match=f"BLINK_PROTOCOL={setting}: expected one of simple, ll, ll128, copies"):
        wanted_protocol(setting)
    assert wanted_protocol("") == ""


def test_trees_are_timed_with_their_part_of_each_link():
    """The parts on a whole DGX-1V are sixths to twenty-fourths."""
    (one,) = candidates(on_machine("dgx-1v"), ("optimal",), BLOCKS, {}).by_key["allreduce", -1]
    lane = 20e9  # NCCL's count
    for protocol, rate in (("simple", 1.0), ("ll128", 0.92 * 120 / 128)):
        timed = timing(one, protocol, 1 << 30, 70, BLOCKS, largest(BLOCKS).capacity_bytes(protocol))
        least_s = (1 << 30) / (float(one.program.rate) * lane * rate)
        assert least_s < timed.seconds < 1.05 * least_s


def test_kernels_are_predicted_faster_than_copies(four):
    assert {row.protocol for row in four.choices} <= {"simple", "ll", "ll128", "-"}
    (one,) = candidates(on_machine("dgx-1v"), ("optimal",), BLOCKS, {}).by_key["broadcast", 0]
    for size in (4 * MIB, 1 << 30):
        copies = timing(one, "copies", size, 70, 1, largest(1).capacity_bytes("copies"))
        simple = timing(one, "simple", size, 70, BLOCKS, largest(BLOCKS).capacity_bytes("simple"))
        assert simple.seconds < copies.seconds < 3 * simple.seconds


def test_copies_pay_for_every_message_that_a_rank_issues():
    (one,) = candidates(on_machine("dgx-1v"), ("optimal",), BLOCKS, {}).by_key["allreduce", -1]
    fine, coarse = (timing(one, "copies", 64 * MIB, 70, 1, chunk).seconds for chunk in (64 << 10, 8 * MIB))
    messages = 64 * MIB / (64 << 10)  # of each rank that sends everything once
    assert fine > messages * 10e-6
    assert fine > 1.5 * coarse


def test_copies_are_selected_only_on_request(monkeypatch):
    """Copies have not been timed on a GPU, so even a good prediction does not select them."""

    def slow_kernels(candidate, protocol, *rest):
        predicted = timing(candidate, protocol, *rest)
        return predicted if protocol == "copies" else PredictedTime(predicted.seconds * 9, predicted.chunk_bytes)

    monkeypatch.setattr("blinkccl.cost.choice.timed.timing", slow_kernels)
    where = on_machine("dgx-1v", (1, 4, 5, 6))
    assert not table(where, algorithms=("optimal",), predictor=False).copies
    choice_table = table(where, algorithms=("optimal",), predictor=False, protocol="copies")
    own = rows(choice_table, "allreduce")
    assert (own[-1].protocol, own[-1].search) == ("copies", True)
    assert "blink optimal copies" in own[-1].why
    assert "simple" in choice_table.protocols(own[-1].candidate)


def test_copy_engines_serve_one_rank_per_gpu_of_a_process():
    assert fault_of_job(job(2)) is None
    assert fault_of_job(job(2, pid=7)) is None
    assert fault_of_job(job(2, device=0, uuid="0" * 32)) is None
    fault = fault_of_job(job(3, pid=7, uuid=lambda rank: f"{rank // 2:032x}"))
    assert fault is not None
    assert "ranks 0 and 1 share the GPU" in fault


def test_copy_engines_combine_a_number_of_messages():
    (one,) = candidates(on_machine(f"clique:{MOST_OPERANDS + 2}"), ("one_shot",), BLOCKS, {}).by_key["allreduce", -1]
    assert fault_of_program(one.program) == "rank 0 reduces 20 messages at once, but copy engines reduce at most 19"
    (one,) = candidates(on_machine(f"clique:{MOST_OPERANDS + 1}"), ("one_shot",), BLOCKS, {}).by_key["allreduce", -1]
    assert fault_of_program(one.program) is None


def loop(rank, *roles):
    """A loop of roles, each a tuple (offset, receives, sends, reads the own data, keeps the result)."""
    executions = []
    for offset, receives, sends, reads, keeps in roles:
        role = Role(rank, 0, 0, "reduce", offset, 0, reads, keeps, False, receives, sends)
        executions.append(RoleExecution(role, (0,), ""))
    return ChannelLoop(rank, 0, (), (), (), tuple(executions), 1)


def test_copy_engines_need_an_order_of_all_messages():
    # Rank 0 replaces its own data by a received result after it has read the data.
    first = loop(0, (0, (), (0,), True, False), (2, (1,), (), False, True))
    back = loop(1, (1, (0,), (1,), True, False))
    assert fault_of_loops([first, back]) is None
    circle = loop(0, (0, (1,), (0,), True, False))
    assert fault_of_loops([circle, back]) == "its messages form a cycle, which copy engines cannot run"
    # Rank 0 replaces data by the answer to a message that is sent from this data later.
    early = loop(0, (1, (1,), (), False, True), (0, (), (2,), True, False), (0, (), (0,), True, False))
    assert fault_of_loops([early, back, loop(2, (1, (2,), (), False, True))]) is None


def test_copy_engines_need_one_role_at_each_end():
    twice = loop(0, (0, (), (0,), True, False), (1, (), (0,), True, False))
    assert fault_of_loops([twice, loop(1, (1, (0,), (), False, True))]) == (
        "several steps use one end of queue 0, but copy engines allow one step"
    )


def test_copies_get_memory_within_the_budget():
    every = candidates(on_machine("dgx-1v"), ("optimal",), BLOCKS, {}).every
    group, parts = ProgramGroup([one.program for one in every]), max(one.parts(32) for one in every)
    for staging in (2 << 30, 256 << 20, 16 << 20):
        limits = Budget(32, staging)
        without_copies, with_copies = geometry(group, parts, limits), geometry(group, parts, limits, copies=True)
        assert without_copies.copy_slots == 0
        assert with_copies.copy_slots == without_copies.slots
        assert max(group.layout(with_copies).segment_bytes) <= staging
    assert geometry(group, parts, Budget(32, 2 << 30), copies=True).copy_slot_bytes == 8 * MIB
    with pytest.raises(UnsupportedError, match=r"BLINK_STAGING_BYTES is .*; raise it \(copy engines leave \d+\)"):
        geometry(group, parts, Budget(32, 512 << 10), copies=True)
