"""nccl-tests' table, as it prints it: header, columns and footer (nccl-tests 2.19, src/util.cu's formats).

Where we add: %bound and percentiles stand to the right of nccl-tests' columns, and peers in comment lines below the
row that they are compared with, so that whatever reads nccl-tests' output reads ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from blinkccl.bench.about import About, host_name
from blinkccl.bench.rows import PERCENTILES, PeerTiming, Row, Timing, average_busbw, failed
from blinkccl.bench.sizes import Sweep

_PREAMBLE = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_TIMES = "  {:>7}  {:>6}  {:>6}  {:>6}"
_PREAMBLE_WIDTH = 52


def header(about: About, sweep: Sweep) -> str:
    """What comes before the first row.

    Where we differ: the first line names this program; "device" is the vertex of the topology, or the rank; and there
    are lines that say what the times are of.
    """
    lines = [
        f"# blink-ccl version {version('blink-ccl')} engine={about.engine} algorithm={about.algorithm}",
        f"# Collective test starting: {about.collective.name}",
        f"# nThread {about.n_threads} nGpus {about.n_gpus} minBytes {sweep.first} maxBytes {sweep.last} "
        f"step: {sweep.step_text()} warmup iters: {about.warmup} iters: {about.iterations} agg iters: 1 "
        f"validation: {int(about.check)} graph: 0 unalign: 0",
        "#",
        "# Using devices",
    ]
    host = host_name()[:10]
    for rank, device in enumerate(about.devices):
        lines.append(
            f"#  Rank {rank:2d} Group {0:2d} Pid {device.pid:6d} on {host:>10} device {device.number:2d} "
            f"[0000:00:00] {device.name}"
        )
    lines += ["#", *(f"# {note}" for note in about.notes), "#"]
    return "\n".join(lines) + "\n" + titles(about)


def titles(about: About) -> str:
    """The three lines over the columns; the first ends in blanks, as nccl-tests' does."""
    places = f"{'':11}out-of-place{'':23}in-place{'':10}"
    names, units = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    more_names, more_units = _more_titles(about)
    rows = (
        _PREAMBLE.format(*[""] * 5) + places,
        _PREAMBLE.format("size", "count", "type", "redop", "root") + _TIMES.format(*names) * 2 + more_names,
        _PREAMBLE.format("(B)", "(elements)", "", "", "") + _TIMES.format(*units) * 2 + more_units,
    )
    return f"{rows[0]}\n{rows[1]}\n{rows[2].rstrip()}\n"


def _more_titles(about: About) -> tuple[str, str]:
    """What the lower two lines say over our own columns."""
    names, places = [], []
    if about.bound:
        names += [f"{'%bound':>6}"] * 2
        places += [f"{'out':>6}", f"{'in':>6}"]
    if about.percentiles:
        names += [f"{f'p{q}':>7}" for q in PERCENTILES] * 2
        places += [f"{place:>7}" for place in ("out", "in") for _ in PERCENTILES]
    return "".join(f"  {name}" for name in names), "".join(f"  {place}" for place in places)


def line(about: About, row: Row) -> str:
    """One row, and a comment line for each peer."""
    preamble = f"{row.size:12d}  {row.count:12d}  {about.type_name:>8}  {about.redop:>6}  {about.root:6d}"
    text = f"{preamble}  {_cells(row.out_of_place)}  {_cells(row.in_place)}"
    if about.bound:
        text += _bound(row.out_of_place) + _bound(row.in_place)
    if about.percentiles:
        text += _percentiles(row.out_of_place) + _percentiles(row.in_place)
    return "\n".join([text, *(_peer_line(about, *peer) for peer in row.peers)]) + "\n"


def _peer_line(about: About, name: str, out: PeerTiming | None, into: PeerTiming | None) -> str:
    chosen = " | ".join(dict.fromkeys(found.variant for found in (out, into) if found is not None and found.variant))
    label = f"#   {name}{f' ({chosen})' if chosen else ''}"
    if len(label) > _PREAMBLE_WIDTH:
        label = label[: _PREAMBLE_WIDTH - 1] + "…"
    cells = [_cells(None if found is None else found.timing) for found in (out, into)]
    ratios = [f"{'N/A' if found is None else f'{found.ratio:.2f}x':>6}" for found in (out, into)]
    text = f"{label:<{_PREAMBLE_WIDTH}}  {'  '.join(cells)}  {'  '.join(ratios)}"
    if about.percentiles:
        text += "".join(_percentiles(None if found is None else found.timing) for found in (out, into))
    return text


def footer(about: About, rows: Sequence[Row]) -> str:
    """What comes after the last row. Where we differ: results that were not checked (-c 0) are not "OK"."""
    bad = failed(rows)
    verdict = f"{bad} {'OK' if bad == 0 else 'FAILED'}" if about.check else "N/A"
    bounds = f"# {'Out of bounds values':<20} : {verdict}"
    average = f"# {'Avg bus bandwidth':<20} : {average_busbw(rows):g} "
    return (
        "\n".join([bounds, average.rstrip(), "#", f"# Collective test concluded: {about.collective.name}", "#"]) + "\n"
    )


def _cells(timing: Timing | None) -> str:
    if timing is None:
        return f"{'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    wrong = "N/A" if timing.wrong is None else f"{timing.wrong:g}"
    return f"{_microseconds(timing.seconds):>7}  {timing.algbw_gbps:6.2f}  {timing.busbw_gbps:6.2f}  {wrong:>6}"


def _bound(timing: Timing | None) -> str:
    percent = None if timing is None else timing.bound_percent
    return f"  {'N/A':>6}" if percent is None else f"  {percent:6.1f}"


def _percentiles(timing: Timing | None) -> str:
    if timing is None or timing.percentiles is None:
        return f"  {'N/A':>7}" * len(PERCENTILES)
    return "".join(f"  {_microseconds(seconds):>7}" for seconds in timing.percentiles)


def _microseconds(seconds: float) -> str:
    """Four or five digits that count, as nccl-tests prints a time."""
    micros = seconds * 1e6
    return f"{micros:.0f}" if micros >= 10_000 else f"{micros:.1f}" if micros >= 100 else f"{micros:.2f}"
