"""A program without knowledge of Blink gets the same bits from Blink's trees as from NCCL, in every mode."""

from collections import Counter
from pathlib import Path

import pytest
from preloaded import Preloaded

#: Blink reports a Bcast as a Broadcast.
SERVED = {"allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "gather", "scatter", "alltoall"}
#: 130000 elements fill the client's buffers: many chunks, of several protocols.
WIDE = "1,1000,130000"


@pytest.mark.parametrize(("mode", "seed"), [pytest.param("all", 0, marks=pytest.mark.slow), ("process", 3)])
def test_all_cases(preloaded: Preloaded, mode: str, seed: int) -> None:
    """NCCL gets messages, calls that it must refuse, and those of the grown communicator."""
    outcome = preloaded.client(mode, cases="all", BLINK_DOUBLE_SEED=seed, timeout_s=150).right()
    processes = 4 if mode == "process" else 1
    assert len([line for one in outcome.ended for line in one.said]) == 21 * processes
    assert outcome.agreed()
    assert set(outcome.calls("blink")) == SERVED
    assert set(outcome.calls("nccl")) == {"send"}  # there is no path table
    grown = [line for line in outcome.journal if line[0] == "ncclAllReduce" and line[3] == "321"]
    assert len(grown) == 4
    refused = [line for line in outcome.journal if line[0] == "ncclAllReduce" and line[3] not in ("0", "321")]
    assert len(refused) < 20
    assert {line[3] for line in refused} == {"4"}


@pytest.mark.parametrize(
    ("mode", "ranks", "topo", "algo", "seed", "cases"),
    [
        ("group", 4, "clique:4", "optimal", 1, "types,groups,streams,several"),
        pytest.param("threads", 4, "clique:4", "optimal", 2, "sizes,scaled,graph,graph_fork", marks=pytest.mark.slow),
        ("threads", 4, "clique:4", "one_hop", 0, "types,sizes,streams"),
        ("process", 3, "dgx-1v", "optimal", 5, "sizes,streams,legacy_stream"),
        ("all", 5, "dgx-1v", "blink", 0, "sizes,groups"),
        ("process", 2, "ring:5", "ring", 4, "sizes"),
        pytest.param("threads", 5, "ring:5", "ring", 7, "sizes,groups", marks=pytest.mark.slow),
        # Staged in processors' memories, the only connection between these GPUs.
        ("process", 4, "mist", "ring", 6, "sizes,streams"),
        ("threads", 4, "mist", "optimal", 3, "sizes,groups"),
    ],
)
def test_topologies_and_algorithms(
    preloaded: Preloaded, mode: str, ranks: int, topo: str, algo: str, seed: int, cases: str
) -> None:
    variables = {"BLINK_TOPO": topo, "BLINK_ALGO": algo, "BLINK_DOUBLE_SEED": seed}
    outcome = preloaded.client(mode, ranks, cases=cases, sizes=WIDE, timeout_s=120, **variables).right()
    assert outcome.agreed()
    assert outcome.calls("blink")["allreduce"] > 0
    # Calls without a plan go to NCCL, on all ranks: no call is lost, and none runs twice.
    assert "AllReduce" not in outcome.reached_nccl()
    if "sizes" in cases:
        assert len({line.protocol for line in outcome.usage if line.state == "blink"}) >= 2


def test_programs_with_more_and_fewer_parts_take_turns(preloaded: Preloaded) -> None:
    """Rings of two channels and of one, on the same connections, with fewer blocks than planned: 2 x 1 and 1 x 3."""
    ring = {"BLINK_TOPO": "clique:7", "BLINK_ALGO": "ring", "BLINK_MAX_BLOCKS": 4, "BLINK_STAGING_BYTES": "48M"}
    small = {"BLINK_DOUBLE_SMS": 24, "BLINK_DOUBLE_OCCUPANCY": 1, "BLINK_DOUBLE_SEED": 2}
    outcome = preloaded.client("threads", 7, cases="sizes", sizes=WIDE, timeout_s=150, **ring, **small).right()
    assert outcome.agreed()
    assert {"allreduce", "allgather", "reduce_scatter"} <= set(outcome.calls("blink"))
    ready = [line for line in outcome.blink if " is loaded" in line]
    assert ready
    assert all("with 3 of 4 thread blocks, the most that fit the GPU" in line for line in ready), ready


@pytest.mark.parametrize(("seed", "ranks", "protocol"), [(1, 4, None), (5, 4, None), (8, 2, "copies")])
def test_graphs_and_calls_in_order(preloaded: Preloaded, seed: int, ranks: int, protocol: str | None) -> None:
    """Only the communicator orders them; with ``copies`` they are calls by copy engines and captured kernels.

    A failed capture costs one call only, and so does a call on the legacy stream beside a capture.
    """
    variables = {"BLINK_DOUBLE_SEED": seed, "BLINK_PROTOCOL": protocol}
    outcome = preloaded.client("threads", ranks, cases="graph_order,graph_lost", **variables).right()
    assert outcome.agreed()
    assert set(outcome.calls("nccl")) == {"send"}
    assert outcome.calls("blink")["allreduce"] > 0
    assert protocol in (None, *(line.protocol for line in outcome.usage))
    refused = [line for line in outcome.blink if "a call cannot be captured" in line]
    for fault in ("INVALIDATED", "IMPLICIT"):
        assert len([line for line in refused if f"CUDA_ERROR_STREAM_CAPTURE_{fault}" in line]) == ranks
    assert len(refused) == 2 * ranks


def test_graphs_that_the_program_orders(preloaded: Preloaded, tmp_path: Path) -> None:
    """NCCL's own switch: graphs get no event nodes."""
    switch = {"NCCL_GRAPH_MIXING_SUPPORT": 0, "BLINK_DOUBLE_JOURNAL": tmp_path / "driver"}
    outcome = preloaded.client("threads", cases="graph_fork", **switch).right()
    assert outcome.calls("blink")["allreduce"] > 0
    called = Counter(line.split()[0] for line in (tmp_path / "driver").read_text().splitlines())
    assert called["cuStreamBeginCapture_v2"] > 0
    assert called["cuEventRecordWithFlags"] == 0


@pytest.mark.parametrize(
    ("variables", "remote"),
    [
        ({}, True),
        ({"NCCL_MEM_SYNC_DOMAIN": 0}, False),
        ({"BLINK_DOUBLE_DRIVER": 11080}, False),
        ({"driver": "11.7"}, False),
    ],
)
def test_memory_sync_domain(preloaded: Preloaded, tmp_path: Path, variables: dict[str, object], remote: bool) -> None:
    """Launches use the remote domain, as NCCL's do, if the driver knows it and NCCL's variable does not forbid it."""
    job = {"BLINK_DOUBLE_JOURNAL": tmp_path / "driver", "BLINK_DOUBLE_CALLER": "libblink.so", **variables}
    if job.pop("driver", None):
        job["BLINK_CUDA_LIB"] = preloaded.built.doubles.cuda_11_7
    outcome = preloaded.client("threads", cases="legacy_stream,graph_fork", **job).right()
    assert outcome.calls("blink")["allreduce"] > 0
    called = Counter((tmp_path / "driver").read_text().split())
    launches = {name: called[name] > 0 for name in ("cuLaunchKernel", "cuLaunchKernelEx")}
    assert launches == {"cuLaunchKernel": not remote, "cuLaunchKernelEx": remote}


@pytest.mark.parametrize("variables", [{"BLINK_DISABLE": 1}, {"BLINK_ALGO": "nccl"}])
def test_switched_off(preloaded: Preloaded, variables: dict[str, object]) -> None:
    outcome = preloaded.client("threads", cases="sizes,groups,abort", **variables).right()
    assert outcome.calls("blink").total() == 0
    without = preloaded.client("threads", cases="sizes,groups,abort", LD_PRELOAD=None).right()
    assert outcome.reached_nccl() == without.reached_nccl() != {}


def test_left_to_the_prediction(preloaded: Preloaded) -> None:
    """Without BLINK_ALGO each call runs in the library that is predicted to be faster, and in one only."""
    outcome = preloaded.client("threads", cases="sizes", sizes=WIDE, BLINK_ALGO=None).right()
    without = preloaded.client("threads", cases="sizes", sizes=WIDE, LD_PRELOAD=None).right()
    assert outcome.agreed()
    taken, reached = outcome.calls("blink"), outcome.reached_nccl()
    assert taken.total() > 0
    assert taken.total() + reached.total() == without.reached_nccl().total()


def test_two_ranks_on_each_gpu(preloaded: Preloaded) -> None:
    """Ranks on one GPU share the blocks that communicators may use."""
    several = {"BLINK_TOPO": None, "BLINK_DOUBLE_DEVICES": 2, "BLINK_DOUBLE_KEEP": 1}
    outcome = preloaded.client("threads", 4, cases="sizes,streams", **several).right()
    assert outcome.agreed()
    assert outcome.calls("blink")["allreduce"] > 0


def test_communicators_share_the_blocks_of_a_gpu(preloaded: Preloaded) -> None:
    """The last of four finds no room and runs in NCCL on all ranks, so nothing waits for blocks that never start."""
    outcome = preloaded.client(
        "all", 2, cases="several", BLINK_TOPO="clique:2", BLINK_DOUBLE_SMS=4, BLINK_DOUBLE_OCCUPANCY=1
    ).right()
    assert outcome.agreed()
    assert outcome.calls("blink").total() > 0
    assert outcome.calls("nccl").total() > 0
    assert any("blocks at once" in line for line in outcome.blink)
