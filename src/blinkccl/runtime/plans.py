"""The Programs of one host: each is planned, verified and laid out once per process, and cached on disk for later jobs.

For Blink one host is a switch: every rank reaches every other in one hop at the same rate (Blink, MLSys 2020, §3.5).
:mod:`blinkccl.runtime.host_table` selects the Program for each size.

The *plan cache* contains programs that this version has planned before, with the same files: a file per request, in a
directory. The file's name is a hash of everything that the answer depends on, its text the program's JSON. Its content
is not trusted: a program is used only if it is for this collective and these ranks and is valid on this topology. Every
reading checks that, which costs one to two times as much as reading the JSON. The cache is optional: without a
directory that can be made, written or read, everything works without it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path

from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import INLINE, Area, HostPlan
from blinkccl.errors import BlinkError, LaunchError, ScheduleError
from blinkccl.private_files import cache_directory, open_trusted, private_directory, throw_out, write_at_once
from blinkccl.runtime.peer_info import package_version
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import from_json, to_json
from blinkccl.schedule.verifier import verify, violations
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import topology_hash

MAX_BYTES = 64 << 20
#: A longer file was not written by Blink, and is not read.
MAX_FILE_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlanKey:
    """A request to a planner: ``algorithm`` is never "auto", ``options`` has all other inputs of the answer."""

    topology: Topology
    collective: Collective
    ranks: tuple[int, ...]
    algorithm: str
    options: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits, equal in every process of an installation."""
        coll = self.collective
        canonical = [
            package_version(),
            _planner(),
            SCHEMA_VERSION,
            topology_hash(self.topology),
            [coll.name, coll.world_size, coll.root, coll.src, coll.dst],
            list(self.ranks),
            self.algorithm,
            sorted(self.options.items()),
        ]
        return sha256(json.dumps(canonical).encode()).hexdigest()


@cache
def _planner() -> list[tuple[str, int, int]]:
    """Names, sizes and times of the planner's files: those of another commit with this version may plan otherwise."""
    root = Path(__file__).parents[1]
    files = sorted(file for room in ("trees", "schedule") for file in (root / room).rglob("*.py"))
    return [(str(file.relative_to(root)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


class PlanCache:
    """Programs that were planned before, in a directory of mode 0700 that the first write creates.

    ``directory`` None: BLINK_CACHE (empty: no cache), else ``blink`` in XDG_CACHE_HOME, else ``~/.cache/blink``. Its
    files together have at most ``max_bytes``; the least recently used ones are removed first.
    """

    def __init__(self, directory: str | Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.directory = cache_directory(os.environ, "plans") if directory is None else Path(directory)
        self._max_bytes = max_bytes
        self._warned: set[str] = set()

    def get(self, key: PlanKey) -> Program | None:
        """Return the cached program for ``key``; None if there is no usable one."""
        path = self._path(key)
        if path is None:
            return None
        try:
            with open_trusted(path, MAX_FILE_BYTES) as file:
                text = file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("cannot be read", path, error)
            return None
        try:
            program = _usable(text, key)
        except BlinkError as error:
            self._warn("is not a plan for this job, and will be overwritten", path, error)
            return None
        with suppress(OSError):  # marks the file as used; a read-only cache removes no files
            os.utime(path)
        return program

    def put(self, key: PlanKey, program: Program) -> None:
        """Store ``program`` for ``key``, if the cache can be written."""
        path = self._path(key)
        text = to_json(program).encode()
        if path is None or len(text) > min(MAX_FILE_BYTES, self._max_bytes):
            return
        try:
            private_directory(path.parent)
            write_at_once(path, text)
            throw_out(path.parent, self._max_bytes, lambda other: other.suffix == ".json")
        except (OSError, LaunchError) as error:
            self._warn("cannot be written", path, error)

    def _path(self, key: PlanKey) -> Path | None:
        return None if self.directory is None else self.directory / f"{key.digest}.json"

    def _warn(self, problem: str, path: Path, why: object) -> None:
        """Warn once per kind of problem: a cache that does not work must not fill a log."""
        if problem not in self._warned:
            self._warned.add(problem)
            _log.warning("the plan cache's %s %s (%s); planning continues without it", path, problem, why)


def _usable(text: bytes, key: PlanKey) -> Program:
    """Return the program in ``text``; a BlinkError gives the reason why it does not answer ``key``."""
    program = from_json(text)
    if (program.collective, program.ranks) != (key.collective, key.ranks):
        raise ScheduleError("it is for another collective or other ranks")
    faults = violations(program, key.topology)
    if faults:
        raise ScheduleError(f"it is invalid: {faults[0]}")
    return program


@cache
def host_plan(collective: Collective, algorithm_name: str, inline: bool, area: Area) -> HostPlan:
    """Return the plan of a collective among all ranks of one host."""
    topology = parse_spec(f"clique:{collective.world_size}")  # every rank reaches all memory equally fast
    return laid_out(planned(topology, collective, topology.ranks, algorithm_name, PlanCache()), inline, area)


def laid_out(program: Program, inline: bool, area: Area) -> HostPlan:
    """Lay out a program; ``inline``: its messages carry their flags inside."""
    if inline:
        program = replace(program, channels=tuple(replace(channel, protocol=INLINE) for channel in program.channels))
    return HostPlan(program, area)


def planned(
    topology: Topology, collective: Collective, ranks: tuple[int, ...], algorithm_name: str, plans: PlanCache
) -> Program:
    """Return a verified Program from the cache, or plan it and store it there.

    Raises UnsupportedError if the algorithm does not support the request, VerificationError if it made a wrong program.
    """
    key = PlanKey(topology, collective, ranks, algorithm_name)
    program = plans.get(key)
    if program is None:
        program = planned_anew(topology, collective, ranks, algorithm_name)
        plans.put(key, program)
    return program


def planned_anew(topology: Topology, collective: Collective, ranks: tuple[int, ...], algorithm_name: str) -> Program:
    """Plan and verify a Program without the cache."""
    forest = algorithm(algorithm_name).plan(Request(topology, collective, ranks))
    program = lower(forest)
    verify(program, forest.topology)
    return program
