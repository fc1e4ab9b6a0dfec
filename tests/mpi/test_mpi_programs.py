"""Unchanged MPI programs with libblink_mpi.so before their library: equal results, and a report of all calls."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_libraries import LIBRARIES

from support.examples import ALL_TESTS

COLLECTIVES = {
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
}
LATER = "nonblocking or persistent"
AMONG_HOSTS = "across hosts, where Blink serves Allreduce only"
#: Thousands of calls of spinning ranks take 5 s alone, and took 100 s beside tests that keep all cores busy.
LONG_S = 280
#: Options for which a long message needs its sender until its end, even where the kernel could copy it at once.
NO_SINGLE_COPY = ["--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "smsc", "^cma,knem,xpmem"]
#: Tests that hardly depend on the MPI library use one library.
DETAILS = pytest.mark.parametrize(
    "mpi", LIBRARIES if ALL_TESTS else LIBRARIES[:1], indirect=True, ids=lambda row: row[0]
)


@pytest.mark.parametrize("ranks", [2, 3, 4] if ALL_TESTS else [3])
def test_every_result_is_that_of_mpi(mpi, ranks):
    # With more ranks than cores MPICH's own half of the calls spins: 46 s of 2 cores for 4 ranks and counts up to 5003,
    # and more without Blink.
    spins = mpi.name != "openmpi" and ranks > 2
    ranks = 2 if spins and not ALL_TESTS else ranks
    most = "130" if not ALL_TESTS else "5003" if spins else "70001"
    done = mpi.run(mpi.launch(ranks, mpi.program("checked.c"), most), deadline_s=LONG_S)
    assert done.code == 0, done.err
    assert ", 0 wrong" in done.out
    assert set(done.rows("blink")) == COLLECTIVES
    assert done.reasons() >= {
        "a communicator of one rank",
        "an intercommunicator",
        "a type or operation that Blink does not reduce",
        "nothing to move",
        "at most 256 bytes from or to one rank, which MPI sends without waiting for the receiver",
        LATER,
        "a collective that Blink does not serve",
    }
    left = {name for name, rows in done.rows("mpi").items() if {row["why"] for row in rows} == {LATER}}
    assert left - {"MPI_Allreduce_init"} == {"MPI_Iallreduce", "MPI_Iscan"}  # MPI 4 has the first
    for name in ("MPI_Gatherv", "MPI_Scatterv", "MPI_Alltoallv"):  # no rank knows all sizes, so none may decide
        assert {row["why"] for row in done.rows("mpi")[name]} == {"a communicator of one rank"}


def test_mpis_guarantees_for_messages_threads_and_handles(mpi):
    names = ["progress", "unexpected", "threads", "handles", "kinds", "between", "roots"]
    line = mpi.launch(2, mpi.program("behaviour.c"), *names, options=NO_SINGLE_COPY if mpi.name == "openmpi" else [])
    done = mpi.run(line, {"BLINK_TIMEOUT": "20"})
    assert done.code == 0, done.err
    assert done.out.split("\n")[:-1] == [f"{name} is done" for name in names]
    assert sum(row["calls"] for row in done.rows("blink")["allreduce"]) > 1500


def test_first_calls_on_other_communicators_than_the_world_go_to_mpi(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "handles", "threads"), {"BLINK_MPI_AFTER": "10"})
    assert done.code == 0, done.err
    early = [row for row in done.rows("mpi")["MPI_Allreduce"] if "BLINK_MPI_AFTER" in row["why"]]
    assert [row["calls"] for row in early] == [15 + 3 * 9]  # the other 15 are of one rank
    assert sum(row["calls"] for row in done.rows("blink")["allreduce"]) == 3 * (300 - 9)


@DETAILS
def test_calls_that_differ_are_an_error_that_names_both(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "mismatch"))
    assert "MPI_ERR_OTHER" in done.out
    assert "success" not in done.out
    assert "allreduce of 4 × int32, sum" in done.err
    assert "allreduce of 5 × int32, sum" in done.err


def test_many_calls_from_or_to_one_rank(mpi):
    ranks = 4 if mpi.name == "openmpi" else 2
    done = mpi.run(mpi.launch(ranks, mpi.program("behaviour.c"), "one_way"), {"BLINK_TIMEOUT": "20"})
    assert done.code == 0, done.err
    assert done.out == "one_way is done\n"
    for name in ("broadcast", "reduce", "scatter", "gather"):
        assert [row["calls"] for row in done.rows("blink")[name]] == [300]


@DETAILS
def test_a_program_keeps_some_of_its_file_descriptors(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "descriptors"))
    assert done.code == 0, done.err
    assert 10 < sum(row["calls"] for row in done.rows("blink")["allreduce"]) < 60
    assert "few file descriptors are left" in done.err


@DETAILS
def test_ranks_without_an_announcement_go_to_mpi(mpi):
    """Each searches for the others at its first collective, possibly long after theirs."""
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "unseen", "kinds"))
    assert done.code == 0, done.err
    assert done.reasons() == {"not all ranks are under the same blink run --mpi, or not on this host"}
    assert not done.rows("blink")


@DETAILS
@pytest.mark.parametrize("module", ["mpi", "mpi_f08"])
def test_fortran_programs_are_served(mpi, module, tmp_path):
    compiler = shutil.which(mpi.installed.compiler[0].replace("mpicc", "mpif90"))
    wraps = compiler and subprocess.run([compiler, "--version"], capture_output=True, timeout=30).returncode == 0
    if "mpicc" not in mpi.installed.compiler[0] or not wraps:
        pytest.skip("needs the MPI library's Fortran compiler beside its mpicc (Debian: apt install gfortran)")
    program, types = tmp_path / "fortran", ["-DOF_TYPES"] if module == "mpi_f08" else []
    source = Path(__file__).with_name("fortran.f90")
    line = [compiler, "-cpp", f"-DMODULE={module}", *types, "-fallow-argument-mismatch", source, "-o", program]
    subprocess.run(line, check=True, capture_output=True, timeout=100)
    done = mpi.run(mpi.launch(2, program), deadline_s=30)
    assert (done.code, done.out) == (0, "fortran is done\n"), done.err
    assert sum(row["calls"] for rows in done.rows("blink").values() for row in rows) == 3
    assert {"MPI_Iallreduce", "MPI_Iallgather", "MPI_Ibcast"} <= set(done.rows("mpi"))


@DETAILS
def test_an_own_block_with_two_lengths_is_an_error(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "own_block"))
    assert "rank 0: MPI_ERR_OTHER" in done.out
    assert "rank 1: MPI_ERR_OTHER" in done.out
    assert "this rank's own block has different lengths in its input and output" in done.err
    assert "success" not in done.out


@DETAILS
def test_blocks_without_a_plan_are_an_error_and_do_not_go_to_mpi(mpi):
    """The other ranks have a plan, and would wait for this one."""
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "own_block_of_many"))
    assert done.out == "rank 1: MPI_ERR_OTHER\n"
    assert "blink: allgather on communicator" in done.err


@DETAILS
def test_disagreement_about_another_ranks_block_is_an_error(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "disagree"))
    assert "rank 1: MPI_ERR_OTHER" in done.out
    assert "rank 1 calls allgather of blocks of several sizes" in done.err


@DETAILS
def test_ranks_waiting_in_different_calls_is_an_error(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "crossed"))
    assert "rank 0: MPI_ERR_OTHER" in done.out
    assert "rank 1: MPI_ERR_OTHER" in done.out
    assert "rank 0 calls reduce of 100 × int32, sum, root 0" in done.err
    assert "rank 1 calls broadcast of 400 × uint8, root 0" in done.err


@DETAILS
def test_a_missing_rank_is_named_after_the_timeout(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "late"), {"BLINK_TIMEOUT": "1"})
    assert "rank 0: MPI_ERR_OTHER" in done.out
    assert "rank 0 waited 1 s for rank 1 (BLINK_TIMEOUT)" in done.err


@DETAILS
def test_the_death_of_a_rank_ends_the_job(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "killed"))
    assert done.code != 0
    assert "is done" not in done.out


@DETAILS
def test_ranks_on_several_hosts_and_ranks_without_the_library_are_left_to_mpi(mpi):
    program = str(mpi.program("checked.c"))
    for wrapper in (["env", "BLINK_HOSTID=another"], ["env", "-u", "LD_PRELOAD"]):
        line = [*mpi.launch(1, program, "1"), ":", "-n", "1", *wrapper, program, "1"]
        done = mpi.run(line)
        assert done.code == 0, done.err
        assert ", 0 wrong" in done.out
        assert not done.rows("blink")
        assert "not all ranks are under the same blink run --mpi, or not on this host" in done.reasons()


#: Ranks on simulated hosts, by their numbers, and the reason why Blink serves no call.
ON_HOSTS = {
    "as many on each": (4, "$((r / 2))", None),
    "in turns": (4, "$((r % 2))", None),
    "more on one": (3, "$((r / 2))", "across hosts with different numbers of ranks"),
    "apart": (2, "$r", "no host has more than one of the ranks"),
}


def on_hosts(mpi, where, *program):
    ranks, host, _ = ON_HOSTS[where]
    wrapper = f'r=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}; BLINK_HOSTID=host{host} exec "$0" "$@"'
    return mpi.launch(ranks, "sh", "-c", wrapper, *program)


@pytest.mark.parametrize("where", ON_HOSTS if ALL_TESTS else ["as many on each", "more on one"])
def test_an_allreduce_across_hosts_reduces_inside_each(mpi, where, tmp_path):
    if mpi.name != "openmpi" and not ALL_TESTS:
        pytest.skip("MPICH's ranks spin: BLINK_ALL_TESTS=1 runs it")
    most = "70001" if mpi.name == "openmpi" and ALL_TESTS else "130"
    line = on_hosts(mpi, where, mpi.program("checked.c"), most)
    done = mpi.run(line, options=["--shared-dir", str(tmp_path)], deadline_s=LONG_S)
    assert done.code == 0, done.err
    assert ", 0 wrong" in done.out
    assert not list(tmp_path.iterdir())
    why = {name: {row["why"] for row in done.rows("mpi")[name]} for name in ("MPI_Bcast", "MPI_Allreduce")}
    assert (ON_HOSTS[where][2] or AMONG_HOSTS) in why["MPI_Bcast"]
    assert AMONG_HOSTS not in why["MPI_Allreduce"]


@DETAILS
def test_an_allreduce_across_hosts_uses_slices(mpi, tmp_path):
    line = on_hosts(mpi, "as many on each", mpi.program("behaviour.c"), "across")
    done = mpi.run(line, options=["--shared-dir", str(tmp_path)])
    assert done.code == 0, done.err
    assert done.out == "across is done\n"
    # On each of two hosts: one slice for each of the two long sums; the element that both leave over, and the short
    # one.
    calls = {name: [row["calls"] for row in rows] for name, rows in done.rows("blink").items()}
    assert calls == {"reduce_scatter": [2, 2], "allgather": [2, 2], "allreduce": [3, 3]}
    assert not done.rows("mpi")


@DETAILS
def test_a_rank_missing_from_the_shared_directory_ends_the_job(mpi, tmp_path, monkeypatch):
    """Ranks that miss it would call MPI, and the others Blink."""
    program = str(mpi.program("behaviour.c"))
    line = [*mpi.launch(1, program, "kinds"), ":", "-n", "1", "env", "-u", "LD_PRELOAD", program, "kinds"]
    done = mpi.run(line, {"BLINK_MPI_PATIENCE": "1"}, options=["--shared-dir", str(tmp_path)])
    assert done.code != 0
    assert "--shared-dir requires that all ranks run under this blink run, but rank 1 is not in" in done.err


@DETAILS
@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("BLINK_PYTHON", "/no/such/python", "rank 0: the planner (/no/such/python -m"),
        ("BLINK_DISABLE", "1", "rank 0: BLINK_DISABLE=1"),
    ],
)
def test_without_plans_or_when_disabled_all_calls_go_to_mpi(mpi, variable, value, why):
    changed = ["env", "-u", "BLINK_MPI_BUNDLES", f"{variable}={value}"]
    done = mpi.run(mpi.launch(2, *changed, mpi.program("checked.c"), "1"))
    assert done.code == 0, done.err
    assert ", 0 wrong" in done.out
    assert not done.rows("blink")
    assert why in done.err


@DETAILS
def test_with_a_gpu_library_all_calls_go_to_mpi(mpi, tmp_path):
    """GPU memory may be passed by some ranks only."""
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-x", "c", os.devnull, "-o", library, f"-Wl,-soname,{library.name}"], check=True)
    done = mpi.run(mpi.launch(2, mpi.program("checked.c"), "1"), {"LD_PRELOAD": str(library)})
    assert done.code == 0, done.err
    assert not done.rows("blink")
    assert "a GPU library is loaded" in done.err


@DETAILS
def test_a_binding_for_another_library_is_not_used(mpi, tmp_path):
    """This happens if mpicc and mpirun on PATH belong to different libraries."""
    other = "mpicc.mpich" if mpi.name == "openmpi" else "mpicc.openmpi"
    if shutil.which(other) is None:
        pytest.skip(f"needs {other}")
    done = mpi.run(mpi.launch(2, mpi.program("checked.c"), "1"), options=["--mpicc", other])
    assert done.code == 0, done.err
    assert ", 0 wrong" in done.out
    assert not done.rows("blink")
    assert "Blink serves no calls: the binding" in done.err


@DETAILS
def test_a_library_that_was_loaded_for_a_wrapper_alone_is_found(mpi, tmp_path):
    """MPItrampoline does so for JAX. The wrapper ends with the call, so it leaves no return address."""
    wrapper = "#include <mpi.h>\nint begin(void) { return MPI_Init(0, 0); }\nint end(void) { return MPI_Finalize(); }\n"
    program = (
        "#include <dlfcn.h>\nint main(void) { void* it = dlopen(WRAPPER, RTLD_NOW | RTLD_LOCAL);\n"
        'return ((int (*)(void))dlsym(it, "begin"))() + ((int (*)(void))dlsym(it, "end"))(); }\n'
    )
    (tmp_path / "wrapper.c").write_text(wrapper)
    (tmp_path / "program.c").write_text(program)
    library, executable = tmp_path / "wrapper.so", tmp_path / "program"
    line = [*mpi.installed.compiler, "-O2", "-shared", "-fPIC", tmp_path / "wrapper.c", "-o", library]
    subprocess.run(line, check=True)
    subprocess.run(["cc", f'-DWRAPPER="{library}"', tmp_path / "program.c", "-o", executable, "-ldl"], check=True)
    done = mpi.run(mpi.launch(2, executable))
    assert done.code == 0, done.err


@DETAILS
def test_a_program_without_mpi_is_not_affected(mpi):
    done = mpi.run(mpi.launch(1, sys.executable, "-c", "print(1 + 1)"), options=["--require"])
    assert (done.code, done.out) == (1, "2\n")
    assert "libblink_mpi.so was not used: it received no MPI call" in done.err


@DETAILS
@pytest.mark.parametrize("how", ["abort", "signal", "deadline"])
def test_ranks_that_end_before_they_can_report_are_counted(mpi, tmp_path, how):
    """They are named, and no message says that CMD is no MPI program."""
    program = """#include <mpi.h>
#include <signal.h>
#include <unistd.h>
int main(int argc, char** argv) {
  int rank, one = 1, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 0; i < 100; ++i) MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0 && argv[1][0] == 'a') MPI_Abort(MPI_COMM_WORLD, 3);
  if (rank == 0 && argv[1][0] == 's') raise(SIGSEGV);
  for (;;) pause();
}
"""
    (tmp_path / "program.c").write_text(program)
    executable = tmp_path / "program"
    subprocess.run(
        [*mpi.installed.compiler, tmp_path / "program.c", "-o", executable, *mpi.installed.options], check=True
    )
    line = mpi.launch(2, executable, how)
    done = mpi.run(["timeout", "8", *line] if how == "deadline" else line)
    assert done.code != 0
    assert re.search(r"[12] of 2 processes that called MPI ended before .*: process \d+ \(rank [01]\)", done.err)
    assert "was not used" not in done.err
    assert done.used["used"]
    assert done.used["silent"]


@pytest.mark.slow
def test_more_than_2_gib_go_to_mpi_unless_blocks_differ(mpi):
    done = mpi.run(mpi.launch(2, mpi.program("behaviour.c"), "large"))
    assert done.code == 0, done.err
    assert "more than 2^31 bytes" in done.reasons()
    assert [row["most"] for row in done.rows("blink")["allgather"]] == [2_200_000_000]


def test_a_missing_compiler_is_reported_with_a_remedy(blink, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = blink("run", "--mpi", "--", "mpirun", "-n", "2", "./app")
    assert ended.code == 3
    assert "there is no mpicc" in ended.err
    assert "apt install libopenmpi-dev" in ended.err
    ended = blink("run", "--mpi", "--mpicc", "no-such-mpicc", "--", "mpirun", "-n", "2", "./app")
    assert ended.code == 3
    assert "there is no no-such-mpicc" in ended.err


def test_options_of_the_other_library_are_refused(blink):
    for options in (
        ["--mpi", "--algo", "ring"],
        ["--mpi", "--topo", "clique:2"],
        ["--mpicc", "mpicc"],
        ["--shared-dir", "."],
    ):
        ended = blink("run", *options, "--", "true")
        assert ended.code == 2
        assert ended.out == ""
