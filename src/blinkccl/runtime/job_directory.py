"""Where the ranks of one host meet if nobody named a store: a directory named after their launcher's process.

All ranks that one launcher started come to the same name, and nobody else does: a process number with its start
time belongs to one process only, within one boot and one namespace of process numbers. The directory stays
behind when its job ends; the next job's rank 0 sweeps it away once its launcher is gone.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from blinkccl.private_files import private_directory
from blinkccl.runtime.process import has_ended, mark

_NAME = re.compile(r"job-[0-9]+-[0-9]+-[0-9]+-[0-9a-f]{16}")


def base_directory(environ: Mapping[str, str]) -> Path:
    """Where this user's jobs meet: in XDG_RUNTIME_DIR if that is this user's directory, else in /tmp."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    # Slurm hands on the variable of the host that one logged in to; here that directory may be absent.
    if runtime.startswith("/") and _is_ours(runtime):
        return Path(runtime, "blink")
    return Path("/tmp", f"blink-{os.geteuid()}")


def job_directory(base: Path, launcher: tuple[int, int], names: Iterable[str]) -> Path:
    """The directory of the job that process ``launcher`` (number, start time) started and calls ``names``."""
    digest = sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()[:16]
    return base / f"job-{mark(*launcher)}-{digest}"


def prepare(path: Path, environ: Mapping[str, str], rank: int) -> None:
    """Where ``path`` is a job's directory, sees to it that its parent is this user's alone; rank 0 sweeps there."""
    base = base_directory(environ)
    if path.parent != base or not _NAME.fullmatch(path.name):
        return
    private_directory(base)
    if rank == 0:
        _sweep(base)


def _sweep(base: Path) -> None:
    """Removes directories of jobs whose launcher has ended."""
    for path in sorted(base.iterdir()):
        if _NAME.fullmatch(path.name) and has_ended(path.name.removeprefix("job-")):
            shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.geteuid()
    except OSError:
        return False
