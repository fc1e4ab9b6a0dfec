"""``blink run``: an unchanged NCCL or MPI program, with what Blink has that can be faster."""

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

Run CMD with libblink.so before NCCL. It plans once per communicator, takes the calls for which trees are
predicted 1.3 times as fast as NCCL's own algorithms, or were measured to be faster by blink tune, and leaves
all else to NCCL. When CMD has ended, a table on stderr says what became of its calls, and why.

With --mpi it is libblink_mpi.so, before MPI: blocking collectives on memory of the host, among ranks of one
host, run on Blink's host engine; with --shared-dir AllReduce also among ranks of several hosts, inside of
each. All else is the MPI library's.

Exit code: CMD's own, 128 + n if signal n ended it, 126 or 127 if it cannot be started; 3 without the
library; with --require 1 if CMD succeeded and never called NCCL (MPI) through it.
"""
#: What is said to CMD's process as well; the terminal says its own to both of us.
_FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LIBRARY = "libblink.so"
#: Names another library file; for people who work on it.
OVERRIDE = "BLINK_LIBRARY"
MPI_LIBRARY = "libblink_mpi.so"
MPI_OVERRIDE = "BLINK_MPI_LIBRARY"
#: The "communicator" of calls that the MPI library had, which are not told apart by communicators.
_OF_MPI = "MPI"
#: Where typer is to leave everything from the first word of CMD on to CMD.
CONTEXT = {"allow_interspersed_args": False}
_MOST_ROWS = 24
_NO_DRIVER = """libblink.so was not used: {driver} cannot be opened, without which NCCL has no GPU to run on.
  It comes with NVIDIA's driver; in a container, start that with access to the GPUs (docker run --gpus all)"""
_UNUSED = """libblink.so was not used: no NCCL call was seen. Likely causes:
  CMD calls no NCCL collective, or ends without it
  NCCL is linked into CMD statically: nothing can come before it
  CMD opens libnccl by its path (ctypes, cupy, vLLM): let it open libblink.so instead, for vLLM by
    VLLM_NCCL_SO_PATH={library} and BLINK_NCCL_LIB=/path/to/libnccl.so.2
  CMD starts its processes without our environment: on other hosts, in containers, by sudo or setuid"""
_UNUSED_MPI = """libblink_mpi.so was not used: no MPI call was seen. Likely causes:
  CMD is no MPI program, or ends before MPI_Init
  the MPI library is linked into CMD statically: nothing can come before it
  CMD starts its processes without our environment: on other hosts, in containers, by sudo or setuid"""


def run(
    command: Annotated[list[str], Argument(metavar="CMD", help="The program and its arguments.")],
    algo: Annotated[
        str | None,
        Option(
            "--algo",
            metavar="NAME",
            help="Take all calls that this algorithm serves; nccl: none. Default: what is predicted 1.3 times as fast.",
        ),
    ] = None,
    spec: Annotated[
        str | None,
        Option("--topo", metavar="SPEC", help="Topology; default: this machine, as NVML or NCCL_TOPO_FILE tells."),
    ] = None,
    paths: Annotated[
        Path | None,
        Option(
            "--paths",
            metavar="FILE",
            help="Send messages over the paths of this table, which blink sim sendrecv writes with -o.",
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
            help="With --mpi: CMD's ranks, on several hosts which all see DIR, all run under this command.",
        ),
    ] = None,
    require: Annotated[bool, Option("--require", help="Fail where no call came through the library.")] = False,
    report: Annotated[
        Path | None, Option("--report", metavar="FILE", help="Write what became of the calls as JSON; stdout is CMD's.")
    ] = None,
) -> None:
    """Run ``command``, say what became of its calls, and exit as it did."""
    from blinkccl.runtime.deterministic import VARIABLE, wish

    if wish() and mpi:
        raise UsageError(f"{VARIABLE}={wish()} is not kept for calls of MPI: unset it, or start CMD without blink run")
    if mpi:
        if algo is not None or spec is not None or paths is not None:
            raise UsageError("--algo, --topo, --paths are for NCCL programs; what runs under MPI follows from the host")
        preload, settings = _for_mpi(command, mpicc)
    else:
        if mpicc is not None or shared_dir is not None:
            raise UsageError("--mpicc and --shared-dir are for --mpi")
        preload, settings = [library_file(LIBRARY, OVERRIDE)], _settings(algo, spec, paths)
    if shared_dir is not None and not shared_dir.is_dir():
        raise UsageError(f"--shared-dir {shared_dir} is no directory")
    if report is not None:
        console.check_writable(report)
    room = None if shared_dir is None else shared_dir.absolute()
    with tempfile.TemporaryDirectory(prefix="blink-run-", dir=room) as directory:
        lines, ranks = Path(directory, "report"), Path(directory, "ranks")
        ranks.mkdir()
        settings |= {"BLINK_MPI_RANKS": str(ranks), "BLINK_MPI_SHARED_DIR": str(room or "")} if mpi else {}
        code, started = execute(command, environment(os.environ, preload, lines, settings))
        from blinkccl.nccl.call_report import MAX_BYTES, read_call_report

        usage = read_call_report(console.read_file(lines, MAX_BYTES)[:MAX_BYTES] if lines.exists() else b"")
    if started:
        _tell(usage, "MPI" if mpi else "NCCL", _UNUSED_MPI if mpi else _no_nccl(preload[0]))
    if report is not None:
        from blinkccl.trees.forest.document import dumps

        console.write_file(report, dumps(usage.document(command, code, "mpi" if mpi else "nccl")))
    if require and code == 0 and not usage.groups:
        code = CHECK_FAILED
    raise typer.Exit(code)


def library_file(name: str, override: str) -> Path:
    """What is preloaded, or a HardwareError."""
    from blinkccl.native import absent, find_library

    path = find_library(name, override)
    if path is None:
        raise HardwareError(absent(name))
    if not path.is_file():
        raise HardwareError(f"{path} is not there: {override} names it")
    if any(c in str(path) for c in ": "):
        raise HardwareError(f"{path}: the loader splits LD_PRELOAD at spaces and colons; install blink-ccl elsewhere")
    return path


def _settings(algo: str | None, spec: str | None, paths: Path | None) -> dict[str, str]:
    """What CMD's processes are told; mistakes are ours to find, before CMD starts."""
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
            raise UsageError(f"--paths {paths}: no such file; blink sim sendrecv --algo multi_path -o writes one")
        settings["BLINK_PATHS"] = str(paths.absolute())
    return settings


def _for_mpi(command: Sequence[str], mpicc: str | None) -> tuple[list[Path], dict[str, str]]:
    """The libraries that come before the program's MPI, and what they are told."""
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
    """CMD's environment: ours, and ``lines``, where the library writes what it did.

    What is preloaded already comes first: sanitizers insist on it.
    """
    before = base.get("LD_PRELOAD", "").strip(": ")
    libraries = ":".join([*filter(None, [before]), *map(str, preload)])
    ours = {"LD_PRELOAD": libraries, "BLINK_PYTHON": sys.executable, "BLINK_REPORT": str(lines)}
    return {**base, **ours, **settings}


def execute(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, bool]:
    """The exit code of ``command``, as a shell tells it, and whether it started; signals to us alone are sent on."""
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
            told = signal.sigwaitinfo(watched)
            if told.si_signo != signal.SIGCHLD and told.si_code <= 0:  # from a process, not from the kernel
                child.send_signal(told.si_signo)
        return (child.returncode if child.returncode >= 0 else 128 - child.returncode), True
    finally:
        # One that came after CMD's end is for nobody: we are about to end as well.
        while signal.sigtimedwait(watched, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _no_nccl(library: Path) -> str:
    driver = os.environ.get("BLINK_CUDA_LIB") or "libcuda.so.1"
    return _UNUSED.format(library=library) if _can_be_opened(driver) else _NO_DRIVER.format(driver=driver)


def _tell(usage: CallReport, theirs: str, unused: str) -> None:
    from blinkccl.nccl.call_report import NOT_COMPILED

    if not usage.groups:
        console.note(unused)
        return
    if usage.silent:
        console.note(_silent_text(usage, theirs))
        if not usage.reported:
            return
    communicators = count(sum(group.comm != _OF_MPI for group in usage.reported), "communicator")
    console.note(
        f"{communicators} of {count(usage.processes, 'process')}: Blink took "
        f"{count(usage.calls('blink'), 'call')} per rank, {theirs} {usage.calls(theirs.lower())}"
    )
    for why, number in usage.not_compiled().items():
        console.note(f"WARNING: {theirs} ran all of {count(number, 'communicator')}: {NOT_COMPILED}{why}")
    for group in usage.reported:
        for line in group_lines(group):
            console.note(line)
    if usage.unread:
        console.note(f"{count(usage.unread, 'line')} of the report could not be read")


def _silent_text(usage: CallReport, theirs: str) -> str:
    """The ranks that were killed, or called abort, with the report still in memory."""
    ranks: dict[int, list[str]] = {}
    for each in usage.silent:
        ranks.setdefault(each.pid, []).append(str(each.rank))
    shown = [f"process {pid} (rank {', '.join(own[:8])}{', …' * (len(own) > 8)})" for pid, own in ranks.items()]
    begun = len({each.pid for each in usage.begun})
    return (
        f"{len(ranks)} of {count(begun, 'process')} that called {theirs} ended before all that became of the calls was "
        f"reported: {', '.join(shown[:8])}{', …' * (len(shown) > 8)}"
    )


def _can_be_opened(library: str) -> bool:
    import ctypes

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def group_lines(group: ReportedCommunicator) -> list[str]:
    """A communicator for people: a line of its own, then two lines per kind of call."""
    pids = ", ".join(map(str, group.pids[:8])) + (", …" if len(group.pids) > 8 else "")
    who = "MPI's own" if group.comm == _OF_MPI else f"communicator {group.comm[:8]}"
    lines = [f"  {who}, {group.nranks} ranks, process {pids}"]
    for row in group.rows[:_MOST_ROWS]:
        lines += _row_lines(row)
    if len(group.rows) > _MOST_ROWS:
        lines.append(f"    … and {len(group.rows) - _MOST_ROWS} more; --report has all")
    return lines


def _row_lines(row: ReportedCalls) -> list[str]:
    who = row.state.upper()
    if row.state == "blink":
        who = f"Blink, {row.protocol}" if row.protocol else "Blink"
    if not row.collective:
        return [f"    {who}: {row.why}"]
    what = " ".join(word for word in (row.collective, row.dtype, row.op) if word)
    sizes = size_text(row.least) if row.least == row.most else f"{size_text(row.least)} to {size_text(row.most)}"
    if row.state == "mpi":
        return [f"    {what:32} {'':22} {count(row.calls, 'call'):>12}   MPI: {row.why}"]
    lines = [f"    {what:32} {sizes:22} {count(row.calls, 'call'):>12}   {who}"]
    return [*lines, f"      {row.why}"] if row.why else lines
