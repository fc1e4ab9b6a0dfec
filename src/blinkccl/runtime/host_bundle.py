"""``python -m blinkccl.runtime.host_bundle RANKS``: all plans of a host in one file, for programs without Python.

The file contains, for every collective and root, the plans that the host's table can select for that number of ranks
(:mod:`blinkccl.runtime.host_table`), and the table's rows. Native code (``native/src/host_bundle.cpp``) binds and runs
them as Python would. The file is in the directory of the plan cache, under a name made of everything that it depends
on. It is written atomically, and again if it is damaged. Of several processes at the same time one plans and the others
wait.

The output is one line: the path, or ``refused`` and the reason.
"""

from __future__ import annotations

import ctypes as c
import fcntl
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import native_library as native
from blinkccl.engines.host import shape_of
from blinkccl.engines.host_plan import Area, checksum
from blinkccl.errors import BlinkError, LaunchError, UsageError
from blinkccl.native.headers import abi, header
from blinkccl.private_files import cache_directory, private_directory, throw_out, write_at_once
from blinkccl.runtime.host_table import table_for
from blinkccl.runtime.peer_info import package_version
from blinkccl.runtime.plans import laid_out, planned_anew
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.tables import Row, Way

#: The largest number of ranks: planning takes 15 s, and the file 20 MB.
MOST_RANKS = 64
#: Size of all bundles together.
MAX_BYTES = 256 << 20
#: Seconds that a process waits for another one's plans before it makes them itself.
PATIENCE_S = 30.0
_SUFFIX = ".bundle"
_NAMES = tuple(name for name in COLLECTIVES if name != "sendrecv")

_log = logging.getLogger(__name__)


@native.HEADER.layout("blink_bundle_header")
class _Header(c.Structure):
    """``blink_bundle_header``."""


@native.HEADER.layout("blink_bundle_choice")
class _Choice(c.Structure):
    """``blink_bundle_choice``."""


@native.HEADER.layout("blink_bundle_plan")
class _Plan(c.Structure):
    """``blink_bundle_plan``."""


def ensure(ranks: int, directory: Path | None = None) -> Path:
    """Return the path of the bundle for ``ranks``; write it first if it is missing or unusable.

    ``directory`` None: the plan cache's. Raises UsageError for an unsupported number of ranks; LaunchError if there is
    no directory for it.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise UsageError(f"a bundle is for 2 to {MOST_RANKS} ranks of a host, got {ranks}")
    place = directory or cache_directory(os.environ, "plans")
    if place is None:
        raise LaunchError("plans of a host need a directory: set BLINK_CACHE to one, or HOME")
    path = place / _name(ranks)
    if is_usable(path, ranks):
        return path
    private_directory(place)
    with _turn(place):
        if not is_usable(path, ranks):
            try:
                write_at_once(path, contents(ranks, _progress()))
            except OSError as error:
                raise LaunchError(f"{path} cannot be written ({error}): set BLINK_CACHE elsewhere") from error
            throw_out(place, MAX_BYTES, lambda other: other.suffix == _SUFFIX)
    return path


def existing() -> dict[int, Path]:
    """The bundles of this version in the plan cache, by number of ranks; their content is not checked."""
    directory = cache_directory(os.environ, "plans")
    bundles = {}
    for path in directory.glob(f"host-*{_SUFFIX}") if directory else ():
        ranks = path.name.split("-")[1]
        if ranks.isdecimal() and path.name == _name(int(ranks)):
            bundles[int(ranks)] = path
    return bundles


def _name(ranks: int) -> str:
    return f"host-{ranks}-{_digest(ranks)}{_SUFFIX}"


def is_usable(path: Path, ranks: int) -> bool:
    """True if the whole bundle is valid; if it exists and is not, a warning gives the reason."""
    library, error = native.load(), native.Error()
    bundle = library.blink_bundle_open(os.fsencode(path), ranks, c.byref(error))
    wrong = not bundle or library.blink_bundle_check(bundle, c.byref(error)) != native.OK
    if bundle:
        library.blink_bundle_close(bundle)
    if wrong and path.exists():
        _log.warning("%s: %s", path, error.text.decode(errors="replace"))
    return not wrong


def contents(ranks: int, report: Callable[[int, int], None] = lambda done, of: None) -> bytes:
    """Return a bundle's bytes; ``report`` gets the number of plans made and the number of all."""
    codes = header("types.h").numbers("blink_collective")
    table = table_for(ranks)
    rows = {name: table.rows[name] for name in _NAMES}
    algorithms = sorted({way.algorithm for table in rows.values() for row in table for way in row.ways})
    numbers = {name: number for number, name in enumerate(algorithms)}
    wanted = [(coll, name) for coll in _collectives(ranks) for name in algorithms if _variants(rows[coll.name], name)]
    placed: list[tuple[dict[str, int], bytes]] = []
    topology = parse_spec(f"clique:{ranks}")
    for done, (coll, name) in enumerate(wanted):
        report(done, len(wanted))
        program = planned_anew(topology, coll, topology.ranks, name)
        for inline in _variants(rows[coll.name], name):
            row = {"collective": codes[coll.name], "root": coll.root or 0, "algorithm": numbers[name]}
            placed.append((row | {"inline_messages": int(inline)}, laid_out(program, inline, Area()).rows))
    made = [choice for name, table in rows.items() for row in table for choice in _choices(name, row, ranks, numbers)]
    return _assembled(ranks, made, placed)


def _collectives(ranks: int) -> Iterator[Collective]:
    for name in _NAMES:
        rooted = "root" in COLLECTIVES[name].parameters
        yield from (Collective(name, ranks, root) for root in (range(ranks) if rooted else (None,)))


def _variants(table: tuple[Row[Way], ...], algorithm: str) -> list[bool]:
    """The values of ``inline`` that the table uses for this algorithm."""
    return sorted({way.inline for row in table for way in row.ways if way.algorithm == algorithm})


def _choices(name: str, row: Row[Way], ranks: int, numbers: dict[str, int]) -> Iterator[_Choice]:
    """Yield the entries of a row: its first way, then the others as variants of it."""
    for place, way in enumerate(row.ways):
        yield _Choice(
            collective=header("types.h").numbers("blink_collective")[name],
            blocks=Collective(name, ranks, 0 if "root" in COLLECTIVES[name].parameters else None).total_blocks(),
            below=row.below,
            variant=place > 0,
            cross_memory=way.copied,
            algorithm=numbers[way.algorithm],
            inline_messages=way.inline,
            chunk_bytes=way.chunk_bytes,
            parts=way.parts,
        )


def _assembled(ranks: int, made: list[_Choice], placed: list[tuple[dict[str, int], bytes]]) -> bytes:
    shape = shape_of(ranks, Area())
    head = _Header(
        magic=native.HEADER.constants["BLINK_BUNDLE_MAGIC"],
        version=native.HEADER.constants["BLINK_BUNDLE_VERSION"],
        abi=abi(),
        choice_count=len(made),
        plan_count=len(placed),
        **{name: getattr(shape, name) for name in native.HEADER.structs["blink_shape"].names},
    )
    package = package_version().encode()[: c.sizeof(head.package) - 1]
    c.memmove(c.addressof(head) + _Header.package.offset, package, len(package))
    first = (c.sizeof(head) + len(made) * c.sizeof(_Choice) + len(placed) * c.sizeof(_Plan)) // 8
    plans = []
    for row, words in placed:
        plans.append(_Plan(**row, first=first, words=len(words) // 8))
        first += len(words) // 8
    head.words = first
    rows = b"".join(bytes(row) for row in [*made, *plans])
    summed = _Header.checksum.offset + _Header.checksum.size
    head.checksum = checksum(np.frombuffer(bytes(head)[summed:] + rows, np.int64))
    return b"".join([bytes(head), rows, *(words for _, words in placed)])


def _digest(ranks: int) -> str:
    """Hash of everything that a bundle depends on; the package version stands for the planners' code."""
    table = table_for(ranks)
    tables = [table.rows[name] for name in _NAMES]
    return sha256(repr((package_version(), abi(), Area(), tables)).encode()).hexdigest()[:16]


@contextmanager
def _turn(directory: Path) -> Iterator[None]:
    """Lock ``directory``; after PATIENCE_S continue without the lock, since planning twice does no harm."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _locked(fd):
            if time.monotonic() > deadline:
                _log.warning("%s: another process plans for over %.0f s; planning here too", directory, PATIENCE_S)
                break
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _progress() -> Callable[[int, int], None]:
    """Return a function that logs the progress about once a second, from the third second on."""
    last = time.monotonic() + 1

    def report(done: int, of: int) -> None:
        nonlocal last
        if time.monotonic() > last + 1:
            last = time.monotonic()
            _log.warning("made %d of %d plans", done, of)

    return report


def main(arguments: list[str]) -> int:
    """Print the path of the bundle, or ``refused`` and the reason; return the exit code."""
    logging.basicConfig(format="blink: %(message)s", stream=sys.stderr)
    try:
        if len(arguments) != 1 or not arguments[0].isdecimal():
            raise UsageError("usage: python -m blinkccl.runtime.host_bundle RANKS")
        print(ensure(int(arguments[0])))
    except BlinkError as error:
        print(f"refused {' '.join(str(error).split())}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
