"""Peers are found, identified and compiled, and give correct results."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from blinkccl.bench.bound import Probe
from blinkccl.bench.candidate import RunningCandidate
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.peers import build, registry
from blinkccl.bench.peers.registry import VARIANTS, variants
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import UnsupportedError
from support.extras import needs
from support.planned import with_ends

C_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def _installed(peer):
    try:
        registry.installation(peer, None)
    except UnsupportedError:
        return False
    return True


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache of this test run: peers are compiled once, and the user's cache is not touched."""
    room = tmp_path_factory.getbasetemp() / "peer-cache"
    monkeypatch.setenv("BLINK_CACHE", str(room))
    return room


def _right(candidate, collectives, ranks):
    for name in collectives:
        # MPICH 4.0.2 crashes on MPI_Reduce in place at a root other than 0.
        chosen = with_ends(name, ranks, root=0 if name == "reduce" else -1)
        for in_place in (False, True) if name != "alltoall" else (False,):
            for count in (1, 20_000):
                work = TimedCall(chosen, count, in_place=in_place, iterations=2)
                measured = candidate.run(commands(work))
                assert measured.wrong == 0, (name, in_place, count)
                assert measured.seconds.shape == (ranks, 2)
                assert (measured.seconds > 0).all()


@pytest.mark.parametrize("peer", ["openmpi", "mpich", "impi"])
def test_mpi_runs_every_collective(peer):
    if not _installed(peer):
        pytest.skip(f"{peer} is not on PATH")
    [launch, *_] = registry.launches(peer, None, 2, cores=2)
    with RunningCandidate(launch) as candidate:
        assert registry.LIBRARIES[peer] in candidate.library
        _right(candidate, COLLECTIVES, 2)
        for settings in ({"op": "avg"}, {"dtype": "bfloat16"}, {"shared": True}):
            with pytest.raises(UnsupportedError, match="rank 0: "):
                candidate.run(commands(TimedCall(Collective("allreduce", 2), 8, **settings)))
        moved = TimedCall(Collective("broadcast", 2, root=1), 5000, "bfloat16")
        assert candidate.run(commands(moved)).wrong == 0


def test_files_of_open_mpi_are_removed_with_its_ranks():
    """Open MPI leaves its files if it is killed with its launcher, so they are put into the removed directory."""
    if not _installed("openmpi"):
        pytest.skip("openmpi is not on PATH")
    [launch, *_] = registry.launches("openmpi", None, 3, cores=4)
    with RunningCandidate(launch) as candidate:
        folder = candidate._directory
        assert candidate.run(commands(TimedCall(Collective("allreduce", 3), 5000))).wrong == 0
        assert len(list(folder.glob("*_segment.*"))) >= 3
        for process in candidate._processes:
            process.kill()
    assert not folder.exists()


@needs("torch")
def test_gloo_runs_every_collective():
    with RunningCandidate(registry.gloo(2)) as candidate:
        assert candidate.library.startswith("gloo (torch ")
        _right(candidate, COLLECTIVES, 2)
        with pytest.raises(UnsupportedError, match="gloo has no operation premul_sum"):
            candidate.run(commands(TimedCall(Collective("allreduce", 2), 8, op="premul_sum")))


def test_peers_as_typed():
    assert registry.parse("gloo, openmpi=/opt/x=1,openmpi") == [
        ("gloo", None),
        ("openmpi", "/opt/x=1"),
        ("openmpi", None),
    ]
    assert registry.parse("") == []
    with pytest.raises(UnsupportedError, match="--peer nccl: expected some of gloo, openmpi, mpich, impi"):
        registry.parse("gloo,nccl")


@pytest.mark.parametrize("peer", registry.LIBRARIES)
def test_a_prefix_without_the_library(peer, tmp_path):
    with pytest.raises(UnsupportedError, match=f"{peer}={tmp_path}: expected .* there"):
        registry.launches(peer, str(tmp_path), 2, 2)


def test_a_library_that_is_not_on_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="mpich is not on PATH: install it, or name its prefix with --peer"):
        registry.installation("mpich", None)


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("version", "peers"),
    [
        ("mpirun (Open MPI) 4.1.4", {"openmpi"}),
        ("HYDRA build details:", {"mpich", "impi"}),
        ("Intel(R) MPI Library for Linux", {"impi"}),
    ],
)
def test_launchers_are_identified_by_their_version(monkeypatch, tmp_path, version, peers):
    for name in ("mpicc", "mpigcc"):
        _program(tmp_path / name, "exit 0")
    _program(tmp_path / "mpirun", f"echo '{version}'")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert {peer for peer in registry.LIBRARIES if _installed(peer)} <= peers
    assert "openmpi" not in peers or _installed("openmpi")


def test_a_prefix_need_not_be_on_path(monkeypatch, tmp_path):
    """A launcher under a prefix finds the other programs of its package."""
    for name in ("bin", "lib", "include"):
        (tmp_path / name).mkdir()
    for name in ("lib/libmpi.so", "include/mpi.h"):
        (tmp_path / name).touch()
    _program(tmp_path / "bin/mpirun", "exit 0")
    monkeypatch.setattr(registry, "build", lambda *_: Path("peer"))
    [launch] = registry.launches("impi", str(tmp_path), 2, cores=2)
    [process] = launch.processes(Path("socket"), tmp_path)
    assert process.command[0] == str(tmp_path / "bin/mpirun")
    assert process.environment["PATH"] == f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    assert process.environment["I_MPI_ROOT"] == str(tmp_path)


@pytest.mark.parametrize("peer", VARIANTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_peer_has_a_variant_for_free_and_for_crowded_cores(peer, ranks):
    rows = variants(peer, ranks, cores=2)
    assert rows
    assert len({row.name for row in rows}) == len(rows)


@C_COMPILER
def test_a_peer_is_compiled_once(cache, monkeypatch):
    first = build.build("probe.c", ("cc",), ("-std=gnu11",))
    assert first.parent == cache / "builds"
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    inode = first.stat().st_ino
    assert build.build("probe.c", ("cc",), ("-std=gnu11",)).stat().st_ino == inode
    assert build.build("probe.c", ("cc",), ("-std=gnu11", "-O1")) != first
    assert os.access(first, os.X_OK)


@C_COMPILER
def test_a_compiler_that_fails_says_why():
    with pytest.raises(UnsupportedError, match=r"(?s)a peer does not compile: cc .*no-such-option"):
        build.build("probe.c", ("cc",), ("--no-such-option",))


def test_without_a_compiler():
    with pytest.raises(UnsupportedError, match="no-such-cc cannot be started for a peer: No such file"):
        build.build("probe.c", ("no-such-cc",))


@C_COMPILER
def test_warnings_are_errors_in_c_too():
    build.build("probe.c", ("cc",), ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror"))


@C_COMPILER
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_the_probe_finds_a_rate_and_a_round_trip():
    with Probe(2) as probe:
        baseline = probe.baseline(2**20)
        assert 1e8 < baseline.bytes_per_s < 1e13
        assert probe.rate(0) > 0
        if baseline.round_trip_s is None:
            assert baseline.placement == "one core"
        else:
            assert 1e-9 < baseline.round_trip_s < 1
            assert baseline.placement in ("near", "far")
