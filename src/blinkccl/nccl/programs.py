"""Candidate programs of a job: all collectives, with every root, by the selected algorithms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.nccl_links import CountedLinks
from blinkccl.cost.choice.programs import (
    MOST_LINE_BYTES,
    MOST_SLOT_BYTES,
    SERVED,
    SLOTS,
    CandidateProgram,
    compiled,
)
from blinkccl.errors import PackingError, ScheduleError, TopologyError, UnsupportedError, UsageError
from blinkccl.nccl.geometry import STAGING_BYTES
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.schedule.order import order_faults
from blinkccl.schedule.program import Program
from blinkccl.topology.memories import without_memory_links
from blinkccl.topology.select import joining_links
from blinkccl.trees.algorithms.hybrid import ALGORITHM as HYBRID
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request

#: The default algorithms: the fastest for large sizes, those with few steps, and, if they fit beside these, those that
#: are faster for medium sizes on some machines. ``blink`` is left out because its search takes longest.
FIRST = ("optimal", "one_hop", "one_shot")
BESIDE = ("internal_broadcast", "double_binary_tree", "ring")
DEFAULT = FIRST + BESIDE
#: Maximum extra connections into a rank for :data:`BESIDE`, as all connections share the staging memory: a part of the
#: connections of :data:`FIRST`, or of those that fit with the largest messages.
MOST_BESIDE = Fraction(1, 8)
_PART_BYTES = SLOTS * (MOST_SLOT_BYTES + 2 * MOST_LINE_BYTES)
#: Names of the default: with the first NCCL runs the calls that it runs faster, with the second it runs none.
AUTO, BEST = "auto", "best"


@dataclass
class CandidatePrograms:
    """Programs by collective and root (−1: none), and the reasons for absent ones."""

    by_key: dict[tuple[str, int], list[CandidateProgram]] = field(default_factory=dict)
    absent: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    @property
    def every(self) -> tuple[CandidateProgram, ...]:
        return tuple(one for some in self.by_key.values() for one in some)

    def why_not(self, key: tuple[str, int]) -> str:
        """The reason that ``key`` has no program, as a sentence without full stop."""
        return "; ".join(dict.fromkeys(self.absent.get(key, []))) or "no algorithm was planned"


def collectives(size: int) -> Iterator[Collective]:
    """All served collectives, with every root."""
    for name in SERVED:
        if COLLECTIVES[name].parameters:
            yield from (Collective(name, size, root=root) for root in range(size))
        else:
            yield Collective(name, size)


def key_of(collective: Collective) -> tuple[str, int]:
    return collective.name, -1 if collective.root is None else collective.root


def wanted(setting: str) -> tuple[str, ...]:
    """The algorithms of BLINK_ALGO; UsageError with the known names for another one.

    ``hybrid`` includes NVLink alone, for sizes where Eq 8 gives PCIe no positive part. A prediction and then the first
    calls decide when PCIe is used (:mod:`blinkccl.nccl.choices`).
    """
    if setting in ("", AUTO, BEST):
        return DEFAULT
    algorithm(setting)
    return ("optimal", HYBRID) if setting == HYBRID else (setting,)


def without_memories(place: JobPlacement) -> JobPlacement:
    """The place with only links for stores between GPUs, if these join the ranks; else the unchanged place."""
    direct = replace(place, topology=without_memory_links(place.topology))
    try:
        joining_links(direct.topology, direct.ranks)
    except TopologyError:
        return place
    return direct


def candidates(
    place: JobPlacement,
    algorithms: tuple[str, ...],
    blocks: int,
    bad: Mapping[tuple[int, int], str],
    tell: Callable[[str], None] = lambda text: None,
    staging_bytes: int = STAGING_BYTES,
    deterministic: str | None = None,
) -> CandidatePrograms:
    """All programs that can serve the job, dealt to ``blocks`` blocks per rank; ``tell`` gets reasons for absent ones.

    Cost: 0.7 s for 8 GPUs of a DGX-1V.

    - No program writes between the ordered pairs of ranks in ``bad``, which has the reasons.
    - Plans use links for stores (:mod:`blinkccl.topology.memories`), so their rates are within reach of kernels.
      Messages are staged in processors' memories in three cases: by ``hybrid``, if no other path joins the GPUs, and if
      a program would need a pair of ``bad``.
    - Programs of :data:`BESIDE` are added in the order of collectives if messages stay as large or nearly so
      (:data:`MOST_BESIDE`).
    - With ``deterministic``, all programs that sum have the order of the first, so any of them gives the same sums.
    """
    whole, place, result = place, without_memories(place), CandidatePrograms()
    links, why = joining_links(place.topology, place.ranks)
    if why:
        tell(why)
    order = _Order(deterministic)
    missing: dict[str, dict[str, None]] = {}
    for collective in collectives(len(place.ranks)):
        key = key_of(collective)
        for name in algorithms:
            ways = [(whole.topology, "all") if name == HYBRID else (place.topology, links)]
            ways += [(whole.topology, "staged")] if bad else []
            reasons: list[str] = []
            for topology, which in ways:
                try:
                    request = Request(topology, collective, place.ranks, which)
                    one = order.checked(_candidate(order.required(request), name, blocks, whole.counted, bad))
                    break
                except (PackingError, ScheduleError, TopologyError, UnsupportedError, UsageError) as error:
                    reasons.append(" ".join(str(error).split()))
            else:
                result.absent.setdefault(key, []).append(reasons[0])
                missing.setdefault(reasons[0], {})[collective.name] = None
                continue
            known = result.by_key.setdefault(key, [])
            if not any(_same(one.program, other.program) for other in known):
                known.append(one)
    _leave_out(result, staging_bytes // (blocks * _PART_BYTES), tell)
    for text, names in missing.items():
        tell(f"for {', '.join(names)}: {text}")
    return result


@dataclass
class _Order:
    """The required order of all sums: that of the first program that sums."""

    deterministic: str | None
    order: str = ""

    def required(self, request: Request) -> Request:
        """The request with the required order, if its collective sums."""
        return replace(request, deterministic=self.deterministic) if request.collective.reduces else request

    def checked(self, one: CandidateProgram) -> CandidateProgram:
        """``one``; UnsupportedError if its program sums in another order."""
        if self.deterministic is not None and one.collective.reduces:
            self.order = self.order or one.forest.order or ""
            faults = order_faults(one.program, self.order)
            if faults:
                raise UnsupportedError(f"{one.name} sums in another order: {faults[0]}")
        return one


def _leave_out(planned: CandidatePrograms, room: int, tell: Callable[[str], None]) -> None:
    """Remove programs of :data:`BESIDE` that need too many connections, unless no other serves the collective.

    ``room``: the number of connections into a rank that allows the largest messages.
    """
    need = Counter[tuple[int, int, int]]()
    for one in planned.every:
        if one.algorithm not in BESIDE:
            need |= _ways(one)
    if not need:
        return
    most, left = max(_arriving(need), room) * (1 + MOST_BESIDE), Counter[str]()
    for known in planned.by_key.values():
        for one in [one for one in known if one.algorithm in BESIDE]:
            if len(known) == 1 or _arriving(need | _ways(one)) <= most:
                need |= _ways(one)
            else:
                known.remove(one)
                left[one.algorithm] += 1
    for name, count in left.items():
        tell(f"{count} programs of {name} left out: a rank would have more than {int(most)} connections with them")


def _ways(one: CandidateProgram) -> Counter[tuple[int, int, int]]:
    """The number of connections of a program by sender, receiver and memory of the messages."""
    return Counter((queue.src, queue.dst, queue.home) for queue in one.program.queues)


def _arriving(ways: Counter[tuple[int, int, int]]) -> int:
    """The maximum number of connections with messages in one memory."""
    by_home = Counter[int]()
    for (_, _, home), count in ways.items():
        by_home[home] += count
    return max(by_home.values())


def _candidate(
    request: Request, name: str, blocks: int, counted: CountedLinks, bad: Mapping[tuple[int, int], str]
) -> CandidateProgram:
    candidate = compiled(name, algorithm(name).plan(request), blocks, counted)
    for queue in candidate.program.queues:
        if (queue.src, queue.dst) in bad and not queue.is_staged:
            raise UnsupportedError(
                f"{name} sends from rank {queue.src} to rank {queue.dst}, which failed the peer check: "
                f"{bad[queue.src, queue.dst]}"
            )
    return candidate


def _same(a: Program, b: Program) -> bool:
    """True if both programs do the same, even from different forests."""
    return replace(a, forest_hash="", topology_hash="", rate=b.rate) == replace(b, forest_hash="", topology_hash="")
