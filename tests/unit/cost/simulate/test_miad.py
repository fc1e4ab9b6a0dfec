"""The chunk-size search: its rules, its bounds for all sequences of observations, and simulated iterations."""

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.chunk_search import KIB, MIB, Miad, near_best, search
from blinkccl.cost.simulate.run import best_chunk_bytes, simulate
from blinkccl.cost.simulate.translate import Settings, frame
from support.examples import examples
from support.timed import lowered

COSTS = calibration("v100-copy-engine")
MB = 10**6
often = examples(200)


def observe_all(state: Miad, throughputs: Sequence[float]) -> list[Miad]:
    """The states in order, until the search is steady or the observations end."""
    states = [state]
    for gb_per_s in throughputs:
        if states[-1].steady:
            break
        states.append(states[-1].observe(gb_per_s))
    return states


def settle(state: Miad, throughput: Callable[[float], float]) -> list[Miad]:
    """The states of a search with throughput as a function of the chunk."""
    states = [state]
    while not states[-1].steady:
        assert len(states) <= state.most_observations
        states.append(states[-1].observe(throughput(states[-1].chunk_bytes)))
    return states


def chunks(states: list[Miad]) -> list[float]:
    return [state.chunk_bytes / MIB for state in states]


@pytest.mark.parametrize(
    ("tolerance", "observed", "tried"),
    [
        pytest.param(0.0, [10, 15, 18, 20, 19, 19.5, 20.5, 20.2], [1, 2, 4, 8, 16, 15, 14, 13, 14], id="doubles"),
        pytest.param(0.0, [10, 15, 14, 13], [1, 2, 4, 3, 2], id="steady is the best of all, not the last"),
        pytest.param(0.0, [10, 15, 15, 15], [1, 2, 4, 3, 2], id="a plateau is no rise"),
        pytest.param(0.02, [10, 15, 15.2, 15.1], [1, 2, 4, 3, 4], id="within the tolerance is no rise"),
    ],
)
def test_it_doubles_while_throughput_rises_and_then_falls_back(
    tolerance: float, observed: list[float], tried: list[float]
) -> None:
    states = observe_all(Miad(tolerance=tolerance), observed)
    assert chunks(states) == tried
    assert [state.phase for state in states if state.phase != "decrease"][-1] == "steady"
    assert states[-1].best_gb_per_s == max(observed)


@pytest.mark.parametrize(
    ("start", "throughput", "tried"),
    [
        pytest.param(Miad(), lambda c: -abs(c / MIB - 3.2) + 99, [1, 2, 4, 8, 7, 6, 5, 4, 3, 2, 3], id="past the best"),
        pytest.param(Miad(most_bytes=6 * MIB), lambda c: c, [1, 2, 4, 6, 6], id="rising to the end"),
        pytest.param(Miad(), lambda c: 1 / c, [1, 2, 1, 1 / 16, 1 / 16], id="falling from the start"),
        pytest.param(Miad(MIB, 2, MIB, MIB, MIB), lambda c: 1.0, [1, 1], id="one chunk leaves nothing to search"),
    ],
)
def test_where_a_search_settles(start: Miad, throughput: Callable[[float], float], tried: list[float]) -> None:
    states = settle(start, throughput)
    assert chunks(states) == tried
    assert states[-1].observe(1e9) == states[-1]
    assert start.observe(5.0) == start.observe(5.0)


numbers = st.floats(allow_nan=True, allow_infinity=True)
searches = st.builds(
    lambda least, above, more, step, factor, tolerance: Miad(
        least + above, factor, step, least, least + above + more, tolerance
    ),
    st.integers(1, 1 << 20),
    st.integers(0, 1 << 22),
    st.integers(0, 1 << 26),
    st.integers(1 << 18, 1 << 27),
    st.floats(1.1, 16),
    st.floats(0, 0.5),
)


@often
@given(searches, st.lists(numbers, min_size=1, max_size=30))
def test_it_ends_and_stays_in_bounds_for_all_observations(start: Miad, cycle: list[float]) -> None:
    observations = [cycle[i % len(cycle)] for i in range(start.most_observations)]
    states = observe_all(start, observations)
    assert states[-1].steady
    assert all(start.least_bytes <= state.chunk_bytes <= start.most_bytes for state in states)
    tried = {state.chunk_bytes for state in states[:-1]}
    assert states[-1].chunk_bytes in tried
    assert states == observe_all(start, observations)


@often
@given(searches, st.integers(0, 60))
def test_it_ends_where_throughput_turns_late(start: Miad, turn: int) -> None:
    """The longest searches rise to the end and then fall."""
    observations = [float(i) for i in range(turn)] + [turn - 1.0 - 1 / (2 + i) for i in range(start.most_observations)]
    assert observe_all(start, observations)[-1].steady


#: Log-log slopes of throughput over the chunk, at most 1.
slopes = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8)


@often
@given(slopes, slopes, st.floats(0, 1), st.sampled_from([1.5, 2.0, 4.0]))
def test_one_peak_is_found_within_the_root_of_the_factor(
    rising: list[float], falling: list[float], place: float, factor: float
) -> None:
    start = Miad(factor=factor)
    peak = math.log(start.first_bytes) + place * math.log(start.most_bytes / start.first_bytes)

    def throughput(chunk: float) -> float:
        """1 at the peak; away from it the slope changes at every factor of 1.5, and the last slope stays."""
        away = math.log(chunk) - peak
        these, width = (falling if away > 0 else rising), math.log(1.5)
        left, lost = abs(away), 0.0
        for slope in these[:-1]:
            lost += slope * min(left, width)
            left = max(0.0, left - width)
        return math.exp(-lost - these[-1] * left)

    chunk_bytes = settle(start, throughput)[-1].chunk_bytes
    assert throughput(chunk_bytes) >= 0.999 / math.sqrt(factor)


@often
@given(st.floats(1 * MIB, 64 * MIB), st.floats(1e-3, 1e3), st.sampled_from([1.5, 2.0, 4.0]))
def test_on_pipelines_the_time_is_within_six_percent(peak: float, constant: float, factor: float) -> None:
    """The time is A/s + B·s + C, as in the chunk pipeline model; A/s + B·s has its minimum of 2 at ``peak``."""

    def seconds(chunk: float) -> float:
        return peak / chunk + chunk / peak + constant

    chunk_bytes = settle(Miad(factor=factor), lambda chunk: 1 / seconds(chunk))[-1].chunk_bytes
    most = (math.sqrt(factor) + 1 / math.sqrt(factor)) / 2
    assert seconds(chunk_bytes) <= seconds(peak) * most * 1.0001


@pytest.mark.parametrize("gpus", ["0,1,2,3", "0,1,2,6", "0,3,4,7", "0,1,4,5"])
def test_a_broadcast_is_near_its_best_after_four_iterations(gpus: str) -> None:
    """Fig 12: 1, 2, 4, 8 MB. The best chunk is that of the chunk pipeline model, 5 to 12 MB, within a factor of 1.5."""
    program, network = lowered("blink", "dgx-1v", "broadcast", gpus)
    trials = search(program, network, COSTS, 1000 * MB)
    assert [trial.chunk_bytes // MIB for trial in trials[:4]] == [1, 2, 4, 8]
    best = max(trial.gb_per_s for trial in trials)
    assert trials[0].gb_per_s < 0.92 * best
    assert max(trial.gb_per_s for trial in trials[:4]) > 0.99 * best
    assert trials[-1].gb_per_s == best
    closed = best_chunk_bytes(program, network, COSTS, 1000 * MB)
    assert 5 * MB < closed < 14 * MB
    assert closed / 1.5 < trials[-1].chunk_bytes < closed * 1.5


def test_a_search_ends_with_the_best_of_its_trials() -> None:
    program, network = lowered("blink", "dgx-1v", "allreduce", "0-4")
    start = Miad(first_bytes=256 * KIB, step_bytes=256 * KIB)
    trials = search(program, network, COSTS, 20 * MB, start)
    assert trials[0].chunk_bytes == 256 * KIB
    assert trials[-1].gb_per_s == max(trial.gb_per_s for trial in trials)
    assert len(trials) <= start.most_observations + 1
    assert trials == search(program, network, COSTS, 20 * MB, start)


# The closed form's doubles and halves.


def test_a_ring_is_cut_less_often_than_the_closed_form_says() -> None:
    """All links of a ring are busy from the first chunk on, so smaller chunks only add costs."""
    program, network = lowered("ring", "dgx-a100", "allreduce", "0-7")
    of = frame(program, network, COSTS)
    closed = simulate(program, network, COSTS, 8 << 20)
    near = near_best(of, 8 << 20)
    assert near.chunk_bytes >= 4 * closed.chunk_bytes
    assert near.seconds < 0.85 * closed.seconds


@pytest.mark.parametrize("size_bytes", [0, 4, 1 * MB, 30 * MB, 500 * MB])
@pytest.mark.parametrize("job", [("optimal", "dgx-1v", "allreduce", "0-6"), ("blink", "dgx-1v", "broadcast", "0-3")])
def test_chunks_near_the_closed_form_are_no_slower(job: tuple[str, str, str, str], size_bytes: int) -> None:
    program, network = lowered(*job)
    near = near_best(frame(program, network, COSTS), size_bytes)
    assert near.seconds <= simulate(program, network, COSTS, size_bytes).seconds
    for chunk_bytes in (near.chunk_bytes // 2, 2 * near.chunk_bytes):
        if chunk_bytes >= 16 * KIB:
            other = simulate(program, network, COSTS, size_bytes, chunk_bytes=chunk_bytes)
            assert near.seconds <= 1.01 * other.seconds


def test_a_chunk_may_be_far_from_the_closed_form() -> None:
    """0 → 1 has one lane and no next hop, 0 → 4 → 7 two lanes and spare time, so no pipeline has to fill."""
    program, network = lowered("blink", "dgx-1v", "broadcast", "0,1,4,7")
    near, closed = near_best(frame(program, network, COSTS), 64 * MB), simulate(program, network, COSTS, 64 * MB)
    assert near.chunk_bytes > 3 * closed.chunk_bytes
    assert near.seconds < 0.98 * closed.seconds


def test_chunks_near_the_closed_form_keep_to_their_limits() -> None:
    program, network = lowered("blink", "dgx-1v", "broadcast", "0,1,4,7")  # the best chunk is larger
    of = frame(program, network, COSTS)
    assert near_best(of, 64 * MB).chunk_bytes > MIB
    assert near_best(of, 64 * MB, most_bytes=MIB).chunk_bytes <= MIB
    slow = frame(program, network, COSTS, Settings(budget=40))
    assert near_best(slow, 64 * MB).aggregated >= 1
