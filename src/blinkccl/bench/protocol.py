"""The protocol between the coordinator of a benchmark and its rank processes.

Every rank process of a candidate connects to the coordinator's unix socket, sends its hello, and then blocks in recv().
An idle candidate thus takes no processor time, and candidates can be interleaved. All numbers are little-endian and
unpadded. ``src/blinkccl/native/include/blink/bench.h`` has the structs for both languages: ``peer_hello`` from a rank
to the coordinator, ``peer_command`` to the rank, and ``peer_reply`` in answer.

A command is followed by in_blocks × period × itemsize bytes of input, and with CHECK by out_blocks × period × itemsize
bytes of expected output.

A rank has an input of ``in_blocks`` and an output of ``out_blocks`` blocks of ``count`` elements. Both lie on page
boundaries, in memory for which huge pages are requested. With IN_PLACE, and both present, they begin at block ``in_at``
and ``out_at`` of one memory. Element i of block b is element i mod ``period`` of block b of the command's pattern (see
:mod:`blinkccl.bench.pattern`). ``scale`` is the rank's scalar for premul_sum.

RUN is timed in the same way by all candidates: ``warmup`` runs, then ``iterations`` times *barrier, clock, collective,
clock* with the candidate's own barrier, in C if the library has C. The time of an iteration is that of the slowest
rank; it includes the barrier only with WITH_BARRIER. With CHECK, the buffers are then filled again, the collective runs
once more untimed, and every element of the output is compared.

A reply is followed by n × f64 seconds, and by length bytes of UTF-8 text, the reason if status is not OK.

Commands for blink's ranks alone hold from then on:

- PROGRAM sets the Program to run: the pattern is the Program as JSON (empty: the library chooses), ``count`` the bytes
  of a message.
- CHOICE sets the rows of a host's table for all calls, as JSON in the pattern.

QUIT has no reply. A rank ends when it loses its socket. While it works on a command, an alarm of ``deadline_s`` seconds
ends it even if its parent is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag

from blinkccl.errors import CommunicationError
from blinkccl.native.headers import header

_HEADER, _TYPES = header("bench.h"), header("types.h")
MAGIC, VERSION = _HEADER.constants["PEER_MAGIC"], _HEADER.constants["PEER_VERSION"]
HELLO, COMMAND, REPLY = (_HEADER.structs[f"peer_{name}"].wire() for name in ("hello", "command", "reply"))
#: Largest valid number of iterations, and of bytes of text, in a reply.
MAX_ITERATIONS = 1_000_000
#: Exit code of blink's ranks if this machine or installation cannot run them.
UNSUPPORTED_CODE = 3
MAX_TEXT = 65_536

#: Numbers of collectives, types and operations on the wire; names are those of :mod:`blinkccl.collectives`.
COLLECTIVES = tuple(_TYPES.numbers("blink_collective"))
#: Measurements of the probe (:mod:`blinkccl.bench.bound`); ``count`` is a number of bytes, or of round trips.
PROBES = tuple(_HEADER.numbers("peer_probe", "PEER_"))
FIRST_PROBE = _HEADER.constants["PEER_PROBE_ADD"]
DTYPES = tuple(_TYPES.numbers("blink_dtype"))
OPS = (*_TYPES.numbers("blink_operation"), *_HEADER.numbers("peer_op", "PEER_"))


class Kind(IntEnum):
    """The kind of a command."""

    RUN = _HEADER.constants["PEER_RUN"]
    QUIT = _HEADER.constants["PEER_QUIT"]
    PROGRAM = _HEADER.constants["PEER_PROGRAM"]
    CHOICE = _HEADER.constants["PEER_CHOICE"]


class Flag(IntFlag):
    """Flags of RUN.

    ``SHARED``: buffers in shared memory, if the candidate has it; ``KEEP``: keep the memory for the next command;
    ``WITH_BARRIER``: also time the barrier before a run.
    """

    IN_PLACE = _HEADER.constants["PEER_IN_PLACE"]
    SHARED = _HEADER.constants["PEER_SHARED"]
    CHECK = _HEADER.constants["PEER_CHECK"]
    KEEP = _HEADER.constants["PEER_KEEP"]
    WITH_BARRIER = _HEADER.constants["PEER_WITH_BARRIER"]


NO_FLAGS = Flag(0)


class ReplyStatus(IntEnum):
    """Status of a reply. The candidate stays usable after ``UNSUPPORTED``, but not after ``FAILED``."""

    OK = _HEADER.constants["PEER_OK"]
    UNSUPPORTED = _HEADER.constants["PEER_UNSUPPORTED"]
    FAILED = _HEADER.constants["PEER_FAILED"]


@dataclass(frozen=True, slots=True)
class RankHello:
    """The first message of a rank; ``library`` is the measured library, with its version."""

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
    """A command, with the fields of the module's text. ``fill`` and ``expected`` are patterns, as bytes."""

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


#: Fields of a command after magic, kind, collective, dtype and op, which need no coding.
_NUMBERS = _HEADER.structs["peer_command"].names[5:]


def read_command(head: bytes) -> tuple[Command, int, int]:
    """A command without its patterns, and the numbers of bytes of ``fill`` and ``expected`` that follow."""
    magic, kind, code, dtype, op, *numbers = COMMAND.unpack(head)
    try:
        name = PROBES[code - FIRST_PROBE] if code >= FIRST_PROBE else COLLECTIVES[code]
        fields = dict(zip(_NUMBERS, numbers, strict=True))
        fields["flags"] = Flag(fields["flags"])
        command = Command(Kind(kind), name, DTYPES[dtype], OPS[op], **fields)
    except (IndexError, ValueError):
        magic = 0
        command = Command(Kind.QUIT)
    if magic != MAGIC:
        raise CommunicationError(f"expected a command of protocol {VERSION}, got {head[:16].hex()}…")
    block = command.period * command.itemsize
    return command, command.in_blocks * block, command.out_blocks * block if command.flags & Flag.CHECK else 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one rank: seconds per iteration and wrong elements, or in ``text`` the reason of an error."""

    status: ReplyStatus
    wrong: int = 0
    seconds: bytes = b""
    text: str = ""

    def pack(self) -> bytes:
        """The bytes on the wire; ``seconds`` are already f64."""
        text = self.text.encode()[:MAX_TEXT]
        return REPLY.pack(MAGIC, self.status, self.wrong, len(self.seconds) // 8, len(text)) + self.seconds + text


def reply_bytes(head: bytes) -> int:
    """The number of bytes of seconds and text that follow."""
    magic, status, _, n, length = REPLY.unpack(head)
    if magic != MAGIC or status > max(ReplyStatus) or n > MAX_ITERATIONS or length > MAX_TEXT:
        raise CommunicationError(f"expected a reply of protocol {VERSION}, got {head.hex()}")
    return int(8 * n + length)


def read_reply(data: bytes) -> Reply:
    """The reply at the beginning of ``data``; bytes behind it are ignored."""
    head, body = data[: REPLY.size], data[REPLY.size :]
    _, status, wrong, n, _ = REPLY.unpack(head)
    text = body[8 * n : reply_bytes(head)].decode(errors="replace")
    return Reply(ReplyStatus(status), wrong, body[: 8 * n], text)


def read_hello(head: bytes) -> RankHello:
    """A rank's hello; CommunicationError for another protocol."""
    magic, version, rank, size, pid, library = HELLO.unpack(head)
    if magic != MAGIC or version != VERSION:
        raise CommunicationError(f"expected a hello of protocol {VERSION}, got {head[:16].hex()}…")
    text = library.split(b"\0")[0].decode(errors="replace")
    return RankHello(rank, size, pid, "".join(c if c.isprintable() else " " for c in text).strip())
