"""``blink calibrate``: the latency and bandwidth that explain what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from blinkccl.cli import arguments, console

if TYPE_CHECKING:
    from blinkccl.cost.simulate.fit import Fit
    from blinkccl.formats.nccl_tests import Measurement

#: Which links β is for where --kind does not say.
_KIND = "nvlink"

HELP = """
Examples:

\b
  blink bench allreduce -g 2 -b 4K -e 64M --json >x.json; blink calibrate x.json
  blink calibrate nccl-tests.log -b 1M --nominal 25 --lanes 6 -o mine.toml
  blink sim allreduce --topo dgx-1v --calibration mine.toml
  blink calibrate old.log --collective broadcast --ranks 8 --algo whole --json

Fit α and β to the times in FILEs: the JSON of blink bench, or a log or -J JSON of nccl-tests.

As a ring, α is the latency of a step and β the rate of the ring's links, such that a ring of blink sim comes closest to
the times. As a whole, t = α + bytes / β: α is the latency of the collective and β the busbw that it tends to. A number
that the sizes do not determine is not printed, and nothing is written then.
"""


def calibrate(
    files: Annotated[list[Path], Argument(metavar="FILE", help="What was measured; - reads stdin.")],
    collective: Annotated[
        str | None, Option("--collective", metavar="NAME", help="Fit this one; what a log is of that does not say it.")
    ] = None,
    ranks: Annotated[
        int | None,
        Option("--ranks", metavar="N", min=2, max=2**20, help="How many ranks, for a log that does not list them."),
    ] = None,
    algo: Annotated[str, Option("--algo", metavar="ring|whole", help="As what to take the collective.")] = "ring",
    begin: Annotated[str, Option("-b", "--minbytes", metavar="SIZE", help="Smallest size to fit.")] = "0",
    end: Annotated[
        str | None, Option("-e", "--maxbytes", metavar="SIZE", help="Largest size to fit; default: all.")
    ] = None,
    name: Annotated[
        str | None, Option("--name", metavar="NAME", help="The calibration's name; default: that of the file -o.")
    ] = None,
    kind: Annotated[
        str | None, Option("--kind", metavar="KIND", help=f"Which links β is for; default: {_KIND}.")
    ] = None,
    nominal: Annotated[
        float | None,
        Option("--nominal", metavar="GB_PER_S", help="Nominal GB/s of one of their lanes; needed with -o."),
    ] = None,
    lanes: Annotated[
        int | None,
        Option("--lanes", metavar="N", min=1, max=1000, help="Over how many lanes β was measured; default: 1."),
    ] = None,
    output: arguments.Output = None,
    json: arguments.Json = False,
) -> None:
    """Read, fit, print, and write the calibration where that is wanted."""
    from blinkccl.cost.simulate.fit import as_simulated, fits

    _check(output, name, kind, nominal, lanes)
    measured = _within(_read(files, collective, ranks), begin, end)
    found = {
        each: as_simulated(fit, [one for one in measured if one.collective == each])
        for each, fit in fits(measured, algo).items()
    }
    if json:
        console.emit_json(
            {
                "files": [console.source_name(path) for path in files],
                "algorithm": algo,
                "fits": [_document(each, fit, measured) for each, fit in found.items()],
            }
        )
    else:
        console.emit_sentences("\n".join(_text(each, fit, algo, _ranks(each, measured)) for each, fit in found.items()))
    for each, fit in found.items():
        for warning in fit.warnings:
            console.note(f"{each}: {warning}")
    if output is not None and nominal is not None:
        _write(output, found, files, name, kind or _KIND, nominal, lanes or 1)


def _check(output: Path | None, name: str | None, kind: str | None, nominal: float | None, lanes: int | None) -> None:
    """Refuse options that say what to write where nothing is written, and a calibration that cannot be."""
    from blinkccl.topology.model import LINK_KINDS

    if kind is not None and kind not in LINK_KINDS:
        raise typer.BadParameter(f"unknown kind of links {kind!r}; expected one of {', '.join(LINK_KINDS)}")
    used = arguments.typed(name=name, kind=kind, nominal=nominal, lanes=lanes)
    if output is None:
        if used:
            raise typer.BadParameter(f"{', '.join(used)}: of the calibration that -o writes; give -o, or leave it out")
        return
    if nominal is None:
        raise typer.BadParameter("-o needs --nominal, the GB/s of one lane as it is sold: 25 for a V100's NVLink")
    console.check_writable(output)


def _read(files: Sequence[Path], collective: str | None, ranks: int | None) -> list[Measurement]:
    """The measurements of all files, of ``collective`` only where it is given."""
    from blinkccl.collectives.spec import COLLECTIVES
    from blinkccl.formats.nccl_tests import read_measurements
    from blinkccl.topology.limits import MAX_FILE_BYTES

    if collective is not None and collective not in COLLECTIVES:
        raise typer.BadParameter(f"unknown collective {collective!r}; expected one of {', '.join(COLLECTIVES)}")
    if list(map(str, files)).count("-") > 1:
        raise typer.BadParameter("standard input can be read once")
    measured: list[Measurement] = []
    for path in files:
        source = console.source_name(path)
        content = console.read_file(path, MAX_FILE_BYTES)
        if len(content) > MAX_FILE_BYTES:
            raise typer.BadParameter(f"{source}: larger than {MAX_FILE_BYTES >> 20} MiB; expected a benchmark's log")
        measured += read_measurements(content.decode("utf-8", "replace"), source, collective or "", ranks or 0)
    wanted = [one for one in measured if collective in (None, one.collective)]
    if not wanted:
        there = ", ".join(dict.fromkeys(one.collective for one in measured))
        raise typer.BadParameter(f"no measurement of {collective}: the files have {there}")
    return wanted


def _within(measured: Sequence[Measurement], begin: str, end: str | None) -> list[Measurement]:
    from blinkccl.cost.simulate.run import parse_size

    first, last = parse_size("-b", begin), None if end is None else parse_size("-e", end)
    kept = [one for one in measured if first <= one.size_bytes and (last is None or one.size_bytes <= last)]
    if not kept:
        sizes = [one.size_bytes for one in measured]
        raise typer.BadParameter(
            f"no size from -b {begin}{'' if end is None else f' to -e {end}'}: the files have "
            f"{min(sizes):,} to {max(sizes):,} bytes"
        )
    return kept


def _ranks(collective: str, measured: Sequence[Measurement]) -> list[int]:
    return sorted({one.ranks for one in measured if one.collective == collective})


def _document(collective: str, fit: Fit, measured: Sequence[Measurement]) -> dict[str, Any]:
    return {
        "collective": collective,
        "ranks": _ranks(collective, measured),
        "alpha_us": fit.alpha_us,
        "beta_gb_per_s": fit.beta_gb_per_s,
        "max_relative_error": fit.max_relative_error,
        "worst_size_bytes": fit.worst_size_bytes,
        "points": fit.points,
        "sizes": fit.sizes,
        "warnings": list(fit.warnings),
    }


def _text(collective: str, fit: Fit, algo: str, ranks: Sequence[int]) -> str:
    """The fit of one collective for people; four lines."""
    ring = algo == "ring"
    alpha = "not determined" if fit.alpha_us is None else f"{fit.alpha_us:.4g} us {'per step' if ring else 'in all'}"
    beta = (
        "not determined"
        if fit.beta_gb_per_s is None
        else f"{fit.beta_gb_per_s:.4g} GB/s " + ("per link of the ring" if ring else "of busbw")
    )
    return (
        f"{collective} on {', '.join(map(str, ranks))} ranks, {'as a ring' if ring else 'as a whole'}\n"
        f"  α      {alpha}\n"
        f"  β      {beta}\n"
        f"  error  {fit.max_relative_error:.1%} at most, at {fit.worst_size_bytes:,} bytes; {fit.points} times of "
        f"{fit.sizes} sizes\n"
    )


def _write(
    output: Path, found: dict[str, Fit], files: Sequence[Path], name: str | None, kind: str, nominal: float, lanes: int
) -> None:
    from blinkccl.cost.simulate.calibration import parse_calibration
    from blinkccl.cost.simulate.fit import calibration_text, fitted_calibration

    if len(found) > 1:
        raise typer.BadParameter(f"-o writes one fit, but the files have {', '.join(found)}; choose with --collective")
    fit = next(iter(found.values()))
    source = ", ".join(console.source_name(path) for path in files)
    text = calibration_text(fitted_calibration(fit, name or output.stem, kind, nominal, source, lanes))
    parse_calibration(text, str(output))  # what we write, we read
    console.write_file(output, text)
