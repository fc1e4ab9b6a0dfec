"""Results of nccl-tests and of ``blink bench`` as evidence: text logs of all versions, and ``-J`` and ``--json``.

All versions of the log name their columns, but the columns differ. Version 1.0 counts milliseconds and has "bytes" for
"size". Later versions omit or add "redop" and "root", call the check "error" or "#wrong", and add columns. So a row is
read by the titles above it. Without titles, a row is a size and a count, some words, then a time and two bandwidths,
once or twice. Launchers put tags before each line (``[1,0]<stdout>:``, ``0:``, the time), which are removed. All other
lines are ignored.

A row whose numbers contradict each other is omitted with a note. If the log does not state the number of ranks, the
ratio of the bandwidths gives it; a missing collective follows from the ratio and from the columns "redop" and "root".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from blinkccl.apps.doctor.evidence import Evidence, Location, MeasuredCall, Started, UnnamedCall
from blinkccl.apps.doctor.readers import Listener
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import TopologyError
from blinkccl.topology.limits import at, shortened
from blinkccl.units import algbw_gb_per_s, bus_factor

#: Names in nccl-tests that differ from Blink's.
_NAMES = {"all_reduce": "allreduce", "all_gather": "allgather"}
_STARTS = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_PROGRAM = re.compile(r"(?:^|[\s/:])([a-z_]+)_perf\w*(?=\s|$)")
_RANK = re.compile(
    r"#?\s*Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?(?:Pid\s+\d+\s+)?on\s+(\S*)\s+device\s+(\d{1,3})"
    r"(?:\s+\[[^\]]*\]\s*(.*))?"
)
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,16}(?: std(?:out|err) [FP])?"
#: Tags of mpirun and srun, times (kubectl logs --timestamps, container runtimes), pods and services of compose.
_TAG = re.compile(
    r"^\s*(?:\[\d+(?:,\d+)?\](?:<std(?:out|err)>)?:?|\d+:(?=\s)|\[\d{4}-\d\d-\d\d[^\]]*\]|\[pod/[^\]]*\]|"
    rf"{_TIME}(?=\s)|[A-Za-z][\w.-]* +\|)\s?"
)
#: Most tags in front of a line, as of a pod, the time and a rank.
_MOST_TAGS = 3
_DIGITS = re.compile(r"[0-9]+")
_COMMA = re.compile(r"(\d+),(\d+)")
#: Collectives by what nccl-tests prints under "redop" and "root": (an operation, a rank). sendrecv.cu prints "sum".
_BY_COLUMNS = {
    (True, False): ("allreduce", "reduce_scatter", "sendrecv"), (True, True): ("reduce",),
    (False, False): ("allgather", "alltoall"), (False, True): ("broadcast", "gather", "scatter"),
}  # fmt: skip
#: Titles that follow the title of a time.
_RATES = ("algbw", "busbw")
_MAX_RANKS = 2**20
#: Tolerances for a row's consistency: bandwidths have two decimal places, and the oldest times little more.
_OF_TIME, _TOLERANCE = 0.1, 0.02


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """The run of a row as far as the file describes it; "" and 0 stand for missing facts."""

    collective: str = ""
    ranks: int = 0
    hosts: int = 1
    gpus: tuple[int, ...] = ()
    model: str = ""


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One timing of the file; ``where`` is its line or field.

    ``limit_gb_per_s``: the largest possible busbw according to the file. ``columns``: the log gives an operation, and
    a root; None if its columns have no titles.
    """

    where: str
    run: BenchmarkRun
    size_bytes: int
    seconds: float
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    wrong: float = 0.0
    limit_gb_per_s: float | None = None
    columns: tuple[bool, bool] | None = None

    def checked(self, source: str) -> BenchmarkRow:
        """The row; TopologyError if it contradicts itself."""
        micros = self.seconds * 1e6
        if not 0 < self.size_bytes < 2**63 or not (math.isfinite(self.seconds) and self.seconds > 0):
            raise TopologyError(
                f"{source}, {self.where}: {self.size_bytes} bytes in {micros:g} us; expected a positive size and time"
            )
        follows, algbw = algbw_gb_per_s(self.size_bytes, self.seconds), self.algbw_gb_per_s
        if algbw is not None and abs(follows - algbw) > _OF_TIME * max(follows, algbw) + _TOLERANCE:
            raise TopologyError(
                f"{source}, {self.where}: {self.size_bytes} bytes in {micros:g} us are {follows:.2f} GB/s, but algbw "
                f"is {algbw:g}"
            )
        return self


def _named(test: str, where: str) -> str:
    """Blink's name of a test of nccl-tests or Blink."""
    name = re.sub(r"_perf\w*$", "", test.rsplit("/", 1)[-1])
    name = _NAMES.get(name, name)
    if name not in COLLECTIVES:
        raise TopologyError(
            f"{where}: {shortened(name)!r} is no known collective; expected one of {', '.join(COLLECTIVES)}"
        )
    return name


# The text log.


@dataclass
class BenchmarkLog:
    """The log of ``source``, line by line, with the facts read so far; ``notes`` list assumptions."""

    source: str
    notes: list[str] = field(default_factory=list)
    collective: str = ""
    ranks: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    rows: int = 0
    _titles: tuple[str, ...] = ()

    def hear(self, line: str, number: int) -> list[BenchmarkRow]:
        """The timings of a line, most often none; TopologyError for an implausible row."""
        words = line.split()
        if len(words) > 1 and all(_DIGITS.fullmatch(word) for word in words[:2]):  # begins with a size and a count
            return self._row(words, number)
        starts, program, rank = _STARTS.search(line), _PROGRAM.search(line), _RANK.search(line)
        if rank is not None:
            if self.rows:  # another run's list of ranks begins
                self.ranks, self.rows = {}, 0
            self.ranks[int(rank[1])] = (rank[2], int(rank[3]), (rank[4] or "").strip())
        elif starts is not None:
            self.collective = _named(starts[1], f"{self.source}, line {number}")
        elif line.startswith("#"):
            titles = tuple(line.lstrip("#").split())
            times = _times(titles)
            if titles[:1] in (("size",), ("bytes",)) and all(titles[i + 1 : i + 3] == _RATES for i in times):
                self._titles = titles
        elif program is not None and (name := _NAMES.get(program[1], program[1])) in COLLECTIVES:
            self.collective = name
        return []

    def _row(self, words: Sequence[str], number: int) -> list[BenchmarkRow]:
        if len(words[0]) > 19:
            raise at(self.source, number, f"a size of {shortened(words[0], 40)} bytes; expected less than 2^63")
        size_bytes = int(words[0])
        timings = self._by_titles(words, number) if self._titles else self._without_titles(words)
        run, where = self._run(), f"line {number}"
        columns = self._columns(words) if self._titles else None
        rows = [BenchmarkRow(where, run, size_bytes, *one, columns=columns) for one in timings if one is not None]
        checked = [row.checked(self.source) for row in rows] if size_bytes else []
        self.rows += len(checked)
        return checked

    def _run(self) -> BenchmarkRun:
        listed = [self.ranks[rank] for rank in sorted(self.ranks)]
        names = {name for _, _, name in listed if name}
        hosts = len({host for host, _, _ in listed}) or 1
        gpus = tuple(device for _, device, _ in listed)
        return BenchmarkRun(self.collective, len(listed), hosts, gpus, names.pop() if len(names) == 1 else "")

    def _columns(self, words: Sequence[str]) -> tuple[bool, bool]:
        """True for an operation and for a root in this row; old versions omit columns, and 1.0 writes "op"."""
        by_title = dict(zip(self._titles, words, strict=False))
        return by_title.get("redop", by_title.get("op", "none")) != "none", by_title.get("root", "-1") != "-1"

    def _by_titles(self, words: Sequence[str], number: int) -> list[tuple[float, float, float, float] | None]:
        """(seconds, algbw, busbw, wrong) out of place and in place; None for a missing measurement."""
        titles = self._titles
        # A time of day below the title "timestamp" is two words.
        expected = len(titles) + (titles[-1] == "timestamp")
        if len(words) != expected:
            raise at(
                self.source, number, f"{len(words)} columns, but the titles above name {expected}: {' '.join(titles)}"
            )

        def number_at(column: int) -> float:
            value = self._number(words[column])
            if value is None:
                quoted = repr(shortened(words[column], 40))
                raise at(self.source, number, f"{quoted} under {titles[column]!r}; expected a number")
            return value

        unit_s = 1e-3 if titles[0] == "bytes" else 1e-6
        timings: list[tuple[float, float, float, float] | None] = []
        for column in _times(titles):
            if words[column] == "N/A":
                timings.append(None)
                continue
            counted = titles[column + 3 : column + 4] == ("#wrong",) and words[column + 3] != "N/A"
            seconds, algbw, busbw = number_at(column) * unit_s, number_at(column + 1), number_at(column + 2)
            timings.append((seconds, algbw, busbw, number_at(column + 3) if counted else 0.0))
        return timings

    def _without_titles(self, words: Sequence[str]) -> list[tuple[float, float, float, float] | None]:
        """The same for a log without titles, by the form of the row."""
        rest = list(words[2:])
        while rest and self._number(rest[0]) is None and rest[0] != "N/A":
            rest = rest[1:]  # skips type and operation
        numbers = [self._number(word) for word in rest]
        if len(numbers) in (5, 7, 9) or (numbers and numbers[0] is not None and numbers[0] < 0):
            numbers = numbers[1:]  # skips the root
        timings: list[tuple[float, float, float, float] | None] = []
        step = 4 if len(numbers) in (4, 8) else 3
        for start in range(0, len(numbers) - 2, step):
            time, algbw, busbw = numbers[start : start + 3]
            wrong = numbers[start + 3] if step == 4 else 0.0
            if time is None or algbw is None or busbw is None:
                timings.append(None)
            else:
                timings.append((time * 1e-6, algbw, busbw, wrong or 0.0))
        return timings

    def _number(self, word: str) -> float | None:
        if _COMMA.fullmatch(word):
            note = "nccl-tests: decimal commas are read as points"
            self.notes += [note] if note not in self.notes else []
            word = word.replace(",", ".")
        try:
            return float(word)
        except ValueError:
            return None


def _times(titles: Sequence[str]) -> list[int]:
    """Indices of the columns with times: out-of-place, then in-place."""
    return [column for column, title in enumerate(titles) if title in ("time", "cputime")]


def untagged(line: str) -> str:
    """The line without the tags of launchers; a line joined from pieces may contain a tag several times."""
    for _ in range(_MOST_TAGS):
        tag = _TAG.match(line)
        if tag is None:
            break
        bracket = tag[0].strip()
        line = line.replace(bracket, " ") if bracket.startswith("[") else line[tag.end() :]
    return line


# JSON.


def document_rows(read: Any, source: str) -> Iterator[BenchmarkRow]:
    """The timings of a JSON object; TopologyError, with the field, for an object that no benchmark writes."""
    if not isinstance(read, dict) or not isinstance(read.get("results"), list):
        raise TopologyError(f"{source}: no list 'results'; expected the output of blink bench --json or nccl-tests -J")
    run = _json_run(read, source)
    for number, row in enumerate(read["results"]):
        where = f"results[{number}]"
        size = row.get("size") if isinstance(row, dict) else None
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**63:
            raise TopologyError(f"{source}, {where}: expected an object with a 'size' in bytes, 0 to 2^63 - 1")
        for place in ("out_of_place", "in_place") if size else ():
            if row.get(place) is not None:
                yield _json_row(size, row[place], f"{where}.{place}", source, run).checked(source)


def _json_run(read: dict[str, Any], source: str) -> BenchmarkRun:
    """The run. nccl-tests lists only the first rank of each process; its other ranks are computed."""
    config, arguments = read.get("config"), read.get("args")
    config = config if isinstance(config, dict) else {}
    program, named = arguments[0] if isinstance(arguments, list) and arguments else None, config.get("collective")
    collective = ""
    if isinstance(named, str):
        collective = _named(named, f"{source}, config.collective")
    elif isinstance(program, str) and re.search(r"_perf\w*$", program):
        collective = _named(program, f"{source}, args[0]")
    listed = config.get("devices")
    devices = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    if not devices:
        return BenchmarkRun(collective)
    processes = {(str(row.get("hostname")), row.get("pid")) for row in devices}
    per_process = [config.get(key, 1) for key in ("nthreads", "ngpus")]
    if not all(isinstance(each, int) and 0 < each <= _MAX_RANKS for each in per_process):
        raise TopologyError(f"{source}: config.nthreads and config.ngpus are {per_process}; expected numbers")
    whole = "blink_version" in read or len(devices) > len(processes)
    ranks = len(devices) if whole else len(processes) * math.prod(per_process)
    models = {str(row.get("name") or row.get("device_name") or "") for row in devices}
    hosts = len({host for host, _ in processes})
    return BenchmarkRun(collective, ranks, hosts, model=models.pop() if len(models) == 1 else "")


def _json_row(size: int, timed: Any, where: str, source: str, run: BenchmarkRun) -> BenchmarkRow:
    if not isinstance(timed, dict):
        raise TopologyError(f"{source}, {where}: expected an object with 'time', 'alg_bw' and 'bus_bw'")

    def number(key: str) -> float | None:
        """The number under ``key``; None if it is null or absent."""
        value = timed.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e300:
            raise TopologyError(f"{source}, {where}.{key}: {shortened(repr(value), 40)}; expected a number")
        return float(value)

    micros = number("cpu_time" if "cpu_time" in timed else "time")
    if micros is None:
        raise TopologyError(f"{source}, {where}: neither 'time' nor 'cpu_time'; expected one of them, in us")
    busbw, percent = number("bus_bw"), number("bound_percent")
    limit = 100 * busbw / percent if busbw is not None and percent else None
    return BenchmarkRow(where, run, size, micros * 1e-6, number("alg_bw"), busbw, number("nwrong") or 0.0, limit)


# The evidence.


@dataclass
class NcclTests(Listener):
    """Reader of nccl-tests' output. Earlier lines give the collective and the ranks of a row."""

    title = "nccl-tests' text"
    first: Location | None = None
    skipped: int = 0
    _log: BenchmarkLog | None = None

    def hear(self, line: str, place: Location) -> Iterator[Evidence]:
        if self._log is None:
            self._log = BenchmarkLog(place.source, self.notes)
        listed = len(self._log.ranks)
        try:
            rows = self._log.hear(line, place.line or 0)
        except TopologyError as error:
            self._leave_out(str(error))
            return
        if len(self._log.ranks) == 1 != listed:
            self.first = place
        for row in rows:
            yield from self._call(row, place)

    def end(self) -> Iterator[Evidence]:
        """The last run, if it printed no result."""
        if self._log is not None and self._log.ranks and not self._log.rows and self.first is not None:
            yield Started(self.first, len(self._log.ranks), next(iter(self._log.ranks.values()))[2])

    def _call(self, row: BenchmarkRow, place: Location) -> Iterator[Evidence]:
        """The row with its collective and ranks, as far as the log states or its bandwidths imply them."""
        collective, ranks, busbw = row.run.collective, row.run.ranks, row.busbw_gb_per_s
        ratio = busbw / row.algbw_gb_per_s if busbw is not None and row.algbw_gb_per_s else None
        if busbw is None:
            self._leave_out(f"{place}: no busbw")
        elif collective and not ranks:
            fits = [n for n in range(2, 1025) if ratio and abs(float(bus_factor(collective, n)) - ratio) < 0.01]
            if len(fits) == 1 and (row.algbw_gb_per_s or 0) >= 1:
                self._say(f"the log lists no ranks; busbw / algbw is that of {fits[0]} ranks")
                yield measured_call(row, place, collective, fits[0])
            else:
                self._leave_out(f"{place}: the log lists no ranks of this {collective}")
        elif collective:
            yield measured_call(row, place, collective, ranks)
        elif not ranks:
            self._leave_out(f"{place}: the log names neither the collective nor the number of ranks")
        else:
            yield self._unnamed(row, place, ratio, busbw)

    def _unnamed(self, row: BenchmarkRow, place: Location, ratio: float | None, busbw_gb_per_s: float) -> Evidence:
        """The row as that of the only collective that fits, or else as one that cannot be judged."""
        ranks = row.run.ranks
        fits = _fitting(row.columns, ranks, ratio) if (row.algbw_gb_per_s or 0) >= 1 else []
        if fits == ["allreduce", "sendrecv"]:  # on two ranks; each sends as much as in the other
            self._say("the log names no collective; operation and busbw / algbw are those of allreduce, or of sendrecv")
        elif len(fits) == 1:
            self._say(f"the log names no collective; busbw / algbw is that of {fits[0]}")
        else:
            return UnnamedCall(place, ranks, row.size_bytes, busbw_gb_per_s, tuple(fits), row.run.model)
        return measured_call(row, place, fits[0], ranks)

    def _say(self, what: str) -> None:
        note = f"nccl-tests: {what}"
        if note not in self.notes:
            self.notes.append(note)

    def _leave_out(self, why: str) -> None:
        self.skipped += 1
        if self.skipped <= 3:
            self.notes.append(f"a row of numbers is skipped: {why}")


def _fitting(columns: tuple[bool, bool] | None, ranks: int, ratio: float | None) -> list[str]:
    """The collectives that have these columns and this busbw / algbw among ``ranks``."""
    names = [name for key, group in _BY_COLUMNS.items() if columns in (None, key) for name in group]
    return [name for name in names if ratio is None or abs(float(bus_factor(name, ranks)) - ratio) < 0.02]


def measured_call(row: BenchmarkRow, place: Location, collective: str, ranks: int) -> MeasuredCall:
    """The row as evidence."""
    return MeasuredCall(
        place,
        collective,
        ranks,
        row.size_bytes,
        row.seconds,
        row.busbw_gb_per_s or 0.0,
        row.wrong,
        row.run.gpus,
        row.run.model,
        row.run.hosts,
        row.limit_gb_per_s,
    )
