"""``blink tune`` on GPUs: the rounds of the race, and processes that fail."""

import sys
from collections import Counter

import pytest

from blinkccl.bench import gpu_tune
from blinkccl.bench.gpu_tune import MOST_CALLS, PAIRS, Seeds, TuningProcess, Ways, fastest, settings_of
from blinkccl.bench.tune import collective_of
from blinkccl.cost.choice.programs import gpu_of
from blinkccl.errors import CommunicationError
from blinkccl.nccl.programs import DEFAULT, candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.tables import NCCL, Way

OURS = [
    Way("optimal", "simple"),
    Way("optimal", "ll"),
    Way("one_hop", "ll"),
    Way("one_shot", "ll128"),
]
TAKES = dict(zip(OURS, (4e-5, 3e-5, 2e-5, 1e-5), strict=True)) | {Way(NCCL): 9e-5}


class Timer:
    """A timer with the times of :data:`TAKES`; ``dies`` has the measurements after which an algorithm fails."""

    def __init__(self, **dies):
        self.dies, self.measured, self.calls = dies, Counter(), Counter()

    def __call__(self, way, calls):
        self.measured[way] += 1
        self.calls[way] += calls
        return None if self.measured[way] > self.dies.get(way.algorithm, 99) else TAKES[way]


def test_the_faster_half_and_nccl_run_the_next_round():
    timer = Timer()
    times = fastest(OURS, timer, 10.0)
    assert [one.ways for one in times] == [(way,) for way in sorted(TAKES, key=TAKES.get)]
    assert [timer.measured[way] for way in OURS] == [2, 2, 3, 3 + PAIRS]
    assert timer.measured[Way(NCCL)] == 3 + PAIRS
    assert {one.seconds for one in times} == set(TAKES.values())
    assert max(one.calls for one in times) == MOST_CALLS * PAIRS


def test_the_budget_limits_the_calls():
    timer = Timer()
    assert [one.calls for one in fastest(OURS, timer, 0.0)] == [4 * PAIRS, 4, 2, 2, 4 * PAIRS]
    spent = sum(calls * TAKES[way] for way, calls in timer.calls.items())
    more = Timer()
    fastest(OURS, more, 100 * spent)
    assert sum(more.calls.values()) > 5 * sum(timer.calls.values())


@pytest.mark.parametrize("dies", [{"one_shot": 0}, {"one_shot": 2}, {"one_shot": 4}])
def test_a_way_that_fails_is_not_in_the_cell(dies):
    algorithms = [one.algorithm for one in fastest(OURS, Timer(**dies), 1.0)]
    assert "one_shot" not in algorithms
    assert algorithms[-1] == NCCL


def test_without_any_of_ours_nccl_is_measured_alone():
    assert [one.algorithm for one in fastest([], Timer(), 1.0)] == [NCCL]
    assert [one.algorithm for one in fastest(OURS[:1], Timer(optimal=3), 1.0)] == [NCCL]


def test_predictions_select_the_ways_that_may_be_fastest():
    topology = parse_spec("dgx-1v")
    where, gpu = JobPlacement(topology, (0, 1, 2, 3)), gpu_of(topology)
    seeds = Seeds(candidates(where, DEFAULT, gpu.blocks, {}), gpu)
    small, large = (seeds.ways(collective_of("allreduce", 4), size) for size in (1 << 10, 64 << 20))
    assert small[0].protocol == "ll"
    assert large[0].protocol == "simple"
    for ways in (small, large):
        assert 1 < len(ways) == len(set(ways)) <= gpu_tune.SEEDS
    assert all(way.protocol != "ll" for way in large), "LL was never faster there"


@pytest.fixture
def child(tmp_path, monkeypatch):
    """A function that replaces the Python of tuning processes by a script."""

    def write(text):
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\nimport sys, time\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setattr(gpu_tune.sys, "executable", str(path))

    return write


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sys.exit(3)", "its process ended with exit code 3"),
        ('print(\'{"failed": "no GPU"}\', flush=True)', "no GPU"),
        ("time.sleep(60)", "did not answer before the timeout"),
    ],
)
def test_a_process_that_fails_reports_the_reason(child, monkeypatch, text, why):
    child(text)
    monkeypatch.setattr(gpu_tune, "CLOSE_S", 0.1)
    process = TuningProcess([0, 1], {})
    with pytest.raises(CommunicationError, match=why):
        process.ask(0.5 if "sleep" in text else 30.0, do="open")
    process.close()
    assert process._process.returncode is not None


@pytest.mark.parametrize(
    ("wrong", "state", "lost"),
    [
        ("", "blink", []),
        ("rank 1: 3 for 4", "blink", ["optimal ll: allreduce of 65536 bytes: rank 1: 3 for 4"]),
        ("", "nccl", ["optimal ll: libblink.so did not run allreduce: no code"]),
    ],
)
def test_only_correct_calls_of_libblink_are_timed(child, tmp_path, wrong, state, lost):
    line = (
        f'{{"pid": 1, "rank": 0, "nranks": 2, "comm": "a", "state": "{state}", "why": "no code", '
        '"collective": "allreduce", "calls": 1, "protocol": "ll"}'
    )
    child(
        "import os, json\n"
        "for line in sys.stdin:\n"
        "    question = json.loads(line)\n"
        f"    if question['do'] == 'close': open(os.environ['REPORT'], 'a').write({line!r} + chr(10))\n"
        f"    wrong = {wrong!r} if question.get('size_bytes') == 65536 else ''\n"
        "    print(json.dumps({'wrong': wrong, 'seconds': 1e-3 * question.get('calls', 0)}), flush=True)"
    )
    with Ways([0, 1], ["allreduce"], lambda way, report: {"REPORT": str(report), **settings_of(way)}, tmp_path) as ways:
        seconds = [ways.seconds(Way("optimal", "ll"), "allreduce", 1 << 16, 3) for _ in range(2)]
    assert seconds == ([None, None] if lost else [3e-3, 3e-3])
    assert ways.lost == lost
