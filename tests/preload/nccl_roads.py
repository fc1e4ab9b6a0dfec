"""A program that opens libblink.so as NCCL and makes unusual calls; NCCL's journal shows the receiver of each.

``nccl_roads.py PATH`` has two GPUs, a communicator of two ranks on them, and prints a line of JSON per check. The
doubles' journals (``BLINK_DOUBLE_NCCL_JOURNAL``, ``BLINK_DOUBLE_JOURNAL``) list the calls of NCCL and of the driver.
"""

import ctypes as c
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FLOAT32, FLOAT64, SUM, COUNT = 7, 8, 0, 100
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE = 0, 4, 5
UNSET, MAGIC = -(2**31), 0xCAFEBEEF


class Config(c.Structure):
    """``ncclCollConfig_t`` of 2.32."""

    _fields_ = (
        ("size", c.c_size_t),
        ("magic", c.c_uint),
        ("version", c.c_uint),
        ("ext", c.c_void_p),
        *((name, c.c_int) for name in ("min_ctas", "max_ctas", "nvls_ctas", "cga_cluster_size")),
        ("alg_selection", c.c_char_p),
        ("force_alg_selection", c.c_int),
        ("cta_policy", c.c_int),
        ("user_profiler_tag", c.c_uint64),
        ("launch_completion_event", c.c_void_p),
    )


class Team(c.Structure):
    _fields_ = (("ranks", c.c_int), ("rank", c.c_int), ("stride", c.c_int))


class Rank:
    """A GPU with a stream and memory for ``COUNT`` elements in four places."""

    def __init__(self, cuda: c.CDLL, device: int) -> None:
        self.cuda, self.context, self.stream, self.memory = cuda, c.c_void_p(), c.c_void_p(), c.c_uint64()
        must(cuda.cuDevicePrimaryCtxRetain(c.byref(self.context), device))
        must(cuda.cuCtxSetCurrent(self.context))
        must(cuda.cuStreamCreate(c.byref(self.stream), 1))
        must(cuda.cuMemAlloc_v2(c.byref(self.memory), c.c_size_t(16 * COUNT)))
        self.device = device

    def at(self, place: int) -> c.c_void_p:
        return c.c_void_p(self.memory.value + 4 * COUNT * place)

    def put(self, place: int) -> None:
        values = (c.c_float * COUNT)(*(float(i % 11 + self.device) for i in range(COUNT)))
        must(self.cuda.cuCtxSetCurrent(self.context))
        must(self.cuda.cuMemcpyHtoDAsync_v2(self.at(place), values, c.c_size_t(4 * COUNT), self.stream))
        must(self.cuda.cuStreamSynchronize(self.stream))

    def get(self, place: int) -> list[float]:
        values = (c.c_float * COUNT)()
        must(self.cuda.cuCtxSetCurrent(self.context))
        must(self.cuda.cuMemcpyDtoHAsync_v2(values, self.at(place), c.c_size_t(4 * COUNT), self.stream))
        must(self.cuda.cuStreamSynchronize(self.stream))
        return list(values)


def must(code: int) -> None:
    if code:
        raise RuntimeError(f"code {code}")


def check(what: str, got: object, expected: object) -> None:
    print(json.dumps({"what": what, "ok": got == expected, "got": repr(got), "expected": repr(expected)}), flush=True)


class Program:
    def __init__(self, path: str) -> None:
        self.nccl, self.cuda = c.CDLL(path), c.CDLL(os.environ["BLINK_CUDA_LIB"])
        must(self.cuda.cuInit(0))
        self.ranks = [Rank(self.cuda, device) for device in range(2)]
        self.read = dict.fromkeys(("BLINK_DOUBLE_NCCL_JOURNAL", "BLINK_DOUBLE_JOURNAL"), 0)
        self.comms = self.made()

    def made(self) -> list[c.c_void_p]:
        comms = (c.c_void_p * 2)()
        must(self.nccl.ncclCommInitAll(comms, 2, None))
        self.new("BLINK_DOUBLE_NCCL_JOURNAL")
        return [c.c_void_p(comm) for comm in comms]

    def new(self, journal: str) -> list[list[str]]:
        """The lines added to a journal since the last call."""
        lines = Path(os.environ[journal]).read_text().splitlines()
        begin, self.read[journal] = self.read[journal], len(lines)
        return [line.split() for line in lines[begin:]]

    def reached(self) -> list[str]:
        """The functions of NCCL that the program's calls reached since the last time, without duplicates."""
        lines = self.new("BLINK_DOUBLE_NCCL_JOURNAL")
        quiet = ("ncclGroupStart", "ncclGroupEnd", "ncclCommGetAsyncError", "ncclGetVersion")
        return list(dict.fromkeys(row[0] for row in lines if row[5] == "outer" and row[0] not in quiet))

    def launched(self) -> int:
        """The number of Blink's kernels since the last time; NCCL's double has none."""
        return sum(row[0].startswith("cuLaunchKernel") for row in self.new("BLINK_DOUBLE_JOURNAL"))

    @contextmanager
    def group(self, expected: int = SUCCESS, end: str = "ncclGroupEnd", *arguments: object) -> Iterator[None]:
        must(self.nccl.ncclGroupStart())
        yield
        check("the group's end", getattr(self.nccl, end)(*arguments), expected)

    def allreduce(
        self, place: int = 0, op: object = SUM, dtype: int = FLOAT32, count: int = COUNT, send: int = 1
    ) -> list[int]:
        """Call on both ranks, in place; without ``send`` there is no buffer."""
        return [
            self.nccl.ncclAllReduce(rank.at(place) if send else None, rank.at(place), c.c_size_t(count), dtype,
                                    op if isinstance(op, int) else op[i], self.comms[i], rank.stream)
            for i, rank in enumerate(self.ranks)
        ]  # fmt: skip

    def who(self) -> str:
        """The library that runs a call of this communicator."""
        self.reached(), self.launched()
        with self.group():
            self.allreduce()
        return f"{'NCCL' if 'ncclAllReduce' in self.reached() else ''}{'Blink' if self.launched() else ''}"


def forwards(program: Program) -> None:
    """Every function of NCCL is reached under its name, with its arguments."""
    nccl, comm = program.nccl, program.comms[1]
    names = Path(os.environ["NCCL_SYMBOLS"]).read_text().split()
    silent = {"ncclGetErrorString", "ncclGetLastError", "ncclResetDebugInit"}
    grouped = {"ncclGroupStart", "ncclGroupEnd", "ncclGroupSimulateEnd"}
    program.new("BLINK_DOUBLE_NCCL_JOURNAL")
    for name in names:
        if name not in grouped | silent:
            getattr(nccl, name)(*[None] * 14)
    arrived = [row[0] for row in program.new("BLINK_DOUBLE_NCCL_JOURNAL") if row[5] == "outer"]
    missing = sorted(set(names) - grouped - silent - set(arrived))
    check("functions that did not arrive", missing, [])
    nccl.ncclTeamWorld.restype = nccl.ncclTeamCft.restype = Team
    world = nccl.ncclTeamWorld(comm)
    check("a team by value", (world.ranks, world.rank, world.stride), (2, 1, 1))
    check("an enum by value", nccl.ncclTeamCft(comm, 5).rank, 1)
    check("a team as an argument", nccl.ncclTeamRankToWorld(comm, Team(3, 2, 5), 1), 1)
    pointer = c.byref(c.c_int())
    code = nccl.ncclGetCftDeviceLeInfo(pointer, c.c_size_t(9), 4, Team(1, 2, 3), pointer, pointer)
    check("a team between other arguments", code, INVALID_USAGE)
    size = c.c_size_t
    code = nccl.ncclPutSignal(pointer, size(1), FLOAT32, 3, pointer, size(4), 5, 6, 7, comm, None)
    check("eleven arguments", code, INVALID_USAGE)
    nccl.ncclGetErrorString.restype = c.c_char_p
    check("the text of an error", bool(nccl.ncclGetErrorString(3)), True)


def refused(program: Program) -> None:
    """NCCL gets the calls that it must refuse, and empty calls."""
    bad = [INVALID_ARGUMENT] * 2
    for what, change, expected in (
        ("no such type", {"dtype": 12}, bad),
        ("a negative type", {"dtype": -1}, bad),
        ("no such operation", {"op": 99}, bad),
        ("a negative operation", {"op": -1}, bad),
        ("no buffer", {"send": 0}, bad),
        ("nothing to move", {"count": 0}, [SUCCESS] * 2),
    ):
        program.reached(), program.launched()
        check(
            what, (program.allreduce(**change), program.reached(), program.launched()), (expected, ["ncclAllReduce"], 0)
        )
    nccl, rank = program.nccl, program.ranks[0]
    for root in (2, -1):
        code = nccl.ncclReduce(rank.at(0), rank.at(0), c.c_size_t(4), FLOAT32, SUM, root, program.comms[0], rank.stream)
        check("no such root", (code, program.reached()), (INVALID_ARGUMENT, ["ncclReduce"]))


def configured(program: Program) -> None:
    """A call whose configuration is not the default goes to NCCL."""

    def run(**changes: object) -> str:
        config = Config(c.sizeof(Config), MAGIC, 23203, None, *[UNSET] * 4, None, 1, UNSET, 5, None)
        for name, value in changes.items():
            setattr(config, name, value)
        program.reached(), program.launched()
        must(program.nccl.ncclGroupStart())
        for comm, rank in zip(program.comms, program.ranks, strict=True):
            code = program.nccl.ncclAllReduceConfig(
                rank.at(0), rank.at(0), c.c_size_t(COUNT), FLOAT32, SUM, comm, rank.stream, c.byref(config)
            )
        ended = program.nccl.ncclGroupEnd()
        return "Blink" if program.launched() else f"NCCL {code or ended} {','.join(program.reached())}"

    forwarded = "NCCL 0 ncclAllReduceConfig"
    check("as usual", run(), "Blink")
    check("an empty algorithm", run(alg_selection=b""), "Blink")
    check("tuned", run(max_ctas=4), forwarded)
    check("an algorithm", run(alg_selection=b"ring"), forwarded)
    check("an event", run(launch_completion_event=1), forwarded)
    check("of a newer NCCL", run(size=c.sizeof(Config) + 8), forwarded)
    check("no configuration", run(magic=1), f"NCCL {INVALID_ARGUMENT} ")


def groups(program: Program) -> None:
    """Blink starts nothing before the outermost end; a group that failed, or was only simulated, runs nothing."""
    program.launched()
    for rank in program.ranks:
        rank.put(0)
    with program.group():
        with program.group():
            program.allreduce()
        check("before the outermost end", program.launched(), 0)
        program.allreduce()
    check("after it", program.launched(), 4)
    check("twice the sum", program.ranks[1].get(0), [2.0 * (2 * (i % 11) + 1) for i in range(COUNT)])
    with program.group(INVALID_ARGUMENT):
        program.allreduce()
        program.nccl.ncclSend(None, c.c_size_t(4), FLOAT32, 99, program.comms[0], None)
    check("a group with an error", program.launched(), 0)
    with program.group(SUCCESS, "ncclGroupSimulateEnd", None):
        program.allreduce()
    check("a simulated group", program.launched(), 0)
    check("an end without a start", program.nccl.ncclGroupEnd(), INVALID_USAGE)
    check("the group is closed", program.who(), "Blink")


def operators(program: Program) -> None:
    """Operations that are destroyed within the group that uses them; NCCL then reuses their numbers."""
    operations = []
    with program.group():
        for place, factor in enumerate((2.0, 3.0)):
            numbers = []
            for rank, comm in zip(program.ranks, program.comms, strict=True):
                rank.put(place)
                number, scalar = c.c_int(), c.c_float(factor)
                must(program.nccl.ncclRedOpCreatePreMulSum(c.byref(number), c.byref(scalar), FLOAT32, 1, comm))
                numbers.append(number.value)
            operations.append(numbers)
            check("an operation of ours", program.allreduce(place, op=numbers), [0, 0])
            for number, comm in zip(numbers, program.comms, strict=True):
                must(program.nccl.ncclRedOpDestroy(number, comm))
    check("the same number twice", operations[0], operations[1])
    for place, factor in enumerate((2.0, 3.0)):
        expected = [factor * (2 * (i % 11) + 1) for i in range(COUNT)]
        check("each with its own scalar", program.ranks[0].get(place), expected)
    check("one that was destroyed", program.allreduce(op=operations[0]), [INVALID_ARGUMENT] * 2)
    number, scalar = c.c_int(), c.c_float(2)
    must(program.nccl.ncclRedOpCreatePreMulSum(c.byref(number), c.byref(scalar), FLOAT32, 1, program.comms[0]))
    program.reached()
    code = program.nccl.ncclAllReduce(
        program.ranks[0].at(0), program.ranks[0].at(0), c.c_size_t(4), FLOAT64, number, program.comms[0], None
    )
    check("of another type", (code, program.reached()), (INVALID_ARGUMENT, ["ncclAllReduce"]))


def plugins(program: Program) -> None:
    """Calls that NCCL's plugins (code of other libraries) make within a call of NCCL go to NCCL."""
    called = []

    @c.CFUNCTYPE(None, c.c_void_p)
    def plugin(comm: int) -> None:
        rank = program.ranks[0]
        called.append(
            program.nccl.ncclAllReduce(rank.at(0), rank.at(0), c.c_size_t(0), FLOAT32, SUM, c.c_void_p(comm), None)
        )

    program.cuda.setenv(b"BLINK_DOUBLE_NCCL_PLUGIN", str(c.cast(plugin, c.c_void_p).value).encode(), 1)
    program.reached(), program.launched()
    must(program.nccl.ncclCommResume(program.comms[0]))
    program.cuda.unsetenv(b"BLINK_DOUBLE_NCCL_PLUGIN")
    check("a plugin's call", (called, program.reached()), ([0], ["ncclCommResume", "ncclAllReduce"]))


def endings(program: Program) -> None:
    """NCCL runs later calls of a communicator that was suspended, finalized, revoked or freed."""
    nccl, real = program.nccl, c.CDLL(os.environ["BLINK_NCCL_LIB"])
    for comm in program.comms:
        must(nccl.ncclCommSuspend(comm, 1) or nccl.ncclCommResume(comm))
    check("suspended", program.who(), "NCCL")
    for ended in (nccl.ncclCommFinalize, lambda comm: nccl.ncclCommRevoke(comm, 0)):
        program.comms = program.made()
        check("a new one", program.who(), "Blink")
        must(max(ended(comm) for comm in program.comms))
        program.launched()
        must(nccl.ncclGroupStart())
        program.allreduce()
        nccl.ncclGroupEnd()  # NCCL's error
        check("ended", program.launched(), 0)
        must(max(nccl.ncclCommAbort(comm) for comm in program.comms))
    program.comms = program.made()
    before = {comm.value for comm in program.comms}
    must(max(real.pncclCommDestroy(comm) for comm in program.comms))  # a name of NCCL that Blink does not wrap
    alone, (rank, _) = c.c_void_p(), program.ranks
    for _ in range(100):
        must(nccl.ncclCommInitAll(c.byref(alone), 1, None))
        if alone.value in before:
            break
    check("the handle is used again", alone.value in before, True)
    program.reached(), program.launched()
    must(nccl.ncclAllReduce(rank.at(0), rank.at(1), c.c_size_t(COUNT), FLOAT32, SUM, alone, rank.stream))
    check("by one that is NCCL's", (program.reached(), program.launched()), (["ncclAllReduce"], 0))


def main(path: str) -> None:
    program = Program(path)
    check("a communicator of two", program.who(), "Blink")
    for scene in (forwards, refused, configured, groups, operators, plugins, endings):
        scene(program)


if __name__ == "__main__":
    main(sys.argv[1])
