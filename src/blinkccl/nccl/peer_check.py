"""Whether the GPUs of a job may write into each other's memory: bytes are moved and compared before P2P is trusted.

Drivers, hypervisors and IOMMUs have been seen to grant peer access and then to lose bytes, to hang or to crash. So each
ordered pair is tried once, in a child process with a deadline. A pair that fails is a missing link, provenance
``measured``. What was found holds until the host boots again, and is kept in the cache for so long.

Where ranks have their GPUs to themselves (compute mode EXCLUSIVE_PROCESS), or have filled their memory, the child gets
neither context nor memory. Such pairs are good if CUDA grants them access, and nothing is kept: the ranks look for
themselves whether what they write arrives (``native/shim/peer_write_probe.h``).
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
#: Contexts on eight GPUs of an idle machine take some seconds; one copy takes milliseconds.
DEADLINE_S, PAIR_DEADLINE_S = 30.0, 5.0
#: A driver that has failed so often is not asked again.
MOST_CHILDREN = 4
_MOST_LINE = 4096

_log = logging.getLogger(__name__)


class _Kept(msgspec.Struct, frozen=True):
    """The file of one boot and driver: [UUID, UUID, what is wrong or ""] for each ordered pair that was tried."""

    pairs: list[tuple[str, str, str]]


def bad_pairs(
    job: GpuJob,
    directory: Path | None,
    deadline_s: float = DEADLINE_S,
    note: Callable[[str], None] = lambda text: None,
) -> dict[Pair, str]:
    """The ordered pairs of *ranks* that cannot write to each other, with what was seen.

    Results are kept in ``directory``; the deadline is for all pairs together; ``note`` is told of those that could not
    be tried. UnsupportedError: nothing can be said, as there is no driver, or rank 0 does not see the GPUs. Ranks that
    share a GPU reach each other always. Cost where nothing is kept: a process and a context per GPU, 10 ms per pair.
    """
    gpus, uuids = job.gpus, [peer.uuid for peer in job.peers]
    pairs = [(a, b) for a in gpus for b in gpus if a != b]
    path = None if directory is None else directory / f"{_digest(job)}.json"
    found = _kept(path) if pairs else {}
    missing = [(gpus.index(a), gpus.index(b)) for a, b in pairs if (a, b) not in found]
    if missing:
        check = _Check(gpus, deadline_s)
        found |= {(gpus[a], gpus[b]): why for (a, b), why in check.run(missing).items()}
        if path is not None and not check.broke_down:
            _keep(path, found)
        for (a, b), why in list(check.untried.items())[:1]:
            note(
                f"{len(check.untried)} of {len(missing)} ordered pairs of GPUs are taken on CUDA's word, as the peer "
                f"check gets no context or memory there (rank {uuids.index(gpus[a])} to rank "
                f"{uuids.index(gpus[b])}: {why})"
            )
    ranks = [(a, b) for a in range(job.size) for b in range(job.size)]
    return {(a, b): found[uuids[a], uuids[b]] for a, b in ranks if found.get((uuids[a], uuids[b]))}


def _digest(job: GpuJob) -> str:
    peer = job.peers[0]
    about = [package_version(), peer.boot_id, peer.driver_version, os.environ.get("BLINK_CUDA_LIB", "")]
    return sha256(json.dumps(about).encode()).hexdigest()[:32]


def _kept(path: Path | None) -> dict[tuple[str, str], str]:
    """What was found before, by the GPUs' UUIDs; nothing where that cannot be read."""
    if path is None:
        return {}
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=_Kept).pairs
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return {}
    return {(a, b): why for a, b, why in rows}


def _keep(path: Path, found: Mapping[tuple[str, str], str]) -> None:
    rows = [[a, b, why] for (a, b), why in sorted(found.items())]
    with suppress(OSError, LaunchError):  # a cache is a help and no duty
        private_directory(path.parent)
        write_at_once(path, json.dumps({"pairs": rows}).encode())


@dataclass
class _Check:
    """Children that try pairs until all are tried, or the driver has failed too often."""

    gpus: tuple[str, ...]
    deadline_s: float
    found: dict[Pair, str] = field(default_factory=dict)
    untried: dict[Pair, str] = field(default_factory=dict)
    broke_down: bool = False

    def run(self, pairs: Sequence[Pair]) -> dict[Pair, str]:
        """Every pair with what is wrong with it, or ""; without those in ``untried``, of which nothing is known."""
        ends = time.monotonic() + self.deadline_s
        for _ in range(MOST_CHILDREN):
            left = self._open(pairs)
            if not left or time.monotonic() >= ends:
                break
            self._child(left, ends)
        for pair in self._open(pairs):
            self.broke_down = True
            self.found[pair] = "not tried, as the driver hung or crashed on other pairs"
        return self.found

    def _open(self, pairs: Sequence[Pair]) -> list[Pair]:
        return [pair for pair in pairs if pair not in self.found and pair not in self.untried]

    def _child(self, pairs: Sequence[Pair], ends: float) -> None:
        """One child's answers; the pair that it hangs or crashes on is bad."""
        # Launchers show each rank its own GPU alone; the child needs all in sight.
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
                        answers = self.untried if word == "untried" else self.found
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
        self.found[trying] = verdict


def _lines(process: subprocess.Popen[bytes], ends: float) -> Iterator[str]:
    """What the child says, as it says it; TimeoutError if it is silent for too long."""
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
    """Ends the child and tells its exit code; None where it is stuck in the kernel, which nobody can help."""
    if process.stdout is not None:
        process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(0.5)
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(2.0)
    return None
