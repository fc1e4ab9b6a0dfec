"""Real laboratories: plans over shaped links between namespaces, failing links, and complete clean-up."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from blinkccl.apps.lab import experiment, faults
from blinkccl.apps.lab.experiment import Field, LabCandidate, Measured
from blinkccl.apps.lab.laboratory import Laboratory, Run
from blinkccl.apps.lab.namespaces import lacking
from blinkccl.bench.pattern import TimedCall as Pattern
from blinkccl.bench.peers.registry import installation
from blinkccl.errors import DeadlineError, PeerLostError, StalledError, UnsupportedError, UsageError
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.path_table import machine_key
from blinkccl.trees.algorithms.tables import LABORATORY, Cell, MeasuredTable, Time, from_json, to_json
from support.extras import needs
from support.planned import asked
from support.processes import until, until_gone

pytestmark = pytest.mark.skipif(lacking() is not None, reason=f"no laboratory here: {lacking()}")
MIB = 1 << 20


def field_of(spec: str, name: str, gpus: str | None, algorithms: str = "optimal", **options: object) -> Field:
    return experiment.prepare(asked(spec, name, gpus, **options), algorithms.split(","))


def namespace_of(pid: int | str) -> str:
    """Return the network namespace of a process; "" if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("spec", "name", "gpus", "options"),
    [
        ("dgx-1v", "allreduce", "1,4,5,6", {}),
        ("dgx-2", "allgather", "0,1,2", {}),  # through a switch
        ("dgx-2 @ switches=sharp", "allreduce", "0,1,2", {"algorithms": "in_switch"}),  # reduced in a switch
        ("ring:6", "broadcast", "0,3", {"relays": True}),  # homes and relays
        ("mist", "alltoall", None, {}),  # staged at processors
        ("dgx-1v", "reduce_scatter", "0,1,2", {"links": "all"}),  # fast links and PCIe at once
        ("4x dgx-spark @ cables=ring", "allreduce", None, {}),  # cables and no switch
        ("4x dgx-spark @ cables=ring", "sendrecv", "0,2", {"relays": True}),  # opposite corners, through a third
        ("4x mac-studio @ cables=mesh", "alltoall", None, {}),
    ],
)
def test_plans_of_all_kinds_give_the_right_sums(spec, name, gpus, options) -> None:
    field = field_of(spec, name, gpus, **options)
    with field.laboratory() as lab:
        ((one,),) = experiment.measure(field, lab, [MIB], 2, 20)
    assert one.wrong == 0
    assert len(one.runs) == 2


def test_one_message_over_two_paths_is_split_by_first_calls() -> None:
    """Directly and through the processor's memory: more than either link alone can carry."""
    field = field_of("mist", "sendrecv", "0,1", "multi_path,one_hop")
    with field.laboratory() as lab:
        field = field.ready(lab, 20)
        ((both, direct),) = experiment.measure(field, lab, [4 * MIB], 2, 20)
    assert (both.wrong, direct.wrong) == (0, 0)
    assert both.candidate.forest.rate > 1
    assert field.path_row is not None
    assert {part.path for split in field.path_row.splits for part in split.parts} == {(0, 1), (0, 4, 1)}


@needs("torch")
def test_gloo_runs_beside_plans() -> None:
    field = field_of("dgx-1v", "allreduce", "0,1,4", "gloo_ranks,optimal")
    with field.laboratory() as lab:
        ((gloo, plan),) = experiment.measure(field, lab, [MIB], 1, 20)
    assert (gloo.wrong, plan.wrong) == (0, 0)
    assert len(gloo.runs) == 1


def no_mpi() -> str | None:
    try:
        installation("openmpi", None)
    except UnsupportedError as error:
        return error.reason
    return None


@pytest.mark.skipif(no_mpi() is not None, reason=f"no Open MPI: {no_mpi()}")
def test_open_mpi_runs_beside_plans_and_leaves_nothing() -> None:
    field = field_of("dgx-1v", "allreduce", "0,1,4", "openmpi,optimal")
    with field.laboratory() as lab:
        ((mpi, plan),) = experiment.measure(field, lab, [MIB], 1, 20)
        ours_only = {lab.pid(vertex) for vertex in (0, 1, 4)}
        inside = {namespace_of(pid) for pid in ours_only}
        folders = [folder.name for folder in Path("/proc").glob("[0-9]*")]
        assert {int(pid) for pid in folders if namespace_of(pid) in inside} == ours_only
    assert (mpi.wrong, plan.wrong) == (0, 0)
    assert len(mpi.runs) == 1


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[Field, Laboratory]]:
    """GPUs 0, 1, 2 of a DGX-1V, for tests that change neither its links nor its processes."""
    field = field_of("dgx-1v", "broadcast", "0,1,2", "optimal,ring")
    with field.laboratory() as lab:
        yield field, lab


def queues_of(lab: Laboratory) -> dict[tuple[int, str], tuple[int, int]]:
    """Return (vertex, device) of every port → the kernel's limit in bytes per second, and bytes so far."""
    queues = {}
    for vertex in lab.layout.vertices:
        with lab.namespaces.inside(vertex):
            output = subprocess.run(["tc", "-s", "-j", "qdisc", "show"], capture_output=True, check=True).stdout
        for row in json.loads(output):
            if row["kind"] == "tbf":
                queues[vertex, row["dev"]] = row["options"]["rate"], row["bytes"]
    return queues


def test_links_are_shaped_and_can_be_changed(three: tuple[Field, Laboratory]) -> None:
    """The measured speed depends on the machine's load, so the test reads the kernel's limit and counter."""
    field, lab = three
    ports = lab.layout.port.values()
    for part in (0.1, 1.0):
        lab.reshape(part)
        before = queues_of(lab)
        assert {place: rate for place, (rate, _) in before.items()} == {
            (port.vertex, port.device): round(port.bit_per_s * part) // 8 for port in ports
        }
        ((plan, ring),) = experiment.measure(field, lab, [MIB], 1, 20)
        assert (plan.wrong, ring.wrong) == (0, 0)
        carried = sum(sent - before[place][1] for place, (_, sent) in queues_of(lab).items())
        assert carried >= 2 * len(field.candidates) * MIB, "a broadcast to two others by each algorithm"


def pattern_of(field: Field, size: int) -> Pattern:
    return Pattern(field.candidates[0].forest.collective, size // 4)


@pytest.mark.parametrize(("how", "link"), [("cut", (0, 1)), ("slow", (2, 1)), ("cut", (0, 2))])
def test_a_link_that_breaks_is_named_at_the_deadline(three: tuple[Field, Laboratory], how: str, link) -> None:
    field, lab = three
    number = lab.open(field.candidates[0].program)
    lab.cut(*link) if how == "cut" else lab.reshape(0.01, [link, link[::-1]])
    began = time.monotonic()
    with pytest.raises(StalledError, match=r"nothing, or too little, comes over link") as caught:
        lab.run(number, pattern_of(field, 4 * MIB), 1 << 15, 1.0)
    assert time.monotonic() - began < 10
    assert f"{link[0]} → {link[1]}" in str(caught.value) or f"{link[1]} → {link[0]}" in str(caught.value)
    lab.close(number)
    lab.join(*link) if how == "cut" else lab.reshape(1.0)
    number = lab.open(field.candidates[0].program)
    assert lab.run(number, pattern_of(field, MIB), 1 << 15, 20).wrong == 0  # the laboratory continues to work
    lab.close(number)


@pytest.mark.parametrize("fault", ["0-1", "slow:0-1", "lossy:0-1", "kill:2", "kill:0"])
def test_a_job_continues_around_a_failure(fault: str) -> None:
    field, broken = field_of("dgx-1v", "broadcast", "0,1,2"), faults.Fault.parse(fault)
    around = faults.plan_around(field, broken, "optimal")
    assert isinstance(around, LabCandidate)
    with experiment.laboratory([*field.candidates, around], 4 * field.slower) as lab:
        story = faults.tell(field, around, lab, broken, 2 * MIB, 1, 30.0)
    assert isinstance(story.after, Measured)
    assert (story.before.wrong, story.after.wrong) == (0, 0)
    if isinstance(story.during, Run):  # a link that is slow or loses packets may still suffice
        assert fault.startswith(("slow", "lossy"))
        assert story.during.wrong == 0
    else:
        text, after_s = story.during
        assert after_s < 1 + 2 * story.before.seconds + 5
        assert re.search("rank [02] .process" if "kill" in fault else "link (0 → 1|1 → 0)", text), text
    assert story.document()["after"]["part_of_plan"] > 0
    assert str(broken) in story.text()


def test_a_host_that_dies_is_named_by_all_at_once() -> None:
    field = field_of("dgx-1v", "allreduce", "0,1,2")
    with field.laboratory() as lab:
        number = lab.open(field.candidates[0].program)
        lab.reshape(0.05)
        process, began = lab.pid(1), time.monotonic()
        Timer(0.3, lab.kill, [1]).start()
        with pytest.raises(PeerLostError, match=rf"rank 1 \(process {process}\) was lost: .* SIGKILL") as caught:
            lab.run(number, pattern_of(field, 16 * MIB), 1 << 16, 30.0)
        assert caught.value.rank == 1
        assert time.monotonic() - began < 10
        with pytest.raises(PeerLostError, match="rank 1 "):
            lab.run(number, pattern_of(field, MIB), 1 << 16, 30.0)


def test_a_program_for_other_paths_is_refused(three: tuple[Field, Laboratory]) -> None:
    _, lab = three
    other = field_of("dgx-1v", "broadcast", "0,1,2,3").candidates[0]
    with pytest.raises(UsageError, match=r"not laid out for vertices \[3\] and paths"):
        lab.open(other.program)


def test_a_stopped_host_is_named(three: tuple[Field, Laboratory]) -> None:
    field, lab = three
    number = lab.open(field.candidates[0].program)
    os.kill(lab.pid(2), signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineError, match="rank 2"):
            lab.run(number, pattern_of(field, 4 * MIB), 1 << 15, 0.5)
    finally:
        os.kill(lab.pid(2), signal.SIGCONT)


ARGUMENTS = ["lab", "broadcast", "--topo", "ring:3", "--lane", "5", "--size", "64M"]
#: Tests may run under nohup, or in the background of a shell, which ignore the signal, so it is restored.
HEARING = """
import signal
for number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
import runpy
runpy.run_module("blinkccl", run_name="__main__", alter_sys=True)
"""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_every_end_of_a_laboratory_cleans_up(number: signal.Signals) -> None:
    command = [sys.executable, "-c", HEARING, *ARGUMENTS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:

        def inside() -> dict[int, str]:
            """Return its children that are in namespaces of their own."""
            namespaces = {child: namespace_of(child) for child in children_of(process.pid)}
            return {child: where for child, where in namespaces.items() if where not in ("", namespace_of("self"))}

        until(lambda: process.poll() is not None or len(set(inside().values())) == 3)
        assert process.poll() is None, process.stderr.read()
        made = inside()
        process.send_signal(number)
        errors = process.communicate(timeout=20)[1].decode()
    assert process.returncode != 0
    assert "Traceback" not in errors
    until_gone(made, 20)
    # Other tests make namespaces at the same time: no process may hold these three.
    until(lambda: not {namespace_of(folder.name) for folder in Path("/proc").glob("[0-9]*")} & {*made.values()}, 20)


def test_the_verb_prints_a_table() -> None:
    arguments = ["--topo", "ring:3", "--algo", "optimal,one_ring", "--size", "256K", "-n", "1", "--lane", "200"]
    command = [sys.executable, "-m", "blinkccl", "lab", "broadcast", *arguments]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "3 links between 3 namespaces, 200 Mbit/s for a lane" in text
    assert re.search(r"\n262,144  optimal .*  0\n262,144  one_ring .*  0\n", text), text
    assert re.search(r"optimal over one_ring: [\d.]+ times measured, 2 by the plans", text)


def test_measurements_are_stored_and_used(tmp_path: Path) -> None:
    """Algorithms run in turns; the table keeps other jobs' rows, and the planner uses it."""
    file = tmp_path / "table.json"
    job = ["allreduce", "--topo", "ring:3"]
    command = [sys.executable, "-m", "blinkccl"]
    how = ["--algo", "optimal,ring", "-n", "1", "--lane", "200", "-o", str(file)]
    other = Cell("broadcast", 0, (0, 1, 2), 1024, 512, 2048, "2026-01-01", (Time("ring", "host", 1e-6, 1, 512),))
    by, machine = "a laboratory, links 1000 times slower", machine_key(parse_spec("ring:3"))
    file.write_bytes(to_json(MeasuredTable(machine, "ring:3", LABORATORY, by, 1000.0, cells=(other,))))
    subprocess.run([*command, "lab", *job, *how, "-b", "64K", "-e", "128K"], capture_output=True, check=True)
    table = from_json(file.read_bytes(), machine, "table")
    assert (table.kind, table.slower) == (LABORATORY, 1000.0)
    assert [cell.size_bytes for cell in table.cells] == [1024, 64 << 10, 128 << 10]
    assert table.cells[0] == other
    for cell in table.cells[1:]:
        assert {(time.algorithm, time.protocol) for time in cell.times} == {("optimal", "host"), ("ring", "host")}
        assert [time.seconds for time in cell.times] == sorted(time.seconds for time in cell.times)
    best = table.cells[2].times[0]
    explain = [*command, "explain", *job, "--size", "128K", "--measured", str(file), "--json"]
    choice = json.loads(subprocess.run(explain, capture_output=True, check=True).stdout)["choice"]
    assert choice["measured"]
    assert choice["timed"][0]["algorithm"] == best.algorithm
    assert choice["timed"][0]["seconds"] == pytest.approx(best.seconds)
