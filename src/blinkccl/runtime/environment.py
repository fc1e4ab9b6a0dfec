"""Rank, size, launcher and meeting place of this process, from its environment.

The first launcher in the table below whose variables are set is used. For "blink" and "torchrun" the rank or the size
is enough; Slurm also needs the variables of a step.

`mpich` also stands for Intel MPI. A job's own BLINK_STORE takes precedence. Otherwise torchrun's variables name a
store. Ranks that an MPI launcher or srun started on one host meet in a directory named after the launcher's process
(:func:`job_directory`). Ranks of mpirun on several hosts use MPI. Ranks of srun on several hosts meet at the step's
first node, at a port computed from the job's number. Otherwise there is no store, and the error of :func:`store_of`
says how to set one.

PMIx gives a process its rank but not the number of ranks, so it cannot be a row of this table.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from blinkccl.errors import LaunchError
from blinkccl.private_files import private_directory
from blinkccl.runtime.process import has_ended, mark, nearest_without

_JOB = re.compile(r"job-[0-9]+-[0-9]+-[0-9]+-[0-9a-f]{16}")
#: Returns a launcher's (process number, start time), given a variable that it sets; None: unknown.
FindLauncher = Callable[[str], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Launch:
    """A process's place in its job; without a set or derivable store ``store_url`` is absent (None).

    ``job_id`` differs between jobs, and restarts of a job, that could meet in the same store; it may be "".
    """

    rank: int
    world_size: int
    launcher: str
    store_url: str | None
    job_id: str


@dataclass(frozen=True, slots=True)
class _Row:
    """A launcher and its variables; the first variable of a tuple that is set counts."""

    launcher: str
    rank: str
    size: tuple[str, ...]
    local_rank: str
    local_size: str


_BLINK = _Row("blink", "BLINK_RANK", ("BLINK_WORLD_SIZE",), "BLINK_LOCAL_RANK", "BLINK_LOCAL_WORLD_SIZE")
_TORCHRUN = _Row("torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPENMPI = _Row(
    "openmpi",
    "OMPI_COMM_WORLD_RANK",
    ("OMPI_COMM_WORLD_SIZE",),
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_MPICH = _Row("mpich", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_SLURM = _Row("slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID", "")
_PMI = _Row("pmi", "PMI_RANK", ("PMI_SIZE",), "", "")

#: Variables that identify the job within its launcher, besides the launcher's process.
_JOB_NAMES = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")


def launch(environ: Mapping[str, str], find_launcher: FindLauncher = nearest_without) -> Launch:
    """Return this process's place in its job, from the environment only; ``find_launcher`` is for tests.

    Raises LaunchError, which names the variable, if no rank is set or a variable that belongs to it is missing.
    """
    row = _row(environ)
    size_variable = next((name for name in row.size if name in environ), row.size[0])
    rank = _number(environ, row.rank, row.launcher)
    size = _number(environ, size_variable, row.launcher)
    _within(rank, row.rank, size, size_variable)
    on_one_host = _on_one_host(environ, row, size)
    store_url = environ.get("BLINK_STORE") or _derived_store(environ, row, on_one_host, find_launcher)
    return Launch(rank, size, row.launcher, store_url, _job_id(environ, row))


def store_of(place: Launch) -> str:
    """Return the URL of the store in which the ranks of ``place`` meet; LaunchError with a remedy if it is unknown."""
    if place.store_url is not None:
        return place.store_url
    raise LaunchError(
        f"rank {place.rank} of {place.world_size}, started by {place.launcher}, does not know where the ranks "
        "meet: expected BLINK_STORE, got nothing. Set it to the same value for all ranks: "
        "BLINK_STORE=file:///a/directory/of/this/job if all are on one host, else "
        "BLINK_STORE=tcp://HOST:PORT with the host of rank 0 and a free port there"
        + (" (mpirun -x BLINK_STORE=… forwards it)" if place.launcher == "openmpi" else "")
    )


def _row(environ: Mapping[str, str]) -> _Row:
    if "BLINK_RANK" in environ or "BLINK_WORLD_SIZE" in environ:
        return _BLINK
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _TORCHRUN
    if _OPENMPI.rank in environ:
        return _OPENMPI
    if _MPICH.rank in environ and _MPICH.local_rank in environ:
        return _MPICH
    # In an sbatch script itself SLURM_PROCID is 0 and SLURM_NTASKS is the job's: only a step has ranks.
    if _SLURM.rank in environ and "SLURM_STEP_NODELIST" in environ:
        return _SLURM
    if _PMI.rank in environ:
        return _PMI
    raise LaunchError("the rank of this process is unknown: " + _what_to_do(environ))


def _what_to_do(environ: Mapping[str, str]) -> str:
    if "PMIX_RANK" in environ:
        return (
            "PMIX_RANK is set, but PMIx does not put the number of ranks into the environment. Start the ranks "
            "with sh -c 'BLINK_RANK=$PMIX_RANK BLINK_WORLD_SIZE=2 BLINK_STORE=file:///a/directory exec python …'"
        )
    if "SLURM_JOB_ID" in environ:
        return "this is a Slurm allocation, but no step of it; start the ranks with srun, as in srun -n 2 python …"
    return (
        "expected the variables of a launcher, got none. The two easiest ways: 'torchrun --nproc-per-node 2 "
        "script.py' (or mpirun -n 2 python script.py), or in each process BLINK_RANK=0 (1, …) BLINK_WORLD_SIZE=2 "
        "BLINK_STORE=file:///a/directory/of/this/job"
    )


def _number(environ: Mapping[str, str], name: str, launcher: str) -> int:
    text = environ.get(name)
    if text is None:
        raise LaunchError(f"{launcher}'s variables are incomplete: {name} is missing; set it, or unset the others")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise LaunchError(f"{name}: expected a whole number from 0, got {text!r}")
    return int(text)


def _within(rank: int, rank_name: str, size: int, size_name: str) -> None:
    if rank >= size:
        raise LaunchError(f"{rank_name} is {rank}, but {size_name} is {size}: ranks count from 0 to {size - 1}")


def _on_one_host(environ: Mapping[str, str], row: _Row, size: int) -> bool:
    """True if the launcher's variables show that all ranks run on this host."""
    local_rank = _number(environ, row.local_rank, row.launcher) if row.local_rank in environ else None
    if row is _SLURM:
        return environ.get("SLURM_STEP_TASKS_PER_NODE") == str(size)  # several nodes have several entries
    local_size = _number(environ, row.local_size, row.launcher) if row.local_size in environ else None
    if local_size is not None and not 1 <= local_size <= size:
        raise LaunchError(f"{row.local_size}: expected 1 to {size}, the number of all ranks, got {local_size}")
    if local_size is not None and local_rank is not None:
        _within(local_rank, row.local_rank, local_size, row.local_size)
    return local_size == size


def _job_id(environ: Mapping[str, str], row: _Row) -> str:
    if row is _TORCHRUN and "TORCHELASTIC_RUN_ID" in environ:
        return f"{environ['TORCHELASTIC_RUN_ID']}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return "/".join(environ[name] for name in _JOB_NAMES if environ.get(name))


def _derived_store(environ: Mapping[str, str], row: _Row, on_one_host: bool, find_launcher: FindLauncher) -> str | None:
    if row is _TORCHRUN:
        return _torch_store(environ)
    if row is _BLINK:
        return None
    if on_one_host:
        launcher = find_launcher(row.rank)
        names = [row.launcher, *(environ.get(name, "") for name in _JOB_NAMES)]
        return f"file://{job_directory(base_directory(environ), launcher, names)}" if launcher else None
    if row in (_OPENMPI, _MPICH) and row.local_size in environ:
        return "mpi://"
    return _slurm_store(environ) if row is _SLURM else None


def _torch_store(environ: Mapping[str, str]) -> str | None:
    """torchrun's agent serves a store at MASTER_ADDR; if a user set the variables, rank 0 must serve it."""
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if host is None and port is None:
        return None
    if not host or not port:
        raise LaunchError(
            f"torchrun's variables are incomplete: {'MASTER_PORT' if host else 'MASTER_ADDR'} is missing; "
            "set it, or give Blink a store of its own in BLINK_STORE"
        )
    scheme = "torchrun" if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "torch"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _slurm_store(environ: Mapping[str, str]) -> str | None:
    host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "0")
    if host is None or not job.isdigit() or not step.isdigit():
        return None
    return f"tcp://{host}:{61440 + (int(job) * 31 + int(step)) % 4096}"


def first_host(nodelist: str) -> str | None:
    """The first host of Slurm's compressed list: ``gpu[03-05,9],x`` begins with gpu03. None: not such a list."""
    match = re.match(r"([\w.-]+)(?:\[([0-9]+)[0-9,-]*\]([\w.-]*))?(?:,|$)", nodelist)
    return match[1] + (match[2] or "") + (match[3] or "") if match else None


def base_directory(environ: Mapping[str, str]) -> Path:
    """The parent of this user's job directories: in XDG_RUNTIME_DIR if this user owns that, else in /tmp."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    # Slurm forwards the variable of the login host; on this host that directory may not exist.
    if runtime.startswith("/") and _is_ours(runtime):
        return Path(runtime, "blink")
    return Path("/tmp", f"blink-{os.geteuid()}")


def job_directory(base: Path, launcher: tuple[int, int], names: Iterable[str]) -> Path:
    """The directory of the job that process ``launcher`` (number, start time) started and identifies by ``names``.

    All ranks of one launcher derive the same name, and no other process does: within one boot and one PID namespace a
    process number with its start time is unique. The directory remains when its job ends. The next job's rank 0 removes
    it once its launcher has ended.
    """
    digest = sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()[:16]
    return base / f"job-{mark(*launcher)}-{digest}"


def prepare(path: Path, environ: Mapping[str, str], rank: int) -> None:
    """Make the parent of a job's directory ``path`` private to this user; rank 0 also removes old directories there."""
    base = base_directory(environ)
    if path.parent != base or not _JOB.fullmatch(path.name):
        return
    private_directory(base)
    if rank == 0:
        _sweep(base)


def _sweep(base: Path) -> None:
    """Remove the directories of jobs whose launcher has ended."""
    for path in sorted(base.iterdir()):
        if _JOB.fullmatch(path.name) and has_ended(path.name.removeprefix("job-")):
            shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.geteuid()
    except OSError:
        return False
