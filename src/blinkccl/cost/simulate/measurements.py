"""Measured times of collectives, read from the files that benchmarks write.

Three forms are read: the JSON of ``blink bench`` (``-J``, ``--json``), nccl-tests' text log, and nccl-tests' ``-J``
JSON. Logs of all versions name their columns, and differ in them: those of 1.0 count milliseconds and have "bytes" for
"size", later ones leave out or add "redop" and "root", call the check "error" or "#wrong", and the newest add columns.
So a row is read by the titles above it. Launchers put a tag before each line (``[1,0]<stdout>:``, ``0:``), which is
taken off, and all sorts of other lines between them, which are passed over.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from blinkccl.errors import TopologyError
from blinkccl.topology.limits import at, shortened
from blinkccl.units import algbw_gb_per_s, bus_factor

#: nccl-tests' names of what it measures, and ours.
_TESTS = {
    "all_reduce": "allreduce", "all_gather": "allgather", "alltoall": "alltoall", "broadcast": "broadcast",
    "gather": "gather", "reduce": "reduce", "reduce_scatter": "reduce_scatter", "scatter": "scatter",
    "sendrecv": "sendrecv",
}  # fmt: skip
_STARTS = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_PROGRAM = re.compile(r"(?:^|[\s/])([a-z0-9_]+)_perf\w*(?=\s|$)")
_RANK = re.compile(r"#\s*Rank\s+([0-9]+)\s")
_TAG = re.compile(r"\[[0-9]+(?:,[0-9]+)?\](?:<std(?:out|err)>)?:?|[0-9]+:(?=\s)")
_DIGITS = re.compile(r"[0-9]+")
#: The titles that follow that of a time.
_RATES = ("algbw", "busbw")
_MAX_RANKS = 2**20
#: Bandwidths are printed with two digits after the point, so that their ratio says little below 1 GB/s.
_LEAST_GB_PER_S, _TOLERANCE = 1.0, 0.02


@dataclass(frozen=True, slots=True)
class Measurement:
    """One collective of ``size_bytes`` (S, as nccl-tests counts it) among ``ranks`` ranks took ``seconds``."""

    collective: str
    ranks: int
    size_bytes: int
    seconds: float
    in_place: bool = False


def read_measurements(
    text: str, source: str, collective: str | None = None, ranks: int | None = None
) -> tuple[Measurement, ...]:
    """The measurements that ``text``, called ``source``, holds: in its order, out-of-place before in-place.

    ``collective`` and ``ranks`` are for logs that do not say it: those of nccl-tests before 2.17 name no collective,
    and the lines that list the ranks may be cut off. What the text says itself goes first.

    Rows of size 0 are left out: nothing moves. In a row above 1 GB/s, algbw must be size / time, and busbw / algbw what
    it is for this many ranks; that is how a wrong number of ranks is noticed. Cost: O(text).
    """
    given = _Given(source, collective, ranks)
    found = tuple(_from_json(text, given) if text.lstrip()[:1] == "{" else _from_log(text, given))
    if not found:
        raise TopologyError(
            f"{source}: no measurement in it; expected a log of nccl-tests with its lines '# size count …', or the "
            "JSON that blink bench --json or nccl-tests -J writes"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Given:
    """What was said beside the text."""

    source: str
    collective: str | None
    ranks: int | None


@dataclass(frozen=True, slots=True)
class _Timing:
    """One timing as the file states it; ``where`` is its line or field."""

    where: str
    size_bytes: int
    seconds: float
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    wrong: float | None
    in_place: bool


def _measurement(timing: _Timing, collective: str, ranks: int, source: str) -> Measurement | None:
    """The timing as a measurement, if it makes sense; None for size 0."""
    where = f"{source}, {timing.where}"
    if timing.wrong:
        raise TopologyError(f"{where}: {timing.wrong:g} wrong results; times of a run that went wrong are not taken")
    if timing.size_bytes == 0:
        return None
    if not 0 < timing.size_bytes < 2**63 or not (math.isfinite(timing.seconds) and timing.seconds > 0):
        raise TopologyError(
            f"{where}: {timing.size_bytes} bytes in {timing.seconds * 1e6:g} us; expected a positive size and time"
        )
    if timing.algbw_gb_per_s is not None and timing.algbw_gb_per_s >= _LEAST_GB_PER_S:
        follows = algbw_gb_per_s(timing.size_bytes, timing.seconds)
        if abs(follows / timing.algbw_gb_per_s - 1) > _TOLERANCE:
            raise TopologyError(
                f"{where}: {timing.size_bytes} bytes in {timing.seconds * 1e6:g} us are {follows:.2f} GB/s, but algbw "
                f"is {timing.algbw_gb_per_s:g}"
            )
        factor = float(bus_factor(collective, ranks))
        ratio = factor if timing.busbw_gb_per_s is None else timing.busbw_gb_per_s / timing.algbw_gb_per_s
        if abs(ratio - factor) > _TOLERANCE * factor:
            raise TopologyError(
                f"{where}: busbw / algbw is {ratio:.3f}, but for {collective} on {ranks} ranks it is {factor:.3f}; "
                "give the right --ranks or --collective"
            )
    return Measurement(collective, ranks, timing.size_bytes, timing.seconds, timing.in_place)


def _named(test: str, where: str) -> str:
    """Our name of what nccl-tests, or we, call ``test``."""
    from blinkccl.collectives.spec import COLLECTIVES

    name = re.sub(r"_perf\w*$", "", test.rsplit("/", 1)[-1])
    name = _TESTS.get(name, name)
    if name not in COLLECTIVES:
        raise TopologyError(f"{where}: {shortened(name)!r} is none of {', '.join(COLLECTIVES)}")
    return name


# The text log.


@dataclass
class _Log:
    """What the lines read so far say of those to come."""

    given: _Given
    collective: str | None = None
    ranks: set[int] = field(default_factory=set)
    titles: tuple[str, ...] = ()
    heard_row: bool = False

    def hear(self, line: str, number: int) -> None:
        """Take in a line that is no row."""
        starts, program, rank = _STARTS.match(line), _PROGRAM.search(line), _RANK.match(line)
        if starts is not None:
            self.collective = _named(starts[1], f"{self.given.source}, line {number}")
        elif rank is not None:
            if self.heard_row:  # the list of another run's ranks begins
                self.ranks, self.heard_row = set(), False
            self.ranks.add(int(rank[1]))
        elif line.startswith("#"):
            words = tuple(line.lstrip("#").split())
            if words[:1] in (("size",), ("bytes",)) and all(words[i + 1 : i + 3] == _RATES for i in _times(words)):
                self.titles = words
        elif program is not None and program[1] in _TESTS:
            self.collective = _TESTS[program[1]]

    def row(self, words: Sequence[str], number: int) -> Iterator[Measurement]:
        """The measurements of a row."""
        source, titles = self.given.source, self.titles
        where = f"line {number}"
        if not titles:
            raise at(source, number, "a row of numbers without titles; keep the log's lines '# size count …' above it")
        # The time of day under the title "timestamp" is two words.
        expected = len(titles) + (titles[-1] == "timestamp")
        if len(words) != expected:
            raise at(source, number, f"{len(words)} columns, but the titles above name {expected}: {' '.join(titles)}")
        collective, ranks = self.collective or self.given.collective, len(self.ranks) or self.given.ranks
        if collective is None:
            raise at(source, number, "the log does not say which collective this is; add --collective, e.g. allreduce")
        if ranks is None:
            raise at(source, number, "the log does not list its ranks ('# Rank 0 …'); add --ranks")
        self.heard_row = True
        unit_s = 1e-3 if titles[0] == "bytes" else 1e-6
        for count, column in enumerate(_times(titles)):
            if words[column] == "N/A":
                continue
            wrong = titles[column + 3] if column + 3 < len(titles) else ""
            timing = _Timing(
                where,
                _whole(words[0], source, number),
                _number(words[column], titles[column], source, number) * unit_s,
                _number(words[column + 1], "algbw", source, number),
                _number(words[column + 2], "busbw", source, number),
                _number(words[column + 3], wrong, source, number)
                if wrong == "#wrong" and words[column + 3] != "N/A"
                else None,
                count == 1,
            )
            found = _measurement(timing, collective, ranks, source)
            if found is not None:
                yield found


def _from_log(text: str, given: _Given) -> Iterator[Measurement]:
    log = _Log(given)
    for number, line in enumerate(text.splitlines(), 1):
        line = _untagged(line)
        words = line.split()
        if len(words) > 1 and all(_DIGITS.fullmatch(word) for word in words[:2]):  # a size and a count
            yield from log.row(words, number)
        else:
            log.hear(line, number)


def _times(titles: Sequence[str]) -> list[int]:
    """The columns that hold times: out-of-place, then in-place."""
    return [column for column, title in enumerate(titles) if title in ("time", "cputime")]


def _untagged(line: str) -> str:
    """The line without a launcher's tag, which may come again where a line was put together from pieces."""
    line = line.strip()
    tag = _TAG.match(line)
    if tag is None:
        return line
    return (line.replace(tag[0], " ") if tag[0][0] == "[" else line[tag.end() :]).strip()


def _whole(word: str, source: str, number: int) -> int:
    if len(word) > 19:
        raise at(source, number, f"a size of {shortened(word, 40)} bytes; expected less than 2^63")
    return int(word)


def _number(word: str, title: str, source: str, number: int) -> float:
    try:
        return float(word)
    except ValueError:
        raise at(source, number, f"{shortened(word, 40)!r} under {title!r}; expected a number") from None


# JSON.


def _from_json(text: str, given: _Given) -> Iterator[Measurement]:
    source = given.source
    try:
        read = json.loads(text)
    except json.JSONDecodeError as error:
        raise at(source, error.lineno, f"not JSON: {error.msg} in column {error.colno}") from None
    except (ValueError, RecursionError):
        raise TopologyError(f"{source}: not JSON that a benchmark wrote: too deep, or with too long numbers") from None
    if not isinstance(read, dict) or not isinstance(read.get("results"), list):
        raise TopologyError(
            f"{source}: no list 'results' in it; expected what blink bench --json or nccl-tests -J writes"
        )
    collective, ranks = _json_collective(read, given), _json_ranks(read, given)
    for number, row in enumerate(read["results"]):
        where = f"results[{number}]"
        size = row.get("size") if isinstance(row, dict) else None
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**63:
            raise TopologyError(f"{source}, {where}: expected an object with a 'size' in bytes, 0 to 2^63 - 1")
        for place in ("out_of_place", "in_place") if size else ():
            if row.get(place) is None:
                continue
            timing = _json_timing(size, row[place], f"{where}.{place}", source)
            found = _measurement(timing, collective, ranks, source)
            if found is not None:
                yield found


def _json_collective(read: dict[str, Any], given: _Given) -> str:
    """The collective: from our configuration, or from the name of nccl-tests' program."""
    config, arguments = read.get("config"), read.get("args")
    named = config.get("collective") if isinstance(config, dict) else None
    program = arguments[0] if isinstance(arguments, list) and arguments else None
    if isinstance(named, str):
        return _named(named, f"{given.source}, config.collective")
    if isinstance(program, str) and re.search(r"_perf\w*$", program):
        return _named(program, f"{given.source}, args[0]")
    if given.collective is None:
        raise TopologyError(
            f"{given.source}: neither config.collective nor args[0] says which collective this is; add --collective"
        )
    return given.collective


def _json_ranks(read: dict[str, Any], given: _Given) -> int:
    """The number of ranks. nccl-tests lists only the first rank of each process; its other ranks are counted."""
    config = read.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(devices, list) or not devices:
        if given.ranks is None:
            raise TopologyError(f"{given.source}: config.devices does not list the ranks; add --ranks")
        return given.ranks
    if "blink_version" in read:
        return len(devices)
    processes = {f"{row.get('hostname')} {row.get('pid')}" for row in devices if isinstance(row, dict)}
    per_process = [config.get(key, 1) for key in ("nthreads", "ngpus")]
    if not all(isinstance(each, int) and 0 < each <= _MAX_RANKS for each in per_process):
        raise TopologyError(f"{given.source}: config.nthreads and config.ngpus are {per_process}; expected numbers")
    return len(processes) * int(per_process[0]) * int(per_process[1])


def _json_timing(size: int, timed: Any, where: str, source: str) -> _Timing:
    if not isinstance(timed, dict):
        raise TopologyError(f"{source}, {where}: expected an object with 'time', 'alg_bw' and 'bus_bw'")
    time = "cpu_time" if "cpu_time" in timed else "time"
    micros = _json_number(timed, time, where, source)
    if micros is None:
        raise TopologyError(f"{source}, {where}: neither 'time' nor 'cpu_time' in it; expected one of them, in us")
    return _Timing(
        where,
        size,
        micros * 1e-6,
        _json_number(timed, "alg_bw", where, source),
        _json_number(timed, "bus_bw", where, source),
        _json_number(timed, "nwrong", where, source),
        where.endswith(".in_place"),
    )


def _json_number(timed: dict[str, Any], key: str, where: str, source: str) -> float | None:
    """The number under ``key``; None where it is null or absent."""
    found = timed.get(key)
    if found is None:
        return None
    if not isinstance(found, int | float) or isinstance(found, bool) or abs(found) > 1e300:
        raise TopologyError(f"{source}, {where}.{key}: {shortened(repr(found), 40)}; expected a number")
    return float(found)
