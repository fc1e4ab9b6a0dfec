"""``blink run``: run an unchanged NCCL or MPI program, with blink's library preloaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from blinkccl.cli import console
from blinkccl.cli.exits import CHECK_FAILED, HardwareError
from blinkccl.errors import LaunchError, UnsupportedError, UsageError
from blinkccl.show.text import count
from blinkccl.units import size_text

if TYPE_CHECKING:
    from blinkccl.nccl.call_report import CallReport, ReportedCalls, ReportedCommunicator

HELP = """
Examples:

\b
  blink run -- torchrun --nproc-per-node 4 train.py
  blink run --algo optimal -- ./all_reduce_perf -b 4K -e 1G -g 4
  blink run --require --report used.json -- python3 examples/nccl_client.py
  blink run --topo machine.xml -- python3 serve.py
  blink run --mpi -- mpirun -n 4 ./app

Run CMD with libblink.so preloaded before NCCL. The library plans once per communicator. It runs a call if trees are
predicted to be 1.3 times as fast as NCCL's own algorithms, or if blink tune measured them to be faster. NCCL runs all
other calls. After CMD, a table on stderr lists which library ran each kind of call, and why.

With --mpi, libblink_mpi.so is preloaded before MPI. Blink's host engine runs blocking collectives on host memory
among ranks of one host; with --shared-dir also the part of an AllReduce inside each of several hosts. The MPI library
runs all other calls.

Exit code: that of CMD; 128 + n if signal n ended it; 126 or 127 if it cannot be started; 3 if the library is missing;
with --require 1 if CMD succeeded without an NCCL (MPI) call through the library.
"""
#: Signals that are forwarded to CMD's process; the terminal sends its own to both processes.
_FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LIBRARY = "libblink.so"
#: Variable that names another library file, for development.
OVERRIDE = "BLINK_LIBRARY"
MPI_LIBRARY = "libblink_mpi.so"
MPI_OVERRIDE = "BLINK_MPI_LIBRARY"
#: The "communicator" of calls that the MPI library ran, which are not reported by communicator.
_OF_MPI = "MPI"
#: Setting that leaves all words from the first word of CMD on to CMD.
CONTEXT = {"allow_interspersed_args": False}
_MOST_ROWS = 24
_NO_DRIVER = """libblink.so was not used: {driver} cannot be opened, so NCCL has no GPU.
  It is part of NVIDIA's driver: install that, or start the container with GPUs (docker run --gpus all)"""
_UNUSED = """libblink.so was not used: it received no NCCL call. Likely causes:
  CMD calls no NCCL collective, or ends before one
  NCCL is linked into CMD statically, so no library can be preloaded before it: link it dynamically
  CMD opens libnccl by its path (ctypes, cupy, vLLM): make it open libblink.so instead, in vLLM with
    VLLM_NCCL_SO_PATH={library} and BLINK_NCCL_LIB=/path/to/libnccl.so.2
  CMD's processes lack the variables of blink run: on other hosts, in containers, after sudo or setuid"""
_UNUSED_MPI = """libblink_mpi.so was not used: it received no MPI call. Likely causes:
  CMD is no MPI program, or ends before MPI_Init
  the MPI library is linked into CMD statically, so no library can be preloaded before it: link it dynamically
  CMD's processes lack the variables of blink run: on other hosts, in containers, after sudo or setuid"""


def run(
    command: Annotated[list[str], Argument(metavar="CMD", help="The program and its arguments.")],
    algo: Annotated[
        str | None,
        Option(
            "--algo",
            metavar="NAME",
            help="Run all calls that this algorithm can serve; nccl: none. Default: calls predicted to be 1.3 times as "
            "fast.",
        ),
    ] = None,
    spec: Annotated[
        str | None,
        Option("--topo", metavar="SPEC", help="Topology; default: this machine, from NVML or NCCL_TOPO_FILE."),
    ] = None,
    paths: Annotated[
        Path | None,
        Option(
            "--paths",
            metavar="FILE",
            help="Send messages over the paths of this table, written by blink sim sendrecv -o.",
        ),
    ] = None,
    mpi: Annotated[bool, Option("--mpi", help="CMD is an MPI program, or starts one: mpirun -n 4 ./app.")] = False,
    mpicc: Annotated[
        str | None,
        Option("--mpicc", metavar="CC", help="Compiler of CMD's MPI library; default: the one of CMD's mpirun."),
    ] = None,
    shared_dir: Annotated[
        Path | None,
        Option(
            "--shared-dir",
            metavar="DIR",
            help="With --mpi and several hosts: a directory that all of them share; every rank of CMD must run under "
            "this command.",
        ),
    ] = None,
    require: Annotated[bool, Option("--require", help="Exit with 1 if the library received no call.")] = False,
    report: Annotated[
        Path | None,
        Option("--report", metavar="FILE", help="Write the table of calls as JSON; stdout belongs to CMD."),
    ] = None,
) -> None:
    """Run ``command``, report which library ran its calls, and exit with its code."""
    from blinkccl.runtime.deterministic import VARIABLE, wish

    if wish() and mpi:
        raise UsageError(f"{VARIABLE}={wish()} is not supported with --mpi: unset it, or start CMD without blink run")
    if mpi:
        if algo is not None or spec is not None or paths is not None:
            raise UsageError("--algo, --topo and --paths are for NCCL programs, not for --mpi: leave them out")
        preload, settings = _for_mpi(command, mpicc)
    else:
        if mpicc is not None or shared_dir is not None:
            raise UsageError("--mpicc and --shared-dir are for MPI programs: add --mpi, or leave them out")
        preload, settings = [library_file(LIBRARY, OVERRIDE)], _settings(algo, spec, paths)
    if shared_dir is not None and not shared_dir.is_dir():
        raise UsageError(f"--shared-dir {shared_dir}: expected a directory")
    if report is not None:
        console.check_writable(report)
    shared = None if shared_dir is None else shared_dir.absolute()
    with tempfile.TemporaryDirectory(prefix="blink-run-", dir=shared) as directory:
        lines, ranks = Path(directory, "report"), Path(directory, "ranks")
        ranks.mkdir()
        settings |= {"BLINK_MPI_RANKS": str(ranks), "BLINK_MPI_SHARED_DIR": str(shared or "")} if mpi else {}
        code, started = execute(command, environment(os.environ, preload, lines, settings))
        from blinkccl.nccl.call_report import MAX_BYTES, read_call_report

        usage = read_call_report(console.read_file(lines, MAX_BYTES)[:MAX_BYTES] if lines.exists() else b"")
    if started:
        _print_report(usage, "MPI" if mpi else "NCCL", _UNUSED_MPI if mpi else _no_nccl(preload[0]))
    if report is not None:
        from blinkccl.trees.forest.document import dumps

        console.write_file(report, dumps(usage.document(command, code, "mpi" if mpi else "nccl")))
    if require and code == 0 and not usage.groups:
        code = CHECK_FAILED
    raise typer.Exit(code)


def library_file(name: str, override: str) -> Path:
    """The library to preload; HardwareError if it is missing."""
    from blinkccl.native import absent, find_library

    path = find_library(name, override)
    if path is None:
        raise HardwareError(absent(name))
    if not path.is_file():
        raise HardwareError(f"{path}, named by {override}, does not exist: unset {override}, or name another file")
    if any(c in str(path) for c in ": "):
        raise HardwareError(
            f"{path}: LD_PRELOAD cannot hold a path with spaces or colons; install blink-ccl in another directory"
        )
    return path


def _settings(algo: str | None, spec: str | None, paths: Path | None) -> dict[str, str]:
    """Variables for CMD's processes; mistakes in the options are reported before CMD starts."""
    settings = {}
    if algo is not None:
        if algo != "nccl":
            from blinkccl.trees.algorithms.registry import algorithm

            algorithm(algo)
        settings["BLINK_ALGO"] = algo
    if spec is not None:
        from blinkccl.topology.spec import parse_spec

        parse_spec(spec)
        settings["BLINK_TOPO"] = str(Path(spec).absolute()) if Path(spec).is_file() else spec
    if paths is not None:
        if not paths.is_file():
            raise UsageError(f"--paths {paths}: no such file; blink sim sendrecv --algo multi_path -o FILE writes one")
        settings["BLINK_PATHS"] = str(paths.absolute())
    return settings


def _for_mpi(command: Sequence[str], mpicc: str | None) -> tuple[list[Path], dict[str, str]]:
    """The libraries to preload before the program's MPI, and their variables."""
    library = library_file(MPI_LIBRARY, MPI_OVERRIDE)
    from blinkccl.apps.mpi.binding import compiled_binding
    from blinkccl.apps.mpi.plans import known_bundles

    try:
        binding = compiled_binding(command, mpicc)
    except UnsupportedError as error:
        raise HardwareError(str(error)) from None
    beside = [library.with_name(name) for name in binding.beside]
    return [library, *beside], {"BLINK_MPI_BINDING": str(binding.path), "BLINK_MPI_BUNDLES": known_bundles(command)}


def environment(
    base: Mapping[str, str], preload: Sequence[Path], lines: Path, settings: Mapping[str, str]
) -> dict[str, str]:
    """CMD's environment: ``base``, ``settings``, and ``lines``, the file to which the library reports.

    Libraries that are preloaded already come first, as sanitizers require.
    """
    before = base.get("LD_PRELOAD", "").strip(": ")
    libraries = ":".join([*filter(None, [before]), *map(str, preload)])
    added = {"LD_PRELOAD": libraries, "BLINK_PYTHON": sys.executable, "BLINK_REPORT": str(lines)}
    return {**base, **added, **settings}


def execute(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, bool]:
    """The exit code of ``command``, as in a shell, and True if it started. Forwards signals sent to this process."""
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        try:
            child = subprocess.Popen(
                command, env=env, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
            )
        except OSError as error:
            console.error(f"{command[0]} cannot be started: {error.strerror or error}")
            return (127 if isinstance(error, FileNotFoundError) else 126), False
        except ValueError:
            raise LaunchError(f"{command[0]!r} cannot be started: its arguments contain a NUL") from None
        while child.poll() is None:
            received = signal.sigwaitinfo(watched)
            if received.si_signo != signal.SIGCHLD and received.si_code <= 0:  # from a process, not from the kernel
                child.send_signal(received.si_signo)
        return (child.returncode if child.returncode >= 0 else 128 - child.returncode), True
    finally:
        # Discard signals that came after CMD's end, as this process is about to exit too.
        while signal.sigtimedwait(watched, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _no_nccl(library: Path) -> str:
    driver = os.environ.get("BLINK_CUDA_LIB") or "libcuda.so.1"
    return _UNUSED.format(library=library) if _can_be_opened(driver) else _NO_DRIVER.format(driver=driver)


def _print_report(usage: CallReport, other: str, unused: str) -> None:
    """Print the table of calls; ``other`` is NCCL or MPI, ``unused`` the text if there were no calls."""
    from blinkccl.nccl.call_report import NOT_COMPILED

    if not usage.groups:
        console.note(unused)
        return
    if usage.silent:
        console.note(_silent_text(usage, other))
        if not usage.reported:
            return
    communicators = count(sum(group.comm != _OF_MPI for group in usage.reported), "communicator")
    console.note(
        f"{communicators} of {count(usage.processes, 'process')}: Blink ran "
        f"{count(usage.calls('blink'), 'call')} per rank, {other} {usage.calls(other.lower())}"
    )
    for why, number in usage.not_compiled().items():
        console.note(f"WARNING: {other} ran all calls of {count(number, 'communicator')}: {NOT_COMPILED}{why}")
    for group in usage.reported:
        for line in group_lines(group):
            console.note(line)
    if usage.unread:
        console.note(f"{count(usage.unread, 'line')} of the report could not be read")


def _silent_text(usage: CallReport, other: str) -> str:
    """The ranks that ended, killed or by abort, before they wrote their report."""
    ranks: dict[int, list[str]] = {}
    for each in usage.silent:
        ranks.setdefault(each.pid, []).append(str(each.rank))
    shown = [f"process {pid} (rank {', '.join(own[:8])}{', …' * (len(own) > 8)})" for pid, own in ranks.items()]
    begun = len({each.pid for each in usage.begun})
    return (
        f"{len(ranks)} of {count(begun, 'process')} that called {other} ended before reporting all calls: "
        f"{', '.join(shown[:8])}{', …' * (len(shown) > 8)}"
    )


def _can_be_opened(library: str) -> bool:
    import ctypes

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def group_lines(group: ReportedCommunicator) -> list[str]:
    """The lines of a communicator: a heading, then two lines per kind of call."""
    pids = ", ".join(map(str, group.pids[:8])) + (", …" if len(group.pids) > 8 else "")
    name = "MPI's own" if group.comm == _OF_MPI else f"communicator {group.comm[:8]}"
    lines = [f"  {name}, {group.nranks} ranks, process {pids}"]
    for row in group.rows[:_MOST_ROWS]:
        lines += _row_lines(row)
    if len(group.rows) > _MOST_ROWS:
        lines.append(f"    … and {len(group.rows) - _MOST_ROWS} more; --report has all")
    return lines


def _row_lines(row: ReportedCalls) -> list[str]:
    library = row.state.upper()
    if row.state == "blink":
        library = f"Blink, {row.protocol}" if row.protocol else "Blink"
    if not row.collective:
        return [f"    {library}: {row.why}"]
    call = " ".join(word for word in (row.collective, row.dtype, row.op) if word)
    sizes = size_text(row.least) if row.least == row.most else f"{size_text(row.least)} to {size_text(row.most)}"
    if row.state == "mpi":
        return [f"    {call:32} {'':22} {count(row.calls, 'call'):>12}   MPI: {row.why}"]
    lines = [f"    {call:32} {sizes:22} {count(row.calls, 'call'):>12}   {library}"]
    return [*lines, f"      {row.why}"] if row.why else lines
