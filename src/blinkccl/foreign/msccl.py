"""MSCCL XML: the plans of MSCCL, of its executor for NCCL, and of RCCL before 2026.

A file is one algorithm: ``algo > gpu > tb > step``. A step works on chunks of the buffers of its GPU, receives on the
connection of its thread block and sends on it; it may wait for one step of another thread block of its GPU, and ``nop``
steps before it carry further waits. Limits and rules here are those of the parsers (``topo.cc`` of MSCCL,
``msccl_parser.cc`` of its executor) and of the kernel, where these do not check them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import ScheduleError, TopologyError
from blinkccl.foreign.instructions import (
    Await,
    Block,
    Connection,
    Fence,
    Instruction,
    InstructionList,
    Move,
    Post,
    Span,
)
from blinkccl.foreign.verify import MOST_RANKS, buffer_chunks, collective_of
from blinkccl.topology.limits import shortened
from blinkccl.topology.xml_tree import Element, parse_xml

#: A file of all ranks; what one rank loads of it is :data:`MOST_NODES`.
MAX_FILE_BYTES = 64 * 2**20
MOST_ELEMENTS = 500_000
#: What the parsers hold: nodes that a rank loads, children and attributes of one, characters of a text.
MOST_NODES, MOST_CHILDREN, MOST_ATTRIBUTES, MOST_CHARACTERS = 4096, 1024, 16, 255
#: Steps of a thread block (their numbers are bytes), chunks of a step, channels, thread blocks of a GPU.
MOST_STEPS, MOST_COUNT, MOST_CHANNELS, MOST_BLOCKS = 256, 71, 32, 216
#: Sending or receiving thread blocks of a GPU on one channel.
MOST_PEERS = 32
#: The number of a thread block that others wait for is a signed byte, an offset a signed short.
MOST_AWAITED, MOST_OFFSET = 127, 32767
#: By protocol, how many messages a connection holds, and how many bytes one has (NCCL's default buffers). The chunks of
#: a step are as many messages as they need at the largest size that the file is for.
PROTOCOLS = {"Simple": (2, 2**21), "LL": (8, 2**15), "LL128": (8, 2**19)}
#: Which of source, destination, receive and send a step has.
_TYPES = {
    "s": (True, False, False, True),
    "r": (False, True, True, False),
    "rcs": (False, True, True, True),
    "rrs": (True, False, True, True),
    "rrc": (True, True, True, False),
    "rrcs": (True, True, True, True),
    "cpy": (True, True, False, False),
    "re": (True, True, False, False),
    "nop": (False, False, False, False),
}


def looks_like(content: bytes) -> bool:
    """Whether the first element is ``algo``."""
    return (
        re.match(
            rb"(\xef\xbb\xbf)?\s*(<\?.*?\?>\s*|<!--.*?-->\s*|<!DOCTYPE[^[>]*(\[[^]]*\])?\s*>\s*)*<algo[\s>/]",
            content[:4096],
            re.DOTALL,
        )
        is not None
    )


def read(content: bytes, source: str) -> tuple[InstructionList, ...]:
    """The plan, twice where it says that it serves calls in place and out of place.

    ScheduleError, with the line, for what no parser takes: no XML, a document type, an attribute that is missing or no
    number, what is above a limit, a chunk outside of its buffer, peers or steps that are not there.
    """
    if len(content) > MAX_FILE_BYTES:
        raise ScheduleError(f"{source}: expected at most {MAX_FILE_BYTES >> 20} MiB, got {len(content) >> 20}")
    try:
        root = parse_xml(content.decode("utf-8-sig"), source, most=MOST_ELEMENTS)
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{source}: byte {content[error.start]:#04x} is no UTF-8 text") from None
    except TopologyError as error:
        raise ScheduleError(str(error)) from None
    return _Reader(root, source).plans()


class _Reader:
    """One file: its tree, and the numbers that all of it is about."""

    def __init__(self, root: Element, source: str) -> None:
        self.root, self.source = root, source
        if root.tag != "algo":
            raise self.at(root, f"expected <algo>, got <{shortened(root.tag, 40)}>")
        self.ranks = self.number(root, "ngpus", 1, MOST_RANKS)
        self.loop = self.number(root, "nchunksperloop", 1, 10**6)
        self.channels = self.number(root, "nchannels", 1, MOST_CHANNELS)
        self.collective = collective_of(self.text(root, "coll"), self.ranks, source)
        self.protocol = self.text(root, "proto")
        if self.protocol not in PROTOCOLS:
            raise self.at(root, f"proto {shortened(self.protocol, 40)!r} is not one of {', '.join(PROTOCOLS)}")
        parts = 1 if COLLECTIVES[self.collective.name].whole else self.ranks
        if self.loop % parts:
            raise self.at(
                root, f"nchunksperloop {self.loop} is no multiple of the {parts} blocks of {self.collective.name}"
            )
        self.chunks = self.loop // parts

    def at(self, element: Element, text: str) -> ScheduleError:
        return ScheduleError(f"{self.source}, line {element.line}: {text}")

    def text(self, element: Element, key: str) -> str:
        if key not in element.attributes:
            raise self.at(element, f"<{element.tag}> has no {key!r}: a runtime would ignore the file without a word")
        return element.attributes[key]

    def number(self, element: Element, key: str, least: int, most: int) -> int:
        text = self.text(element, key)
        value = int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else None
        if value is None or not least <= value <= most:
            raise self.at(element, f"{key} of <{element.tag}>: expected {least} … {most}, got {shortened(text, 40)!r}")
        return value

    def plans(self) -> tuple[InstructionList, ...]:
        gpus = self.root.all("gpu")
        ids = [self.number(gpu, "id", 0, self.ranks - 1) for gpu in gpus]
        if ids != list(range(self.ranks)):
            raise self.at(self.root, f"expected a <gpu> for each of 0 … {self.ranks - 1} in order, got {ids[:40]}")
        self._check_counts(gpus)
        inside = self.number(self.root, "inplace", 0, 1)
        # Files for the first runtime, which goes by inplace alone, do not say it.
        outside = self.number(self.root, "outofplace", 0, 1) if "outofplace" in self.root.attributes else 1 - inside
        places = ((False, outside), (True, inside))
        if not any(served for _, served in places):
            raise self.at(self.root, "inplace and outofplace are both 0: no call takes this plan")
        ends: dict[tuple[str, Connection], int] = {}
        blocks = tuple(block for gpu, rank in zip(gpus, ids, strict=True) for block in self._blocks(gpu, rank, ends))
        about: dict[str, str | int] = {"format": "MSCCL XML", "protocol": self.protocol, "channels": self.channels}
        peers = Counter((kind, getattr(end, "src" if kind == "send" else "dst"), end.channel) for kind, end in ends)
        for (kind, rank, channel), count in peers.items():
            if count > MOST_PEERS:
                raise self.at(
                    self.root,
                    f"{count} thread blocks of GPU {rank} {kind} on channel {channel}, expected at most {MOST_PEERS}",
                )
        slots, size = PROTOCOLS[self.protocol]
        most = self.number(self.root, "maxBytes", 0, 2**63 - 1) if "maxBytes" in self.root.attributes else 2**27
        together = max(1, size * self.loop // most) if most else 1
        return tuple(
            InstructionList(
                self.collective,
                self.chunks,
                in_place,
                blocks,
                about,
                slots=slots,
                together=together,
                message_bytes=size,
            )
            for in_place, served in places
            if served
        )

    def _check_counts(self, gpus: list[Element]) -> None:
        """What one rank loads, and what a parser holds of any node."""
        for element in (self.root, *self.root.below("gpu"), *self.root.below("tb"), *self.root.below("step")):
            if len(element.attributes) > MOST_ATTRIBUTES:
                raise self.at(element, f"{len(element.attributes)} attributes, expected at most {MOST_ATTRIBUTES}")
            if len(element.children) > MOST_CHILDREN:
                raise self.at(element, f"{len(element.children)} children, expected at most {MOST_CHILDREN}")
            if any(len(text) > MOST_CHARACTERS for text in element.attributes.values()):
                raise self.at(element, f"a text of more than {MOST_CHARACTERS} characters")
        for gpu in gpus:
            nodes = 1 + len(gpus) + sum(1 + len(tb.children) for tb in gpu.children)
            if nodes > MOST_NODES:
                raise self.at(gpu, f"a rank loads {nodes} nodes of this file, expected at most {MOST_NODES}")

    def _blocks(self, gpu: Element, rank: int, ends: dict[tuple[str, Connection], int]) -> Iterator[Block]:
        sizes = {key: self.number(gpu, f"{key}_chunks", 0, 10**6) for key in "ios"}
        for key, expected in zip("io", buffer_chunks(self.collective, rank, self.chunks), strict=True):
            if sizes[key] not in (0, expected):
                raise self.at(
                    gpu,
                    f"{key}_chunks of GPU {rank}: expected {expected} or 0, got {sizes[key]}: let it agree with "
                    f"nchunksperloop {self.loop}",
                )
        blocks = gpu.all("tb")
        ids = [self.number(tb, "id", 0, MOST_BLOCKS - 1) for tb in blocks]
        if ids != list(range(len(blocks))):
            raise self.at(gpu, f"thread blocks of GPU {rank}: expected 0 … {len(blocks) - 1} in order, got {ids[:40]}")
        for number, tb in enumerate(blocks):
            yield self._block(tb, rank, number, blocks, sizes, ends)

    def _block(
        self,
        tb: Element,
        rank: int,
        number: int,
        blocks: list[Element],
        sizes: dict[str, int],
        ends: dict[tuple[str, Connection], int],
    ) -> Block:
        channel = self.number(tb, "chan", 0, self.channels - 1)
        pair: dict[str, Connection | None] = {"send": None, "recv": None}
        for key in pair:
            peer = self.number(tb, key, -1, self.ranks - 1)
            if peer == rank:
                raise self.at(tb, f"GPU {rank} and {key} {peer}: no thread block has its own GPU as its peer")
            if peer >= 0:
                link = Connection(rank, peer, channel) if key == "send" else Connection(peer, rank, channel)
                pair[key] = link
                other = ends.setdefault((key, link), number)
                if other != number:
                    raise self.at(
                        tb,
                        f"thread blocks {other} and {number} of GPU {rank} both {key} on {link}: give one of them "
                        "another peer or chan",
                    )
        name = f"GPU {rank}, thread block {number}"
        steps = tb.all("step")
        if len(steps) > MOST_STEPS:
            raise self.at(tb, f"{len(steps)} steps, expected at most {MOST_STEPS}")
        listed: list[Instruction] = []
        awaited: list[Await] = []
        for place, step in enumerate(steps):
            if self.number(step, "s", 0, MOST_STEPS - 1) != place:
                raise self.at(step, f"step s={step.attributes['s']}, expected {place}: steps are numbered from 0 on")
            awaited += self._waits(step, rank, f"{name}, step {place}", blocks)
            move = self._step(step, rank, f"{name}, step {place}", sizes, pair)
            if move is None:
                if not awaited or place + 1 == len(steps):
                    raise self.at(step, "a nop has a dependence, and the step that needs it comes after it")
                continue
            if awaited and self.number(step, "depid", -1, len(blocks) - 1) >= 0:
                listed += [*awaited, Fence(move.where)]
            elif awaited and self._is_nop(steps[place - 1]):
                raise self.at(step, "the last of several dependences must be on the step itself, not on a nop")
            listed += [move, Fence(move.where)]
            if self.number(step, "hasdep", 0, 1):
                listed.append(Post(move.where, _flag(rank, number, place)))
            awaited = []
        return Block(rank, name, tuple(listed))

    def _is_nop(self, step: Element) -> bool:
        return step.attributes.get("type") == "nop"

    def _waits(self, step: Element, rank: int, where: str, blocks: list[Element]) -> list[Await]:
        block = self.number(step, "depid", -1, len(blocks) - 1)
        target = self.number(step, "deps", -1, MOST_STEPS - 1)
        if block < 0:
            return []
        if block > MOST_AWAITED:
            raise self.at(step, f"depid {block}: what others wait for is kept in a signed byte, at most {MOST_AWAITED}")
        steps = blocks[block].all("step")
        if not 0 <= target < len(steps) or self._is_nop(steps[target]):
            raise self.at(
                step, f"deps {target}: thread block {block} of GPU {rank} has no such step that does anything"
            )
        return [Await(where, _flag(rank, block, target), 1)]

    def _step(
        self, step: Element, rank: int, where: str, sizes: dict[str, int], pair: dict[str, Connection | None]
    ) -> Move | None:
        kind = self.text(step, "type")
        if kind not in _TYPES:
            raise self.at(step, f"type {shortened(kind, 40)!r} is not one of {', '.join(_TYPES)}")
        has_source, has_target, receives, sends = _TYPES[kind]
        count = self.number(step, "cnt", 0, MOST_COUNT)
        spans: dict[str, tuple[Span, ...]] = {}
        for end, used in (("src", has_source), ("dst", has_target)):
            buffer, start = self.text(step, f"{end}buf"), self.number(step, f"{end}off", -1, MOST_OFFSET)
            if used and buffer not in sizes:
                raise self.at(step, f"{end}buf {shortened(buffer, 40)!r} is not one of i, o, s")
            if used and not 0 <= start <= sizes[buffer] - count:
                size = sizes[buffer]
                fits = f"expected within 0 … {size - 1}" if size else "give it some, or take another buffer"
                raise self.at(
                    step,
                    f"{where}: chunks {start} … {start + count - 1} of {buffer}, which has {size} chunks: {fits}",
                )
            spans[end] = (Span(rank, buffer, start),) if used else ()
        for key, used in (("recv", receives), ("send", sends)):
            if used and pair[key] is None:
                raise self.at(step, f"{where}: type {kind!r}, but its thread block has {key} -1: expected a peer")
        if kind == "nop":
            return None
        operands = spans["dst"] + spans["src"] if kind == "re" else spans["src"]
        takes, gives = pair["recv"] if receives else None, pair["send"] if sends else None
        return Move(where, count, operands, spans["dst"], takes, gives)


def _flag(rank: int, block: int, step: int) -> str:
    return f"the flag (hasdep) of GPU {rank}, thread block {block}, step {step}"
