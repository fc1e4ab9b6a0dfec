"""The peer check: bytes are copied and compared between all GPUs of a job before P2P is trusted.

Some drivers, hypervisors and IOMMUs grant peer access and then lose bytes, hang or crash. Each ordered pair is
therefore tried once, in a child process with a timeout. A pair that fails is a missing link with provenance
``measured``. Results hold until the next boot of the host and stay in the cache until then.

The child gets neither context nor memory if ranks use their GPUs exclusively (compute mode EXCLUSIVE_PROCESS) or have
filled their memory. Such pairs pass if CUDA grants them access, and their result is not cached. The ranks then check
their writes themselves (``native/shim/peer_write_probe.h``).
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from blinkccl.errors import LaunchError, UnsupportedError
from blinkccl.nccl.peer_info import GpuJob
from blinkccl.private_files import private_directory, write_at_once
from blinkccl.runtime.peer_info import package_version

Pair = tuple[int, int]
#: Timeouts of all pairs and of one pair. Contexts on eight idle GPUs take some seconds, a copy takes milliseconds.
DEADLINE_S, PAIR_DEADLINE_S = 30.0, 5.0
#: Maximum number of children, after which a failing driver is not tried again.
MOST_CHILDREN = 4
_MOST_LINE = 4096

_log = logging.getLogger(__name__)


class _Kept(msgspec.Struct, frozen=True):
    """The file of one boot and driver: [UUID, UUID, fault or ""] for each ordered pair that was tried."""

    pairs: list[tuple[str, str, str]]


def bad_pairs(
    job: GpuJob,
    directory: Path | None,
    deadline_s: float = DEADLINE_S,
    note: Callable[[str], None] = lambda text: None,
) -> dict[Pair, str]:
    """The ordered pairs of *ranks* that cannot write to each other, with their faults.

    Results are cached in ``directory``. ``deadline_s`` is the timeout of all pairs together. ``note`` gets the pairs
    that cannot be tried. UnsupportedError if the check is impossible: no driver, or GPUs that rank 0 does not see.
    Ranks that share a GPU always reach each other. Cost without a cache: a process and a context per GPU, 10 ms per
    pair.
    """
    gpus, uuids = job.gpus, [peer.uuid for peer in job.peers]
    pairs = [(a, b) for a in gpus for b in gpus if a != b]
    path = None if directory is None else directory / f"{_digest(job)}.json"
    faults = _kept(path) if pairs else {}
    missing = [(gpus.index(a), gpus.index(b)) for a, b in pairs if (a, b) not in faults]
    if missing:
        check = _Check(gpus, deadline_s)
        faults |= {(gpus[a], gpus[b]): why for (a, b), why in check.run(missing).items()}
        if path is not None and not check.broke_down:
            _keep(path, faults)
        for (a, b), why in list(check.untried.items())[:1]:
            note(
                f"stores between {len(check.untried)} of {len(missing)} ordered pairs of GPUs were not tested, and "
                f"Blink assumes that they work: the test gets no context or memory there (rank {uuids.index(gpus[a])} "
                f"to rank {uuids.index(gpus[b])}: {why})"
            )
    ranks = [(a, b) for a in range(job.size) for b in range(job.size)]
    return {(a, b): faults[uuids[a], uuids[b]] for a, b in ranks if faults.get((uuids[a], uuids[b]))}


def _digest(job: GpuJob) -> str:
    peer = job.peers[0]
    about = [package_version(), peer.boot_id, peer.driver_version, os.environ.get("BLINK_CUDA_LIB", "")]
    return sha256(json.dumps(about).encode()).hexdigest()[:32]


def _kept(path: Path | None) -> dict[tuple[str, str], str]:
    """Cached results by the GPUs' UUIDs; empty if the file cannot be read."""
    if path is None:
        return {}
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=_Kept).pairs
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return {}
    return {(a, b): why for a, b, why in rows}


def _keep(path: Path, faults: Mapping[tuple[str, str], str]) -> None:
    rows = [[a, b, why] for (a, b), why in sorted(faults.items())]
    with suppress(OSError, LaunchError):  # the cache is optional
        private_directory(path.parent)
        write_at_once(path, json.dumps({"pairs": rows}).encode())


@dataclass
class _Check:
    """Child processes that try pairs until all are tried or the driver has failed too often."""

    gpus: tuple[str, ...]
    deadline_s: float
    faults: dict[Pair, str] = field(default_factory=dict)
    untried: dict[Pair, str] = field(default_factory=dict)
    broke_down: bool = False

    def run(self, pairs: Sequence[Pair]) -> dict[Pair, str]:
        """Every tried pair with its fault, or "" if it passed; pairs in ``untried`` are left out."""
        ends = time.monotonic() + self.deadline_s
        for _ in range(MOST_CHILDREN):
            left = self._open(pairs)
            if not left or time.monotonic() >= ends:
                break
            self._child(left, ends)
        for pair in self._open(pairs):
            self.broke_down = True
            self.faults[pair] = "not tried, because the driver hung or crashed on other pairs"
        return self.faults

    def _open(self, pairs: Sequence[Pair]) -> list[Pair]:
        return [pair for pair in pairs if pair not in self.faults and pair not in self.untried]

    def _child(self, pairs: Sequence[Pair], ends: float) -> None:
        """Run one child and store its answers; a pair on which it hangs or crashes fails."""
        # Launchers restrict each rank to its own GPU, but the child needs all GPUs.
        hidden = ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD")
        process = subprocess.Popen(
            [sys.executable, "-m", "blinkccl.nccl.peer_copies"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if key not in hidden},
            start_new_session=True,
        )
        trying: Pair | None = None
        verdict = "the driver crashed"
        try:
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.write(json.dumps({"uuids": self.gpus, "pairs": pairs}).encode())
                process.stdin.close()
            for line in _lines(process, ends):
                word, _, rest = line.partition(" ")
                if word == "failed":
                    raise UnsupportedError(f"P2P could not be checked: {rest}")
                if word in ("begin", "good", "bad", "untried"):
                    a, b, *why = rest.split(" ", 2)
                    trying = (int(a), int(b)) if word == "begin" else None
                    if word != "begin":
                        answers = self.untried if word == "untried" else self.faults
                        answers[int(a), int(b)] = "" if word == "good" else " ".join(why)
        except TimeoutError:
            verdict = "the driver did not answer in time"
        finally:
            code = _end(process)
        if not self._open(pairs):
            return
        self.broke_down = True
        if trying is None:
            raise UnsupportedError(f"P2P could not be checked: {verdict} before the first copy (exit code {code})")
        _log.warning("the peer check of GPUs %d and %d: %s (exit code %s)", *trying, verdict, code)
        self.faults[trying] = verdict


def _lines(process: subprocess.Popen[bytes], ends: float) -> Iterator[str]:
    """The child's lines as they arrive; TimeoutError if the next one takes too long."""
    assert process.stdout is not None
    pipe, buffer, begun = process.stdout.fileno(), b"", False
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            left = ends - time.monotonic()
            if not selector.select(max(0.0, min(left, PAIR_DEADLINE_S) if begun else left)):
                raise TimeoutError
            data = os.read(pipe, _MOST_LINE)
            if not data:
                return
            begun = True
            *whole, buffer = (buffer + data).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """End the child and return its exit code; None if it is stuck in the kernel and cannot be killed."""
    if process.stdout is not None:
        process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(0.5)
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(2.0)
    return None
