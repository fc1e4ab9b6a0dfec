"""Staged transfers through the host and step by step, compared with formulas derived by hand."""

import pytest

from blinkccl.cost.baselines.candidate import Conditions, TimedPlan
from blinkccl.cost.baselines.staged import (
    HOST_COMBINE_GB_PER_S,
    HOST_COPY_GB_PER_S,
    HOST_STEP_US,
    PAGEABLE_GB_PER_S,
    PLAIN_NET_GB_PER_S,
    PLAIN_STEP_US,
    plain_ring,
    prepare_host_staged,
    prepare_plain_ring,
)
from blinkccl.cost.simulate.calibration import LinkClass
from blinkccl.errors import UnsupportedError
from support.planned import asked
from support.timed import calibration_of, link_class

MIB = 2**20


def ideal(*links: LinkClass) -> Conditions:
    return Conditions(calibration_of(*links))


MIST = ideal(link_class("nvlink", 25.0, 25.0), link_class("smp", 32.0, 32.0))
CEDAR = ideal(link_class("nvlink", 25.0, 25.0), link_class("pcie", 12.0, 10.0), link_class("smp", 10.0, 10.0))
H100 = ideal(link_class("nvlink", 25.0, 25.0), link_class("net", 0.0, 1.0))


def test_the_host_takes_copies_messages_and_sums() -> None:
    at = prepare_host_staged(asked("mist"), MIST).at(1_000_000_000)
    copies = 2 / PAGEABLE_GB_PER_S.value
    steps_s = 6 * HOST_STEP_US.value * 1e-6
    assert at.seconds == pytest.approx(
        copies + 1.5 / HOST_COPY_GB_PER_S.value + 0.75 / HOST_COMBINE_GB_PER_S.value + steps_s
    )
    assert prepare_host_staged(asked("mist"), MIST).at(0).seconds == pytest.approx(steps_s)
    assert at.algbw_gb_per_s == pytest.approx(1 / at.seconds)
    assert at.simulation is None


def test_a_slow_link_to_the_host_is_shared_by_its_gpus() -> None:
    fast = prepare_host_staged(asked("cedar"), CEDAR).at(MIB).seconds
    slow = ideal(link_class("nvlink", 25.0, 25.0), link_class("pcie", 12.0, 2.0), link_class("smp", 10.0, 10.0))
    assert prepare_host_staged(asked("cedar"), slow).at(MIB).seconds - fast == pytest.approx(
        2 * MIB / 1e9 * (1 / 2.0 - 1 / PAGEABLE_GB_PER_S.value)
    )
    # On a DGX-1 two GPUs share the link from their switch to the host; a single GPU has the whole link.
    pair, apart = (prepare_host_staged(asked("dgx-1v", gpus=gpus), slow).at(MIB) for gpus in ("0,1", "0,2"))
    assert pair.seconds - apart.seconds == pytest.approx(2 * MIB / 1e9 / 2.0)


@pytest.mark.parametrize("size", [4096, 64 * MIB])
def test_a_plain_ring_takes_a_fixed_time_per_step(size: int) -> None:
    """8 GPUs behind one switch take 14 steps of S/8 each at 450 GB/s."""
    at = prepare_plain_ring(asked("hgx-h100"), H100).at(size)
    assert at.seconds == pytest.approx(14 * (PLAIN_STEP_US.value * 1e-6 + size / 8 / 450e9), rel=1e-9)


def test_between_servers_a_step_goes_at_the_rate_of_a_send() -> None:
    size = 512 * MIB
    at = prepare_plain_ring(asked("2x hgx-h100"), H100).at(size)
    least = 30 * (PLAIN_STEP_US.value * 1e-6 + size / 16 / (PLAIN_NET_GB_PER_S.value * 1e9))
    assert least <= at.seconds < 1.02 * least
    slow = prepare_plain_ring(asked("2x hgx-h100 @ 5GB/s"), H100).at(size)
    assert slow.seconds > 30 * size / 16 / 5e9


def test_a_plain_ring_keeps_its_chunks_whole() -> None:
    timed = prepare_plain_ring(asked("hgx-h100"), H100)
    assert isinstance(timed, TimedPlan)
    for size in (0, 4, 1000, 4096, 10_000_019 * 4):
        extents = timed.simulate(size).translation.bound.extents
        assert {extent.chunks for extent in extents} <= {0, 1}


def test_a_plain_ring_is_one_ring_in_the_order_of_the_ranks() -> None:
    forest = plain_ring(asked("hgx-h100", gpus="5,2,7"))
    hops = {(path[0], path[-1]) for share in forest.shares for tree in share.trees() for path in tree.edges}
    assert hops == {(5, 2), (2, 7), (7, 5)}
    assert {share.root for share in forest.shares} == {5, 2, 7}


@pytest.mark.parametrize(
    ("prepare", "job", "conditions", "says"),
    [
        (prepare_host_staged, asked("mist", "broadcast"), MIST, "does not support broadcast"),
        (prepare_host_staged, asked("2x hgx-h100"), H100, "several"),
        (prepare_host_staged, asked("clique:4"), MIST, "no links join GPU 0"),
        (prepare_host_staged, asked("dgx-1v"), MIST, "no link class for pcie"),
        (prepare_plain_ring, asked("mist", "reduce"), MIST, "does not support reduce"),
        (prepare_plain_ring, asked("dgx-1v", gpus="0,1,2,4"), MIST, "a hop from 2 to 4"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(prepare, job, conditions, says) -> None:
    with pytest.raises(UnsupportedError, match=says):
        prepare(job, conditions)
