"""What do the coordinator of a benchmark and its rank processes say to each other? The one place that says it.

Every rank process of a candidate connects to the coordinator's unix socket, says hello, and then blocks in recv():
an idle candidate takes no processor time, so that candidates can be interleaved. All numbers are little-endian and
unpadded. ``peers/peer.h`` says the same in C.

hello, rank → coordinator::

    u32 MAGIC   u32 VERSION   u32 rank   u32 world_size   u64 pid   char library[128], padded with zeros

command, coordinator → rank::

    u32 MAGIC   u32 kind   u32 collective   u32 dtype   u32 op   i32 root   i32 src   i32 dst   u32 flags
    u32 warmup  u32 iterations  u32 deadline_s  u32 itemsize  u32 in_blocks  u32 out_blocks  u32 in_at  u32 out_at
    u64 count   u64 period   f64 scale
    then in_blocks × period × itemsize bytes that fill the input, and, if CHECK is set, out_blocks × period × itemsize
    bytes that the output must hold

A rank has an input of ``in_blocks`` and an output of ``out_blocks`` blocks of ``count`` elements. Both lie on page
boundaries, in memory for which huge pages are asked; with IN_PLACE and both there, they begin at block ``in_at`` and
``out_at`` of one memory. Element i of block b is element i mod ``period`` of block b of the pattern that came with the
command (see :mod:`blinkccl.bench.pattern`). ``scale`` is this rank's scalar for premul_sum.

RUN is timed the same way by everybody: ``warmup`` runs, then ``iterations`` times *barrier, clock, collective, clock*
with the candidate's own barrier, in C where there is C. The time of an iteration is that of the slowest rank; the
barrier itself is not in it. With CHECK the buffers are then filled again, the collective runs once more, untimed, and
every element of the output is compared.

reply, rank → coordinator::

    u32 MAGIC   u32 status   u64 wrong   u32 n   u32 length
    then n × f64 seconds, and length bytes of UTF-8 text that says why status is not OK

QUIT has no reply. A rank that loses its socket ends; while it works on a command it is under an alarm of
``deadline_s`` seconds, so that it ends even if nobody is left to end it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag

from blinkccl.collectives.ops import DTYPE_CODES, OP_CODES
from blinkccl.errors import CommunicationError

MAGIC = 0x4B4E4C42  # "BLNK"
VERSION = 1
HELLO = struct.Struct("<IIIIQ128s")
COMMAND = struct.Struct("<IIIIIiiiIIIIIIIIIQQd")
REPLY = struct.Struct("<IIQII")
#: More than any rank of ours has to say; what claims more is not one of them.
MAX_ITERATIONS = 1_000_000
#: Seconds of a command; 11 days.
MAX_DEADLINE_S = 1_000_000
#: What a rank of ours ends with where this machine or installation cannot run it.
UNSUPPORTED_CODE = 3
MAX_TEXT = 65_536

#: Numbers of collectives, types and operations on the wire; names are those of :mod:`blinkccl.collectives`.
COLLECTIVES = (
    "broadcast",
    "reduce",
    "allreduce",
    "allgather",
    "reduce_scatter",
    "gather",
    "scatter",
    "alltoall",
    "sendrecv",
)
#: What only the probe does (:mod:`blinkccl.bench.bound`); ``count`` is a number of bytes, or of round trips.
PROBES = ("probe_add", "probe_copy", "probe_round_trip")
FIRST_PROBE = 64
DTYPES = tuple(sorted(DTYPE_CODES, key=DTYPE_CODES.__getitem__))
#: As OP_CODES, and the two that are a sum with a divisor or a scale.
OPS = (*sorted(OP_CODES, key=OP_CODES.__getitem__), "avg", "premul_sum")


class Kind(IntEnum):
    """What a command asks for."""

    RUN = 1
    QUIT = 2


class Flag(IntFlag):
    """``SHARED``: buffers in shared memory, where the candidate has such; ``KEEP``: keep the memory for the next."""

    IN_PLACE = 1
    SHARED = 2
    CHECK = 4
    KEEP = 8


NO_FLAGS = Flag(0)


class ReplyStatus(IntEnum):
    """``UNSUPPORTED`` leaves the candidate usable, ``FAILED`` does not."""

    OK = 0
    UNSUPPORTED = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class RankHello:
    """The first words of a rank; ``library`` is what it measures, with its version."""

    rank: int
    world_size: int
    pid: int
    library: str

    def pack(self) -> bytes:
        """The bytes on the wire."""
        text = self.library.encode()[:127]
        return HELLO.pack(MAGIC, VERSION, self.rank, self.world_size, self.pid, text)


@dataclass(frozen=True, slots=True)
class Command:
    """A command; fields as in the module's text. ``fill`` and ``expected`` are patterns, as bytes."""

    kind: Kind
    collective: str = "allreduce"
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    src: int = 0
    dst: int = 0
    flags: Flag = NO_FLAGS
    warmup: int = 0
    iterations: int = 0
    deadline_s: int = 60
    itemsize: int = 1
    in_blocks: int = 0
    out_blocks: int = 0
    in_at: int = 0
    out_at: int = 0
    count: int = 0
    period: int = 0
    scale: float = 1.0
    fill: bytes = b""
    expected: bytes = b""

    def pack(self) -> bytes:
        """The bytes on the wire."""
        probe = self.collective in PROBES
        code = FIRST_PROBE + PROBES.index(self.collective) if probe else COLLECTIVES.index(self.collective)
        numbers = (getattr(self, name) for name in _NUMBERS)
        head = COMMAND.pack(MAGIC, self.kind, code, DTYPES.index(self.dtype), OPS.index(self.op), *numbers)
        return head + self.fill + self.expected


#: The fields of a command that are numbers on the wire as they are, in its order; ``flags`` is one of them.
_NUMBERS = tuple(one.name for one in fields(Command))[4:-2]


def read_command(head: bytes) -> tuple[Command, int, int]:
    """A command without its patterns, and how many bytes of ``fill`` and ``expected`` follow.

    Raises
    ------
    CommunicationError
        If these are not the bytes of a command.
    """
    magic, kind, code, dtype, op, *numbers = COMMAND.unpack(head)
    try:
        name = PROBES[code - FIRST_PROBE] if code >= FIRST_PROBE else COLLECTIVES[code]
        given = dict(zip(_NUMBERS, numbers, strict=True))
        given["flags"] = Flag(given["flags"])
        command = Command(Kind(kind), name, DTYPES[dtype], OPS[op], **given)
    except (IndexError, ValueError):
        magic = 0
        command = Command(Kind.QUIT)
    if magic != MAGIC:
        raise CommunicationError(f"expected a command of protocol {VERSION}, got {head[:16].hex()}…")
    block = command.period * command.itemsize
    return command, command.in_blocks * block, command.out_blocks * block if command.flags & Flag.CHECK else 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came out on one rank: seconds per iteration and wrong elements; ``text`` says why not."""

    status: ReplyStatus
    wrong: int = 0
    seconds: bytes = b""
    text: str = ""

    def pack(self) -> bytes:
        """The bytes on the wire; ``seconds`` are already f64."""
        text = self.text.encode()[:MAX_TEXT]
        return REPLY.pack(MAGIC, self.status, self.wrong, len(self.seconds) // 8, len(text)) + self.seconds + text


def read_reply(head: bytes) -> tuple[ReplyStatus, int, int, int]:
    """ReplyStatus, wrong elements, and how many seconds and bytes of text follow.

    Raises
    ------
    CommunicationError
        If these are not the bytes of a reply.
    """
    magic, status, wrong, n, length = REPLY.unpack(head)
    if magic != MAGIC or status > max(ReplyStatus) or n > MAX_ITERATIONS or length > MAX_TEXT:
        raise CommunicationError(f"expected a reply of protocol {VERSION}, got {head.hex()}")
    return ReplyStatus(status), wrong, n, length


def read_hello(head: bytes) -> RankHello:
    """A rank's first words.

    Raises
    ------
    CommunicationError
        If these are not the bytes of a hello, or of another version.
    """
    magic, version, rank, size, pid, library = HELLO.unpack(head)
    if magic != MAGIC or version != VERSION:
        raise CommunicationError(f"expected a hello of protocol {VERSION}, got {head[:16].hex()}…")
    text = library.split(b"\0")[0].decode(errors="replace")
    return RankHello(rank, size, pid, "".join(c if c.isprintable() else " " for c in text).strip())
