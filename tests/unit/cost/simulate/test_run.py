"""Timing of a program for a size: chunk, budget, kernel, and nccl-tests' names of the numbers."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from blinkccl.cost.simulate import kernel
from blinkccl.cost.simulate.calibration import Calibration, calibration
from blinkccl.cost.simulate.run import (
    LEAST_CHUNK_BYTES,
    MAX_SIZE_BYTES,
    MOST_CHUNK_BYTES,
    Simulation,
    best_chunk_bytes,
    bind_bytes,
    parse_size,
    simulate,
)
from blinkccl.cost.simulate.translate import MAX_BUDGET, Frame, Settings, Translation, translate
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from support.planned import broadcast_by_hand
from support.timed import calibration_of, link_class, lowered

MB = 10**6
NOMINAL = calibration("nominal")
JOBS = [
    ("optimal", "dgx-1v", "allreduce"),
    ("blink", "dgx-1v", "broadcast"),
    ("ring", "dgx-1v", "allreduce"),
    ("optimal", "torus:2x3", "allgather"),
    ("optimal", "star:4", "alltoall"),
    ("one_shot", "clique:4", "allreduce"),
]


def free(issue_us: float = 0.0) -> Calibration:
    """A calibration with 25 GB/s per lane of NVLink, and copies that cost ``issue_us`` alone."""
    return calibration_of(link_class("nvlink", 25.0, 25.0), issue_us=issue_us)


def chain(ranks: int = 2) -> tuple[Program, Topology]:
    """A broadcast along a row of GPUs."""
    topology = parse_spec(f"chain:{ranks}")
    return lower(broadcast_by_hand(topology, list(pairwise(range(ranks))))), topology


# Results of a run.


def test_a_copy_takes_its_bytes_over_the_rate() -> None:
    timed = simulate(*chain(), free(), 100 * MB, chunk_bytes=1 * MB)
    assert timed.seconds == pytest.approx(100e6 / 25e9)
    assert timed.algbw_gb_per_s == pytest.approx(25.0)
    assert (timed.size_bytes, timed.chunk_bytes, timed.aggregated) == (100 * MB, 1 * MB, 1)
    assert timed.outcome.transfers == 100
    assert timed.outcome.trace is None


def test_a_chain_is_a_pipeline() -> None:
    """Three hops of 40 us + 5 us per chunk of 1 MB take 3 stages and 9 more chunks."""
    timed = simulate(*chain(4), free(issue_us=5.0), 10 * MB, chunk_bytes=1 * MB)
    assert timed.seconds == pytest.approx((3 + 9) * 45e-6)


@pytest.mark.parametrize(("name", "factor"), [("allreduce", 14 / 8), ("broadcast", 1.0), ("allgather", 7 / 8)])
def test_bandwidths_are_those_of_nccl_tests(name: str, factor: float) -> None:
    timed = simulate(*lowered("optimal", "dgx-1v", name), NOMINAL, 64 * MB)
    assert timed.algbw_gb_per_s == pytest.approx(64e6 / timed.seconds / 1e9)
    assert timed.busbw_gb_per_s == pytest.approx(timed.algbw_gb_per_s * factor)


def test_nothing_takes_no_time() -> None:
    timed = simulate(*lowered("optimal", "dgx-1v", "allreduce"), NOMINAL, 0)
    assert (timed.seconds, timed.algbw_gb_per_s, timed.busbw_gb_per_s) == (0.0, 0.0, 0.0)
    assert timed.outcome.transfers == 0


def test_a_trace_is_kept_on_request() -> None:
    timed = simulate(*chain(3), free(), 4 * MB, chunk_bytes=1 * MB, traced=True)
    assert timed.outcome.trace is not None
    assert len(timed.outcome.trace.end_s) == 8
    assert timed.outcome.trace.end_s.max() == timed.seconds


def test_settings_reach_the_kernel() -> None:
    program, network = lowered("optimal", "dgx-1v", "allreduce")
    fifo, fair = (simulate(program, network, NOMINAL, 64 * MB, settings=Settings(x)).seconds for x in ("fifo", "fair"))
    assert fifo != fair
    assert fifo == pytest.approx(fair, rel=0.2)


@pytest.mark.parametrize("size_bytes", [-1, MAX_SIZE_BYTES + 1])
def test_sizes_out_of_range_are_refused(size_bytes: int) -> None:
    with pytest.raises(UsageError, match=rf"a size of {size_bytes} bytes; expected 0 to 2\^63 - 1"):
        simulate(*chain(), free(), size_bytes)


# Sizes that a program is bound to.


@pytest.mark.parametrize(
    ("name", "count"), [("allreduce", 1000), ("broadcast", 1000), ("allgather", 250), ("reduce_scatter", 250)]
)
def test_s_is_the_size_of_nccl_tests(name: str, count: int) -> None:
    """S is the sum of all ranks' blocks for AllGather and ReduceScatter."""
    program, _ = lowered("optimal", "clique:4", name)
    assert bind_bytes(program, 4000, 1024).count == count
    assert bind_bytes(program, 4000, 1024).itemsize == 4


def test_bytes_that_are_no_whole_element_are_left_out() -> None:
    program, _ = chain()
    assert [bind_bytes(program, size, 4096).count for size in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_chunk_has_an_element_at_least() -> None:
    program, _ = chain()
    assert bind_bytes(program, 40, 1).chunk_elements == 1
    assert bind_bytes(program, 40, 1).tasks == 20


@pytest.mark.parametrize(("algo", "spec", "name"), JOBS)
def test_tasks_are_counted_before_a_run(algo: str, spec: str, name: str) -> None:
    """The count is at least the number of tasks, and at most twice as large."""
    program, network = lowered(algo, spec, name)
    for size_bytes in (1000, 10 * MB):
        for named in ("nominal", "v100-copy-engine") if spec == "dgx-1v" and algo != "ring" else ("nominal",):
            bound = bind_bytes(program, size_bytes, 65536)
            workload = translate(bound, network, calibration(named)).workload
            assert workload.tasks <= bound.tasks <= 2 * workload.tasks


# The budget.


def coarsely(budget: int, size_bytes: int = 100 * MB, chunk_bytes: int = 1 * MB, issue_us: float = 5.0) -> Simulation:
    """A chain of four, estimated if the budget is too small."""
    settings = Settings(budget=budget)
    return simulate(*chain(4), free(issue_us), size_bytes, chunk_bytes=chunk_bytes, settings=settings)


@pytest.mark.parametrize("budget", [7, 20, 60, 150, 599])
def test_coarser_runs_keep_to_the_budget(budget: int) -> None:
    """600 tasks in chunks of 1 MB: several chunks are timed as one, with the fixed costs of all."""
    exact = simulate(*chain(4), free(issue_us=5.0), 100 * MB, chunk_bytes=1 * MB)
    timed = coarsely(budget)
    assert timed.translation.bound.tasks <= budget
    assert 1 < timed.aggregated <= 100
    assert timed.chunk_bytes == exact.chunk_bytes == 1 * MB
    # The pipeline fills more slowly, by at most its depth times the larger chunk.
    assert exact.seconds <= timed.seconds <= exact.seconds + 3 * timed.aggregated * 45e-6


def test_a_budget_that_suffices_changes_nothing() -> None:
    exact, timed = (
        simulate(*chain(4), free(), 100 * MB, chunk_bytes=1 * MB, settings=Settings(budget=x)) for x in (None, 600)
    )
    assert timed.aggregated == 1
    assert timed.seconds == exact.seconds


@pytest.mark.parametrize("chunk_bytes", [1, 2, 4, 16, 31])
def test_chunks_timed_as_one_are_counted_in_real_chunks(chunk_bytes: int) -> None:
    """Binding rounds a chunk to 4 or 16 bytes, and an estimate costs as much as the run of all such chunks."""
    exact = simulate(*chain(4), free(issue_us=5.0), 1 << 16, chunk_bytes=chunk_bytes)
    timed = coarsely(2000, 1 << 16, chunk_bytes)
    assert timed.aggregated > 1
    assert timed.seconds == pytest.approx(exact.seconds, rel=0.03)


def test_tasks_are_counted_before_they_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[int] = []
    at = Frame.at

    def counted(self: Frame, bound: Bound) -> Translation:
        tasks.append(bound.tasks)
        return at(self, bound)

    monkeypatch.setattr(Frame, "at", counted)
    assert simulate(*chain(), free(), 100 * MB, chunk_bytes=1000, settings=Settings(budget=20_000)).aggregated > 1
    assert [0 < tasks <= 20_000 for tasks in tasks] == [True]


@pytest.mark.parametrize("budget", [-1, 0, MAX_BUDGET + 1])
def test_budgets_out_of_range_are_refused(budget: int) -> None:
    with pytest.raises(UsageError, match=r"budget: expected 1 to 2,147,483,647 tasks .*, got "):
        Settings(budget=budget)
    assert simulate(*chain(), free(), MB, settings=Settings(budget=MAX_BUDGET)).aggregated == 1


def test_a_budget_below_a_chunk_per_share_is_refused() -> None:
    with pytest.raises(
        UsageError, match="one chunk per share already makes 6 transfers and reductions, more than the budget of 5"
    ):
        coarsely(5)


def test_the_largest_size_can_be_timed_coarsely() -> None:
    timed = coarsely(100_000, MAX_SIZE_BYTES, 4096, issue_us=0.0)
    assert timed.algbw_gb_per_s == pytest.approx(25.0, rel=1e-3)


# The chunk.


def test_the_chunk_is_the_best_of_the_model_unless_one_is_given() -> None:
    program, network = chain(4)
    best = best_chunk_bytes(program, network, free(issue_us=5.0), 100 * MB)
    assert simulate(program, network, free(issue_us=5.0), 100 * MB).chunk_bytes == best
    assert simulate(program, network, free(issue_us=5.0), 100 * MB, chunk_bytes=12345).chunk_bytes == 12345


@pytest.mark.parametrize("ranks", [3, 5, 9])
@pytest.mark.parametrize("issue_us", [2.0, 10.0])
@pytest.mark.parametrize("size_bytes", [MB, 30 * MB, 1000 * MB])
def test_no_chunk_is_better_for_a_chain(ranks: int, issue_us: float, size_bytes: int) -> None:
    """On the chunk pipeline model the closed form is the optimum up to whole chunks."""
    program, network = chain(ranks)
    costs = free(issue_us)
    best = best_chunk_bytes(program, network, costs, size_bytes)
    taken = simulate(program, network, costs, size_bytes, chunk_bytes=best).seconds
    others = [int(best * 2 ** (step / 8)) for step in range(-16, 17)]
    assert taken <= 1.02 * min(simulate(program, network, costs, size_bytes, chunk_bytes=x).seconds for x in others)


@pytest.mark.parametrize(("algo", "spec", "name"), JOBS)
def test_chunks_are_neither_tiny_nor_huge(algo: str, spec: str, name: str) -> None:
    program, network = lowered(algo, spec, name)
    for exponent in range(2, 41):
        for size_bytes in (1 << exponent, (1 << exponent) * 7 // 5):
            chunk = best_chunk_bytes(program, network, NOMINAL, size_bytes)
            assert LEAST_CHUNK_BYTES <= chunk <= MOST_CHUNK_BYTES
            assert chunk % 16 == 0


def test_larger_fixed_costs_ask_for_larger_chunks() -> None:
    program, network = chain(4)
    chunks = [best_chunk_bytes(program, network, free(issue_us), 100 * MB) for issue_us in (1.0, 4.0, 16.0, 64.0)]
    assert chunks == sorted(chunks)
    for small, large in pairwise(chunks):
        assert large / small == pytest.approx(2.0, rel=0.05)


def test_a_program_that_moves_nothing_has_a_chunk_too() -> None:
    program, network = chain()
    idle = replace(program, queues=(), roles=tuple(replace(role, receives=(), sends=()) for role in program.roles))
    assert best_chunk_bytes(idle, network, NOMINAL, MB) == LEAST_CHUNK_BYTES


# The kernel.


def test_a_library_that_is_named_and_unusable_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workload = translate(bind_bytes(chain()[0], MB, MB), chain()[1], free()).workload
    (tmp_path / "broken.so").write_text("no library")
    monkeypatch.setenv(kernel.OVERRIDE, str(tmp_path / "broken.so"))
    kernel.load.cache_clear()
    with pytest.raises(UnsupportedError, match=r"broken\.so cannot be used"):
        kernel.run(workload, "fifo")
    monkeypatch.setattr("blinkccl.native.find_library", lambda *_: None)
    with pytest.raises(UnsupportedError, match=r"this installation lacks libblink_simulate\.so"):
        kernel.run(workload, "fifo")


# Sizes as text.


def test_sizes_are_typed_with_suffixes() -> None:
    assert [parse_size("--size", text) for text in ("4096", "64M", "1G")] == [4096, 64 << 20, 1 << 30]


@pytest.mark.parametrize(
    ("text", "message"),
    [("many", "--size: "), ("-1", "--size: "), ("9223372036854775808", "--size 9223372036854775808: expected at most")],
)
def test_invalid_sizes_are_refused_with_the_name_of_the_option(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_size("--size", text)
    assert str(raised.value).startswith(message)
