"""``blink calibrate``: fit latency and bandwidth to measured times."""

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

#: The links that β is for, without --kind.
_KIND = "nvlink"

HELP = """
Examples:

\b
  blink bench allreduce -g 2 -b 4K -e 64M --json >x.json; blink calibrate x.json
  blink calibrate nccl-tests.log -b 1M --nominal 25 --lanes 6 -o mine.toml
  blink sim allreduce --topo dgx-1v --calibration mine.toml
  blink calibrate old.log --collective broadcast --ranks 8 --algo whole --json

Fit α and β to the times in FILEs: the JSON of blink bench, or a log or -J JSON of nccl-tests.

--algo ring: α is the latency of a step and β the rate of the ring's links for which the ring of blink sim comes
closest to the times. --algo whole: t = α + bytes / β, so α is the latency of the collective and β the limit of its
busbw. If the sizes do not determine a number, it is reported as not determined, and -o writes nothing.
"""


def calibrate(
    files: Annotated[list[Path], Argument(metavar="FILE", help="Measured times; - reads stdin.")],
    collective: Annotated[
        str | None,
        Option("--collective", metavar="NAME", help="Fit this collective alone; also names that of a log without one."),
    ] = None,
    ranks: Annotated[
        int | None,
        Option("--ranks", metavar="N", min=2, max=2**20, help="Number of ranks, for a log that does not list them."),
    ] = None,
    algo: Annotated[str, Option("--algo", metavar="ring|whole", help="α per step (ring) or call (whole).")] = "ring",
    begin: Annotated[str, Option("-b", "--minbytes", metavar="SIZE", help="Smallest size to fit.")] = "0",
    end: Annotated[
        str | None, Option("-e", "--maxbytes", metavar="SIZE", help="Largest size to fit; default: all.")
    ] = None,
    name: Annotated[
        str | None, Option("--name", metavar="NAME", help="The calibration's name; default: the name of the -o file.")
    ] = None,
    kind: Annotated[
        str | None, Option("--kind", metavar="KIND", help=f"Kind of the links that β is for; default: {_KIND}.")
    ] = None,
    nominal: Annotated[
        float | None,
        Option("--nominal", metavar="GB_PER_S", help="Nominal rate of one lane of these links; needed with -o."),
    ] = None,
    lanes: Annotated[
        int | None,
        Option("--lanes", metavar="N", min=1, max=1000, help="Number of lanes over which β was measured; default: 1."),
    ] = None,
    output: arguments.Output = None,
    json: arguments.Json = False,
) -> None:
    """Read, fit, print, and write the calibration with ``-o``."""
    from blinkccl.cost.simulate.fit import as_simulated, fits

    _check(output, name, kind, nominal, lanes)
    measured = _within(_read(files, collective, ranks), begin, end)
    fitted = {
        each: as_simulated(fit, [one for one in measured if one.collective == each])
        for each, fit in fits(measured, algo).items()
    }
    if json:
        console.emit_json(
            {
                "files": [console.source_name(path) for path in files],
                "algorithm": algo,
                "fits": [_document(each, fit, measured) for each, fit in fitted.items()],
            }
        )
    else:
        texts = (_text(each, fit, algo, _ranks(each, measured)) for each, fit in fitted.items())
        console.emit_sentences("\n".join(texts))
    for each, fit in fitted.items():
        for warning in fit.warnings:
            console.note(f"{each}: {warning}")
    if output is not None and nominal is not None:
        _write(output, fitted, files, name, kind or _KIND, nominal, lanes or 1)


def _check(output: Path | None, name: str | None, kind: str | None, nominal: float | None, lanes: int | None) -> None:
    """Refuse options of ``-o`` without it, ``-o`` without ``--nominal``, and an unknown kind of links."""
    from blinkccl.topology.model import LINK_KINDS

    if kind is not None and kind not in LINK_KINDS:
        raise typer.BadParameter(f"--kind {kind}: expected one of {', '.join(LINK_KINDS)}")
    used = arguments.typed(name=name, kind=kind, nominal=nominal, lanes=lanes)
    if output is None:
        if used:
            options = ", ".join(used)
            raise typer.BadParameter(f"{options} needs -o, which writes a calibration: give -o, or leave {options} out")
        return
    if nominal is None:
        raise typer.BadParameter("-o needs --nominal, the nominal GB/s of one lane: 25 for a V100's NVLink")
    console.check_writable(output)


def _read(files: Sequence[Path], collective: str | None, ranks: int | None) -> list[Measurement]:
    """The measurements of all files; if given, those of ``collective`` alone."""
    from blinkccl.collectives.spec import COLLECTIVES
    from blinkccl.formats.nccl_tests import read_measurements
    from blinkccl.topology.limits import MAX_FILE_BYTES

    if collective is not None and collective not in COLLECTIVES:
        raise typer.BadParameter(f"unknown collective {collective!r}; expected one of {', '.join(COLLECTIVES)}")
    if list(map(str, files)).count("-") > 1:
        raise typer.BadParameter("- is given twice, and standard input can be read once: leave one out")
    measured: list[Measurement] = []
    for path in files:
        source = console.source_name(path)
        content = console.read_file(path, MAX_FILE_BYTES)
        if len(content) > MAX_FILE_BYTES:
            raise typer.BadParameter(f"{source}: expected a log of at most {MAX_FILE_BYTES >> 20} MiB, got more")
        measured += read_measurements(content.decode("utf-8", "replace"), source, collective or "", ranks or 0)
    selected = [one for one in measured if collective in (None, one.collective)]
    if not selected:
        others = ", ".join(dict.fromkeys(one.collective for one in measured))
        raise typer.BadParameter(f"--collective {collective}: no measurement of it; the files have {others}")
    return selected


def _within(measured: Sequence[Measurement], begin: str, end: str | None) -> list[Measurement]:
    from blinkccl.cost.simulate.run import parse_size

    first, last = parse_size("-b", begin), None if end is None else parse_size("-e", end)
    within = [one for one in measured if first <= one.size_bytes and (last is None or one.size_bytes <= last)]
    if not within:
        sizes = [one.size_bytes for one in measured]
        raise typer.BadParameter(
            f"no size from -b {begin}{'' if end is None else f' to -e {end}'}: the files have "
            f"{min(sizes):,} to {max(sizes):,} bytes"
        )
    return within


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
    """The fit of one collective, in four lines."""
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
    output: Path, fitted: dict[str, Fit], files: Sequence[Path], name: str | None, kind: str, nominal: float, lanes: int
) -> None:
    from blinkccl.cost.simulate.calibration import parse_calibration
    from blinkccl.cost.simulate.fit import calibration_text, fitted_calibration

    if len(fitted) > 1:
        raise typer.BadParameter(f"-o writes one fit, but the files have {', '.join(fitted)}; choose with --collective")
    fit = next(iter(fitted.values()))
    source = ", ".join(console.source_name(path) for path in files)
    text = calibration_text(fitted_calibration(fit, name or output.stem, kind, nominal, source, lanes))
    parse_calibration(text, str(output))  # The written file must be readable.
    console.write_file(output, text)
