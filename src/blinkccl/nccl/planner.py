"""The planner, ``python -m blinkccl.nccl.planner``: selects and compiles the plans of a communicator's calls.

libblink.so runs it once per communicator, on rank 0. It reads the peer info of each rank
(:mod:`~blinkccl.nccl.peer_info`) from standard input. It writes one line to standard output: ``bundle DIRECTORY``,
``refused REASON``, or ``uncompiled REASON`` if only a compiler is missing. All other text goes to standard error. The
exit code is always 0: without a bundle NCCL runs everything.

Environment: BLINK_CACHE, BLINK_NVCC, BLINK_NVRTC_LIB, BLINK_CUDA_LIB, BLINK_STAGING_BYTES, BLINK_MAX_BLOCKS,
BLINK_PLAN_TIMEOUT, BLINK_PEER_TIMEOUT, BLINK_PATHS (a path table for messages), BLINK_CHUNKS, BLINK_TUNED (0: no
measurements of blink tune), and BLINK_DEBUG for the time of each step; CXX for programs of copy engines. BLINK_ALGO,
BLINK_PROTOCOL, BLINK_DETERMINISTIC, BLINK_TOPO and NCCL_TOPO_FILE come from the peer info, on which the ranks agree.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blinkccl.codegen.device_files import headers_digest, include_directory
from blinkccl.codegen.gpu_compiler import NVCC, NVRTC
from blinkccl.codegen.layout import Geometry, ProgramGroup, SegmentLayout
from blinkccl.codegen.text import COPIES
from blinkccl.cost.choice.programs import CandidateProgram
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.native.headers import abi
from blinkccl.nccl import choices, message_paths
from blinkccl.nccl.bundle import Bundle, BundleCache, digest_of
from blinkccl.nccl.call_report import NOT_COMPILED
from blinkccl.nccl.copies import fault_of_job, fault_of_sharing
from blinkccl.nccl.geometry import Budget, budget, geometry, number
from blinkccl.nccl.images import Image, ImageText, architectures_of, compile_all, texts
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.peer_check import DEADLINE_S as PEER_DEADLINE_S
from blinkccl.nccl.peer_check import bad_pairs
from blinkccl.nccl.peer_info import MAX_PEER_INFO_BYTES, GpuJob, read_peer_info
from blinkccl.nccl.programs import AUTO, BEST, candidates, wanted
from blinkccl.nccl.topology_of_job import JobPlacement, place, without
from blinkccl.private_files import cache_directory
from blinkccl.runtime.deterministic import wish
from blinkccl.runtime.peer_info import package_version
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms import path_table, tables
from blinkccl.trees.algorithms.path_table import PathTable
from blinkccl.trees.algorithms.tables import Cell
from blinkccl.trees.forest.model import topology_hash

#: Version of the content of bundles. Raise it with any change in the meaning of plans for libblink.so.
FORMAT = 8
PLAN_TIMEOUT_S, MOST_S = 120.0, 1e6
#: With the value "search" the first calls try chunk sizes; otherwise predicted chunks are used.
CHUNKS = "BLINK_CHUNKS"
_MOST_REASON = 600
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class _NotCompiledError(BlinkError):
    """A plan without compiled code, which libblink.so reports because the user can fix it."""


@dataclass
class Log:
    """Messages and step times on standard error, if ``enabled``.

    ``overruled`` is written at the end, because libblink.so forwards the last lines only.
    """

    enabled: bool
    began: float = field(default_factory=time.monotonic)
    last: float = field(default_factory=time.monotonic)
    overruled: str = ""

    def say(self, text: str) -> None:
        if self.enabled:
            print(f"blink planner: {text}", file=sys.stderr, flush=True)

    def step(self, done: str) -> None:
        """Report a finished step with its time."""
        end = time.monotonic()
        self.say(f"{done} in {end - self.last:.3f} s")
        self.last = end

    def left_s(self, timeout_s: float) -> float:
        """Remaining seconds of libblink.so's timeout, with a reserve for the time before this process and after it."""
        return max(1.0, timeout_s * 0.9 - 1.0 - (time.monotonic() - self.began))


def plan(peers: bytes, environ: Mapping[str, str], log: Log) -> Path:
    """The directory of the bundle for the job in ``peers``; BlinkError if trees cannot serve it.

    Cost: half a second if an earlier job had the same question, else 1 to 4 s for 8 GPUs and the compiler's time.
    """
    job = read_peer_info(peers)
    algo = job.setting("algo")
    if algo == "nccl":
        raise UnsupportedError("BLINK_ALGO=nccl")
    _overrule(job, algo, wish(job.setting("deterministic")), log)
    names = wanted(algo)
    choices.wanted_protocol(job.setting("protocol"))
    where = place(job, log.say)
    log.step(f"{job.size} ranks on {where.topology.name}: GPUs {', '.join(map(str, where.ranks))}, found")
    peer_timeout_s = number(environ, "BLINK_PEER_TIMEOUT", PEER_DEADLINE_S, MOST_S, float)
    bad = bad_pairs(job, cache_directory(environ, "peers"), peer_timeout_s, log.say)
    machine, where = where.topology, without(where, bad)
    for (a, b), why in bad.items():
        log.say(f"rank {a} cannot write to rank {b}: {why}")
    log.step("peers checked")
    limits = budget(job, environ)
    cache = BundleCache(cache_directory(environ, "bundles"))
    no_copies = fault_of_job(job)
    paths = _path_table(environ, machine)
    question = _Question(job, where, bad, limits, no_copies, paths, measured_cells(environ, machine, job, where.ranks))
    digest = question.digest()
    cached = cache.find(digest)
    if cached is not None:
        log.step(f"bundle of an earlier job found, {cached},")
        return cached
    bundle, whole = _bundle(question, names, environ, log)
    path = cache.put(digest if whole else None, bundle)
    log.step(f"bundle written, {path},")
    return path


def _overrule(job: GpuJob, algo: str, order: str, log: Log) -> None:
    """Raise UnsupportedError if the program requests a feature of NCCL alone and no setting of Blink overrules it.

    BLINK_DETERMINISTIC gives sums one order, so settings that fix the order of NCCL's sums are not needed.
    """
    request = job.setting("only_nccl")
    if not request:
        return
    setting = f"BLINK_ALGO={algo}" if algo not in ("", AUTO) else f"BLINK_DETERMINISTIC={order}" if order else ""
    if not setting:
        raise UnsupportedError(f"the program asks for {request}, which only NCCL supports; BLINK_ALGO overrules it")
    log.overruled = f"{setting} overrules {request}"


def _path_table(environ: Mapping[str, str], machine: Topology) -> PathTable | None:
    """The table of BLINK_PATHS; a table that does not fit this machine is ignored with a warning."""
    name = environ.get("BLINK_PATHS", "")
    if not name:
        return None
    if not Path(name).exists():
        logging.getLogger(__name__).warning("BLINK_PATHS=%s: there is no such file; it is ignored", name)
    table = path_table.read_or_ignore(Path(name), path_table.machine_key(machine))
    if table is not None and table.kind == path_table.LABORATORY:
        logging.getLogger(__name__).warning("BLINK_PATHS=%s was %s, not for GPUs; it is ignored", name, table.source)
        return None
    return table


def measured_cells(
    environ: Mapping[str, str], machine: Topology, job: GpuJob, ranks: Sequence[int]
) -> tuple[Cell, ...]:
    """The times of ``blink tune`` for these ranks; times for other GPUs or another NCCL are ignored with a warning.

    A job without NCCL compares Blink's programs alone, so the version of NCCL does not matter.
    """
    key = path_table.machine_key(machine)
    table = tables.read_or_ignore(tables.path_of_gpus(key, environ), key, environ)
    if table is None:
        return ()
    expected = (tables.GPUS, job.peers[0].name, job.peers[0].nccl_version or table.nccl)
    if (table.kind, table.gpu, table.nccl) != expected:
        logging.getLogger(__name__).warning(
            "the times of blink tune are for %s and NCCL %s, but this job has %s and NCCL %s: they are ignored; run "
            "blink tune again",
            table.gpu,
            table.nccl,
            *expected[1:],
        )
        return ()
    return table.of(ranks)


@dataclass(frozen=True)
class _Question:
    """All inputs of a bundle; ``bad`` has ordered pairs of ranks that must not write to each other, with reasons."""

    job: GpuJob
    where: JobPlacement
    bad: Mapping[tuple[int, int], str]
    limits: Budget
    no_copies: str | None
    paths: PathTable | None
    measured: tuple[Cell, ...] = ()

    def digest(self) -> str:
        """The bundle's name: a hash of all inputs."""
        job, where = self.job, self.where
        return digest_of(
            [
                package_version(),
                repr((FORMAT, abi())),
                headers_digest(include_directory()),
                topology_hash(where.topology),
                where.topology.name,
                repr(where.ranks),
                repr((where.real, sorted(self.bad))),
                repr(
                    (
                        job.shared,
                        job.capability,
                        job.architectures,
                        job.nccl_version,
                        job.peers[0].driver_version // 1000,
                    )
                ),
                job.setting("algo"),
                job.setting("protocol"),
                job.setting("deterministic"),
                repr((self.limits, self.no_copies)),
                "" if self.paths is None else path_table.to_json(self.paths),
                repr(self.measured),
                # Another compiler makes other code of the same text; the default compiler of this machine is constant.
                *(os.environ.get(name, "") for name in (NVCC, NVRTC, "CXX", CHUNKS)),
            ]
        )

    def messages(self, log: Log) -> message_paths.MessagePlan:
        """The paths of messages; none for a job without NCCL."""
        if not self.job.has_nccl:
            return message_paths.MessagePlan()
        fault = fault_of_sharing(self.job)
        if fault is not None:
            log.say(f"messages are left to NCCL: {fault}")
            return message_paths.MessagePlan()
        every = self.job.setting("protocol") == COPIES and self.no_copies is None
        return message_paths.plan(self.where, self.paths, every, self.bad, log.say)


def _bundle(question: _Question, names: tuple[str, ...], environ: Mapping[str, str], log: Log) -> tuple[Bundle, bool]:
    """The bundle, and True if all of it was compiled in time."""
    job, where, no_copies = question.job, question.where, question.no_copies
    messages = question.messages(log)
    limits = message_paths.limits_beside(messages, question.limits)
    log.step(f"{len(messages.splits)} splits of messages planned")
    order = job.setting("deterministic")
    planned = candidates(where, names, limits.blocks, question.bad, log.say, limits.staging_bytes, order or None)
    log.step(f"{len(planned.every)} programs planned")
    algo = job.setting("algo")
    forced = "" if algo in ("", AUTO, BEST) else algo
    nccl = NcclPredictor(where, job.capability) if job.has_nccl and algo != BEST else None
    protocol = job.setting("protocol")
    terms = choices.Terms(job.capability, limits.blocks, forced, protocol, no_copies, question.measured, order)
    if no_copies is not None:
        log.say(f"copy engines run no programs: {no_copies}")
    rows = choices.table(planned, job.size, terms, nccl)
    log.step(f"{len(rows.taken)} of {len(rows.choices)} rows taken")
    _check_sums(rows, order)
    if not rows.taken and not messages.splits:
        raise UnsupportedError(choices.nothing_taken(rows, terms, job.has_nccl))
    chosen = rows.candidates
    group, layout = _layout(chosen, limits, rows.copies, job.size)
    rows = choices.clamped(rows, layout.geometry)
    messages, layout = message_paths.place(messages, layout, group.memories if group else (), question.limits)
    written = texts(chosen, group, rows.protocols) if group else []
    log.step(f"code written: {sum(len(one.text) for one in written)} characters for {len(chosen)} programs")
    left_s = log.left_s(number(environ, "BLINK_PLAN_TIMEOUT", PLAN_TIMEOUT_S, MOST_S, float))
    images = _compiled(written, job, left_s, log)
    log.step(f"{len(images)} images compiled")
    parts = (part for image in images for part in image.text.parts)
    compiled = {(part.candidate.name, protocol) for part in parts for protocol in part.protocols}
    whole = len(images) == sum(len(architectures_of(one, job)) for one in written)
    rows, search = choices.without(rows, compiled), environ.get(CHUNKS) == "search"
    _check_sums(rows, order)
    return Bundle(layout, images, rows, limits.blocks, messages, search), whole


def _compiled(written: Sequence[ImageText], job: GpuJob, left_s: float, log: Log) -> tuple[Image, ...]:
    try:
        return compile_all(written, job, left_s, log.say) if written else ()
    except BlinkError as error:
        raise _NotCompiledError(NOT_COMPILED + str(error)) from None


def _check_sums(rows: choices.ChoiceTable, order: str) -> None:
    """Raise UnsupportedError if all sums need one order and NCCL runs one of them."""
    left = choices.left_sums(rows) if order else None
    if left is not None:
        raise UnsupportedError(f"BLINK_DETERMINISTIC={order} needs trees for every sum; {left}")


def _layout(
    chosen: Sequence[CandidateProgram], limits: Budget, copies: bool, ranks: int
) -> tuple[ProgramGroup | None, SegmentLayout]:
    """The places of the collectives' connections; no group if no collective is selected."""
    if not chosen:
        return None, SegmentLayout(Geometry(), (), (0,) * ranks, ranks)
    group = ProgramGroup([one.program for one in chosen])
    return group, group.layout(geometry(group, max(one.parts(limits.blocks) for one in chosen), limits, copies))


def answer(peers: bytes, environ: Mapping[str, str]) -> str:
    """The line for libblink.so."""
    level = environ.get("BLINK_DEBUG") or environ.get("NCCL_DEBUG", "")
    log = Log(level.upper() not in ("", "0", "NONE", "VERSION", "WARN"))
    try:
        line = f"bundle {plan(peers, environ, log)}"
    except _NotCompiledError as error:
        line = f"uncompiled {_one_line(error)}"
    except BlinkError as error:
        line = f"refused {_one_line(error)}"
    except OSError as error:
        line = f"refused the plan cannot be written: {_one_line(error)}"
    except Exception as error:
        traceback.print_exc()
        line = f"refused internal error of the planner (its traceback is on standard error): {_one_line(error)}"
    if log.overruled:
        log.say(log.overruled)
    log.say(f"{line.replace(' ', ': ', 1)} after {time.monotonic() - log.began:.3f} s")
    return line


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in text)[:_MOST_REASON]


def main() -> None:
    """Answer standard input on standard output, which no other code may write to."""
    # The plan of a killed rank is useless, so this process ends with the thread that started it.
    with contextlib.suppress(OSError, AttributeError):  # not Linux: it ends after planning
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    logging.basicConfig(format="blink planner: warning: %(message)s", stream=sys.stderr)
    answers = os.dup(1)
    os.dup2(2, 1)  # output of compilers and libraries goes to standard error
    line = answer(sys.stdin.buffer.read(MAX_PEER_INFO_BYTES + 1), os.environ)
    os.write(answers, f"{line}\n".encode())


if __name__ == "__main__":
    main()
