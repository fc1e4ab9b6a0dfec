"""Rank, size and store from launchers' variables: complete, incomplete, contradictory and absent."""

import math
import os
from pathlib import Path

import pytest

from blinkccl.errors import LaunchError, UsageError
from blinkccl.runtime.environment import FindLauncher, Launch, first_host, launch, store_of
from blinkccl.runtime.process import namespace, nearest_without
from blinkccl.runtime.timeouts import DEFAULT_TIMEOUT_S, default_timeout_s, microseconds

RUNTIME = {"XDG_RUNTIME_DIR": ""}
BLINK = {"BLINK_RANK": "1", "BLINK_WORLD_SIZE": "4"}
TORCHRUN = {
    "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-host-19636@1", "PMIX_RANK": "1",
}  # fmt: skip
PMI = {"PMI_RANK": "1", "PMI_SIZE": "3"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "1", "SLURM_NTASKS": "9", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_JOB_ID": "1042", "SLURM_STEP_ID": "7", "SLURM_STEP_NODELIST": "node3",
}  # fmt: skip


def launcher(variable: str) -> tuple[int, int]:
    return 4711, 99


def nowhere(variable: str) -> None:
    return None


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({**BLINK, "BLINK_STORE": "tcp://a:1"}, Launch(1, 4, "blink", "tcp://a:1", "")),
        ({**BLINK, "BLINK_LOCAL_RANK": "0", "BLINK_LOCAL_WORLD_SIZE": "2"}, Launch(1, 4, "blink", None, "")),
        (TORCHRUN, Launch(2, 4, "torchrun", "torchrun://node7:29500", "run/3")),  # the agent serves the store
        (PMI, Launch(1, 3, "pmi", None, "")),  # PMI does not name the host
    ],
)
def test_a_launcher_gives_the_whole_place(environ: dict[str, str], place: Launch) -> None:
    assert launch(environ, launcher) == place


def test_torchs_variables_by_hand_mean_rank_0s_store() -> None:
    by_hand = {key: TORCHRUN[key] for key in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    assert launch({**by_hand, "MASTER_ADDR": "fd00::2"}, launcher).store_url == "torch://[fd00::2]:29500"


def test_mpi_on_one_host_meets_in_the_launchers_directory() -> None:
    for environ, name in ((OPENMPI, "openmpi"), (MPICH, "mpich")):
        place = launch({**environ, **RUNTIME}, launcher)
        assert place.launcher == name
        base = f"file:///tmp/blink-{os.geteuid()}/job-{namespace('pid')}-4711-99-"
        assert place.store_url.startswith(base)
        assert place == launch({**environ, **RUNTIME}, launcher)


def test_ranks_that_mpi_started_on_several_hosts_ask_mpi() -> None:
    local = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert launch({**OPENMPI, **local}, launcher).store_url == "mpi://"
    assert launch({**MPICH, "MPI_LOCALNRANKS": "1"}, launcher).store_url == "mpi://"
    assert launch({**OPENMPI, **local, "BLINK_STORE": "tcp://a:1"}, launcher).store_url == "tcp://a:1"


def test_ranks_of_one_job_agree_on_the_directory() -> None:
    def url(changes: dict[str, str], process: tuple[int, int] = (1, 2)) -> str | None:
        return launch({**OPENMPI, **RUNTIME, **changes}, lambda variable: process).store_url

    mine = url({})
    assert url({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_RANK": "0"}) == mine
    assert len({mine, url({"PMIX_NAMESPACE": "prterun-host-19636@2"}), url({}, (1, 3)), url({}, (2, 2))}) == 4


def test_the_directory_is_in_the_users_own_runtime_directory(tmp_path: Path) -> None:
    url = launch({**MPICH, "XDG_RUNTIME_DIR": str(tmp_path)}, launcher).store_url
    assert url.startswith(f"file://{tmp_path}/blink/job-")
    absent = launch({**MPICH, "XDG_RUNTIME_DIR": str(tmp_path / "absent")}, launcher).store_url
    assert absent.startswith("file:///tmp/blink-")


def test_blink_store_takes_precedence() -> None:
    for environ in (TORCHRUN, OPENMPI, MPICH, SLURM):
        assert launch({**environ, "BLINK_STORE": "file:///x"}, nowhere).store_url == "file:///x"


def test_precedence_is_blink_torchrun_mpi_slurm() -> None:
    assert launch({**SLURM, **PMI}, launcher).launcher == "slurm"
    everything = {**SLURM, **MPICH, **OPENMPI, **TORCHRUN, **BLINK}
    order = []
    for variables in (BLINK, TORCHRUN, OPENMPI, MPICH, SLURM):
        order.append(launch(everything, launcher).launcher)
        everything = {key: value for key, value in everything.items() if key not in variables}
    assert order == ["blink", "torchrun", "openmpi", "mpich", "slurm"]


def test_slurm_on_one_node() -> None:
    place = launch({**SLURM, **RUNTIME}, launcher)
    assert (place.rank, place.world_size) == (1, 3)
    assert place.store_url.startswith("file:///")
    assert place.job_id == "1042/7"


def test_slurm_on_several_nodes_meets_at_the_first() -> None:
    nodes = {"SLURM_STEP_NODELIST": "gpu[03-05]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_STEP_NUM_TASKS": "5"}
    urls = set()
    for node in ("0", "1", "2"):
        place = launch({**SLURM, **nodes, "SLURM_NODEID": node, "SLURM_LOCALID": "0"}, launcher)
        urls.add(place.store_url)
    (url,) = urls
    assert url.startswith("tcp://gpu03:")
    assert 61440 <= int(url.rpartition(":")[2]) <= 65535
    other = launch({**SLURM, **nodes, "SLURM_JOB_ID": "1043"}, launcher).store_url
    assert other != url


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[007,9]-ib,z", "n007-ib"), ("", None), ("[1]", None)],
)
def test_first_host_of_slurms_list(nodelist: str, host: str | None) -> None:
    assert first_host(nodelist) == host


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"BLINK_RANK": "0"}, "BLINK_WORLD_SIZE is missing"),
        ({"BLINK_WORLD_SIZE": "2"}, "BLINK_RANK is missing"),
        ({"RANK": "0"}, "WORLD_SIZE is missing"),
        ({"WORLD_SIZE": "2"}, "RANK is missing"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is missing"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is missing"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is missing"),
        ({"PMI_RANK": "0", "MPI_LOCALRANKID": "0"}, "PMI_SIZE is missing"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a"}, "SLURM_STEP_NUM_TASKS is missing"),
        ({"BLINK_RANK": "2", "BLINK_WORLD_SIZE": "2"}, "BLINK_RANK is 2, but BLINK_WORLD_SIZE is 2"),
        ({"BLINK_RANK": "-1", "BLINK_WORLD_SIZE": "2"}, "BLINK_RANK: expected a whole number from 0, got '-1'"),
        ({"BLINK_RANK": "", "BLINK_WORLD_SIZE": "2"}, "BLINK_RANK: expected"),
        ({"BLINK_RANK": "0", "BLINK_WORLD_SIZE": "0"}, "BLINK_RANK is 0, but BLINK_WORLD_SIZE is 0"),
        ({"BLINK_RANK": "0", "BLINK_WORLD_SIZE": "two"}, "BLINK_WORLD_SIZE: expected a whole number"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "OMPI_COMM_WORLD_LOCAL_SIZE: expected 1 to 2"),
        ({**MPICH, "MPI_LOCALRANKID": "2"}, "MPI_LOCALRANKID is 2, but MPI_LOCALNRANKS is 2"),
        ({}, "BLINK_RANK=0 (1, …) BLINK_WORLD_SIZE=2"),
        ({}, "torchrun --nproc-per-node 2"),
        ({"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "srun -n 2 python"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}, "BLINK_RANK=$PMIX_RANK"),
    ],
)
def test_the_error_names_the_variable(environ: dict[str, str], named: str) -> None:
    with pytest.raises(LaunchError) as raised:
        launch(environ, launcher)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "find"),
    [
        (BLINK, launcher),
        (MPICH, nowhere),
    ],
)
def test_without_a_store_the_error_gives_a_remedy(environ: dict[str, str], find: FindLauncher) -> None:
    place = launch(environ, find)
    assert place.store_url is None
    with pytest.raises(LaunchError) as raised:
        store_of(place)
    assert "BLINK_STORE=tcp://HOST:PORT" in str(raised.value)
    assert store_of(launch({**environ, "BLINK_STORE": "file:///x"}, find)) == "file:///x"


# ---- The launcher's process ------------------------------------------------------------------------------------


def add_process(proc: Path, pid: int, parent: int, start: int, environment: str | None, name: str = "x") -> None:
    row = proc / str(pid)
    row.mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 17, str(start), "0"]
    (row / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")
    if environment is not None:
        (row / "environ").write_bytes(environment.encode().replace(b" ", b"\0"))


def test_the_launcher_is_the_nearest_unmarked_ancestor(tmp_path: Path) -> None:
    wrapper = os.getppid()
    add_process(tmp_path, wrapper, 50, 9, "A=1 RANK=3", name="sh) (x 7 8")
    add_process(tmp_path, 50, 40, 8, "RANK=3 B=2")
    add_process(tmp_path, 40, 1, 7, "LOCAL_RANK=3 B=2")
    add_process(tmp_path, 1, 0, 1, "")
    assert nearest_without("RANK", tmp_path) == (40, 7)
    assert nearest_without("A", tmp_path) == (50, 8)
    assert nearest_without("C", tmp_path) == (wrapper, 9)


def test_an_ancestor_that_hides_its_environment_is_the_launcher(tmp_path: Path) -> None:
    add_process(tmp_path, os.getppid(), 50, 9, "RANK=3")
    add_process(tmp_path, 50, 1, 8, None)
    assert nearest_without("RANK", tmp_path) == (50, 8)


def test_the_launcher_is_unknown_in_another_namespace(tmp_path: Path) -> None:
    add_process(tmp_path, os.getppid(), 0, 9, "RANK=3")
    assert nearest_without("RANK", tmp_path) is None
    assert nearest_without("RANK", tmp_path / "absent") is None


# ---- Timeouts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "seconds"), [(None, DEFAULT_TIMEOUT_S), ("", 300.0), ("7", 7.0), ("0.25", 0.25),
                                               ("1e3", 1000.0)])  # fmt: skip
def test_the_environment_sets_the_timeout(monkeypatch: pytest.MonkeyPatch, text: str | None, seconds: float) -> None:
    if text is None:
        monkeypatch.delenv("BLINK_TIMEOUT", raising=False)
    else:
        monkeypatch.setenv("BLINK_TIMEOUT", text)
    assert default_timeout_s() == seconds


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "five", "5 s", "0x10"])
def test_timeouts_that_are_not_positive_are_rejected_by_name(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BLINK_TIMEOUT", text)
    with pytest.raises(LaunchError, match=f"BLINK_TIMEOUT='{text}': expected a positive number of seconds"):
        default_timeout_s()


@pytest.mark.parametrize(("seconds", "expected"), [(1, 1_000_000), (0.5, 500_000), (1e-9, 1), (1e30, 10**15)])
def test_microseconds_are_at_least_one_and_fit_into_64_bits(seconds: float, expected: int) -> None:
    assert microseconds(seconds) == expected


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_invalid_timeouts_are_rejected(seconds: float) -> None:
    with pytest.raises(UsageError, match="a timeout must be a positive number of seconds"):
        microseconds(seconds)
