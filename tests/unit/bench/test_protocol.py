"""Messages arrive unchanged, and invalid ones are refused."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from blinkccl.bench import protocol
from blinkccl.bench.protocol import (
    COMMAND,
    HELLO,
    REPLY,
    Command,
    Flag,
    Kind,
    RankHello,
    Reply,
    ReplyStatus,
    read_command,
    read_hello,
    read_reply,
    reply_bytes,
)
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import CommunicationError

COMMAND_ONE = Command(
    Kind.RUN,
    "reduce_scatter",
    "bfloat16",
    "max",
    1,
    2,
    3,
    Flag.CHECK | Flag.KEEP,
    4,
    5,
    6,
    2,
    8,
    9,
    10,
    11,
    2**40,
    3,
    0.5,
    b"f" * 48,
    b"e" * 54,
)


def test_a_command_arrives():
    sent = COMMAND_ONE.pack()
    command, fill, expected = read_command(sent[: COMMAND.size])
    assert (fill, expected) == (8 * 3 * 2, 9 * 3 * 2)
    assert sent[COMMAND.size :] == COMMAND_ONE.fill + COMMAND_ONE.expected
    assert replace(command, fill=COMMAND_ONE.fill, expected=COMMAND_ONE.expected) == COMMAND_ONE


@pytest.mark.parametrize("name", [*COLLECTIVES, *protocol.PROBES])
def test_every_collective_has_a_number(name):
    assert read_command(Command(Kind.RUN, name).pack()[: COMMAND.size])[0].collective == name


def test_without_check_nothing_expected_follows():
    assert read_command(replace(COMMAND_ONE, flags=Flag.KEEP).pack()[: COMMAND.size])[1:] == (48, 0)


@pytest.mark.parametrize(
    "head",
    [
        b"\0" * COMMAND.size,
        b"\xff" * COMMAND.size,
        struct.pack("<III", protocol.MAGIC, 9, 0).ljust(COMMAND.size, b"\0"),
        struct.pack("<III", protocol.MAGIC, 1, 63).ljust(COMMAND.size, b"\0"),
    ],
)
def test_an_invalid_command_is_refused(head):
    with pytest.raises(CommunicationError, match="expected a command"):
        read_command(head)


def test_a_reply_arrives():
    seconds = np.array([1.5, 2.5])
    sent = Reply(ReplyStatus.FAILED, 7, seconds.tobytes(), "weil …").pack()
    assert read_reply(sent + b"and more") == Reply(ReplyStatus.FAILED, 7, seconds.tobytes(), "weil …")
    assert REPLY.size + reply_bytes(sent[: REPLY.size]) == len(sent)


@pytest.mark.parametrize(
    "reply",
    [(0, 0, 0, 0, 0), (protocol.MAGIC, 3, 0, 0, 0), (protocol.MAGIC, 0, 0, 2**31, 0), (protocol.MAGIC, 0, 0, 0, 2**31)],
)
def test_an_invalid_reply_is_refused(reply):
    with pytest.raises(CommunicationError, match="expected a reply"):
        reply_bytes(REPLY.pack(*reply))


def test_a_hello_arrives_without_control_characters():
    hello = read_hello(RankHello(3, 4, 99, "Open\nMPI \x1b[31m 4.1" + "x" * 200).pack())
    assert (hello.rank, hello.world_size, hello.pid) == (3, 4, 99)
    assert hello.library.startswith("Open MPI  [31m 4.1xxx")
    with pytest.raises(CommunicationError, match="expected a hello"):
        read_hello(HELLO.pack(protocol.MAGIC, 2, 0, 0, 0, b""))


def test_every_collective_type_and_operation_has_a_number() -> None:
    assert list(protocol.COLLECTIVES) == list(COLLECTIVES)
    assert list(protocol.DTYPES) == list(DTYPES)
    assert set(protocol.OPS) == set(OPS)
    assert (HELLO.format, COMMAND.format, REPLY.format) == ("<IIIIQ128s", "<IIIIIiiiIIIIIIIIIQQd", "<IIQII")
