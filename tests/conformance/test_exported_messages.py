"""Plans as GOAL schedules: an exported file is read back, and equals the program.

Readers and checker (``tests/support``) use the formats and the Program, and no code of the exports.
"""

import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.api import export
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import LimitError, UsageError
from blinkccl.formats import goal
from blinkccl.formats.registry import Choices, format_of
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.lower import lower
from blinkccl.trees.forest.model import Forest
from support import goal_file
from support.examples import examples
from support.forests import random_collective, random_forest
from support.message_schedules import CHUNK, JOBS, SIZE, Operation, bound_of, faults, pace_of, plans
from support.planned import asked, planned


def exported(forest: Forest, size: int = SIZE, chunk: int | None = CHUNK) -> str:
    choices = Choices(size_bytes=size, chunk_bytes=chunk)
    return export.exported(lower(forest), forest, "goal", choices)[0].text


def proved(text: str, forest: Forest, bound: Bound | None = None) -> list[list[Operation]]:
    ranks = goal_file.read(text)
    assert faults(ranks, bound or bound_of(forest), pace_of(forest)) == []
    return ranks


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spec", JOBS)
def test_every_plan_is_read_back_as_its_program(spec: str, collective: str) -> None:
    served = list(plans(spec, collective))
    assert served
    for forest in served:
        proved(exported(forest), forest)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 2**14), chunk=st.integers(1, 4096), ranks=st.integers(2, 8))
@examples(60)
def test_random_plans_are_read_back_as_their_programs(seed: int, size: int, chunk: int, ranks: int) -> None:
    random = Random(seed)
    forest = random_forest(random, random_collective(random, ranks))
    bound = bound_of(forest, size, max(chunk, size // 16))
    if not bound.count:
        with pytest.raises(UsageError, match="bytes are fewer than one element per block, so nothing moves"):
            exported(forest, size)
        return
    proved(exported(forest, size, max(chunk, size // 16)), forest, bound)


def test_relays_are_hosts_behind_the_ranks() -> None:
    forest = planned("optimal", asked("chain:7", "broadcast", "0,3,6", relays=True))
    text = exported(forest)
    assert len(proved(text, forest)) == 5
    assert "// relays, outside the job: 3 is GPU2, 4 is GPU5\n" in text


def test_default_chunks_are_those_of_the_simulator() -> None:
    forest = planned("optimal", asked("dgx-1v", "allreduce", "1,4,5,6"))
    proved(exported(forest, 2**20, None), forest, export.priced(lower(forest), forest, Choices(size_bytes=2**20)).bound)
    assert exported(forest, 2**20, None) == exported(forest, 2**20, None)


def test_reductions_have_the_cost_of_the_calibration() -> None:
    forest = planned("optimal", asked("dgx-1v", "allreduce", "1,4,5,6"))
    calcs = {op.ns for rank in goal_file.read(exported(forest, 2**20, 2**17)) for op in rank if op.kind == "calc"}
    assert calcs == {387, 516, 644}  # 128 KiB at 339 GB/s are 386.6 ns, for two operands; 4/3 and 5/3 of it for more


def test_sizes_beyond_the_format_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = planned("optimal", asked("ring:4"))
    with pytest.raises(UsageError, match="GOAL is for one size: give the size with -s"):
        export.exported(lower(forest), forest, "goal")
    with pytest.raises(UsageError, match=r"CUDA C\+\+ is for all sizes: leave -s and --chunk out"):
        format_of("cuda").check(Choices(size_bytes=64))
    with pytest.raises(LimitError, match=r"more than 1,000,000; give a larger --chunk"):
        exported(forest, 2**30, 1024)
    monkeypatch.setattr(goal, "MOST_PORTS", 1)
    with pytest.raises(Exception, match="GOAL has 1 ports per rank, but the plan's links need more"):
        exported(forest)


def test_links_of_a_gpu_are_ports_of_their_own_and_a_switch_is_one() -> None:
    assert set(goal.port_numbers(lower(planned("ring", asked("ring:4"))))) == {0, 1}
    assert set(goal.port_numbers(lower(planned("one_hop", asked("clique:4"))))) == {0, 1, 2}
    assert set(goal.port_numbers(lower(planned("one_hop", asked("dgx-2", "allreduce", "0-4"))))) == {0}


#: A fault: a function that changes the lines of a schedule.
Fault = Callable[[list[str]], None]


def _nth(lines: list[str], pattern: str, n: int = 0) -> int:
    return [place for place, line in enumerate(lines) if re.search(pattern, line)][n]


def _edit(pattern: str, change: Callable[[str], str], n: int = 0) -> Fault:
    def fault(lines: list[str]) -> None:
        place = _nth(lines, pattern, n)
        lines[place] = change(lines[place])

    return fault


def _drop(pattern: str, n: int = 0) -> Fault:
    return lambda lines: lines.pop(_nth(lines, pattern, n)) and None


def _plus(key: str, by: int) -> Callable[[str], str]:
    return lambda line: re.sub(rf"(?<={key})\d+", lambda match: str(int(match[0]) + by), line)


def _swap(lines: list[str]) -> None:
    one, other = _nth(lines, "send", 1), _nth(lines, "send", 2)
    tags = [re.search(r"tag \d+", lines[at])[0] for at in (one, other)]  # type: ignore[index]
    lines[one] = lines[one].replace(tags[0], tags[1])
    lines[other] = lines[other].replace(tags[1], tags[0])


def _circle(lines: list[str]) -> None:
    place = _nth(lines, "requires")
    lines.insert(place + 1, " ".join(reversed(lines[place].split())))


def _doubled(lines: list[str]) -> None:
    place = _nth(lines, "send")
    lines.insert(place + 1, re.sub(r"^l\d+", "l9999", lines[place]))


def _longer(lines: list[str]) -> None:
    for n in (0, 1):
        _edit("tag 0 ", lambda line: re.sub(r"\d+(?=b )", lambda size: str(int(size[0]) + 16), line), n)(lines)


def _early(lines: list[str]) -> None:
    """Make rank 2 forward every message before it arrives."""
    begin, end = _nth(lines, "^rank 2"), _nth(lines, "^}", 2)
    calcs = {line.split(":")[0] for line in lines[begin:end] if ": calc" in line}
    lines[begin:end] = [x for x in lines[begin:end] if not ("requires" in x and x.split()[-1] in calcs)]


FAULTS: dict[str, Fault] = {
    "a dependence is missing": _drop("requires", 3),
    "the last dependence is missing": _drop("requires", -1),
    "nothing waits for sums": _early,
    "a dependence too many": lambda lines: lines.insert(_nth(lines, "^}"), "l1 requires l0"),
    "a circle": _circle,
    "a send has other bytes": _edit("send", _plus("send ", 4)),
    "both ends have other bytes": _longer,
    "a tag is another": _edit("recv", _plus("tag ", 1)),
    "a tag is of no message": _edit("recv", _plus("tag ", 9000)),
    "a message goes to another": _edit("send", _plus("to ", 1)),
    "two messages are exchanged": _swap,
    "a send is there twice": _doubled,
    "a receive is missing": _drop("recv", -1),
    "a sum costs nothing": _edit("calc", lambda line: re.sub(r"calc \d+", "calc 0", line)),
    "a sum costs twice": _edit("calc", lambda line: re.sub(r"\d+ cpu", "9999 cpu", line)),
    "a sum for nobody": lambda lines: lines.insert(_nth(lines, "^}"), "l9999: calc 7 cpu 0"),
    "a link has the port of another": _edit("cpu 1 nic 1", lambda line: line.replace("cpu 1 nic 1", "cpu 0 nic 0")),
    "the ranks are exchanged": _edit("^rank 0", lambda _: "rank 1 {"),
    "a rank is missing": _edit("num_ranks", _plus("num_ranks ", 1)),
    "a label is unknown": _edit("requires", lambda line: line + "77"),
    "an operation is unknown": _edit("calc", lambda line: line.replace("calc", "wait")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_noticed(name: str) -> None:
    forest = planned("optimal", asked("dgx-1v", "allreduce", "1,4,5,6"))
    lines = exported(forest).split("\n")
    before = list(lines)
    FAULTS[name](lines)
    assert lines != before
    try:
        errors = faults(goal_file.read("\n".join(lines)), bound_of(forest), pace_of(forest))
    except ValueError as error:
        errors = [str(error)]
    assert errors


def test_no_dependence_can_be_left_out() -> None:
    forest = planned("optimal", asked("dgx-1v", "allreduce", "1,4,5,6"))
    lines = exported(forest, 8192).split("\n")
    for place in [place for place, line in enumerate(lines) if "requires" in line]:
        text = "\n".join(lines[:place] + lines[place + 1 :])
        assert faults(goal_file.read(text), bound_of(forest, 8192), pace_of(forest)), lines[place]
