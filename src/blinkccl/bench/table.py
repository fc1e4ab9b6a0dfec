"""nccl-tests' table, as it prints it: header, columns and footer (nccl-tests 2.19, src/util.cu's formats)."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from importlib.metadata import version

from blinkccl.bench.measure import Bench, Row, Timing
from blinkccl.bench.sizes import Sweep

#: nccl-tests' names of element types; the rest are called as in NumPy.
TYPE_NAMES = {"float16": "half", "float32": "float", "float64": "double"}
DTYPE_OF = {shown: name for name, shown in TYPE_NAMES.items()}
_PREAMBLE = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_TIMES = "  {:>7}  {:>6}  {:>6}  {:>6}"


def header(bench: Bench, sweep: Sweep) -> str:
    """What comes before the first row.

    Where we differ: the first line names this program; "device" is the vertex of the topology; and there is a
    line that says what the times are of, and why there is no %bound.
    """
    settings, forest = bench.settings, bench.forest
    ranks = len(forest.ranks)
    lines = [
        f"# blink-ccl version {version('blink-ccl')} engine={settings.engine} algorithm={forest.algorithm}",
        f"# Collective test starting: {forest.collective.name}",
        f"# nThread {ranks} nGpus 1 minBytes {sweep.first} maxBytes {sweep.last} step: {sweep.step_text()} "
        f"warmup iters: {settings.warmup} iters: {settings.iterations} agg iters: 1 "
        f"validation: {int(settings.check)} graph: 0 unalign: 0",
        "#", "# Using devices"]
    host = socket.gethostname()[:10]
    for rank, vertex in enumerate(forest.ranks):
        label = forest.topology.vertex[vertex].label
        lines.append(f"#  Rank {rank:2d} Group {0:2d} Pid {os.getpid():6d} on {host:>10} device {vertex:2d} "
                     f"[0000:00:00] thread for {label} of {forest.topology.name}")
    lines += ["#", f"# Times are of threads of this host that move real bytes along the plan for "
                   f"{forest.topology.name}; they say",
              "# nothing about its links, so there is no %bound. Planned there: "
              f"{forest.algbw_gbps:.4g} GB/s algbw.", "#"]
    return "\n".join(lines) + "\n" + titles()


def titles() -> str:
    """The three lines over the columns; the first ends in blanks, as nccl-tests' does."""
    places = f"{'':11}out-of-place{'':23}in-place{'':10}"
    names, units = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    rows = (_PREAMBLE.format(*[""] * 5) + places,
            _PREAMBLE.format("size", "count", "type", "redop", "root") + _TIMES.format(*names) * 2,
            _PREAMBLE.format("(B)", "(elements)", "", "", "") + _TIMES.format(*units) * 2)
    return f"{rows[0]}\n{rows[1]}\n{rows[2].rstrip()}\n"


def line(bench: Bench, row: Row) -> str:
    """One row."""
    redop = bench.settings.op if bench.collective.reduces else "none"
    preamble = (f"{row.size:12d}  {row.count:12d}  {type_name(bench):>8}  {redop:>6}  {root(bench):6d}")
    return f"{preamble}  {_cells(row.out_of_place)}  {_cells(row.in_place)}\n"


def footer(bench: Bench, rows: Sequence[Row]) -> str:
    """What comes after the last row. Where we differ: results that were not checked (-c 0) are not "OK"."""
    bad = failed(rows)
    verdict = f"{bad} {'OK' if bad == 0 else 'FAILED'}" if bench.settings.check else "N/A"
    bounds = f"# {'Out of bounds values':<20} : {verdict}"
    average = f"# {'Avg bus bandwidth':<20} : {average_busbw(rows):g} "
    return "\n".join([bounds, average.rstrip(), "#", f"# Collective test concluded: {bench.collective.name}",
                      "#"]) + "\n"


def type_name(bench: Bench) -> str:
    """The element type as nccl-tests calls it."""
    return TYPE_NAMES.get(bench.dtype.name, bench.dtype.name)


def root(bench: Bench) -> int:
    """The root's rank, −1 where there is none."""
    return -1 if bench.collective.root is None else bench.collective.root


def timings(rows: Sequence[Row]) -> list[Timing]:
    """Out of place and in place, one after the other."""
    return [timing for row in rows for timing in (row.out_of_place, row.in_place) if timing is not None]


def failed(rows: Sequence[Row]) -> int:
    """How many measurements had wrong elements: nccl-tests' "out of bounds values"."""
    return sum(1 for timing in timings(rows) if timing.wrong)


def average_busbw(rows: Sequence[Row]) -> float:
    """The mean over all sizes, out of place and in place, in GB/s."""
    measured = timings(rows)
    return sum(timing.busbw_gbps for timing in measured) / len(measured)


def _cells(timing: Timing | None) -> str:
    if timing is None:
        return f"{'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    wrong = "N/A" if timing.wrong is None else f"{timing.wrong:g}"
    return (f"{_microseconds(timing.seconds):>7}  {timing.algbw_gbps:6.2f}  {timing.busbw_gbps:6.2f}  "
            f"{wrong:>6}")


def _microseconds(seconds: float) -> str:
    """Four or five digits that count, as nccl-tests prints a time."""
    micros = seconds * 1e6
    return f"{micros:.0f}" if micros >= 10_000 else f"{micros:.1f}" if micros >= 100 else f"{micros:.2f}"
