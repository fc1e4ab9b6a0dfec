"""What there is to show of measured and simulated times: curves over size, bars, tables, and the machine's links.

Documents are what ``blink sim --json``, ``blink bench --json`` or ``-J`` (nccl-tests' ``-J`` too) and ``blink lab
--json`` write; only what is shown is read, and a document of another shape is refused with the place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec

from blinkccl.errors import ScheduleError
from blinkccl.report.charts import Bar, Curve, bars_picture, curves_picture
from blinkccl.report.layout import UNFOLDED
from blinkccl.report.page import Exhibit, Figure, Part, Prose, Table
from blinkccl.report.picture import Subject, machine_picture
from blinkccl.report.shapes import Picture
from blinkccl.report.text import bytes_text, count, gb_per_s_text, ids, seconds_text
from blinkccl.report.words import Said, collective_name
from blinkccl.schema import version_fault
from blinkccl.topology.limits import label_fault, shortened
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import machine_named

_Number = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Name = Annotated[str, msgspec.Meta(max_length=200)]


# What is read of the documents.
class _Timed(msgspec.Struct):
    algorithm: _Name
    seconds: _Number
    algbw_gb_per_s: _Number
    busbw_gb_per_s: _Number
    percent_bound: _Number
    how: str = ""


class _Size(msgspec.Struct):
    size_bytes: _Bytes
    algorithms: list[_Timed]


class _Hop(msgspec.Struct):
    src: _Id
    dst: _Id
    seconds: _Number


class _Use(msgspec.Struct):
    src: _Id
    dst: _Id
    gb_per_s: _Number
    busy: _Number


class _Decided(msgspec.Struct):
    algorithm: _Name
    size_bytes: _Bytes
    seconds: dict[_Name, _Number]
    hops: list[_Hop]
    links: list[_Use]


class _Win(msgspec.Struct):
    algorithm: _Name
    first_bytes: _Bytes
    last_bytes: _Bytes


class _Simulation(msgspec.Struct):
    collective: _Name
    topology: _Name
    ranks: list[_Id]
    bound_gb_per_s: _Number
    sizes: list[_Size]
    code: _Name = ""
    wins: list[_Win] = []
    absent: dict[_Name, str] = {}
    decided_by: _Decided | None = None


class _Timing(msgspec.Struct):
    time: _Number
    alg_bw: _Number
    bus_bw: _Number
    nwrong: float | str | None = None
    bound_percent: _Number | None = None


class _Peer(msgspec.Struct):
    name: _Name
    out_of_place: _Timing | None = None
    in_place: _Timing | None = None


class _Row(msgspec.Struct):
    size: _Bytes
    out_of_place: _Timing | None = None
    in_place: _Timing | None = None
    peers: list[_Peer] = []


class _Config(msgspec.Struct):
    collective: _Name = ""
    devices: list[Any] = []


class _Benchmark(msgspec.Struct):
    results: list[_Row]
    config: _Config
    algorithm: _Name = ""
    engine: _Name = ""
    topology: _Name | None = None


class _Measured(msgspec.Struct):
    algorithm: _Name
    size_bytes: _Bytes
    seconds: list[_Number]
    algbw_gb_per_s: _Number
    plan_algbw_gb_per_s: _Number
    part_of_plan: _Number
    simulated_part_of_plan: _Number
    wrong: _Number
    chunk_bytes: _Bytes = 0


class _Absent(msgspec.Struct):
    algorithm: _Name
    reason: str


class _Laboratory(msgspec.Struct):
    collective: _Name
    topology: _Name
    ranks: list[_Id]
    rows: list[_Measured]
    lane_gb_per_s: _Number
    lane_mbit_per_s: _Number
    absent: list[_Absent] = []


_Document = TypeVar("_Document", bound=msgspec.Struct)


def _read(document: Mapping[str, Any], kind: type[_Document]) -> _Document:
    fault = version_fault(document.get("schema_version"))
    if fault is not None:
        raise ScheduleError(fault)
    try:
        found = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ScheduleError(shortened(str(error).replace("`$.", "`"))) from None
    for text in _texts(msgspec.to_builtins(found)):
        odd = label_fault(text, 10_000)
        if odd is not None:
            raise ScheduleError(f"a text of it {odd}")
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from (*_texts(key), *_texts(entry))
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)


def _absent(name: str, why: str) -> str:
    return why if why.startswith(f"{name}:") else f"{name}: {why}"


def _no_timings(what: str, again: str) -> ScheduleError:
    return ScheduleError(
        f"{what} is empty: there are no timings to show; run {again} again, or give the file of a run that ended"
    )


def chart(shown: Exhibit) -> Picture:
    """The picture of a result's numbers, under the result's title: what ``--plot`` draws."""
    figure = next(part for part in shown.parts if isinstance(part, Figure))
    return replace(figure.picture, title=shown.title)


# A simulation.
def of_simulation(document: Mapping[str, Any], machine: Topology | None = None) -> Exhibit:
    """What ``blink sim --json`` wrote. Raises ScheduleError where it is none or has no times."""
    found = _read(document, _Simulation)
    if not any(size.algorithms for size in found.sizes):
        raise _no_timings("sizes", "blink sim --json")
    last = found.sizes[-1]
    best = min(last.algorithms, key=lambda one: one.seconds)
    machine = machine or machine_named(found.topology)
    title = (
        f"{collective_name(found.collective)} among {count(len(found.ranks), 'GPU')} ({ids(found.ranks)}) of "
        f"{found.topology}, simulated{f' ({found.code})' if found.code else ''}"
    )
    said: list[Said] = [
        (
            "Fastest",
            f"{best.algorithm}: {bytes_text(last.size_bytes)} take {seconds_text(best.seconds)}, "
            f"{gb_per_s_text(best.algbw_gb_per_s)} (algbw; {gb_per_s_text(best.busbw_gb_per_s)} busbw). {best.how}.",
        ),
        (
            "Why not faster",
            f"No schedule of trees passes {gb_per_s_text(found.bound_gb_per_s)} on these links, of which this is "
            f"{best.percent_bound:.0f} %; the rest goes into latency, into filling the pipeline, and into what links "
            "lose to headers and code.",
        ),
    ]
    others = sorted((one for one in last.algorithms if one is not best), key=lambda one: one.seconds)
    if others:
        shown = ", ".join(f"{one.algorithm} {one.seconds / best.seconds:.3g}" for one in others[:5] if best.seconds)
        said.append(("Against others", f"They take so many times as long: {shown}."))
    if len(found.wins) > 1:
        wins = ", ".join(f"{win.algorithm} from {bytes_text(win.first_bytes)}" for win in found.wins)
        said.append(("By size", f"Fastest: {wins}."))
    parts: list[Part] = [_sim_chart(found), *_decided(found, machine), _sim_table(found)]
    if found.absent:
        parts.append(Prose("Not here", [_absent(name, why) for name, why in found.absent.items()]))
    return Exhibit("simulation", title, said, parts)


def _sim_chart(found: _Simulation) -> Part:
    bound = ("proved bound", found.bound_gb_per_s)
    if len(found.sizes) > 1:
        names = dict.fromkeys(one.algorithm for size in found.sizes for one in size.algorithms)
        curves = [
            Curve(
                name,
                [
                    (s.size_bytes, one.algbw_gb_per_s)
                    for s in found.sizes
                    for one in s.algorithms
                    if one.algorithm == name
                ],
            )
            for name in names
        ]
        picture = curves_picture("Bandwidth over size", "algbw, GB/s", curves, bound)
        return Figure(
            picture, "Algorithm bandwidth: the size of the data by the time. Both axes are logarithmic.", "chart"
        )
    rows = sorted(found.sizes[0].algorithms, key=lambda one: one.seconds)
    bars = [
        Bar(
            one.algorithm,
            one.algbw_gb_per_s,
            f"{gb_per_s_text(one.algbw_gb_per_s)}, {seconds_text(one.seconds)}",
            1 if _is_baseline(one) else 0,
        )
        for one in rows
    ]
    picture = bars_picture(f"Bandwidth at {bytes_text(found.sizes[0].size_bytes)}", bars, bound)
    return Figure(
        picture,
        "Algorithm bandwidth: the size of the data by the time. Other libraries, as models, are in the second colour.",
        "chart",
    )


#: What a critical path is made of, in plain words.
_PARTS = {
    "move": "bytes under way",
    "issue": "before the first byte",
    "reduce": "adding up",
    "signal": "telling the next",
    "start": "beginning",
}


def _is_baseline(one: _Timed) -> bool:
    return "nccl" in one.algorithm


def _decided(found: _Simulation, machine: Topology | None) -> Iterator[Part]:
    """What the time of the fastest plan went into, and which links were full."""
    decided = found.decided_by
    if decided is None:
        return
    whole, of = sum(decided.seconds.values()), f"{decided.algorithm} at {bytes_text(decided.size_bytes)}"
    if whole:
        bars = [
            Bar(_PARTS.get(name, name), part, f"{part / whole:.0%}", 2)
            for name, part in decided.seconds.items()
            if part > whole / 200
        ]
        picture = bars_picture("What the time went into", bars)
        caption = f"Of {of}: the chain of waits that ends with the last byte (critical path)."
        yield Figure(picture, caption, "decided")
    busy = {(use.src, use.dst): use.busy for use in decided.links}
    if machine is not None and busy.keys() & machine.link.keys():
        drawn = {arc for arc in machine.link if arc in busy}
        picture = machine_picture(machine, Subject(frozenset(found.ranks), drawn, busy), title="How full links were")
        caption = f"The {len(drawn)} fullest links of {of}; others are faint."
        yield Figure(picture, caption, "machine", len(_servers(machine)) > UNFOLDED)


def _servers(machine: Topology) -> set[int]:
    return {machine.vertex[rank].server for rank in machine.ranks}


def _sim_table(found: _Simulation) -> Table:
    rows = [
        (
            bytes_text(size.size_bytes),
            one.algorithm,
            seconds_text(one.seconds),
            f"{one.algbw_gb_per_s:.2f}",
            f"{one.busbw_gb_per_s:.2f}",
            f"{one.percent_bound:.0f}",
            one.how,
        )
        for size in found.sizes
        for one in size.algorithms
    ]
    return Table(
        "Times",
        ("size", "algorithm", "time", "algbw", "busbw", "% of bound", "how"),
        rows,
        (1, 6),
        "Bandwidths in GB/s.",
    )


# A benchmark.
def of_benchmark(document: Mapping[str, Any]) -> Exhibit:
    """What ``blink bench`` or nccl-tests wrote. Raises ScheduleError where it is none or has no times."""
    found = _read(document, _Benchmark)
    rows = [row for row in found.results if row.out_of_place or row.in_place]
    if not rows:
        raise _no_timings("results", "blink bench --json")
    name = found.config.collective or str(document.get("collective", "collective"))
    ranks = len(found.config.devices)
    by = "blink" if found.engine else "nccl-tests"
    where = f" planned for {found.topology}" if found.topology else ""
    title = f"{collective_name(name)} between {count(ranks, 'rank')}{where}, measured by {by}"
    fastest = max(rows, key=lambda row: _best(row).alg_bw)
    best, small = _best(fastest), _best(rows[0])
    wrong = sum(
        float(t.nwrong)
        for row in rows
        for t in (row.out_of_place, row.in_place)
        if t and isinstance(t.nwrong, int | float)
    )
    checked = any(t and isinstance(t.nwrong, int | float) for row in rows for t in (row.out_of_place, row.in_place))
    said: list[Said] = [
        (
            "Fastest",
            f"{gb_per_s_text(best.alg_bw)} at {bytes_text(fastest.size)} (algbw; {gb_per_s_text(best.bus_bw)} busbw).",
        ),
        ("Small", f"{bytes_text(rows[0].size)} take {seconds_text(small.time / 1e6)}."),
        (
            "Right",
            "Not checked."
            if not checked
            else "Every result is right."
            if not wrong
            else f"{wrong:g} results are wrong.",
        ),
    ]
    if best.bound_percent is not None:
        said.append(
            (
                "Why not faster",
                f"{best.bound_percent:.0f} % of what the memory of this host allows at that size (%bound).",
            )
        )
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for label, timing in _labelled(row, found.algorithm or by):
            series.setdefault(label, []).append((row.size, timing.alg_bw))
    curves = [Curve(label, points) for label, points in series.items()]
    chart = Figure(
        curves_picture("Bandwidth over size", "algbw, GB/s", curves),
        "Algorithm bandwidth: the size of the data by the time. Both axes are logarithmic.",
        "chart",
    )
    return Exhibit("benchmark", title, said, [chart, _bench_table(rows, found.algorithm or by)])


def _best(row: _Row) -> _Timing:
    return min((t for t in (row.out_of_place, row.in_place) if t is not None), key=lambda t: t.time)


def _labelled(row: _Row, own: str) -> Iterator[tuple[str, _Timing]]:
    for name, out, into in (
        (own, row.out_of_place, row.in_place),
        *((p.name, p.out_of_place, p.in_place) for p in row.peers),
    ):
        if out is not None:
            yield f"{name}, out of place", out
        if into is not None:
            yield f"{name}, in place", into


def _number(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:g}"


def _bench_table(rows: Iterable[_Row], own: str) -> Table:
    cells = [
        (
            bytes_text(row.size),
            label,
            seconds_text(timing.time / 1e6),
            f"{timing.alg_bw:.2f}",
            f"{timing.bus_bw:.2f}",
            "-" if timing.bound_percent is None else f"{timing.bound_percent:.1f}",
            _number(timing.nwrong),
        )
        for row in rows
        for label, timing in _labelled(row, own)
    ]
    return Table(
        "Times", ("size", "what", "time", "algbw", "busbw", "% of bound", "wrong"), cells, (1,), "Bandwidths in GB/s."
    )


# A laboratory.
def of_laboratory(document: Mapping[str, Any]) -> Exhibit:
    """What ``blink lab --json`` wrote. Raises ScheduleError where it is none or has no times."""
    found = _read(document, _Laboratory)
    if not found.rows:
        raise _no_timings("rows", "blink lab --json")
    last = max(row.size_bytes for row in found.rows)
    field = [row for row in found.rows if row.size_bytes == last]
    best = max(field, key=lambda row: row.algbw_gb_per_s)
    wrong = sum(row.wrong for row in found.rows)
    said: list[Said] = [
        (
            "What",
            "Bytes moved between network namespaces of one host, over links shaped like the machine's: "
            f"{found.lane_mbit_per_s:.4g} Mbit/s stand for {gb_per_s_text(found.lane_gb_per_s)}. Rates are given as if "
            "links had the machine's.",
        ),
        (
            "Fastest",
            f"{best.algorithm}: {gb_per_s_text(best.algbw_gb_per_s)} at {bytes_text(last)}, {best.part_of_plan:.0%} of "
            "what its plan promises.",
        ),
        ("Predicted", f"The simulator says {best.simulated_part_of_plan:.0%} of the plan's rate."),
        ("Right", "Every result is right." if not wrong else f"{wrong:g} results are wrong."),
    ]
    others = [row for row in field if row is not best and row.algbw_gb_per_s]
    if others:
        shown = ", ".join(
            f"{row.algorithm} {best.algbw_gb_per_s / row.algbw_gb_per_s:.3g} (by the plans "
            f"{best.plan_algbw_gb_per_s / row.plan_algbw_gb_per_s:.3g})"
            for row in others
            if row.plan_algbw_gb_per_s
        )
        said.append(("Against others", f"So many times as fast as others: {shown}."))
    title = (
        f"{collective_name(found.collective)} among {count(len(found.ranks), 'rank')} ({ids(found.ranks)}) of "
        f"{found.topology}, in the laboratory"
    )
    parts: list[Part] = [_lab_chart(found.rows, field, last), _lab_table(found.rows)]
    if found.absent:
        parts.append(Prose("Not here", [_absent(one.algorithm, one.reason) for one in found.absent]))
    return Exhibit("laboratory", title, said, parts)


def _lab_chart(rows: Sequence[_Measured], field: Sequence[_Measured], last: int) -> Part:
    label = _lab_label(rows)
    if len({row.size_bytes for row in rows}) > 1:
        curves = []
        for name in dict.fromkeys(map(label, rows)):
            own = [row for row in rows if label(row) == name]
            curves.append(Curve(name, [(row.size_bytes, row.algbw_gb_per_s) for row in own]))
            curves.append(
                Curve(
                    f"{name}, simulated",
                    [(row.size_bytes, row.plan_algbw_gb_per_s * row.simulated_part_of_plan) for row in own],
                    dashed=True,
                )
            )
        return Figure(
            curves_picture("Measured and simulated", "algbw, GB/s", curves), "Both axes are logarithmic.", "chart"
        )
    bars = []
    for row in field:
        bars.append(Bar(label(row), row.algbw_gb_per_s, f"{gb_per_s_text(row.algbw_gb_per_s)} measured", 0))
        simulated = row.plan_algbw_gb_per_s * row.simulated_part_of_plan
        bars.append(Bar("", simulated, f"{gb_per_s_text(simulated)} simulated", 1))
        bars.append(Bar("", row.plan_algbw_gb_per_s, f"{gb_per_s_text(row.plan_algbw_gb_per_s)} by the plan", 5))
    return Figure(
        bars_picture(f"Measured, simulated and planned at {bytes_text(last)}", bars),
        "Algorithm bandwidth: the size of the data by the time.",
        "chart",
    )


def _lab_label(rows: Iterable[_Measured]) -> Callable[[_Measured], str]:
    """What rows are of: an algorithm, and where it ran in several chunks, in which."""
    times = Counter((row.algorithm, row.size_bytes) for row in rows)
    several = {name for (name, _), number in times.items() if number > 1}
    return lambda row: (
        f"{row.algorithm} in {bytes_text(row.chunk_bytes)}" if row.algorithm in several else row.algorithm
    )


def _lab_table(rows: Iterable[_Measured]) -> Table:
    cells = [
        (
            bytes_text(row.size_bytes),
            row.algorithm,
            seconds_text(sorted(row.seconds)[len(row.seconds) // 2]) if row.seconds else "-",
            f"{row.algbw_gb_per_s:.4g}",
            f"{row.plan_algbw_gb_per_s:.4g}",
            f"{row.part_of_plan:.1%}",
            f"{row.simulated_part_of_plan:.1%}",
            f"{row.wrong:g}",
        )
        for row in rows
    ]
    header = ("size", "algorithm", "time (median)", "algbw", "plan", "of the plan", "simulated", "wrong")
    return Table("Times", header, cells, (1,), "Bandwidths in GB/s, as if links had the machine's rates.")


#: What a document of each kind has, in the order in which they are asked.
RESULTS = {
    "simulation": ("sizes", "bound_gb_per_s"),
    "laboratory": ("rows", "lane_gb_per_s"),
    "benchmark": ("results", "config"),
}


def of_result(document: Mapping[str, Any], machine: Topology | None = None) -> Exhibit | None:
    """The exhibit of a result; None where the document is none of ours."""
    kind = next((kind for kind, keys in RESULTS.items() if all(key in document for key in keys)), None)
    match kind:
        case "simulation":
            return of_simulation(document, machine)
        case "laboratory":
            return of_laboratory(document)
        case "benchmark":
            return of_benchmark(document)
    return None
