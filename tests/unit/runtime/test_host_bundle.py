"""A bundle runs the same calls as Python, also when both are mixed in one call; invalid files are harmless."""

import ctypes as c
import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPE_CODES, element_type, operation
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines import native_library as native
from blinkccl.engines.buffers import filled
from blinkccl.engines.host import Endpoint, shape_of
from blinkccl.engines.host_plan import Area
from blinkccl.errors import LaunchError, UsageError
from blinkccl.native.headers import header
from blinkccl.runtime import host_bundle
from blinkccl.runtime.host_group import chosen_op
from blinkccl.runtime.host_table import Crossing, HostTable, built_in
from support.engines import ENGINES
from support.local_host import local_endpoints
from support.planned import with_ends

pytestmark = pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))

ROOTED = [name for name, row in COLLECTIVES.items() if "root" in row.parameters]
CODES = header("types.h").numbers("blink_collective")


@native.HEADER.layout("blink_request")
class Request(c.Structure):
    """``blink_request``."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles") / "cache"


@pytest.fixture
def opened(directory: Path) -> Iterator[Callable[[int], int]]:
    """Open the bundle for this number of ranks."""
    library, handles = native.load(), []

    def open_it(ranks: int) -> int:
        error = native.Error()
        path = os.fsencode(host_bundle.ensure(ranks, directory))
        handles.append(library.blink_bundle_open(path, ranks, c.byref(error)))
        assert handles[-1], error.text
        return handles[-1]

    yield open_it
    for handle in handles:
        library.blink_bundle_close(handle)


def run_by_bundle(
    bundle: int, end: Endpoint, call: CollectiveCall, crosses: bool, send: int | None, receive: int | None
) -> None:
    """Run a call as a program without Python."""
    library, error = native.load(), native.Error()
    row, op = element_type(call.dtype), operation(call.op)
    request = Request(CODES[call.collective], call.root, call.elements, DTYPE_CODES[row.name], op.code, int(crosses))
    made = library.blink_bundle_op(bundle, end.handle, c.byref(request), c.byref(error))
    assert made, error.text
    code = library.blink_op_run(made, send, receive, 0, 1.0, 20_000_000)
    library.blink_op_destroy(made)
    if code:
        raise end.failure(code)


def run_by_python(
    end: Endpoint, call: CollectiveCall, world: int, crosses: bool, send: int | None, receive: int | None
) -> None:
    """Run a call as a group of Python."""
    op = chosen_op(end, call, built_in(world), Crossing.MEASURED if crosses else Crossing.NEVER, Area())
    op.run(send, receive, 20_000_000)
    op.close()


def sizes(name: str, world: int) -> list[int]:
    """Return counts of float32 per block on both sides of every limit of the table, and a few with several chunks."""
    blocks = with_ends(name, world).total_blocks()
    limits = [row.below // (4 * blocks) for row in built_in(world).rows[name] if row.below <= 4 << 20]
    return [0, 1, *(limit + beside for limit in limits for beside in (-1, 0, 1)), 200_000 // blocks]


def differs(bundle: int, ends: list[Endpoint], call: CollectiveCall, crosses: bool) -> str | None:
    """Run the call by the bundle on every other rank, and by Python on the others; return the first difference."""
    world = len(ends)
    coll = call.among(world)
    inputs = make_inputs(coll, call.elements, call.dtype, op=call.op)
    buffers = filled(coll, inputs, call.elements, call.dtype, False)

    def run(rank: int) -> None:
        at = [None if side[rank] is None else side[rank].ctypes.data for side in (buffers.inputs, buffers.outputs)]
        if rank % 2:
            run_by_bundle(bundle, ends[rank], call, crosses, *at)
        else:
            run_by_python(ends[rank], call, world, crosses, *at)

    with ThreadPoolExecutor(world) as pool:
        for _ in pool.map(run, range(world)):
            pass
    return mismatch(buffers.outputs, oracle(coll, inputs, call.op), call.elements)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "sendrecv"])
def test_a_bundle_gives_the_same_results_as_python(name: str, world: int, opened: Callable[[int], int]) -> None:
    bundle = opened(world)
    with local_endpoints(world, Area()) as ends:
        for root in range(world) if name in ROOTED else (0,):
            for count in sizes(name, world) if root == 0 else (100,):
                for crosses in {False, world == 2}:
                    call = CollectiveCall(name, "float32", count, root=root)
                    assert differs(bundle, ends, call, crosses) is None, (call, crosses)
        if name == "allreduce":
            for dtype, op in (("float16", "avg"), ("int8", "max"), ("bool", "bor")):
                assert differs(bundle, ends, CollectiveCall(name, dtype, 100, op), False) is None


def test_a_bundle_reports_its_segment_and_missing_plans(opened: Callable[[int], int]) -> None:
    library, shape, error, bundle = native.load(), native.Shape(), native.Error(), opened(2)
    library.blink_bundle_shape(bundle, c.byref(shape))
    assert bytes(shape) == bytes(shape_of(2, Area()))
    with local_endpoints(2, Area()) as ends:
        for request, message in (
            (Request(CODES["sendrecv"], 0, 1, 0, 0, 0), b"no plan in the bundle serves collective 8"),
            (Request(CODES["broadcast"], 2, 1, 0, 0, 0), b"no plan of collective 0 with root 2"),
            (Request(CODES["broadcast"], 0, -1, 0, 0, 0), b"no call has type 0, operation 0 and -1 elements"),
            (Request(CODES["broadcast"], 0, 1 << 50, 0, 0, 0), b"no call has type 0"),
            (Request(CODES["allreduce"], 0, 1, DTYPE_CODES["float32"], 6, 0), b"operation 6 and 1 elements"),
        ):
            assert not library.blink_bundle_op(bundle, ends[0].handle, c.byref(request), c.byref(error))
            assert message in error.text


# ---- blocks of different lengths


@native.HEADER.layout("blink_blocks")
class Blocks(c.Structure):
    """``blink_blocks``."""


def scattered(lengths: list[int], random: Random) -> tuple[list[int], int]:
    """Return offsets of blocks of these lengths, in any order and with gaps, and the total length."""
    places, end = [0] * len(lengths), random.randint(0, 3)
    for block in random.sample(range(len(lengths)), len(lengths)):
        places[block] = end
        end += lengths[block] + random.randint(0, 3)
    return places, end


class Side:
    """A rank's input or output: its blocks at any place in a buffer of int32."""

    def __init__(self, lengths: list[int], random: Random) -> None:
        self.lengths = lengths
        self.places, size = scattered(lengths, random)
        self.memory = np.full(size, -1, np.int32)
        self.arrays = [(c.c_int64 * len(row))(*row) for row in (lengths, self.places)]

    def block(self, number: int) -> np.ndarray:
        return self.memory[self.places[number] : self.places[number] + self.lengths[number]]


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "gather", "scatter", "alltoall"])
@pytest.mark.parametrize("seed", range(6))
def test_blocks_of_several_lengths(name: str, seed: int, opened: Callable[[int], int]) -> None:
    random, library = Random(seed), native.load()
    world = random.randint(2, 3)
    coll, bundle = with_ends(name, world, random.randrange(world)), opened(world)
    length = {item.block: random.choice([0, 1, 5, 40, 3000, 150_000]) for item in coll.items()}
    of_side: list[list[Side]] = []
    for side in ("contributions", "destinations"):
        rows = [{} for _ in range(world)]
        for item in coll.items():
            for rank, block in getattr(item, side):
                rows[rank][block] = length[item.block]
        of_side.append([Side([row[block] for block in sorted(row)], random) for row in rows])
    inputs, outputs = of_side
    for number, side in enumerate(inputs):
        for block in range(len(side.lengths)):
            side.block(block)[:] = np.arange(side.lengths[block]) * (number + 1) + 10 * block
    wanted = [side.memory.copy() for side in outputs]
    for item in coll.items():
        total = sum(inputs[rank].block(block) for rank, block in item.contributions)
        for rank, block in item.destinations:
            at = outputs[rank].places[block]
            wanted[rank][at : at + length[item.block]] = total
    before = [side.memory.copy() for side in inputs]

    def run(end: Endpoint) -> None:
        error, give, take = native.Error(), inputs[end.rank], outputs[end.rank]
        request = Request(CODES[name], coll.root or 0, sum(give.lengths), DTYPE_CODES["int32"], 0, 1)
        blocks = Blocks(*(c.addressof(array) for side in (give, take) for array in side.arrays))
        op = library.blink_bundle_op_of_blocks(bundle, end.handle, c.byref(request), c.byref(blocks), c.byref(error))
        assert op, error.text
        code = library.blink_op_run(op, give.memory.ctypes.data, take.memory.ctypes.data, 0, 1.0, 20_000_000)
        library.blink_op_destroy(op)
        assert code == native.OK

    with local_endpoints(world, Area()) as ends, ThreadPoolExecutor(world) as pool:
        for _ in pool.map(run, ends):
            pass
    for got, expected in zip([*inputs, *outputs], [*before, *wanted], strict=True):
        assert np.array_equal(got.memory, expected)


def test_blocks_that_make_no_sense_are_refused(opened: Callable[[int], int]) -> None:
    library, error, bundle = native.load(), native.Error(), opened(2)
    row = c.c_int64 * 2
    with local_endpoints(2, Area()) as ends:
        for lengths, places, message in (
            ((3, 4), (0, 3), b"own block has different lengths"),
            ((-1, 4), (0, 3), b"outside 0 to 2^40"),
            ((4, 4), (0, 1 << 41), b"outside 0 to 2^40"),
        ):
            target, at, source, zero = row(*lengths), row(*places), row(4, 0), row(0, 0)
            blocks = Blocks(*map(c.addressof, (source, zero, target, at)))
            request = Request(CODES["allgather"], 0, 4, DTYPE_CODES["int32"], 0, 0)
            arguments = (bundle, ends[0].handle, c.byref(request), c.byref(blocks), c.byref(error))
            assert not library.blink_bundle_op_of_blocks(*arguments)
            assert message in error.text


# ---- the file


def test_it_is_written_once_for_this_user(directory: Path) -> None:
    path = host_bundle.ensure(3, directory)
    row = path.stat()
    assert stat.S_IMODE(row.st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert host_bundle.ensure(3, directory) == path
    assert path.stat().st_ino == row.st_ino
    assert path.read_bytes() == host_bundle.contents(3)
    assert {file.suffix for file in directory.iterdir()} == {".bundle"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda whole: b"", "not a bundle, or is cut off"),
        (lambda whole: whole[:-8], "cut off"),
        (lambda whole: whole[:333], "not a bundle, or is cut off"),
        (lambda whole: whole[:160] + b"x" + whole[161:], "damaged: its checksum"),
        (lambda whole: whole[:-16] + b"x" + whole[-15:], "the plan is damaged: its checksum"),
        (lambda whole: whole[:8] + b"\x07" + whole[9:], "another version"),
        (lambda whole: whole[:40] + b"0.0.0" + whole[45:], "another version"),
    ],
)
def test_damaged_bundles_are_replaced(
    damage: Callable[[bytes], bytes], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = host_bundle.ensure(2, tmp_path / "cache")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert host_bundle.ensure(2, tmp_path / "cache") == path
    assert path.read_bytes() == whole
    assert said in caplog.text
    assert len({record.message for record in caplog.records}) == 1


def test_bundles_writable_by_others_are_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = host_bundle.ensure(2, tmp_path / "cache")
    whole = path.read_bytes()
    path.chmod(0o666)
    host_bundle.ensure(2, tmp_path / "cache")
    assert "must be a regular file of this user or root" in caplog.text
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    host_bundle.ensure(2, tmp_path / "cache")
    assert not path.is_symlink()
    assert path.read_bytes() == elsewhere.read_bytes() == whole


def test_one_of_several_processes_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, whole = [], host_bundle.contents(2)

    def contents(ranks: int, told: object) -> bytes:
        planned.append(ranks)
        time.sleep(0.1)
        return whole

    monkeypatch.setattr(host_bundle, "contents", contents)
    with ThreadPoolExecutor(6) as pool:
        paths = set(pool.map(partial(host_bundle.ensure, directory=tmp_path / "cache"), [2] * 6))
    assert planned == [2]
    assert [path.read_bytes() for path in paths] == [whole]


def test_nobody_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_bundle, "PATIENCE_S", 0.05)
    (tmp_path / "cache").mkdir(mode=0o700)
    fd = os.open(tmp_path / "cache", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert host_bundle.ensure(2, tmp_path / "cache").exists()
    os.close(fd)
    assert "another process plans for over" in caplog.text


def test_another_table_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = host_bundle.ensure(2, tmp_path / "cache")
    fewer = HostTable(2, {name: rows[-1:] for name, rows in built_in(2).rows.items()})
    monkeypatch.setattr(host_bundle, "table_for", lambda ranks: fewer)
    assert host_bundle.ensure(2, tmp_path / "cache") != before


def test_long_work_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = iter(range(100))
    monkeypatch.setattr(host_bundle.time, "monotonic", lambda: next(now))
    report = host_bundle._progress()
    for done in range(6):
        report(done, 6)
    assert "made 4 of 6 plans" in caplog.text


def test_there_must_be_a_place_and_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ranks in (0, 1, 65):
        with pytest.raises(UsageError, match=f"2 to 64 ranks of a host, got {ranks}"):
            host_bundle.ensure(ranks)
    monkeypatch.setenv("BLINK_CACHE", "")
    with pytest.raises(LaunchError, match="set BLINK_CACHE"):
        host_bundle.ensure(2)
    (tmp_path / "plans").mkdir(mode=0o755)
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    with pytest.raises(LaunchError, match="expected mode 0700"):
        host_bundle.ensure(2)


def test_its_command_prints_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, line in (
        (["1"], "refused a bundle is for 2 to 64 ranks"),
        ([], "refused usage: python -m blinkccl.runtime.host_bundle RANKS"),
        (["two"], "refused usage:"),
    ):
        assert host_bundle.main(arguments) == 1
        out, err = capsys.readouterr()
        assert (out.startswith(line), out.count("\n"), err) == (True, 1, "")
    command = [sys.executable, "-m", "blinkccl.runtime.host_bundle", "2"]
    environ = {**os.environ, "BLINK_CACHE": str(tmp_path)}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert Path(ended.stdout.removesuffix("\n")).parent == tmp_path / "plans"
    assert Path(ended.stdout.removesuffix("\n")).is_file()
    assert ended.stderr == ""
