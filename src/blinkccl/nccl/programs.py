"""Programs that could run on trees here: all collectives, with every root, by the algorithms that are asked for."""

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

#: What is planned where nobody says: the fastest for large sizes, and those of few steps; and, where they fit beside
#: these, those that are faster for sizes in between on some machines. ``blink`` is not: its search takes longest.
FIRST = ("optimal", "one_hop", "one_shot")
BESIDE = ("internal_broadcast", "double_binary_tree", "ring")
DEFAULT = FIRST + BESIDE
#: All connections share the staging memory. Of those into a rank that the first need, or that there is memory for with
#: the largest messages, how many more there may be.
MOST_BESIDE = Fraction(1, 8)
_PART_BYTES = SLOTS * (MOST_SLOT_BYTES + 2 * MOST_LINE_BYTES)
#: Words for the default: the first leaves to NCCL what that does faster, the second has no NCCL to leave it to.
AUTO, BEST = "auto", "best"


@dataclass
class CandidatePrograms:
    """What there is, by collective and root (−1: none), and for the others why not."""

    found: dict[tuple[str, int], list[CandidateProgram]] = field(default_factory=dict)
    absent: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    @property
    def every(self) -> tuple[CandidateProgram, ...]:
        return tuple(one for some in self.found.values() for one in some)

    def why_not(self, key: tuple[str, int]) -> str:
        """Why there is none of ``key``; a sentence without full stop."""
        return "; ".join(dict.fromkeys(self.absent.get(key, []))) or "nothing was planned for it"


def collectives(size: int) -> Iterator[Collective]:
    """All that can be asked for, with every root."""
    for name in SERVED:
        if COLLECTIVES[name].parameters:
            yield from (Collective(name, size, root=root) for root in range(size))
        else:
            yield Collective(name, size)


def key_of(collective: Collective) -> tuple[str, int]:
    return collective.name, -1 if collective.root is None else collective.root


def wanted(setting: str) -> tuple[str, ...]:
    """The algorithms that BLINK_ALGO asks for; UsageError lists those there are.

    ``hybrid`` is NVLink alone where PCIe does not pay: what Eq 8 says of sizes for which its part is not positive. What
    pays is predicted, and then measured in the first calls (:mod:`blinkccl.nccl.choices`).
    """
    if setting in ("", AUTO, BEST):
        return DEFAULT
    algorithm(setting)
    return ("optimal", HYBRID) if setting == HYBRID else (setting,)


def without_memories(place: JobPlacement) -> JobPlacement:
    """The place with those links that stores between its GPUs can take, where these join them; else as it is."""
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
    """All programs that can serve the job, dealt to so many blocks per rank; ``tell`` is told what is left out.

    No program is taken in which ranks write to each other that must not (``bad``: ordered pairs, and why). Planned is
    on links that stores can take (:mod:`blinkccl.topology.memories`), so the rates that calls are taken for are those
    that the kernels can have; messages are staged in processors' memories by ``hybrid``, where nothing else joins the
    GPUs, and where a program would need a pair of ``bad``. Of :data:`BESIDE` are those, in the order of collectives,
    that leave messages as large as they are without them, or nearly so (:data:`MOST_BESIDE`). Where ``deterministic``
    promises one order, all that sum have that of the first: so it does not matter which runs. Cost: 0.7 s for 8 GPUs of
    a DGX-1V.
    """
    whole, place, result = place, without_memories(place), CandidatePrograms()
    links, why = joining_links(place.topology, place.ranks)
    if why:
        tell(why)
    kept = _Order(deterministic)
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
                    one = kept.checked(_candidate(kept.asked(request), name, blocks, whole.counted, bad))
                    break
                except (PackingError, ScheduleError, TopologyError, UnsupportedError, UsageError) as error:
                    reasons.append(" ".join(str(error).split()))
            else:
                result.absent.setdefault(key, []).append(reasons[0])
                missing.setdefault(reasons[0], {})[collective.name] = None
                continue
            known = result.found.setdefault(key, [])
            if not any(_same(one.program, other.program) for other in known):
                known.append(one)
    _leave_out(result, staging_bytes // (blocks * _PART_BYTES), tell)
    for text, names in missing.items():
        tell(f"for {', '.join(names)}: {text}")
    return result


@dataclass
class _Order:
    """The one order that all sums have, where one is promised: that of the first program that sums."""

    deterministic: str | None
    order: str = ""

    def asked(self, request: Request) -> Request:
        return replace(request, deterministic=self.deterministic) if request.collective.reduces else request

    def checked(self, one: CandidateProgram) -> CandidateProgram:
        """``one``; UnsupportedError where its program sums otherwise."""
        if self.deterministic is not None and one.collective.reduces:
            self.order = self.order or one.forest.order or ""
            faults = order_faults(one.program, self.order)
            if faults:
                raise UnsupportedError(f"{one.name} sums in another order: {faults[0]}")
        return one


def _leave_out(planned: CandidatePrograms, room: int, tell: Callable[[str], None]) -> None:
    """Takes those of :data:`BESIDE` away that need too many connections, but where nothing else serves the collective.

    ``room``: so many into a rank have the largest messages.
    """
    need = Counter[tuple[int, int, int]]()
    for one in planned.every:
        if one.algorithm not in BESIDE:
            need |= _ways(one)
    if not need:
        return
    most, left = max(_arriving(need), room) * (1 + MOST_BESIDE), Counter[str]()
    for known in planned.found.values():
        for one in [one for one in known if one.algorithm in BESIDE]:
            if len(known) == 1 or _arriving(need | _ways(one)) <= most:
                need |= _ways(one)
            else:
                known.remove(one)
                left[one.algorithm] += 1
    for name, count in left.items():
        tell(
            f"{count} programs of {name} left out, with which a rank would receive on more than {int(most)} connections"
        )


def _ways(one: CandidateProgram) -> Counter[tuple[int, int, int]]:
    """How many connections the program needs from a rank to another that have their messages in one memory."""
    return Counter((queue.src, queue.dst, queue.home) for queue in one.program.queues)


def _arriving(ways: Counter[tuple[int, int, int]]) -> int:
    """The most connections that have their messages in one memory."""
    found = Counter[int]()
    for (_, _, home), count in ways.items():
        found[home] += count
    return max(found.values())


def _candidate(
    request: Request, name: str, blocks: int, counted: CountedLinks, bad: Mapping[tuple[int, int], str]
) -> CandidateProgram:
    found = compiled(name, algorithm(name).plan(request), blocks, counted)
    for queue in found.program.queues:
        if (queue.src, queue.dst) in bad and not queue.is_staged:
            raise UnsupportedError(
                f"{name} sends from rank {queue.src} to rank {queue.dst}, which failed the peer check: "
                f"{bad[queue.src, queue.dst]}"
            )
    return found


def _same(a: Program, b: Program) -> bool:
    """Whether they do the same, whatever they were made from."""
    return replace(a, forest_hash="", topology_hash="", rate=b.rate) == replace(b, forest_hash="", topology_hash="")
