"""Candidates of a laboratory, and their predictions."""

from dataclasses import replace

import pytest

from blinkccl.apps.lab import experiment, output
from blinkccl.apps.lab.experiment import ALL, Measured
from blinkccl.apps.lab.laboratory import Run
from blinkccl.bench.pattern import TimedCall as Pattern
from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError, UsageError
from support.extras import needs
from support.planned import asked


def test_all_rings_at_once_and_the_first_of_them_alone() -> None:
    field = experiment.prepare(asked("dgx-1v", "allreduce"), ("ring", "one_ring"), 100)
    every, first = (one.forest for one in field.candidates)
    assert (every.rate, first.rate) == (6 * first.rate, first.rate)
    assert first.algbw_gb_per_s == pytest.approx(25 * 8 / 14)
    assert sum(share.weight for share in first.shares) == 1


def test_what_there_is_none_of_is_told() -> None:
    field = experiment.prepare(asked("dgx-1v", "broadcast", "1,4,5,6"), ALL, 100)
    assert [one.name for one in field.candidates] == ["optimal", "blink", "ring"]
    assert field.absent == (("one_ring", "one_ring: there is only one ring; use ring"),)
    with pytest.raises(UnsupportedError, match=r"no algorithm can run: .*one_ring"):
        experiment.prepare(asked("dgx-1v", "broadcast", "1,4,5,6"), ("one_ring",), 100)


class Slow:
    """A laboratory whose calls take 1 ms plus 100 MB/s on NVLink, 20 MB/s on PCIe; on both ``longer_s`` more."""

    def __init__(self, longer_s: float, both: float = 120e6, pcie: float = 20e6) -> None:
        self.longer_s, self.both, self.pcie, self.programs = longer_s, both, pcie, []

    def open(self, program) -> int:
        self.programs.append(program)
        return len(self.programs) - 1

    def close(self, number: int) -> None:
        self.programs[number] = None

    def run(self, number: int, pattern: Pattern, chunk_bytes: int, deadline_s: float) -> Run:
        staged = [queue.is_staged for queue in self.programs[number].queues]
        both = any(staged) and not all(staged)
        rate = self.both if both else self.pcie if all(staged) else 100e6
        return Run(0.001 + self.longer_s * both + pattern.size / rate, 0, 0.0)


@pytest.mark.parametrize(("name", "longer_s", "least"), [("hybrid", 0.0, 0), ("hybrid@all", 0.01, 6_000_000)])
def test_hybrid_splits_by_what_its_first_calls_took(name: str, longer_s: float, least: int) -> None:
    """Eq 8 by rates; below the size at which PCIe saves more than its cost, its part is 0."""
    (one,) = experiment.prepare(asked("dgx-1v", "broadcast", "0,1,2", links="all"), (name,), 100).candidates
    ready = one.ready(Slow(longer_s), 1.0, 60.0)
    for size in (1 << 14, 1 << 20, 1 << 24, 1 << 28):
        staged = [share for share in ready.at(size).forest.shares if len(share.broadcast.edges[0]) > 2]
        part = float(sum(share.weight for share in staged))
        saved = (size - longer_s * 100e6) * 20 / 120 / size if longer_s else 1 / 6
        assert part == pytest.approx(saved if size > least else 0, abs=1 / 64)


@pytest.mark.parametrize(("together", "splits"), [(99e6, False), (100.5e6, False), (102e6, True)])
def test_hybrid_stays_on_nvlink_where_both_together_are_no_faster(together: float, splits: bool) -> None:
    """The rates do not sum, for lack of processors: then no size is split, however large."""
    request = asked("dgx-1v", "broadcast", "0,1,2", links="all")
    one, alone = experiment.prepare(request, ("hybrid", "optimal@fast"), 100).candidates
    sized = one.ready(Slow(0.0, together), 1.0, 60.0).at(1 << 30)
    assert any(queue.is_staged for queue in sized.program.queues) == splits
    assert sized.name == "hybrid"
    assert (sized.forest.shares == alone.forest.shares) != splits


@pytest.mark.parametrize(("pcie", "most"), [(20e6, 20 / 120), (60e6, 12 / 62)])
def test_pcie_gets_no_more_than_by_the_rates_of_its_links(pcie: float, most: float) -> None:
    (one,) = experiment.prepare(asked("dgx-1v", "broadcast", "0,1,2", links="all"), ("hybrid",), 100).candidates
    forest = one.ready(Slow(0.0, pcie=pcie), 1.0, 60.0).at(1 << 28).forest
    staged = [share for share in forest.shares if len(share.broadcast.edges[0]) > 2]
    assert most - 1 / 128 < sum(share.weight for share in staged) <= most


class TwoPaths(Slow):
    """A call takes 1 ms directly and 3 through the host, plus 100 MB/s; both together ``longer`` times as long."""

    def __init__(self, longer: float) -> None:
        self.longer, self.programs = longer, []

    def run(self, number: int, pattern: Pattern, chunk_bytes: int, deadline_s: float) -> Run:
        program = self.programs[number]
        ends = [
            (0.003 if queue.is_staged else 0.001) + float(part.stop - part.start) * pattern.size / 100e6
            for queue, part in zip(program.queues, program.slices, strict=True)
        ]
        return Run(max(ends) * (self.longer if len(ends) > 1 else 1), 0, 0.0)


def test_multi_path_splits_by_what_its_first_calls_took() -> None:
    """Both paths end at the same time, and there is no split if a direct copy is about as fast."""
    request = asked("mist", "sendrecv", "0,1")
    (one,) = experiment.prepare(request, ("multi_path",), 100).candidates
    ready = one.ready(TwoPaths(1.0), 1.0, 60.0)
    for size in (1 << 16, 1 << 18):
        assert [share.weight for share in ready.at(size).forest.shares] == [1]
    for size in (1 << 21, 1 << 24, 1 << 28):
        direct, staged = ready.at(size).forest.shares
        assert 0.001 + float(direct.weight) * size / 100e6 == pytest.approx(
            0.003 + float(staged.weight) * size / 100e6, rel=1e-3
        )
    assert len(one.ready(TwoPaths(1.99), 1.0, 60.0).at(1 << 28).forest.shares) == 1
    assert ready.at(1 << 20).name == "multi_path"


def test_a_path_alone_is_a_candidate() -> None:
    request = asked("mist", "sendrecv", "0,1")
    (one,) = experiment.prepare(request, ("path:0-4-1",), 100).candidates
    assert {queue.path for queue in one.program.queues} == {(0, 4, 1)}
    with pytest.raises(UsageError, match="expected a path of vertices"):
        experiment.prepare(request, ("path:0-x",), 100)
    field = experiment.prepare(request, ("path:0-1", "path:0-9-1"), 100)
    assert "mist has no link 0 → 9" in dict(field.absent)["path:0-9-1"]
    assert field.path_row is None


def test_a_lane_is_of_the_fast_links_whatever_is_planned_on() -> None:
    for links in ("fast", "pcie", "all"):
        field = experiment.prepare(asked("dgx-1v", "broadcast", "0,1,2", links=links), ("optimal",), 100)
        assert (field.lane_gb_per_s, field.lane_mbit_per_s, field.slower) == (25, 100, 2000)


def test_without_a_lane_it_is_what_the_processors_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment.os, "sched_getaffinity", lambda _: {0, 1})
    field = experiment.prepare(asked("dgx-1v", "broadcast"), ALL)
    # Six lanes into each of seven GPUs: 42 lanes at 300 MB/s.
    assert field.lane_mbit_per_s == pytest.approx(8 * 300 / 42)
    assert experiment.prepare(asked("dgx-1v", "sendrecv", "0,1"), ("optimal",)).lane_mbit_per_s == pytest.approx(800)


@pytest.mark.parametrize(
    ("size", "least", "most"), [(1 << 20, 32768, 32768), (1 << 30, 65536, experiment.BUFFER_BYTES)]
)
def test_chunks_are_as_small_as_the_pipeline_wants_and_no_larger_than_a_buffer(size, least, most) -> None:
    (one,) = experiment.prepare(asked("dgx-1v", "broadcast"), ("optimal",), 100).candidates
    assert least <= one.chunk_bytes(size) <= most


def test_the_simulator_says_what_a_pipeline_loses() -> None:
    (one,) = experiment.prepare(asked("ring:4", "sendrecv", "0,1"), ("optimal",), 100).candidates
    assert one.simulated_gb_per_s(1 << 24, 1 << 16) == pytest.approx(one.forest.algbw_gb_per_s, rel=1e-3)
    (relayed,) = experiment.prepare(asked("ring:4", "sendrecv", "0,2", relays=True), ("optimal",), 100).candidates
    # Eight chunks of each half through one relay: nine times that of a chunk.
    assert relayed.simulated_gb_per_s(1 << 24, 1 << 20) == pytest.approx(
        relayed.forest.algbw_gb_per_s * 8 / 9, rel=1e-3
    )


def test_rates_are_those_of_the_machine_and_times_those_of_the_laboratory() -> None:
    field = experiment.prepare(asked("ring:4", "sendrecv", "0,1"), ("optimal",), 100)
    (one,) = field.candidates
    pattern = Pattern(one.forest.collective, 2_500_000)
    runs = [Run(seconds, 0, 0.5) for seconds in (1.0, 4.0, 2.0)]
    measured = Measured(one, pattern, 1 << 18, field.slower, runs)
    assert measured.seconds == 2
    assert measured.gb_per_s == pytest.approx(10e6 / 2 * field.slower / 1e9)
    assert measured.part == pytest.approx(measured.gb_per_s / one.forest.algbw_gb_per_s)
    text = output.table_text([[measured]], lambda text, _: text)
    assert "10,000,000" in text
    assert "2 s" in text.replace("2.000 s", "2 s")
    layout = field.laboratory().layout
    assert "1 link between 2 namespaces, 100 Mbit/s for a lane of" in output.head_text(field, layout)
    report = output.document(field, layout, [[replace(measured)]])
    assert (report["lane_mbit_per_s"], report["namespaces"], report["absent"]) == (100, 2, [])
    assert report["rows"][0]["seconds"] == [1.0, 4.0, 2.0]
    assert report["rows"][0]["plan_algbw_gb_per_s"] == one.forest.algbw_gb_per_s


def test_measured_times_are_drawn_beside_simulated_ones() -> None:
    field = experiment.prepare(asked("ring:4", "sendrecv", "0,1"), ("optimal",), 100)
    (one,) = field.candidates

    def row(count: int) -> list[Measured]:
        return [Measured(one, Pattern(one.forest.collective, count), 1 << 16, field.slower, [Run(1.0, 0, 0.5)])]

    for rows in ([row(2_500_000)], [row(250_000), row(2_500_000)]):
        curves = output.picture(field, rows)
        assert curves.title == "SendRecv among 2 ranks (0,1) of ring:4, in the laboratory"
        assert all(name in curves.about for name in ("optimal: ", "optimal, simulated: "))


def test_wrong_elements_of_all_runs_are_counted() -> None:
    (one,) = experiment.prepare(asked("ring:4", "sendrecv", "0,1"), ("optimal",), 100).candidates
    pattern = Pattern(Collective("sendrecv", 2, src=0, dst=1), 4)
    assert Measured(one, pattern, 64, 1.0, [Run(1.0, 2, 0.0), Run(1.0, 3, 0.0)]).wrong == 5


@needs("torch")
def test_gloo_goes_around_in_the_order_of_links_or_of_ranks() -> None:
    field = experiment.prepare(asked("dgx-1v", "allreduce", "0,1,4,5"), ("gloo_links", "gloo_ranks"), 100)
    by_links, by_ranks = field.candidates
    assert set(by_links.order) == {0, 1, 4, 5}
    ends = [*zip(by_links.order, by_links.order[1:] + by_links.order[:1], strict=True)]
    assert all(pair in by_links.forest.topology.link for pair in ends)
    assert by_ranks.order == (0, 1, 4, 5)
    # 1 to 4 and 5 to 0 have no NVLink.
    assert by_ranks.forest.algbw_gb_per_s < by_links.forest.algbw_gb_per_s / 2
    assert field.laboratory().layout.hosts.keys() == {0, 1, 4, 5}


@needs("torch")
def test_gloo_is_refused_where_it_cannot_go() -> None:
    (refused, _) = experiment.prepare(
        asked("dgx-1v", "allreduce", "1,4,5,6"), ("gloo_links", "gloo_ranks", "optimal")
    ).absent[0]
    assert refused == "gloo_links"
    for spec, name, reason in (
        ("dgx-1v", "broadcast", "gloo_ranks supports only allreduce here"),
        ("ring:4", "allreduce", "gloo_ranks connects all ranks, but 0 reaches 2 only over other ranks"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            experiment.prepare(asked(spec, name), ("gloo_ranks",))


def test_a_name_may_say_which_links() -> None:
    names = ("optimal@fast", "optimal@all", "hybrid@all")
    fast, both, hybrid = experiment.prepare(asked("dgx-1v", "broadcast", "0,1,2"), names).candidates
    assert fast.forest.algbw_gb_per_s < hybrid.forest.algbw_gb_per_s <= both.forest.algbw_gb_per_s


def test_a_size_that_moves_nothing_is_refused() -> None:
    (one,) = experiment.prepare(asked("ring:4", "allgather"), ("optimal",), 100).candidates
    assert experiment.planned(one, 64, 1.0).pattern.size == 64
    with pytest.raises(UsageError, match="allgather of 15 bytes moves no data"):
        experiment.planned(one, 15, 1.0)
