"""A damaged topology file is read as a valid topology or refused with TopologyError.

Every sample is damaged 500 times, and 2,000 times with BLINK_ALL_TESTS=1. Bytes are deleted, doubled or flipped, text
is cut off, lines are swapped, dropped or doubled, and numbers and words are replaced.
"""

import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology import formats
from blinkccl.topology.assembly import MAX_LINKS, MAX_VERTICES
from blinkccl.topology.formats import parse_topology
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from support.examples import ALL_TESTS

MUTATIONS = 2000 if ALL_TESTS else 500
OURS = Path(formats.__file__).parent / "fixtures"
NUMBERS = [*b"0 1 -1 99999999999999999999 1e999 nan NaN Infinity 1.5 \xff 0x10 7 16 null true".split(), b""]
WORDS = [
    *b"X NV2 NV0 NV99 SYS PIX PHB gpu pci GPU0 GPU1 GPU999 system < > &amp; &lol; { ] 0x030200 0x068000".split(),
    *(b"switch", b"nvlink", b"Legend:", b"<!DOCTYPE a>", b'"', b"\t", b"\n\n", b"\0", "٣".encode()),
]


def samples() -> list[Path]:
    return sorted(p for p in OURS.iterdir() if p.suffix != ".md")


def flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def delete(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(data))
    del data[start : start + dice.choice((1, 1, 2, 10, 100))]


def double(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(data))
    data[start:start] = data[start : start + dice.choice((1, 5, 50, 500))]


def truncate(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def change_lines(data: bytearray, dice: random.Random) -> None:
    lines = bytes(data).split(b"\n")
    a, b = dice.randrange(len(lines)), dice.randrange(len(lines))
    change = dice.randrange(3)
    if change == 0:
        lines[a], lines[b] = lines[b], lines[a]
    elif change == 1:
        lines.insert(b, lines[a])
    else:
        del lines[a]
    data[:] = b"\n".join(lines)


def replace_one(pattern: bytes, choices: tuple[bytes, ...]) -> Callable[[bytearray, random.Random], None]:
    def change(data: bytearray, dice: random.Random) -> None:
        matches = list(re.finditer(pattern, data))
        if matches:
            match = dice.choice(matches)
            data[match.start() : match.end()] = dice.choice(choices)

    return change


CHANGES = (
    flip,
    delete,
    double,
    truncate,
    change_lines,
    replace_one(rb"[0-9]+(?:\.[0-9]+)?", NUMBERS),
    replace_one(rb"[A-Za-z_]+[0-9]*", WORDS),
)


def check(topology: Topology) -> None:
    """Assert the properties of a valid topology that its constructor does not check."""
    assert topology.ranks, "a topology has at least one rank"
    assert len(topology.vertices) <= MAX_VERTICES
    assert len(topology.links) <= MAX_LINKS
    for x in topology.links:
        assert x.gb_per_s == pytest.approx(x.capacity * topology.unit_gb_per_s, rel=1e-6)


@pytest.mark.parametrize("path", samples(), ids=lambda p: p.name)
def test_damaged_files_read_or_are_refused(path: Path) -> None:
    original = path.read_bytes()
    dice = random.Random(zlib.crc32(path.name.encode()))
    refusals: list[str] = []
    for number in range(MUTATIONS):
        data = bytearray(original)
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            if data:
                dice.choice(CHANGES)(data, dice)
        try:
            topology = parse_topology(bytes(data), path.name)
            check(topology)
            if number % 10 == 0:
                network_for(topology, topology.ranks, "all")
        except TopologyError as error:
            refusals.append(str(error))
    assert refusals
    if path.suffix != ".json":  # a JSON topology contains its name
        assert all(path.name in message for message in refusals), "a message names the file"
