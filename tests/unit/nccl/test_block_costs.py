"""Rates of blocks bound a prediction, and sizes where NVLS is faster stay with NCCL."""

import pytest

from blinkccl.collectives.ops import DTYPE_CODES
from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_model import TREE_GB_PER_S
from blinkccl.cost.baselines.nccl_server import NcclServer
from blinkccl.cost.choice.block_costs import PIECE_BYTES, block_gb_per_s, busiest_block_s, work_of
from blinkccl.cost.choice.costs import architecture, timing
from blinkccl.cost.choice.programs import SLOTS, CandidateProgram, largest
from blinkccl.cost.simulate.run import bind_bytes
from blinkccl.nccl import choices
from blinkccl.nccl.choices import Terms
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.programs import candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_spec
from support.device_cuts import pieces
from support.engines import ENGINES
from support.generated import LaunchCall

GIB = 1 << 30


def job(spec, ranks=None):
    topology = parse_spec(spec)
    return JobPlacement(topology, topology.ranks if ranks is None else tuple(range(ranks)))


def optimal(spec, collective, blocks, ranks=None):
    return candidates(job(spec, ranks), ("optimal",), blocks, {}).by_key[collective, -1][0]


def at(candidate, size_bytes, parts, capability=90):
    return timing(candidate, "simple", size_bytes, capability, parts, largest(parts).capacity_bytes("simple")).seconds


@pytest.mark.skipif(ENGINES["generated"].missing is not None, reason=str(ENGINES["generated"].missing))
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall", "reduce_scatter"])
@pytest.mark.parametrize(("spec", "parts"), [("dgx-1v", 20), ("dgx-1v", 3), ("hgx-h100", 32)])
def test_the_busiest_block_is_that_of_the_device_layer(spec, parts, collective):
    """A separate sum over each block's part of each slice gives the same; a chunk moves in groups of 16 bytes."""
    program = optimal(spec, collective, parts).program
    for size_bytes in (1 << 10, 1 << 17, 1 << 21, 3 << 23, GIB):
        bound = bind_bytes(program, size_bytes, size_bytes)
        call = LaunchCall(count=bound.count, dtype=DTYPE_CODES["float32"], chunk_bytes=1 << 17)
        call.parts, call.piece_bytes = parts, PIECE_BYTES
        most = 0.0
        for part in range(parts):
            lengths = [piece.length * 4 for piece in pieces(program, call, part)]
            for rank in range(len(program.ranks)):
                roles = [role for role in program.roles if role.rank == rank and lengths[role.slice]]
                moved = sum(
                    (len(x.receives) + x.contributes + x.keeps + len(x.sends)) * lengths[x.slice] for x in roles
                )
                most = max(most, moved / 100e9 + sum(bool(x.receives) for x in roles) * 2e-6)
        assert busiest_block_s(work_of(program), bound, parts, 100.0, 2.0) == pytest.approx(most, rel=0.01, abs=2e-9)


def test_three_busy_blocks_are_predicted_at_three_times_the_rate_of_one():
    even = optimal("dgx-a100", "allgather", 27)
    uneven = CandidateProgram("optimal", even.forest, lower(even.forest, slots=SLOTS, channels=8), even.counted)
    # A root reads its data once, keeps it and sends it to seven ranks, from the three blocks of its channel.
    busy_s = 9 * GIB / 8 / 3 / (block_gb_per_s("simple", 1) * 1e9)
    assert at(uneven, GIB, 3, 80) == pytest.approx(busy_s, rel=0.02)
    link_s = GIB * 7 / 8 / 240e9
    assert link_s < at(even, GIB, 27, 80) < 1.1 * link_s < busy_s / 1.1


def test_few_blocks_run_no_large_calls():
    """BLINK_MAX_BLOCKS=2 on GPUs 1, 4, 5 and 6 of a DGX-1V, where NCCL uses half of the bandwidth."""
    where = JobPlacement(parse_spec("dgx-1v"), (1, 4, 5, 6))
    largest_sizes = {}
    for blocks in (2, 20):
        planned = candidates(where, ("optimal",), blocks, {})
        terms = Terms(70, blocks, no_copies="not asked for")
        rows = choices.rows_of(Collective("allreduce", 4), planned, terms, NcclPredictor(where, 70))
        largest_sizes[blocks] = rows[-1]
    assert largest_sizes[20].candidate is not None
    assert largest_sizes[2].candidate is None
    two = candidates(where, ("optimal",), 2, {}).by_key["allreduce", -1][0]
    assert at(two, GIB, 1, 70) == pytest.approx(2 * at(two, GIB, 2, 70), rel=0.01)
    assert at(two, GIB, 20, 70) == at(two, GIB, 40, 70), "then links are what is slowest"


@pytest.mark.parametrize("row", range(4))
def test_a_block_moves_three_times_the_rate_of_nccls_tree_channel(row):
    """Busbw is twice algbw in a tree; an inner rank of a chain moves three times algbw each way."""
    assert block_gb_per_s("simple", row) == pytest.approx(2 * 3 * float(TREE_GB_PER_S[row][0]) / 2)
    assert block_gb_per_s("ll", row) < block_gb_per_s("ll128", row) < block_gb_per_s("simple", row)


@pytest.mark.parametrize(("ranks", "busbw"), [(4, 370), (5, 420), (6, 440), (7, 460), (8, 480)])
def test_allreduce_in_the_switch_has_the_measured_rate(ranks, busbw):
    prediction = NcclPredictor(job("hgx-h100", ranks), 90).at(Collective("allreduce", ranks), 16 * GIB)
    assert prediction.words == "NCCL NVLS"
    assert 16 * GIB / prediction.seconds / 1e9 * 2 * (ranks - 1) / ranks == pytest.approx(busbw, rel=0.01)
    candidate = optimal("hgx-h100", "allreduce", 32, ranks)
    assert at(candidate, 16 * GIB, 32) * choices.MARGIN > prediction.seconds, "so it is not taken"


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_the_switch_counts_for_multicast_too(name):
    """Rings are faster at large sizes by NCCL's own numbers: they use the full rate of links, NVLS 0.85 of it."""
    place = job("hgx-h100")
    large = NcclPredictor(place, 90).at(Collective(name, 8), 4 * GIB)
    assert large.words == "NCCL ring Simple"
    in_switch = NcclServer(place.topology, tuple(place.ranks), "hopper").in_switch(name)
    assert in_switch is not None
    seconds = float(in_switch.time_us(4 * GIB)) * 1e-6
    assert large.seconds < seconds < 2 * large.seconds
    assert seconds == pytest.approx(25e-6 + 4 * GIB * 8 / 7 / 0.85 / 360e9, rel=0.05)


@pytest.mark.parametrize(("spec", "capability", "ranks"), [("dgx-a100", 80, 8), ("hgx-h100", 90, 2), ("dgx-1v", 70, 8)])
def test_no_switch_of_another_machine_reduces(spec, capability, ranks):
    place = job(spec, ranks)
    nccl = NcclServer(place.topology, tuple(place.ranks), architecture(capability))
    for name in ("allreduce", "allgather", "reduce_scatter"):
        assert nccl.in_switch(name) is None
