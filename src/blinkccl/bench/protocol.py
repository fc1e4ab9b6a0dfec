"""The protocol between the coordinator of a benchmark and its rank processes.

Every rank process of a candidate connects to the coordinator's unix socket, says hello, and then blocks in recv():
an idle candidate takes no processor time, so that candidates can be interleaved. All numbers are little-endian and
unpadded. ``native/include/blink/bench.h`` has the structs, which both languages read: ``peer_hello`` from a rank to the
coordinator, ``peer_command`` back, ``peer_reply`` in answer.

A command is followed by in_blocks × period × itemsize bytes that fill the input, and, if CHECK is set, by
out_blocks × period × itemsize bytes that the output must hold.

A rank has an input of ``in_blocks`` and an output of ``out_blocks`` blocks of ``count`` elements. Both lie on page
boundaries, in memory for which huge pages are asked; with IN_PLACE and both there, they begin at block ``in_at`` and
``out_at`` of one memory. Element i of block b is element i mod ``period`` of block b of the pattern that came with the
command (see :mod:`blinkccl.bench.pattern`). ``scale`` is this rank's scalar for premul_sum.

RUN is timed the same way by everybody: ``warmup`` runs, then ``iterations`` times *barrier, clock, collective, clock*
with the candidate's own barrier, in C where there is C. The time of an iteration is that of the slowest rank; the
barrier itself is not in it, unless WITH_BARRIER says so. With CHECK the buffers are then filled again, the collective
runs once more, untimed, and every element of the output is compared.

A reply is followed by n × f64 seconds, and length bytes of UTF-8 text that says why status is not OK.

PROGRAM tells a rank of ours which Program it runs from then on: its input's pattern is the Program as JSON (none: the
library chooses), ``count`` the bytes of a message.

CHOICE tells it which rows of a host's table it takes for all calls from then on, as JSON in the same place.

RECORD makes a rank of ours record its last ``count`` events from then on. With 0 it stops, and writes what it has
(:class:`blinkccl.engines.recording.Recording`, as msgpack) into a directory, which is the command's pattern, in a file
named after the rank.

QUIT has no reply. A rank that loses its socket ends; while it works on a command it is under an alarm of
``deadline_s`` seconds, so that it ends even if nobody is left to end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag

from blinkccl.errors import CommunicationError
from blinkccl.native.headers import header

_HEADER, _TYPES = header("bench.h"), header("types.h")
MAGIC, VERSION = _HEADER.constants["PEER_MAGIC"], _HEADER.constants["PEER_VERSION"]
HELLO, COMMAND, REPLY = (_HEADER.structs[f"peer_{what}"].wire() for what in ("hello", "command", "reply"))
#: More than any rank of ours has to say; what claims more is not one of them.
MAX_ITERATIONS = 1_000_000
#: What a rank of ours ends with where this machine or installation cannot run it.
UNSUPPORTED_CODE = 3
MAX_TEXT = 65_536

#: Numbers of collectives, types and operations on the wire; names are those of :mod:`blinkccl.collectives`.
COLLECTIVES = tuple(_TYPES.numbers("blink_collective"))
#: What only the probe does (:mod:`blinkccl.bench.bound`); ``count`` is a number of bytes, or of round trips.
PROBES = tuple(_HEADER.numbers("peer_probe", "PEER_"))
FIRST_PROBE = _HEADER.constants["PEER_PROBE_ADD"]
DTYPES = tuple(_TYPES.numbers("blink_dtype"))
OPS = (*_TYPES.numbers("blink_operation"), *_HEADER.numbers("peer_op", "PEER_"))


class Kind(IntEnum):
    """What a command asks for."""

    RUN = _HEADER.constants["PEER_RUN"]
    QUIT = _HEADER.constants["PEER_QUIT"]
    PROGRAM = _HEADER.constants["PEER_PROGRAM"]
    CHOICE = _HEADER.constants["PEER_CHOICE"]
    RECORD = _HEADER.constants["PEER_RECORD"]


class Flag(IntFlag):
    """``SHARED``: buffers in shared memory, where the candidate has such; ``KEEP``: keep the memory for the next.

    ``WITH_BARRIER``: the barrier before a run is timed, too.
    """

    IN_PLACE = _HEADER.constants["PEER_IN_PLACE"]
    SHARED = _HEADER.constants["PEER_SHARED"]
    CHECK = _HEADER.constants["PEER_CHECK"]
    KEEP = _HEADER.constants["PEER_KEEP"]
    WITH_BARRIER = _HEADER.constants["PEER_WITH_BARRIER"]


NO_FLAGS = Flag(0)


class ReplyStatus(IntEnum):
    """``UNSUPPORTED`` leaves the candidate usable, ``FAILED`` does not."""

    OK = _HEADER.constants["PEER_OK"]
    UNSUPPORTED = _HEADER.constants["PEER_UNSUPPORTED"]
    FAILED = _HEADER.constants["PEER_FAILED"]


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
        coded = (MAGIC, self.kind, code, DTYPES.index(self.dtype), OPS.index(self.op))
        head = COMMAND.pack(*coded, *(getattr(self, name) for name in _NUMBERS))
        return head + self.fill + self.expected


#: The fields of a command after magic, kind, collective, dtype and op: numbers on the wire as they are.
_NUMBERS = _HEADER.structs["peer_command"].names[5:]


def read_command(head: bytes) -> tuple[Command, int, int]:
    """A command without its patterns, and how many bytes of ``fill`` and ``expected`` follow."""
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


def reply_bytes(head: bytes) -> int:
    """How many bytes of seconds and text follow."""
    magic, status, _, n, length = REPLY.unpack(head)
    if magic != MAGIC or status > max(ReplyStatus) or n > MAX_ITERATIONS or length > MAX_TEXT:
        raise CommunicationError(f"expected a reply of protocol {VERSION}, got {head.hex()}")
    return int(8 * n + length)


def read_reply(data: bytes) -> Reply:
    """A reply from its bytes on the wire, which may have others behind them."""
    head, body = data[: REPLY.size], data[REPLY.size :]
    _, status, wrong, n, _ = REPLY.unpack(head)
    text = body[8 * n : reply_bytes(head)].decode(errors="replace")
    return Reply(ReplyStatus(status), wrong, body[: 8 * n], text)


def read_hello(head: bytes) -> RankHello:
    """A rank's first words."""
    magic, version, rank, size, pid, library = HELLO.unpack(head)
    if magic != MAGIC or version != VERSION:
        raise CommunicationError(f"expected a hello of protocol {VERSION}, got {head[:16].hex()}…")
    text = library.split(b"\0")[0].decode(errors="replace")
    return RankHello(rank, size, pid, "".join(c if c.isprintable() else " " for c in text).strip())
