"""Which of its algorithms Open MPI is fastest with here, measured: what ``blink tune --openmpi`` writes as rules.

Each algorithm that ``ompi_info`` lists is a candidate of its own, told by a rules file that has just that, so what is
timed is what such a file does, segments and fan-out included. All run in turns with Open MPI as it is. One is taken if
its results are right and it is faster by :data:`CLEARLY` in the median of the rounds, each beside Open MPI's own in
that round; then the whole file runs in turns with none (:func:`confirmed`), and rules that do not hold are dropped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from blinkccl.bench.candidate import CandidateLaunch, RunningCandidate
from blinkccl.bench.interleave import BenchSettings, Interleaved, Participant
from blinkccl.bench.pattern import TimedCall
from blinkccl.bench.peers.registry import Variant, installation, open_mpi, variants
from blinkccl.bench.rows import Series, paired
from blinkccl.bench.sizes import block_count
from blinkccl.collectives.spec import Collective
from blinkccl.errors import CommunicationError, UnsupportedError
from blinkccl.export.ompi_rules import NUMBERS, OWN, Rule, rules_text

#: By so much an algorithm must be faster.
CLEARLY = 1.03
#: Segments that algorithms with some are tried with, and their fan-out, which is what Open MPI takes unless told.
SEGMENTS = (0, 32 << 10, 128 << 10)
FAN_OUT = 4
#: Those that cut messages into segments, by Open MPI's names.
_SEGMENTED = {
    "allreduce": ("segmented_ring",),
    "broadcast": ("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
    "reduce": ("chain", "pipeline", "binary", "binomial", "in-order_binary"),
}
#: It ends a job of more.
_FOR_TWO = "two_proc"
_ROUNDS, _ITERATIONS = 5, 20
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TunedSize:
    """One size of a collective: the median of Open MPI's own, and of ``rule``, which was ``ratio`` times as fast."""

    collective: str
    size_bytes: int
    own_s: float
    rule: Rule
    seconds: float
    ratio: float


def algorithms(collective: str, listing: str | None = None) -> list[Rule]:
    """All that Open MPI has for a collective, in each way that is tried; from size 0 on.

    ``listing`` is what ``ompi_info`` says (None: ask it). UnsupportedError if that is not there, or names none.
    """
    key = f"coll_tuned_{NUMBERS[collective][1]}_algorithm"
    text = _listing() if listing is None else listing
    found = re.findall(
        rf"^mca:coll:tuned:param:{key}:enumerator:value:([0-9]{{1,4}}):(\S{{1,60}})$", text, re.MULTILINE
    )
    if not found:
        raise UnsupportedError(f"ompi_info lists no {key}: is coll/tuned a part of this Open MPI?")
    rules = []
    for number, name in found:
        segmented = name in _SEGMENTED.get(collective, ())
        for segment in SEGMENTS if segmented else (0,):
            told = f"{name}, segments of {segment} bytes" if segment else name
            if int(number) != OWN:
                rules.append(Rule(0, int(number), segment, FAN_OUT if segmented else 0, told))
    return rules


def _listing() -> str:
    launcher = installation("openmpi", None).launcher
    beside = Path(launcher).with_name("ompi_info")
    program = str(beside) if beside.exists() else shutil.which("ompi_info")
    if program is None:
        raise UnsupportedError(f"there is no ompi_info beside {launcher}, which knows Open MPI's algorithms")
    command = [program, "--parsable", "--param", "coll", "tuned", "--level", "9"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"{program} does not run: {error}") from None
    return done.stdout


def launch(ranks: int, cores: int, name: str, rules: str = "") -> CandidateLaunch:
    """Open MPI's ranks with a file of ``rules``; "": without one."""
    base = variants("openmpi", ranks, cores)[0]
    return open_mpi(ranks, Variant(name, base.options, base.environment, rules=rules))


@contextmanager
def _running(launches: Sequence[CandidateLaunch], note: Note) -> Iterator[list[Participant]]:
    """Those that start; the first must."""
    with ExitStack() as stack:
        found = []
        for number, one in enumerate(launches):
            try:
                runs = stack.enter_context(RunningCandidate(one))
            except CommunicationError as error:
                if not number:
                    raise
                note(f"goes on without {one.title}: {error}")
                continue
            found.append(Participant("" if not number else one.name, one.variant, runs))
        yield found


def tuned(
    collective: Collective,
    sizes: Sequence[int],
    cores: int,
    budget_s: float,
    note: Note,
    tick: Callable[[], None] = lambda: None,
) -> list[TunedSize]:
    """What is the fastest at each size; where nothing is clearly, Open MPI's own, with ratio 1."""
    ranks = collective.world_size
    rules = [rule for rule in algorithms(collective.name) if ranks == 2 or rule.remark != _FOR_TWO]
    launches = [launch(ranks, cores, "own")]
    launches += [launch(ranks, cores, rule.remark, rules_text(ranks, {collective.name: [rule]})) for rule in rules]
    by_name = {rule.remark: rule for rule in rules}
    found = []
    with _running(launches, note) as participants:
        block_s = budget_s / (len(sizes) * _ROUNDS * len(participants))
        run = _interleaved(collective, participants, block_s, note)
        for size in sizes:
            own, others = _measured(run, size)
            best = TunedSize(collective.name, size, own.median_s(), Rule(0, OWN), own.median_s(), 1.0)
            for participant, series in others:
                ratio = paired(own.medians_s(), series.medians_s())
                if ratio >= max(CLEARLY, best.ratio):
                    rule = by_name[participant.variant]
                    best = TunedSize(collective.name, size, own.median_s(), rule, series.median_s(), ratio)
            found.append(best)
            tick()
    return found


def confirmed(
    collective: Collective,
    tuned: Sequence[TunedSize],
    least: Mapping[int, int],
    cores: int,
    budget_s: float,
    note: Note,
) -> list[TunedSize]:
    """The same after the file that they make ran in turns with none: with those times, and without what is no faster.

    ``least``: from which size on the rule of each is for.
    """
    if all(one.rule.algorithm == OWN for one in tuned):
        return list(tuned)
    ranks, found = collective.world_size, []
    launches = [launch(ranks, cores, "own"), launch(ranks, cores, "rules", text_of(ranks, tuned, least))]
    with _running(launches, note) as participants:
        run = _interleaved(collective, participants, budget_s / (len(tuned) * _ROUNDS * 2), note)
        for one in tuned:
            own, others = _measured(run, one.size_bytes)
            ratio = paired(own.medians_s(), others[0][1].medians_s()) if others else 0.0
            if one.rule.algorithm == OWN or ratio < CLEARLY:
                found.append(replace(one, own_s=own.median_s(), seconds=own.median_s(), rule=Rule(0, OWN), ratio=1.0))
            else:
                found.append(replace(one, own_s=own.median_s(), seconds=others[0][1].median_s(), ratio=ratio))
    return found


def text_of(ranks: int, tuned: Sequence[TunedSize], least: Mapping[int, int]) -> str:
    """The file of what was found: each size stands for those from ``least`` on, the first and last for no more."""
    rules: dict[str, list[Rule]] = {}
    for one in tuned:
        rules.setdefault(one.collective, []).append(replace(one.rule, least=least[one.size_bytes]))
    for name, listed in rules.items():
        last = max(one.size_bytes for one in tuned if one.collective == name)
        listed.append(Rule(2 * last, OWN, remark="not measured"))
    remarks = (
        f"Open MPI's algorithms that were faster than its own choice with {ranks} ranks on one host. Made by Blink.",
        "mpirun --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename THIS_FILE",
        "of a message size: bytes from which on, algorithm (0: Open MPI's own choice), fan-out, bytes of a segment",
    )
    return rules_text(ranks, rules, remarks)


def _interleaved(collective: Collective, participants: list[Participant], block_s: float, note: Note) -> Interleaved:
    settings = BenchSettings(iterations=_ITERATIONS, rounds=_ROUNDS, block_s=block_s)
    return Interleaved(collective, settings, participants, None, note)


def _measured(run: Interleaved, size: int) -> tuple[Series, list[tuple[Participant, Series]]]:
    """Open MPI's own, and those that were right in every round. Out of place: in place some algorithms are others."""
    count = block_count(run.collective, size, 4)
    series, _ = run.measure(TimedCall(run.collective, count, in_place=False, iterations=_ITERATIONS))
    own = series[0]
    assert own is not None
    pairs = zip(run.participants[1:], series[1:], strict=True)
    right = [(who, found) for who, found in pairs if found is not None and not found.wrong]
    return own, [(who, found) for who, found in right if len(found.rounds) == len(own.rounds)]
