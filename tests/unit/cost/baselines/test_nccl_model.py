"""NCCL's cost model: the numbers of NCCL 2.30's tuning code, and the fastest protocol by size.

Expected latencies, bandwidths and times come from src/graph/tuning.cc of NCCL 2.30.7, with the channels of its own
search on these machines.
"""

from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.cost.baselines.nccl_model import (
    CORRECTED_FROM_BYTES,
    SERVED,
    CostLine,
    NcclEstimate,
    choose,
    cost_lines,
    predict,
)
from blinkccl.cost.baselines.nccl_search import Channels, search
from blinkccl.cost.baselines.nccl_server import NcclServer
from blinkccl.errors import UnsupportedError
from blinkccl.topology.spec import load

#: A spec, the GPUs of a server, and the number of servers.
Job = tuple[str, tuple[int, ...], int]
ALL = tuple(range(8))
DGX: Job = ("dgx-1v", ALL, 1)
CHAIN: Job = ("dgx-1v", (1, 4, 5, 6), 1)
MIST: Job = ("mist", (0, 1, 2, 3), 1)
A100S: Job = ("2x dgx-a100", ALL, 2)
H100S: Job = ("4x hgx-h100", ALL, 4)
ETHERNET: Job = ("2x dgx-1v @ 40Gbps", ALL, 2)
JOBS = (DGX, CHAIN, MIST, A100S, H100S, ETHERNET)


@cache
def _channels(job: Job) -> Channels:
    spec, gpus, servers = job
    topology = load(spec)[0]
    per_server = len(topology.ranks) // servers
    return search(topology, [server * per_server + gpu for server in range(servers) for gpu in gpus])


def _lines(job: Job, collective: str) -> dict[tuple[str, str], CostLine]:
    return {(line.algorithm, line.protocol): line for line in cost_lines(_channels(job), collective)}


def _choose(job: Job, collective: str, size_bytes: int) -> NcclEstimate:
    return choose(_channels(job), collective, size_bytes)


@pytest.mark.parametrize(
    ("job", "collective", "pair", "latency_us", "gb_per_s"),
    [
        (DGX, "broadcast", ("ring", "LL"), 11.4, 39),
        (DGX, "broadcast", ("ring", "LL128"), 29.2, 110.4),
        (DGX, "reduce", ("ring", "Simple"), 40.4, 120),
        (DGX, "allgather", ("ring", "LL"), 10.8, 44.57143),
        (DGX, "allgather", ("ring", "LL128"), 27.3, 126.171432),
        (DGX, "reduce_scatter", ("ring", "Simple"), 32.2, 137.142868),
        (DGX, "allreduce", ("tree", "LL"), 15.2, 14.526316),
        (DGX, "allreduce", ("tree", "LL128"), 31.5, 42.933334),
        (DGX, "allreduce", ("tree", "Simple"), 64.4, 55.2),
        (DGX, "allreduce", ("ring", "LL"), 15.0, 22.285715),
        (DGX, "allreduce", ("ring", "LL128"), 40.6, 63.085716),
        (DGX, "allreduce", ("ring", "Simple"), 56.0, 68.571434),
        (CHAIN, "broadcast", ("ring", "Simple"), 24.4, 40),
        (CHAIN, "allreduce", ("tree", "Simple"), 32.4, 18.4),
        (CHAIN, "allreduce", ("ring", "LL128"), 29.0, 24.533333),
        (MIST, "broadcast", ("ring", "LL"), 7.6, 15),
        (MIST, "broadcast", ("ring", "Simple"), 14.1, 30),
        (MIST, "allreduce", ("tree", "Simple"), 42.6, 26.5),
        (A100S, "broadcast", ("ring", "Simple"), 232.4, 192),
        (A100S, "allgather", ("ring", "LL"), 37.3, 24),
        (A100S, "allgather", ("ring", "Simple"), 106.4, 204.8),
        (A100S, "allreduce", ("tree", "LL"), 25.2, 11.25),
        (A100S, "allreduce", ("tree", "LL128"), 48.5, 80),
        (A100S, "allreduce", ("tree", "Simple"), 92.4, 94.4),
        (A100S, "allreduce", ("ring", "LL"), 68.0, 12),
        (A100S, "allreduce", ("ring", "LL128"), 78.0, 85.333336),
        (A100S, "allreduce", ("ring", "Simple"), 204.4, 102.4),
        (H100S, "broadcast", ("ring", "LL"), 93.0, 20.4),
        (H100S, "reduce_scatter", ("ring", "LL128"), 79.2, 303.070953),
        (H100S, "allreduce", ("tree", "LL"), 35.2, 8.67),
        (H100S, "allreduce", ("tree", "LL128"), 65.5, 98.6),
        (H100S, "allreduce", ("tree", "Simple"), 120.4, 122.4),
        (H100S, "allreduce", ("ring", "Simple"), 282.8, 198.193542),
        (ETHERNET, "broadcast", ("ring", "LL"), 9.3, 2.5),
        (ETHERNET, "allgather", ("ring", "Simple"), 70.0, 5.333333),
        (ETHERNET, "allreduce", ("tree", "Simple"), 92.4, 4.6),
        (ETHERNET, "allreduce", ("ring", "LL"), 40.0, 1.333333),
    ],
)
def test_latencies_and_bandwidths(
    job: Job, collective: str, pair: tuple[str, str], latency_us: float, gb_per_s: float
) -> None:
    line = _lines(job, collective)[pair]
    assert float(line.latency_us) == pytest.approx(latency_us, rel=1e-6)
    assert float(line.gb_per_s) == pytest.approx(gb_per_s, rel=1e-6)


@pytest.mark.parametrize(
    ("job", "pair", "times_us"),
    [
        (DGX, ("tree", "LL"), (15.200551, 15.278326, 16.811264, 159.569153, 1298.481445, 73932.210938)),
        (DGX, ("tree", "LL128"), (31.500187, 31.523851, 31.977018, 72.205582, 465.692963, 25041.013672)),
        (DGX, ("tree", "Simple"), (64.400146, 64.420616, 64.82402, 102.391884, 498.592957, 19516.244141)),
        (DGX, ("ring", "LL"), (15.000359, 15.045949, 15.73518, 62.051487, 767.823792, 48195.722656)),
        (DGX, ("ring", "Simple"), (56.000118, 56.014935, 56.238934, 71.291733, 300.667694, 15714.732422)),
        (A100S, ("ring", "Simple"), (204.40007, 204.409988, 286.320007, 296.399994, 450.0, 10771.918945)),
        (A100S, ("tree", "LL128"), (48.500099, 48.512798, 48.756001, 70.345337, 281.516907, 13470.272461)),
        (H100S, ("ring", "Simple"), (282.800049, 282.805176, 282.88269, 401.210693, 480.570679, 5813.5625)),
        (ETHERNET, ("ring", "Simple"), (131.603012, 131.984009, 256.184021, 643.255981, 6541.495605, 402903.1875)),
    ],
)
def test_times_of_an_allreduce(job: Job, pair: tuple[str, str], times_us: tuple[float, ...]) -> None:
    """Times at 8 B, 1 KB, 16 KB, 1 MB, 16 MB and 1 GB: corrected trees, and rings between servers with the plateau."""
    line = _lines(job, "allreduce")[pair]
    sizes = (8, 1 << 10, 1 << 14, 1 << 20, 1 << 24, 1 << 30)
    assert [float(line.time_us(size)) for size in sizes] == pytest.approx(times_us, rel=1e-6)


def test_a_step_over_nvlink_and_over_pcie() -> None:
    """The table has a base and 2(n−1) steps, 0.6 µs over NVLink and 1 µs over PCIe; NVB counts as PCIe."""
    assert _lines(DGX, "allreduce")["ring", "LL"].latency_us == Fraction("6.6") + 14 * Fraction("0.6")
    assert _lines(CHAIN, "allreduce")["ring", "LL"].latency_us == Fraction("6.6") + 6 * Fraction(1)


def test_tiny_sizes_take_ll_and_large_ones_simple() -> None:
    for job in JOBS:
        for collective in SERVED:
            assert _choose(job, collective, 8).protocol == "LL"
            assert _choose(job, collective, 1 << 30).protocol == "Simple"


def test_the_fastest_first() -> None:
    channels = _channels(DGX)
    for size in (0, 1, 1000, 1 << 20, 1 << 28):
        predictions = predict(channels, "allreduce", size)
        assert [p.seconds for p in predictions] == sorted(p.seconds for p in predictions)
        assert predictions[0] == _choose(DGX, "allreduce", size)
        assert len({(p.algorithm, p.protocol) for p in predictions}) == len(predictions) == 6


def test_busbw_nears_the_channels() -> None:
    """A ring's busbw at large sizes is the rate of the search's channels, for every collective."""
    for job in JOBS:
        for collective in ("allreduce", "allgather", "reduce_scatter", "broadcast"):
            channels = _channels(job)
            ring = next(
                p for p in predict(channels, collective, 1 << 40) if (p.algorithm, p.protocol) == ("ring", "Simple")
            )
            each = channels.gb_per_s_per_channel if channels.servers <= 2 else channels.net_gb_per_s_per_channel
            assert ring.busbw_gb_per_s == pytest.approx(channels.count * each, rel=0.001)


def test_trees_serve_allreduce_alone() -> None:
    assert {algorithm for algorithm, _ in _lines(DGX, "allreduce")} == {"tree", "ring"}
    for collective in ("broadcast", "reduce", "allgather", "reduce_scatter"):
        assert {algorithm for algorithm, _ in _lines(DGX, collective)} == {"ring"}


@pytest.mark.parametrize(
    ("job", "has"),
    [
        (DGX, True),
        (CHAIN, True),
        (MIST, False),
        (("dgx-1p", ALL, 1), False),
        (("pcie-8gpu", ALL, 1), False),
        (A100S, True),
        (("2x dgx-a100", (0, 2, 4, 6), 2), False),
        (("2x hgx-h100", (0, 1, 2), 2), True),
        (ETHERNET, False),
    ],
)
def test_where_ll128_is_used(job: Job, has: bool) -> None:
    """LL128 needs Volta and NVLink, up to the PCIe switch of a card; from Hopper on also a path through another GPU."""
    assert (("ring", "LL128") in _lines(job, "allreduce")) == has


def test_caps() -> None:
    """The limit of LL on one server by architecture, and the limit of a tree's channels."""
    channels = _channels(("hgx-h100", ALL, 1))
    volta = replace(channels, arch="volta")
    ring = {one.arch: cost_lines(one, "broadcast")[0] for one in (volta, channels)}
    assert [ring["volta"].gb_per_s, ring["hopper"].gb_per_s] == [39, 141]
    tree = next(x for x in cost_lines(volta, "allreduce") if x.protocol == "Simple")
    assert tree.gb_per_s == Fraction("26.5") * 12 / 2


def test_the_fastest_protocol_on_a_dgx_1v_changes_with_the_size() -> None:
    """AllGather on 8 V100s: LL up to 1.1 MB, then LL128 up to 7.8 MB, then Simple."""
    # Lines 10.8 + b/44571 and 27.3 + b/126171 meet at 16.5 / (1/44571 − 1/126171) bytes, and so on.
    rates = [1000 * Fraction(gb_per_s) * 8 / 7 for gb_per_s in ("39", "110.4", "120")]
    meet = [Fraction("16.5") / (1 / rates[0] - 1 / rates[1]), Fraction("4.9") / (1 / rates[1] - 1 / rates[2])]
    sizes = [int(size) + more for size in (0, *meet) for more in (0, 1)]
    chosen = [choose(_channels(DGX), "allgather", size) for size in sizes]
    assert [(one.algorithm, one.protocol) for one in chosen] == [
        ("ring", protocol) for protocol in ("LL", "LL", "LL", "LL128", "LL128", "Simple")
    ]


@given(size=st.integers(0, 2**40), more=st.integers(1, 2**30), number=st.integers(0, len(JOBS) - 1))
def test_a_larger_size_takes_longer(size: int, more: int, number: int) -> None:
    """The time of rings always rises with the size, that of trees between two of their corrections."""
    for line in _lines(JOBS[number], "allreduce").values():
        larger = size + more
        if line.correction:
            octave = size // CORRECTED_FROM_BYTES
            larger = min(larger, CORRECTED_FROM_BYTES * (1 << octave.bit_length()) - 1)
        if larger > size:
            assert line.time_us(size) < line.time_us(larger)


@pytest.mark.parametrize(("ranks", "busbw"), [(2, 365), (4, 370), (5, 420), (6, 440), (7, 460), (8, 480)])
def test_an_allreduce_in_nvswitch_as_public_runs_have_it(ranks: int, busbw: float) -> None:
    estimate = NcclServer.of(load("hgx-h100")[0], range(ranks)).at("allreduce", 16 << 30)
    assert estimate.algorithm == ("NVLS" if ranks > 2 else "ring")
    assert estimate.busbw_gb_per_s == pytest.approx(busbw, rel=0.02)


def test_small_and_far_allreduces_leave_nvswitch_alone() -> None:
    """LL has the least latency, and switches before Hopper do not reduce."""
    for spec, size in (("hgx-h100", 8), ("dgx-a100", 1 << 30), ("2x dgx-a100", 1 << 20)):
        topology = load(spec)[0]
        assert NcclServer.of(topology, topology.ranks).at("allreduce", size).algorithm != "NVLS"


@pytest.mark.parametrize(
    ("spec", "mib", "low", "high"),
    [
        ("gb200-nvl72", 512, 576.7, 586.1),  # pull request 43 of coreweave/nccl-tests: fitted
        ("gb200-nvl72", 8192, 834.6, 846.8),
        ("dgx-b200", 8192, 832, 832),  # issue 1807 of nccl: judged
        ("dgx-b300", 8192, 845, 845),  # issue 2140 of nccl
        ("hgx-h800", 8192, 215, 215),  # issue 1374 of nccl
        ("hgx-h200", 4096, 475, 475),  # issue 272 of nccl-tests
    ],
)
def test_nvls_has_the_published_rates(spec: str, mib: int, low: float, high: float) -> None:
    topology = load(spec)[0]
    estimate = NcclServer.of(topology, topology.ranks).at("allreduce", mib << 20)
    assert estimate.algorithm == "NVLS"
    assert 0.95 * low <= estimate.busbw_gb_per_s <= 1.05 * high


def test_what_is_not_modelled_has_a_reason_in_place_of_a_time() -> None:
    hoppers, alone = load("2x hgx-h100")[0], load("2x hgx-h100", "0,1+0,1")
    with pytest.raises(UnsupportedError, match="NVLSTree"):
        NcclServer.of(hoppers, hoppers.ranks).at("allreduce", 1 << 30)
    assert NcclServer.of(hoppers, hoppers.ranks).at("allgather", 1 << 30).algorithm == "ring"
    assert NcclServer.of(*alone).at("allreduce", 1 << 30).algorithm in ("ring", "tree")
