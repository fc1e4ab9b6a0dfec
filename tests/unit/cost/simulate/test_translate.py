"""The translation of a program: actors, hops, streams and links, with costs derived by hand."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import lcm

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.cost.simulate import kernel
from blinkccl.cost.simulate.calibration import Calibration, LinkClass
from blinkccl.cost.simulate.translate import UNFAIRNESS, Settings, Translation, translate
from blinkccl.errors import ScheduleError, TopologyError, UsageError
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.model import Topology
from blinkccl.topology.synthetic import synthetic
from blinkccl.trees.algorithms import multi_path
from blinkccl.trees.forest.model import Path, Share, Tree
from support.planned import asked, broadcast_by_hand, by_hand
from support.timed import calibration_of, link_class, lowered

NVLINK = link_class("nvlink", 25.0, 20.0, 2.0, 0.5)


def costs(*links: LinkClass, **engine: float) -> Calibration:
    """A calibration with 20 GB/s per lane of NVLink, and half of it if both directions are used."""
    return calibration_of(*(links or (NVLINK,)), **engine)


def job(topology: Topology, collective: Collective, *shares: Share) -> tuple[Program, Topology]:
    return lower(by_hand(collective, topology, shares)), topology


def broadcast(topology: Topology, *trees: Sequence[Path], slots: int = 2) -> tuple[Program, Topology]:
    return lower(broadcast_by_hand(topology, *trees), slots), topology


def chain_broadcast(slots: int = 2) -> tuple[Program, Topology]:
    """A broadcast over 0 → 1 → 2."""
    return broadcast(synthetic("chain:3"), ((0, 1), (1, 2)), slots=slots)


def chain_reduce() -> tuple[Program, Topology]:
    """A reduce over 2 → 1 → 0."""
    share = Share(Fraction(1), 0, None, 0, Tree(0, ((2, 1), (1, 0))), None)
    return job(synthetic("chain:3"), Collective("reduce", 3, root=0), share)


def translated(
    translation: tuple[Program, Topology],
    calibration: Calibration,
    settings: Settings | None = None,
    count: int = 1000,
    chunk_bytes: int = 1600,
) -> Translation:
    program, topology = translation
    return translate(bind(program, count, 4, chunk_bytes), topology, calibration, settings)


# Actors and hops.


def test_a_role_is_an_actor_and_a_queue_a_hop() -> None:
    translation = translated(chain_broadcast(), costs())
    program, workload = translation.bound.program, translation.workload
    assert len(workload.actors.chunks) == len(program.roles) == 3
    assert [(arc.tail, arc.head) for arc in translation.legs] == list(
        zip(workload.hops.tail.tolist(), workload.hops.head.tolist(), strict=True)
    )
    for arc in translation.legs:
        assert arc.queue in program.roles[arc.tail].sends
        assert arc.queue in program.roles[arc.head].receives
    ends = [(program.roles[a.tail].rank, program.roles[a.head].rank) for a in translation.legs]
    assert sorted(ends) == [(0, 1), (1, 2)]
    assert translation.links == ((0, 1), (1, 2))


def test_chunks_and_bytes_are_those_of_the_bound_program() -> None:
    """1000 floats in chunks of 400 have a third chunk of 200."""
    actors = translated(chain_broadcast(), costs()).workload.actors
    assert actors.chunks.tolist() == [3, 3, 3]
    assert actors.bytes.tolist() == [1600.0] * 3
    assert actors.last_bytes.tolist() == [800.0] * 3


def test_every_slice_has_its_own_chunks() -> None:
    """With even chunks, a slice of a quarter has as many chunks as one of three quarters."""
    trees = Tree(0, ((0, 1), (1, 2))), Tree(0, ((0, 2), (2, 1)))
    weights = Fraction(3, 4), Fraction(1, 4)
    shares = [Share(weights[i], i, None, 0, None, trees[i]) for i in range(2)]
    program, topology = job(synthetic("clique:3"), Collective("broadcast", 3, root=0), *shares)
    for even, chunks, size in ((False, [3, 1], [1008, 1008]), (True, [3, 3], [1008, 336])):
        bound = bind(program, 1000, 4, 1008, even)
        actors = translate(bound, topology, costs()).workload.actors
        for role, count, each, last in zip(
            program.roles, actors.chunks.tolist(), actors.bytes.tolist(), actors.last_bytes.tolist(), strict=True
        ):
            assert (count, each) == (chunks[role.slice], size[role.slice])
            assert (count - 1) * each + last == 4 * bound.extents[role.slice].length


def test_an_empty_slice_moves_nothing() -> None:
    workload = translated(chain_broadcast(), costs(reduce_us=1), count=0).workload
    assert workload.actors.chunks.tolist() == [0, 0, 0]
    assert workload.tasks == 0
    assert kernel.run(workload).seconds == 0.0


def test_receives_and_sends_keep_the_roles_order() -> None:
    translation = translated(broadcast(synthetic("clique:4"), ((0, 2), (0, 1), (1, 3))), costs())
    actors = translation.workload.actors
    for number, role in enumerate(translation.bound.program.roles):
        for of, hops, queues in (
            (actors.receives_of, actors.receives, role.receives),
            (actors.sends_of, actors.sends, role.sends),
        ):
            mine = hops[of[number] : of[number + 1]].tolist()
            assert tuple(translation.legs[hop].queue for hop in mine) == queues


def test_slots_are_the_channels() -> None:
    for slots in (1, 2, 5):
        assert set(translated(chain_broadcast(slots), costs()).workload.hops.slots.tolist()) == {slots}


def test_a_shared_queue_is_a_hop_per_pair_of_roles() -> None:
    program, topology = broadcast(synthetic("chain:3"), *[((0, 1), (1, 2))] * 2)
    queues = tuple(dict.fromkeys(program.queues))
    assert (len(program.queues), len(queues)) == (4, 2)

    def merged(own: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(queues.index(program.queues[q]) for q in own)

    roles = [replace(x, channel=0, receives=merged(x.receives), sends=merged(x.sends)) for x in program.roles]
    roles.sort(key=lambda role: (role.rank, role.share))
    channel = replace(program.channels[0], shares=(0, 1))
    translation = translated(
        (replace(program, queues=queues, roles=tuple(roles), channels=(channel,)), topology), costs()
    )
    assert [arc.queue for arc in translation.legs] == [0, 0, 1, 1]
    assert translation.workload.hops.stream.tolist() == [0, 0, 1, 1]
    for sharing in ("fifo", "fair"):
        assert kernel.run(translation.workload, sharing).transfers == translation.workload.transfers == 8


# Costs of transfers.


def test_a_lane_of_a_class_scales_with_the_link() -> None:
    """Links of one, two and three lanes reach 20, 40 and 60 GB/s."""
    box = Assembly("lanes", "synthetic")
    box.add_many("gpu", 4, "GPU")
    for src, lanes in enumerate((1, 2, 3)):
        box.arc(src, src + 1, 25 * lanes, "nvlink")
    topology = box.finish()
    translation = translated(broadcast(topology, ((0, 1), (1, 2), (2, 3))), costs())
    assert dict(zip(translation.links, translation.workload.rates.tolist(), strict=True)) == {
        (0, 1): pytest.approx(20e9),
        (1, 2): pytest.approx(40e9),
        (2, 3): pytest.approx(60e9),
    }


def test_a_class_without_a_lane_is_a_part_of_any_rate() -> None:
    any_rate = link_class("nvlink", 0.0, 0.5, 2.0)
    assert translated(chain_broadcast(), costs(any_rate)).workload.rates.tolist() == [12.5e9, 12.5e9]


def test_a_link_used_both_ways_reaches_its_duplex_rate() -> None:
    up_and_down = Share(Fraction(1), 0, None, 0, Tree(0, ((1, 0), (2, 0))), Tree(0, ((0, 1), (1, 2))))
    translation = translated(job(synthetic("clique:3"), Collective("allreduce", 3), up_and_down), costs())
    rates = dict(zip(translation.links, translation.workload.rates.tolist(), strict=True))
    assert rates == {
        (1, 0): pytest.approx(10e9),
        (0, 1): pytest.approx(10e9),
        (2, 0): pytest.approx(20e9),  # 0 → 2 exists, but this plan does not use it
        (1, 2): pytest.approx(20e9),
    }


def test_links_of_a_combining_rank_keep_a_part_of_their_rate() -> None:
    """A chain reduces one neighbour's messages with its own data; Fig 8 measures a root with two children."""
    fan_in = Share(Fraction(1), 0, None, 0, Tree(0, ((1, 0), (2, 0))), None)
    translation = translated(job(synthetic("clique:3"), Collective("reduce", 3, root=0), fan_in), costs(combining=0.9))
    assert translation.workload.rates.tolist() == [pytest.approx(18e9)] * 2
    assert translated(chain_reduce(), costs(combining=0.9)).workload.rates.tolist() == [pytest.approx(20e9)] * 2
    assert translated(chain_broadcast(), costs(combining=0.9)).workload.rates.tolist() == [pytest.approx(20e9)] * 2


def test_latency_is_the_issues_and_every_links() -> None:
    hops = translated(chain_broadcast(), costs(issue_us=5, signal_us=3)).workload.hops
    assert hops.latency_s.tolist() == [pytest.approx(7e-6)] * 2
    assert hops.signal_s.tolist() == [pytest.approx(3e-6)] * 2
    program, network = lowered("optimal", "star:3", "broadcast")
    through = translate(bind(program, 1000, 4), network, costs(issue_us=5))
    assert through.workload.hops.latency_s.tolist() == [pytest.approx(9e-6)] * len(program.queues)
    assert all(len(queue.path) == 3 for queue in program.queues)
    for hop, arc in enumerate(through.legs):
        first, last = through.workload.hops.path_of[hop], through.workload.hops.path_of[hop + 1]
        pairs = [through.links[link] for link in through.workload.hops.path[first:last]]
        src, via, dst = program.queues[arc.queue].path
        assert pairs == [(src, via), (via, dst)]


def test_copy_engines_are_pools_of_the_sending_ranks() -> None:
    translation = translated(chain_broadcast(), costs(copy_engines=2))
    sources = [translation.bound.program.queues[arc.queue].src for arc in translation.legs]
    assert translation.workload.hops.pool.tolist() == sources
    assert translation.workload.pools.tolist() == [2, 2, 2]
    assert translated(chain_broadcast(), costs()).workload.hops.pool.tolist() == [-1, -1]


def staged_copy(count: int, chunk_bytes: int, memory_gb_per_s: float = 0.0, latency_us: float = 2.0) -> Translation:
    """A copy from GPU 0 to 1 of Mist through the processor's memory alone."""
    calibration = costs(link_class("nvlink", 25.0, 25.0, latency_us), memory_gb_per_s=memory_gb_per_s)
    flow = multi_path.plan(asked("mist", "sendrecv", "0,1"))
    program = lower(multi_path.forest_of(flow, multi_path.on_one_path((0, 4, 1))))
    return translate(bind(program, count, 4, chunk_bytes), flow.topology, calibration)


def test_a_hosts_memory_is_a_link_of_both_legs() -> None:
    translation = staged_copy(1000, 400, memory_gb_per_s=60)
    hops = translation.workload.hops
    paths = [[translation.links[link] for link in hops.path[a:b]] for a, b in pairwise(hops.path_of.tolist())]
    assert paths == [[(0, 4), (4, 4)], [(4, 4), (4, 1)]]
    assert translation.workload.rates[translation.links.index((4, 4))] == 60e9
    assert hops.latency_s.tolist() == [pytest.approx(2e-6)] * 2
    assert (4, 4) not in staged_copy(1000, 400).links


def test_staged_copies_have_half_of_the_memorys_rate() -> None:
    for sharing in ("fifo", "fair"):
        free, limited = (
            kernel.run(staged_copy(25_000_000, 1_000_000, rate, 0.0).workload, sharing).seconds for rate in (0, 60)
        )
        assert free == pytest.approx(100e6 / 75e9, rel=0.02)
        assert limited == pytest.approx(2 * 100e6 / 60e9, rel=0.02)


# Costs and streams of executions.


def combining(translation: Translation) -> list[int]:
    """The actors that reduce."""
    return [number for number, stream in enumerate(translation.workload.actors.stream.tolist()) if stream >= 0]


def test_a_role_combines_in_the_stream_of_its_first_send() -> None:
    translation = translated(chain_reduce(), costs(reduce_us=4, reduce_gb_per_s=100))
    roles, actors = translation.bound.program.roles, translation.workload.actors
    assert [roles[number].rank for number in combining(translation)] == [0, 1]
    for number in combining(translation):
        assert actors.launch_s[number] == pytest.approx(4e-6)
        assert actors.pace_s_per_byte[number] == pytest.approx(1e-11)
        sends = actors.sends[actors.sends_of[number] : actors.sends_of[number + 1]].tolist()
        if sends:
            assert actors.stream[number] == translation.workload.hops.stream[sends[0]]
        else:
            assert actors.stream[number] not in translation.workload.hops.stream.tolist()
    assert translation.workload.streams == 3


def test_forwarding_and_free_reductions_need_no_stream() -> None:
    assert combining(translated(chain_broadcast(), costs(reduce_us=4, reduce_gb_per_s=100))) == []
    assert combining(translated(chain_reduce(), costs())) == []
    assert len(combining(translated(chain_reduce(), costs(reduce_us=4)))) == 2
    assert len(combining(translated(chain_reduce(), costs(reduce_gb_per_s=100)))) == 2


def test_n_operands_take_as_long_as_they_are_read_and_written() -> None:
    """Two children and the own data need three reads and a write, against two and one."""
    fan_in = Share(Fraction(1), 0, None, 0, Tree(0, ((1, 0), (2, 0))), None)
    translation = translated(
        job(synthetic("clique:3"), Collective("reduce", 3, root=0), fan_in), costs(reduce_gb_per_s=100)
    )
    [root] = combining(translation)
    assert translation.workload.actors.pace_s_per_byte[root] == pytest.approx(1e-11 * 4 / 3)


def test_a_chain_takes_the_time_of_the_pipeline_model() -> None:
    """A stage takes issue + bytes/rate (+ reduce); a chain takes their sum and (k − 1) times the longest."""
    translation = translated(chain_reduce(), costs(issue_us=5, reduce_us=4, reduce_gb_per_s=100), count=1200)
    copy_s = 7e-6 + 1600 / 20e9
    combine_s = 4e-6 + 1600 / 100e9
    for sharing in ("fifo", "fair"):
        taken = kernel.run(translation.workload, sharing).seconds
        assert taken == pytest.approx(copy_s + 3 * (combine_s + copy_s) + combine_s)


# Streams.


def two_trees() -> tuple[Program, Topology]:
    """Two broadcast trees that both cross 0 → 1 first; the second returns over 2 → 1 at another depth."""
    return broadcast(synthetic("clique:4"), ((0, 1), (1, 2), (2, 3)), ((0, 1), (1, 3), (3, 2)))


def test_each_tree_has_a_stream_per_link() -> None:
    workload = translated(two_trees(), costs()).workload
    assert sorted(workload.hops.stream.tolist()) == list(range(6))
    assert workload.streams == 6


def test_reused_streams_serve_trees_at_the_same_depth() -> None:
    translation = translated(two_trees(), costs(), Settings(streams="reused"))
    assert translation.workload.streams == 5
    queues = translation.bound.program.queues
    first = {
        int(translation.workload.hops.stream[h])
        for h, arc in enumerate(translation.legs)
        if queues[arc.queue].path == (0, 1)
    }
    assert len(first) == 1
    apart = broadcast(synthetic("clique:4"), ((0, 2), (2, 3), (3, 1)), ((0, 3), (3, 1), (1, 2)))
    assert translated(apart, costs(), Settings(streams="reused")).workload.streams == 6


# Sharing of links.


def weights(translation: Translation) -> list[float]:
    return translation.workload.hops.weight.tolist()


def test_first_come_and_fair_links_know_no_weights() -> None:
    for sharing in ("fifo", "fair"):
        settings = Settings(sharing)
        assert weights(translated(two_trees(), costs(), settings)) == [1.0] * 6
        assert settings.kernel_sharing == sharing


def test_unfair_links_give_the_first_tree_most() -> None:
    translation = translated(two_trees(), costs(), Settings("unfair"))
    queues = translation.bound.program.queues
    by_share = {
        translation.bound.program.roles[arc.tail].share: weights(translation)[h]
        for h, arc in enumerate(translation.legs)
        if queues[arc.queue].path == (0, 1)
    }
    assert by_share == {0: 1.0, 1: 1.0 / UNFAIRNESS}
    assert translation.settings.kernel_sharing == "fair"


# Starts of ranks.


def test_roles_start_after_their_launch() -> None:
    translation = translated(chain_broadcast(), costs(launch_us=10))
    assert translation.workload.actors.start_s.tolist() == [pytest.approx(1e-5)] * len(translation.bound.program.roles)


# Refusals.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sharing": "first"}, "^unknown sharing 'first'; expected one of fifo, fair, unfair$"),
        ({"streams": "one"}, "^unknown streams 'one'; expected one of per-tree, reused$"),
    ],
)
def test_unknown_settings_are_refused(fields: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings(**fields)


def test_a_missing_link_is_named() -> None:
    program, topology = chain_broadcast()
    cut = replace(topology, links=tuple(link for link in topology.links if (link.src, link.dst) != (1, 2)))
    with pytest.raises(TopologyError, match="the program sends over a link 1 → 2, which chain:3 does not have"):
        translated((program, cut), costs())


def test_a_link_that_the_calibration_does_not_know_is_named() -> None:
    with pytest.raises(TopologyError, match="calibration test has no link class for nvlink"):
        translated(chain_broadcast(), costs(link_class("net", 0.0, 1.0, 1.0)))


def test_ends_of_a_queue_that_do_not_fit_are_named() -> None:
    program, topology = chain_broadcast()
    deaf = replace(program, roles=tuple(replace(role, receives=()) for role in program.roles))
    with pytest.raises(ScheduleError, match=r"the program cannot be timed: lost chunk: .* queue 0 from rank 0"):
        translated((deaf, topology), costs())


# Totals of the workload.


def test_totals_are_those_of_the_plan() -> None:
    translation = translated(chain_reduce(), costs(reduce_us=1))
    workload = translation.workload
    assert (workload.transfers, workload.executions, workload.tasks) == (6, 6, 12)
    assert workload.hop_bytes.tolist() == [4000.0, 4000.0]
    assert workload.link_bytes.tolist() == [4000.0, 4000.0]


@pytest.mark.parametrize(
    ("algo", "spec"), [("optimal", "torus:2x4"), ("ring", "torus:2x4"), ("blink", "dgx-1v"), ("optimal", "star:5")]
)
def test_bytes_on_links_are_weights_times_size(algo: str, spec: str) -> None:
    program, network = lowered(algo, spec, "allreduce")
    parts = [part.stop - part.start for part in program.slices]
    size = 16 * lcm(*(part.denominator for part in parts))  # every slice is a multiple of 16 bytes
    translation = translate(bind(program, size // 4, 4, 4096), network, costs())
    expected: dict[tuple[int, int], Fraction] = dict.fromkeys(translation.links, Fraction(0))
    for role in program.roles:
        for queue in role.sends:
            for pair in pairwise(program.queues[queue].path):
                expected[pair] += parts[role.slice] * size
    assert translation.workload.link_bytes.tolist() == [float(expected[pair]) for pair in translation.links]
