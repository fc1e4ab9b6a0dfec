"""Errors of the simulator and of NCCL's cost model against published measurements.

    python benchmarks/models.py            the table, the largest errors first
    python benchmarks/models.py --write    … into benchmarks/models.md

Each figure belongs to one job and to the candidate that ran there. For a published range, its middle counts. The
error is that of the published unit, time or rate: (model − measured) / measured. ``fitted`` marks figures behind a
number of the calibration, which therefore say little.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.candidate import Conditions, Prepared
from blinkccl.cost.baselines.registry import candidates
from blinkccl.cost.simulate.calibration import calibration, calibration_for
from blinkccl.topology.select import ids_text
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.request import Request

PAGE = Path(__file__).with_suffix(".md")
MIB, GIB = 1 << 20, 1 << 30
#: From this size on, an error above MOST is a miss.
LARGE_BYTES, MOST, MEDIAN = 16 * MIB, 0.15, 0.05
EIGHT, FOUR = tuple(range(8)), tuple(range(4))


@dataclass(frozen=True, slots=True)
class Figure:
    """A published number; ``unit`` is "us", "algbw" or "busbw" (GB/s); it lies between ``low`` and ``high``."""

    machine: str
    gpus: tuple[int, ...]
    collective: str
    contender: str
    size_bytes: int
    unit: str
    low: float
    high: float
    source: str
    fitted: bool = False
    calibration: str = ""

    @property
    def published(self) -> float:
        return (self.low + self.high) / 2

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        gpus = ids_text(self.gpus)
        return f"{self.machine} {gpus}", self.collective, self.contender, self.calibration, self.size_bytes


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure with the model's value."""

    figure: Figure
    modelled: float
    how: str

    @property
    def error(self) -> float:
        return self.modelled / self.figure.published - 1

    @property
    def large(self) -> bool:
        return self.figure.size_bytes >= LARGE_BYTES

    @property
    def miss(self) -> bool:
        return self.large and abs(self.error) > MOST


LOGS = "nccl-tests logs of two V100s, blinkplus repository"
#: µs by MiB, of two V100s: AllReduce on one lane (GPUs 0 and 1) and on two (0 and 3), Broadcast on one and on two.
V100_PAIRS = """
1 99.1 68.9 66.6 42.5
2 165.5 98.7 112.3 66.0
4 262.2 153.9 206.7 115.1
8 474.1 253.4 390.2 205.5
16 868.4 466.7 757.0 389.4
32 1622.5 838.1 1489.4 756.8
64 3139.9 1578.6 2955.3 1488.1
128 5976.3 3043.4 5885.5 2953.4
256 11849.7 5975.4 11738.0 5883.5
512 23756.3 11839.5 23455.0 11746.8
1024 47095.6 23573.3 46885.3 23459.9
"""
SERVERS = "public nccl-tests logs"
UCX = "multi-path UCX article"


def figures() -> Iterator[Figure]:
    """All figures, by machine."""
    yield from _pairs_of_v100s()
    for collective, busbw in (("allreduce", 62.2), ("broadcast", 56.8)):
        fitted = collective == "allreduce"
        yield Figure(
            "dgx-1p", EIGHT, collective, "nccl-2.4", GIB, "busbw", busbw, busbw, "Tartan suite, raw data", fitted
        )
    yield from _servers()
    yield from _on_todays_servers()
    yield from _over_pcie()
    yield from _copies()


def _pairs_of_v100s() -> Iterator[Figure]:
    for line in V100_PAIRS.split("\n")[1:-1]:
        mib, *times = map(float, line.split())
        jobs = [(gpus, collective) for collective in ("allreduce", "broadcast") for gpus in ((0, 1), (0, 3))]
        for (gpus, collective), us in zip(jobs, times, strict=True):
            fitted = (collective == "allreduce" and mib <= 256) or (mib >= 256 and gpus == (0, 1))
            yield Figure("dgx-1v", gpus, collective, "nccl-2.4", int(mib) * MIB, "us", us, us, LOGS, fitted)


def _servers() -> Iterator[Figure]:
    """AllReduce on whole servers."""
    for machine, count, contender, low, high, fitted in (
        ("dgx-1v", 8, "nccl-2.4", 125, 130, True),
        ("dgx-1v", 8, "nccl-2.30", 125, 130, False),
        ("dgx-2", 16, "nccl-2.4", 120, 135, True),
        ("dgx-2", 16, "nccl-2.30", 120, 135, False),
        ("dgx-a100", 8, "nccl-2.30", 230, 235, False),
        ("dgx-a100", 8, "ring", 230, 235, True),
        ("hgx-h100", 2, "nccl-2.30", 365, 365, False),
        ("hgx-h100", 2, "ring", 365, 365, True),
        ("hgx-h100", 8, "ring", 360, 370, True),
        *(("hgx-h100", n, "nccl-2.30", x, x, True) for n, x in ((4, 370), (5, 420), (6, 440), (7, 460), (8, 480))),
    ):
        gpus = tuple(range(count))
        yield Figure(machine, gpus, "allreduce", contender, 8 * GIB, "busbw", low, high, SERVERS, fitted)


def _on_todays_servers() -> Iterator[Figure]:
    """AllReduce by NCCL on Hopper and later; only the rack's table is fitted, and it is judged on the others."""
    rack = "pull request 43 of coreweave/nccl-tests"
    for mib, slow, fast in (
        (512, 1835.9, 1806.7),
        (1024, 3108.8, 2924.7),
        (2048, 5589.1, 5474.6),
        (4096, 10141, 10094),
        (8192, 20299, 20006),
    ):
        yield Figure("gb200-nvl72", tuple(range(72)), "allreduce", "nccl-2.30", mib * MIB, "us", fast, slow, rack, True)
    for machine, gib, busbw, source in (
        ("dgx-b200", 8, 832, "issue 1807 of nccl"),
        ("dgx-b300", 8, 845, "issue 2140 of nccl"),
        ("hgx-h200", 4, 475, "issue 272 of nccl-tests"),
        ("hgx-h800", 8, 215, "issue 1374 of nccl"),
        ("mi300x", 8, 322, "rccl-tests log of a public thread"),
    ):
        contender = "optimal" if machine == "mi300x" else "nccl-2.30"
        yield Figure(machine, EIGHT, "allreduce", contender, gib * GIB, "busbw", busbw, busbw, source, False)
    l40s = "nccl-tests log of a public thread: two L40S of two sockets"
    yield Figure("l40s-8", (0, 4), "allreduce", "nccl-2.30", GIB, "busbw", 20, 20, l40s, False)


def _over_pcie() -> Iterator[Figure]:
    """Rings over PCIe, for GPUs without an NVLink ring."""
    pcie = "facts on PCIe rings of DGX-1 servers"
    yield Figure("dgx-1v", (1, 4, 5, 6), "allreduce", "nccl-2.4", GIB, "busbw", 7.25, 7.5, pcie, True)
    yield Figure("dgx-1p", (1, 4, 6), "allreduce", "nccl-2.4", GIB, "busbw", 5.5, 5.75, pcie, True)
    issue = "issue 178 of nccl-tests: bridged A100s of one socket"
    pairs = "pcie-8gpu-nvlink-pairs"
    for contender in ("ring", "nccl-2.30"):
        yield Figure(pairs, (0, 1), "allreduce", contender, GIB, "busbw", 208, 208, issue, contender == "ring")
        yield Figure(pairs, (0, 1, 2), "allreduce", contender, GIB, "busbw", 20, 20, issue, contender == "ring")


def _copies() -> Iterator[Figure]:
    """Copies from GPU 0 to GPU 1 by copy engines."""
    p100 = "published cudaMemcpyPeer tables of two P100s"
    yield Figure("dgx-1p", (0, 1), "sendrecv", "optimal", GIB, "algbw", 18.37, 18.37, p100, True)
    h100 = "issue 1264 of nccl: copies between two H100s"
    yield Figure("hgx-h100", (0, 1), "sendrecv", "optimal", GIB, "algbw", 371, 377, h100)
    taccl = "TACCL, NSDI 2023; TE-CCL"
    yield Figure("dgx-2", (0, 1), "sendrecv", "optimal", GIB, "algbw", 125, 125, taccl, True)


@lru_cache(maxsize=64)
def _prepared(machine: str, gpus: tuple[int, ...], collective: str, contender: str, named: str) -> Prepared:
    topology = parse_spec(machine)
    ends = {"root": 0, "src": 0, "dst": 1}
    parameters = {key: ends[key] for key in COLLECTIVES[collective].parameters}
    costs = calibration(named) if named else calibration_for(topology)
    request = Request(topology, Collective(collective, len(gpus), **parameters), gpus)
    return candidates()[contender].prepare(request, Conditions(costs))


def judge(one: Figure) -> Judged:
    """The model's value for a figure's job."""
    model = _prepared(one.machine, one.gpus, one.collective, one.contender, one.calibration).at(one.size_bytes)
    value = {"us": model.seconds * 1e6, "algbw": model.algbw_gb_per_s, "busbw": model.busbw_gb_per_s}[one.unit]
    return Judged(one, value, model.detail)


def table(rows: Sequence[Judged]) -> list[str]:
    """Table in Markdown, the largest errors first."""
    lines = [
        "| | machine, GPUs | collective | size | contender | published | model | error | source |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (not row.miss, not row.large, -abs(row.error))):
        one = row.figure
        job, collective, contender, *_ = one.key
        size = f"{one.size_bytes // MIB} MiB" if one.size_bytes < GIB else f"{one.size_bytes // GIB} GiB"
        unit = "µs" if one.unit == "us" else f"GB/s {one.unit}"
        published = f"{one.low:g}" if one.low == one.high else f"{one.low:g}–{one.high:g}"
        mark = "miss" if row.miss else "fitted" if one.fitted else ""
        lines.append(
            f"| {mark} | {job} | {collective} | {size} | {contender} | {published} {unit} | {row.modelled:.1f} "
            f"| {row.error:+.1%} | {one.source} |"
        )
    return lines


def summary(rows: Sequence[Judged]) -> str:
    """Median and worst error, of all figures, of the large ones, and of those outside the calibration."""
    parts = []
    for name, chosen in (
        ("all figures", list(rows)),
        ("from 16 MiB", [row for row in rows if row.large]),
        ("from 16 MiB, nothing fitted to them", [row for row in rows if row.large and not row.figure.fitted]),
    ):
        errors = [abs(row.error) for row in chosen]
        parts.append(f"| {name} | {len(errors)} | {median(errors):.1%} | {max(errors):.1%} |")
    return "\n".join(["| | figures | median error | worst |", "|---|---|---|---|", *parts])


def page(rows: Sequence[Judged]) -> str:
    """The whole of ``benchmarks/models.md``."""
    misses = sum(row.miss for row in rows)
    return "\n".join(
        [
            "# The models beside published measurements",
            "",
            "`python benchmarks/models.py --write` writes this page. Errors are (model − published) / published, of",
            f"times or of rates, as published. The goal is a median of at most {MEDIAN:.0%}, and from 16 MiB on at",
            f"most {MOST:.0%}. Larger errors are misses ({misses} here) and come first. `fitted`: a constant of the",
            "model comes from this figure.",
            "",
            summary(rows),
            "",
            *table(rows),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    write = parser.parse_args().write
    text = page([judge(one) for one in figures()])
    if write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
