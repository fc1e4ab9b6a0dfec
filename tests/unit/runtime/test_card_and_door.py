"""What ranks say about themselves, and rank 0's judgement of who comes to its door."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from blinkccl.errors import CommunicationError
from blinkccl.runtime.card import alive, decode, encode, own_card, same_host
from blinkccl.runtime.door import MAX_PACKET_BYTES, Answer, Doorkeeper, Hello, pack
from blinkccl.runtime.process import lives, start_time

TOKEN = "f" * 32


def keeper() -> Doorkeeper:
    return Doorkeeper(TOKEN, 1000, 4)


def test_a_card_survives_its_bytes_and_names_this_process() -> None:
    card = own_card(1, 3, b"\0payload")
    assert decode(encode(card)) == card
    assert (card.pid, card.uid) == (os.getpid(), os.geteuid())
    assert card.payload == b"\0payload"


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", encode(own_card(0, 1))[:-1]])
def test_what_is_no_card_is_refused(data: bytes) -> None:
    with pytest.raises(CommunicationError, match="not a rank's card"):
        decode(data)


def test_hosts_are_told_apart_by_kernel_and_network() -> None:
    card = own_card(0, 2)
    other = msgspec.structs.replace(card, rank=1, pid=1, hostname="another name", processes=5)
    assert same_host([card, other])
    assert not same_host([card, msgspec.structs.replace(other, boot_id="another boot")])
    assert not same_host([card, msgspec.structs.replace(other, network=card.network + 1)])


def test_a_process_lives_until_it_ends_also_as_a_zombie() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = start_time(process.pid)
    card = msgspec.structs.replace(own_card(0, 1), pid=process.pid, start=start)
    assert alive(card) is True
    assert lives(process.pid, start + 1) is False  # another process with that number
    assert alive(msgspec.structs.replace(card, boot_id="elsewhere")) is None
    assert alive(msgspec.structs.replace(card, processes=card.processes + 1)) is None
    assert lives(process.pid, 0) is None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert alive(card) is False  # a zombie
    process.communicate()
    assert alive(card) is False


def test_the_doorkeeper_lets_each_rank_in_once() -> None:
    door = keeper()
    assert door.stranger(1000, 7) is None
    assert door.missing() == [1, 2, 3]
    assert door.admit(pack(Hello(TOKEN, 2, True)), 1, 77) == Hello(TOKEN, 2, True)
    assert door.admit(pack(Hello(TOKEN, 1, False)), 0, 78) == Hello(TOKEN, 1, False)
    assert door.missing() == [3]
    again = door.admit(pack(Hello(TOKEN, 2, False)), 0, 79)
    assert again == "rank 2 came twice: as process 77 and as process 79"
    assert door.inside == {2: 77, 1: 78}


@pytest.mark.parametrize(
    ("packet", "descriptors", "reason"),
    [
        (b"", 0, "sent no hello"),
        (b"\xc1\xff", 0, "sent no hello"),
        (pack(Hello(TOKEN, 1, False))[:-1], 0, "sent no hello"),
        (pack(Hello("f" * 31 + "0", 1, False)), 0, "does not know this job's token"),
        (pack(Hello("", 1, False)), 0, "does not know this job's token"),
        (pack(Hello("ä", 1, False)), 0, "does not know this job's token"),
        (pack(Hello(TOKEN, 0, False)), 0, "says it is rank 0, expected 1 to 3"),
        (pack(Hello(TOKEN, 4, False)), 0, "says it is rank 4, expected 1 to 3"),
        (pack(Hello(TOKEN, 1, True)), 0, "sent 0 descriptors, expected 1"),
        (pack(Hello(TOKEN, 1, False)), 1, "sent 1 descriptors, expected 0"),
    ],
)
def test_the_doorkeeper_refuses_with_the_reason(packet: bytes, descriptors: int, reason: str) -> None:
    door = keeper()
    answer = door.admit(packet, descriptors, 77)
    assert isinstance(answer, str)
    assert reason in answer
    assert door.missing() == [1, 2, 3]


def test_another_user_is_a_stranger() -> None:
    assert keeper().stranger(0, 77) == "expected user 1000, got user 0 (process 77)"


def test_an_answer_to_the_most_ranks_fits_a_packet() -> None:
    shared = Answer("shared", heaps=(True,) * 250)
    missing = Answer("missing", "x" * 1000, missing=tuple(range(125)), present=tuple(range(125, 250)))
    assert max(len(pack(shared)), len(pack(missing))) < MAX_PACKET_BYTES
