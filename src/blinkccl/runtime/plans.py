"""The Programs of one host: planned, verified, laid out, once per process, and kept on disk for the next job.

To Blink one host is a switch: every rank reaches every other in one hop at the same rate (Blink, MLSys 2020, §3.5).
Which Program serves which size is :mod:`blinkccl.runtime.host_table`'s.

The *plan cache* has programs that this version has planned before, so that the next job need not plan: a file per
question, in a directory. Its name is a hash of all that the answer depends on, its text the program's JSON. Nothing
that lies there is trusted: a program is taken only if it is for this collective and these ranks and is valid on this
topology. That is checked at every reading: it costs one to two times as much as reading the JSON. A cache is a help
and no duty: where its directory cannot be made, written or read, everything works without.
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
#: A longer file is none of ours, and is not read.
MAX_FILE_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlanKey:
    """A question to a planner: ``algorithm`` is never "auto", ``options`` are whatever else the answer depends on."""

    topology: Topology
    collective: Collective
    ranks: tuple[int, ...]
    algorithm: str
    options: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits, the same in every process."""
        coll = self.collective
        canonical = [
            package_version(),
            SCHEMA_VERSION,
            topology_hash(self.topology),
            [coll.name, coll.world_size, coll.root, coll.src, coll.dst],
            list(self.ranks),
            self.algorithm,
            sorted(self.options.items()),
        ]
        return sha256(json.dumps(canonical).encode()).hexdigest()


class PlanCache:
    """Programs that were planned before, in a directory of mode 0700, made when something is first written.

    ``directory`` None: BLINK_CACHE (empty: no cache at all), else ``blink`` in XDG_CACHE_HOME, else ``~/.cache/blink``.
    Its files together take ``max_bytes`` at most: the ones not used for longest go first.
    """

    def __init__(self, directory: str | Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.directory = cache_directory(os.environ, "plans") if directory is None else Path(directory)
        self._max_bytes = max_bytes
        self._warned: set[str] = set()

    def get(self, key: PlanKey) -> Program | None:
        """The program that was put for ``key``; None if there is none that can be used."""
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
            self._warn("is no plan for this job, and will be written anew", path, error)
            return None
        with suppress(OSError):  # it was used just now; in a cache that is read-only nothing is ever thrown out
            os.utime(path)
        return program

    def put(self, key: PlanKey, program: Program) -> None:
        """Keeps ``program`` as the answer to ``key``, where that is possible."""
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

    def _warn(self, what: str, path: Path, why: object) -> None:
        """Once for each kind of trouble: a cache that does not work is no reason to fill a log."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("the plan cache's %s %s (%s); planning goes on without it", path, what, why)


def _usable(text: bytes, key: PlanKey) -> Program:
    """The program in ``text``; a BlinkError says why it is no answer to ``key``."""
    program = from_json(text)
    if (program.collective, program.ranks) != (key.collective, key.ranks):
        raise ScheduleError("it is for another collective or other ranks")
    found = violations(program, key.topology)
    if found:
        raise ScheduleError(f"it is invalid: {found[0]}")
    return program


@cache
def host_plan(collective: Collective, algorithm_name: str, inline: bool, area: Area) -> HostPlan:
    """The plan of a collective among all ranks of one host."""
    topology = parse_spec(f"clique:{collective.world_size}")  # all memory is equally near
    return laid_out(planned(topology, collective, topology.ranks, algorithm_name, PlanCache()), inline, area)


def laid_out(program: Program, inline: bool, area: Area) -> HostPlan:
    """The layout of a program; ``inline``: its messages carry their flags inside."""
    if inline:
        program = replace(program, channels=tuple(replace(channel, protocol=INLINE) for channel in program.channels))
    return HostPlan(program, area)


def planned(
    topology: Topology, collective: Collective, ranks: tuple[int, ...], algorithm_name: str, plans: PlanCache
) -> Program:
    """A verified Program, from the cache or planned now and put there.

    UnsupportedError if the algorithm does not serve this, VerificationError if it made a wrong program.
    """
    key = PlanKey(topology, collective, ranks, algorithm_name)
    program = plans.get(key)
    if program is None:
        program = planned_anew(topology, collective, ranks, algorithm_name)
        plans.put(key, program)
    return program


def planned_anew(topology: Topology, collective: Collective, ranks: tuple[int, ...], algorithm_name: str) -> Program:
    """The same, planned now."""
    forest = algorithm(algorithm_name).plan(Request(topology, collective, ranks))
    program = lower(forest)
    verify(program, forest.topology)
    return program
