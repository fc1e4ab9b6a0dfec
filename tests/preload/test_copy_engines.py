"""Copy engines: the same bits as from NCCL under any delay, with as few streams and waits as possible."""

import re
from pathlib import Path

import pytest
from preloaded import Preloaded

from blinkccl.nccl import bundle as bundles
from blinkccl.nccl.programs import candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec
from support.examples import ALL_TESTS

TREES = {"BLINK_TOPO": "dgx-1v", "BLINK_ALGO": "blink"}
#: So little staging memory that a call has more chunks than a connection has slots.
NARROW = "3M"
JOBS = [
    ("process", "dgx-1v", 4, "blink", NARROW),
    ("threads", "clique:4", 4, "one_hop", "1M"),
    # A rank still sends its data to one peer while those of another arrive, which in place replace them.
    ("threads", "clique:4", 4, "one_shot", "1M"),
    # GPUs of Mist's two processors reach each other through host memory only.
    ("process", "mist", 4, "ring", "2M"),
]
if ALL_TESTS:
    JOBS += [
        ("threads", "dgx-1v", 4, "blink", NARROW),
        ("threads", "ring:5", 5, "ring", "2M"),
        ("threads", "mist", 4, "optimal", "4M"),
    ]
#: Seed 0 delays nothing. Without BLINK_ALL_TESTS Mist uses seed 0, and the other jobs seed 1.
SEEDS = (0, 1, 2, 3) if ALL_TESTS else (1,)


@pytest.mark.parametrize(
    ("mode", "topo", "ranks", "algo", "staging", "seed"),
    [(*job, seed) for job in JOBS for seed in (SEEDS if ALL_TESTS or job[1] != "mist" else (0,))],
)
def test_equals_nccl_whatever_runs_late(
    preloaded: Preloaded, mode: str, topo: str, ranks: int, algo: str, staging: str, seed: int
) -> None:
    job = {"BLINK_TOPO": topo, "BLINK_ALGO": algo, "BLINK_STAGING_BYTES": staging, "BLINK_DOUBLE_SEED": seed}
    sizes = {"cases": "types,sizes,scaled", "sizes": "1,1000,60000"}
    outcome = preloaded.client(mode, ranks, **sizes, timeout_s=150, BLINK_PROTOCOL="copies", **job)
    assert outcome.right().agreed()
    assert outcome.calls("blink")["allreduce"] > 0
    assert {line.protocol for line in outcome.usage if line.state == "blink"} == {"copies"}


def journals(preloaded: Preloaded, count: int, place: Path, **variables: object) -> tuple[list[list[str]], int]:
    """The driver functions that each of four ranks calls for one AllReduce of floats, and its chunk's bytes."""
    files = [place.with_name(f"{place.name}.{rank}") for rank in range(4)]
    each = [{"BLINK_DOUBLE_JOURNAL": file} for file in files]
    outcome = preloaded.scene("many_calls", 4, count=count, each=each, **{**TREES, **variables}).right()
    (bundle,) = {path for one in outcome.ended for path in re.findall(r"blink planner: bundle: (\S+) after", one.err)}
    rows = bundles.read(Path(bundle, bundles.FILE).read_bytes())["choice"]
    meant = [row for row in rows if row["collective"] == bundles.CODES["allreduce"]]
    (chunk_bytes,) = {row["chunk_bytes"] for row in meant if row["least"] <= 4 * count <= row["most"]}
    return [[line.split()[0] for line in file.read_text().splitlines()] for file in files], chunk_bytes


def uses(program: Program) -> list[tuple[int, int, bool, int]]:
    """Rank, level, direction (True: sends) and peer of every copy, and of roles without sends."""
    roles, queues = program.roles, program.queues
    sender = {queue: number for number, role in enumerate(roles) for queue in role.sends}
    level: dict[int, int] = {}
    for number in sorted(range(len(roles)), key=lambda one: roles[one].offset):
        level[number] = max((level[sender[queue]] + 1 for queue in roles[number].receives), default=0)
    return [
        (role.rank, level[number], *peer)
        for number, role in enumerate(roles)
        for peer in [(True, queues[queue].dst) for queue in role.sends]
        or [(False, queues[role.receives[0]].src if role.receives else -1)]
    ]


def test_streams_chunks_and_waits(preloaded: Preloaded, tmp_path: Path) -> None:
    count = 60_000
    narrow = {"BLINK_PROTOCOL": "copies", "BLINK_STAGING_BYTES": NARROW}
    copies, chunk_bytes = journals(preloaded, count, tmp_path / "copies", **narrow)
    simple, _ = journals(preloaded, count, tmp_path / "simple", BLINK_PROTOCOL="simple")
    topology = parse_spec(TREES["BLINK_TOPO"])
    planned = candidates(JobPlacement(topology, topology.ranks[:4]), (TREES["BLINK_ALGO"],), 8, {})

    # Trees that share a link at one level share a stream.
    streams, others = (sum(called.count("cuStreamCreate") for called in ranks) for ranks in (copies, simple))
    every = [use for one in planned.every for use in uses(one.program)]
    assert streams - others == len(set(every)) < len(every)

    # Slices of any size have the same number of chunks. Sender and receiver count each message, and a launch counts its
    # beginning and its end.
    (one,) = planned.by_key["allreduce", -1]
    even, plain = (
        sum(cut[role.slice].chunks * len(role.sends) for role in one.program.roles)
        for cut in (bind(one.program, count, 4, chunk_bytes, even_chunks=even).extents for even in (True, False))
    )
    assert sum(called.count("cuStreamWriteValue64_v2") for called in copies) == 2 * even + 2 * 4
    assert even > plain

    # Between the program's own calls before and after it, a launch never waits on the host.
    for called in copies:
        begin = max(at for at, name in enumerate(called) if name == "cuMemsetD8Async")
        launch = called[begin : called.index("cuMemcpyDtoHAsync_v2", begin)]
        assert {"cuStreamWaitValue64_v2", "cuMemcpyDtoDAsync_v2", "cuLaunchKernel"} <= set(launch)
        assert [name for name in launch if "Synchronize" in name or "Query" in name] == []
        assert all(name.endswith(("Async", "Async_v2")) for name in launch if name.startswith("cuMemcpy"))


def test_staged_chunks_are_copied_up_and_down(preloaded: Preloaded, tmp_path: Path) -> None:
    """On Mist GPUs of different processors reach each other through the host: one copy up and one down per chunk."""
    count = 200_000
    mist = {"BLINK_TOPO": "mist", "BLINK_ALGO": "ring"}
    narrow = {"BLINK_PROTOCOL": "copies", "BLINK_STAGING_BYTES": "1M"}
    copies, chunk_bytes = journals(preloaded, count, tmp_path / "copies", **narrow, **mist)
    simple, _ = journals(preloaded, count, tmp_path / "simple", BLINK_PROTOCOL="simple", **mist)
    topology = parse_spec("mist")
    (one,) = candidates(JobPlacement(topology, topology.ranks[:4]), ("ring",), 8, {}).by_key["allreduce", -1]
    program = one.program
    extents = bind(program, count, 4, chunk_bytes, even_chunks=True).extents
    staged = sum(
        extents[role.slice].chunks for role in program.roles for queue in role.sends if program.queues[queue].is_staged
    )
    assert staged > 4 * sum(queue.is_staged for queue in program.queues), "more chunks than slots"

    def more(name: str) -> int:
        return sum(called.count(name) for called in copies) - sum(called.count(name) for called in simple)

    assert more("cuMemcpyDtoHAsync_v2") == more("cuMemcpyHtoDAsync_v2") == staged
