"""How a message goes from one block to another, as threads of :mod:`support.weak_memory`.

What is modelled, line by line, is ``execute<Wire>`` with ``await_end`` and ``sweep`` (native/device/blink/execute.h),
``fold_as`` as far as it reads and writes messages (fold.h: every thread its units), what a wire's ``Units`` do
(wires.h), and ``open_end`` and ``close`` (state.h). One connection, a writing and a reading block; thread 0 has the end
(``i = 0``).

``but`` names what a variant does otherwise: one step of the protocol left out or weakened. The tests say which of them
the search must refute, and which are sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from support.litmus import Thread
from support.weak_memory import Searched, search


@dataclass(frozen=True)
class Shape:
    """The size of an instance: threads per block, slots, and per message its units (1 to the threads)."""

    threads: int = 2
    slots: int = 2
    messages: int = 3
    units: tuple[int, ...] = ()

    def used(self, position: int) -> int:
        return self.units[position] if self.units else self.threads


class Block:
    """The threads of a block, with its state in shared memory: plain places whose names begin with the block's."""

    def __init__(self, name: str, shape: Shape, but: str) -> None:
        self.name, self.shape, self.but = name, shape, but
        self.threads = [Thread(f"{name}{t}", name) for t in range(shape.threads)]
        self.counting = self.threads[0]
        #: The publisher, which meets no other thread but the first; None: the block publishes for itself.
        self.publisher: Thread | None = None

    def with_publisher(self) -> Block:
        self.publisher = Thread(f"{self.name}'s publisher")
        return self

    @property
    def all(self) -> list[Thread]:
        return [*self.threads, self.publisher] if self.publisher else self.threads

    def arrive(self, thread: Thread, barrier: str, position: int) -> None:
        """``arrive_at`` one of two barriers, by turns: all that was done before is seen by who waits there."""
        order = "relaxed" if self.but == f"no order by {barrier}" else "release"
        thread.store(f"{self.name}.{barrier}{position % 2}", position + 1, order)

    def meet(self, thread: Thread, barrier: str, position: int) -> None:
        """``meet_at`` the same."""
        if self.but != f"{barrier} not awaited":
            place = f"{self.name}.{barrier}{position % 2}"
            thread.wait(place, lambda seen, r: seen >= position + 1, "acquire", said=f"≥ {position + 1}")

    def await_free(self, position: int) -> None:
        """The notice of this turn has been published, the one before perhaps not."""
        if self.publisher and position >= 2:
            self.meet(self.threads[0], "free", position - 2)

    def await_published(self, messages: int) -> None:
        """``close``, which all threads meet in."""
        for position in range(max(0, messages - 2), messages):
            self.meet(self.threads[0], "free", position)

    def publish(self, counter: str, position: int, order: str) -> None:
        """A notice behind the last barrier, and what the publisher makes of it."""
        assert self.publisher
        self.arrive(self.threads[0], "told", position)
        self.meet(self.publisher, "told", position)
        self.publisher.load("value", f"{self.name}.notice{position % 2}")
        self.publisher.store(counter, lambda r: r["value"], order)
        self.arrive(self.publisher, "free", position)

    def barrier(self, which: str) -> None:
        if self.but not in (f"no {which}", f"no {which} of the {self.name}"):
            for thread in self.threads:
                thread.barrier()

    def note_message(self, position: int) -> None:
        """``state.message[i]``, by the thread that has the end, and ``write_job``, by the first; all read them."""
        self.counting.store(f"{self.name}.message", position % self.shape.slots)
        self.threads[0].store(f"{self.name}.job", position)

    def message(self, thread: Thread) -> None:
        thread.load("message", f"{self.name}.message")

    def advance(self, position: int) -> None:
        """``advance`` before the last barrier, behind which the job may be the next one's already."""
        if self.but != "job read after the last barrier":
            self._read_job()
        self.counting.store(f"{self.name}.position", position + 1)
        if self.publisher:
            self.counting.store(f"{self.name}.notice{position % 2}", position + 1)

    def _read_job(self) -> None:
        for thread in self.threads:
            thread.load("job", f"{self.name}.job")

    def tell(self, counter: str, position: int, order: str) -> None:
        """The counter of an end, after the last barrier: one store of one thread."""
        if self.publisher:
            self.publish(counter, position, order)
            return
        if self.but == "job read after the last barrier":
            self._read_job()
        self.counting.load("told", f"{self.name}.position")
        self.counting.store(counter, lambda r: r["told"], order)

    def await_room(self, position: int, acquire: str = "acquire") -> None:
        """``await_end`` of a send. Credit that was acquired once need not be asked for again (``seen_head``)."""
        one, room = self.counting, self.shape.slots + (self.but == "a slot too many")
        if position == 0:
            one.let("seen_head", 0)
        if self.but == "heads not asked":
            return

        def ask() -> None:
            one.wait("head", lambda head, r: head + room >= position + 1, said=f"≥ {position + 1 - room}")
            if acquire == "acquire":
                one.load("seen_head", "head", acquire)

        one.when(lambda r: r["seen_head"] + room < position + 1, ask)


# ---- Simple


def data_of(slot: int, unit: int) -> str:
    return f"ring{slot}[{unit}]"


def ring(shape: Shape) -> list[str]:
    return [data_of(slot, unit) for slot in range(shape.slots) for unit in range(shape.threads)]


def simple_send(block: Block, position: int) -> None:
    """One execution that sends: Units<Simple>::write, and the tail."""
    shape, but = block.shape, block.but
    block.await_room(position, "relaxed" if but == "head not acquired" else "acquire")
    block.note_message(position)
    block.await_free(position)
    block.barrier("first barrier")
    for unit, thread in enumerate(block.threads):
        block.message(thread)
        thread.store(lambda r, unit=unit: data_of(r["message"], unit), (position, unit), among=ring(shape))
    block.advance(position)
    if but == "tail before the barrier":
        block.tell("tail", position, "release")
    block.barrier("last barrier")
    if but != "tail before the barrier":
        block.tell("tail", position, "relaxed" if but == "tail relaxed" else "release")


def simple_receive(block: Block, position: int) -> None:
    """One execution that receives. Each thread reads a unit of another thread: the barriers are what orders that."""
    shape, but = block.shape, block.but
    block.counting.wait("tail", lambda tail, r: tail >= position + 1, said=f"≥ {position + 1}")
    if but != "tail not acquired":
        block.counting.load("seen_tail", "tail", "acquire")
    block.note_message(position)
    block.await_free(position)
    block.barrier("first barrier")
    for t, thread in enumerate(block.threads):
        unit = (t + 1) % shape.threads
        block.message(thread)
        thread.load("data", lambda r, unit=unit: data_of(r["message"], unit), among=ring(shape))
        thread.check(
            lambda r, unit=unit: r["data"] == (position, unit), f"message {position}, unit {unit} is another's"
        )
    block.advance(position)
    block.barrier("last barrier")
    block.tell("head", position, "relaxed" if but == "head relaxed" else "release")


def simple(shape: Shape, but: str = "") -> Searched:
    writer, reader = Block("writer", shape, but), Block("reader", shape, but)
    for position in range(shape.messages):
        simple_send(writer, position)
        simple_receive(reader, position)
    return search(writer.threads + reader.threads)


def published(shape: Shape, but: str = "") -> Searched:
    """Simple in blocks of several warps: a thread more in each, which publishes while the others go on."""
    writer, reader = Block("writer", shape, but).with_publisher(), Block("reader", shape, but).with_publisher()
    for position in range(shape.messages):
        simple_send(writer, position)
        simple_receive(reader, position)
    for block in (writer, reader):
        block.await_published(shape.messages)
    return search(writer.all + reader.all)


def relay(shape: Shape, but: str = "") -> Searched:
    """Three blocks: the middle one receives and sends in one execution, head by thread 0 and tail by thread 1."""
    first, middle, last = Block("writer", shape, but), Block("middle", shape, but), Block("reader", shape, but)
    for position in range(shape.messages):
        simple_send(first, position)
        simple_receive(last, position)
    for thread in last.threads:
        thread.ops = [_renamed(op, "2") for op in thread.ops]
    slots = shape.slots
    t0, t1 = middle.threads[0], middle.threads[-1]
    for position in range(shape.messages):
        t0.wait("tail", lambda tail, r, position=position: tail >= position + 1)
        t0.load("seen", "tail", "acquire")
        t0.store("middle.message", position % slots)
        t1.wait("head2", lambda head, r, position=position: head + slots >= position + 1)
        t1.load("seen", "head2", "acquire")
        t1.store("middle.message2", position % slots)
        middle.barrier("first barrier")
        for t, thread in enumerate(middle.threads):
            unit = (t + 1) % shape.threads
            thread.load("from", "middle.message")
            thread.load("to", "middle.message2")
            thread.load("data", lambda r, unit=unit: data_of(r["from"], unit), among=ring(shape))
            thread.store(
                lambda r, unit=unit: data_of(r["to"], unit) + "2",
                lambda r: r["data"],
                among=[name + "2" for name in ring(shape)],
            )
        middle.barrier("last barrier")
        t0.store("head", position + 1, "release")
        t1.store("tail2", position + 1, "relaxed" if but == "tail relaxed in the middle" else "release")
    return search(first.threads + middle.threads + last.threads)


def _renamed(op: Any, suffix: str) -> Any:
    shared = ("head", "tail", *op.among)
    if op.among:
        at = op.at
        return replace(op, at=lambda r: at(r) + suffix, among=tuple(name + suffix for name in op.among))
    return replace(op, at=op.at + suffix) if op.at in shared else op


# ---- LL and LL128


@dataclass(frozen=True)
class Lines:
    """How messages with flags go about it."""

    #: The wires of the messages in turn.
    wires: tuple[str, ...] = ("LL",)
    #: Of the store of a head by the reader, and of its load by the writer.
    head: str = "relaxed"
    acquire: str = "relaxed"
    #: Whether each wire has memory of its own; if not, whether LL128's receiver zeroes what it has read.
    apart: bool = True
    clears: bool = False
    #: LL's flags come round after so many messages; every half of that the sender sweeps LL's lines: in a message of
    #: one of these wires.
    modulus: int = 1 << 31
    sweeps: tuple[str, ...] = ("LL", "LL128")
    #: Whether what was stored half a round of flags ago has arrived. PTX names no time after which a store is seen.
    old_arrive: bool = True
    #: Whether a line of LL128, which comes to be seen in parts, has its flag in the last one.
    flag_last: bool = True
    #: Whether its lanes load it again behind their vote, and whether they have converged before.
    reloads: bool = True
    converges: bool = True
    #: Whether what a thread stores behind a barrier may overtake what it loaded then.
    overtaken: bool = False

    def wire(self, position: int) -> str:
        return self.wires[position % len(self.wires)]


def word(slot: int, unit: int) -> str:
    return f"line{slot}[{unit}]"


def line(slot: int) -> str:
    """Of LL128, where it has memory of its own."""
    return f"wide{slot}"


def ll_flag(lines: Lines, position: int) -> tuple[str, int]:
    """Units<LL>::flag: the position modulo 2^31, with the uppermost bit set."""
    return ("LL", position % lines.modulus)


def lines_send(block: Block, lines: Lines, position: int) -> None:
    """Units<LL>::write and Units<LL128>::write (flag behind the data), and sweep()."""
    shape, slot = block.shape, position % block.shape.slots
    block.await_room(position, lines.acquire)
    block.note_message(position)
    block.barrier("first barrier")
    for unit, thread in enumerate(block.threads):
        block.message(thread)
        if lines.wire(position) == "LL128":
            _write_line(thread, lines, position, shape.slots, unit)
        elif unit < shape.used(position):
            thread.store(word(slot, unit), (ll_flag(lines, position), (position, unit)), "relaxed")
    every = lines.modulus // 2
    wire = lines.wire(position)
    if wire in lines.sweeps and "LL" in lines.wires and position >= every and position % every < shape.slots:
        for unit in range(shape.used(position) if wire == "LL" else 0, shape.threads):
            block.threads[(unit + 1) % shape.threads].store(word(slot, unit), ("swept", position), "relaxed")
    block.advance(position)
    block.barrier("last barrier")


def _write_line(thread: Thread, lines: Lines, position: int, slots: int, unit: int) -> None:
    """A line is data and a flag, which several lanes store by one instruction: in the model one thread.

    It is one place, of which each load gives all, and it comes in parts, the flag at last. (Both wires on the same
    memory are modelled with one slot, and with words as places, as on a CPU. There LL128's data may be any bits: those
    of the next LL's flag.)
    """
    slot = position % slots
    if unit != 0:
        return
    if _mixed(lines):
        thread.store(word(slot, 0), (ll_flag(lines, position + 1), "any bits"), "relaxed")
        thread.store(word(slot, 1), position + 1, "release")
        return
    before = next((p for p in range(position - slots, -1, -slots) if lines.wire(p) == "LL128"), -1)
    part = (position, before + 1) if lines.flag_last else (before, position + 1)
    thread.store(line(slot), part, "relaxed")
    thread.store(line(slot), (position, position + 1), "relaxed")


#: Of the lanes of a line, which are a reader's threads, the one that has the flag.
FLAG_LANE = 1


def _mixed(lines: Lines) -> bool:
    return "LL" in lines.wires and not lines.apart


def lines_receive(block: Block, lines: Lines, position: int) -> None:
    """Units<Wire>::read until the flags are right, and the head."""
    shape, slot = block.shape, position % block.shape.slots
    flag, long_ago = ll_flag(lines, position), position - lines.modulus // 2
    block.note_message(position)
    block.barrier("first barrier")
    for unit, thread in enumerate(block.threads):
        block.message(thread)
        if lines.wire(position) == "LL128":
            _read_line(thread, lines, position, slot, unit)
        elif unit < shape.used(position):
            if lines.old_arrive and long_ago >= 0:
                thread.arrived(word(slot, unit), lambda v: _position(v) <= long_ago)
            thread.wait(word(slot, unit), lambda v, r: _flag(v) == flag, register="data", said=f"{flag}")
            expected = (flag, (position, unit))
            thread.check(
                lambda r, expected=expected: r["data"] == expected, f"message {position}, unit {unit} is another's"
            )
    block.advance(position)
    lanes = block.threads if lines.wire(position) == "LL128" else []
    for thread in lanes if not lines.overtaken else []:
        _check_line(thread, lines, position)
    block.barrier("last barrier")
    block.tell("head", position, lines.head)
    for thread in lanes if lines.overtaken else []:
        _check_line(thread, lines, position)


def _flag(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else None


def _position(value: Any) -> int:
    """Of the message that a word was stored by."""
    if not isinstance(value, tuple):
        return -1
    return int(value[1] if value[0] == "swept" else value[1][0])


def _read_line(thread: Thread, lines: Lines, position: int, slot: int, unit: int) -> None:
    """All lanes look until the last one has the flag, and vote on it, which orders nothing; then all look again."""
    if _mixed(lines):
        if unit == 0:
            _read_words(thread, lines, position, slot)
        return
    flag = position + 1
    if unit == FLAG_LANE:
        thread.wait(line(slot), lambda v, r: v != 0 and v[1] == flag, register="line", said=f"flag {flag}")
        thread.store("vote", flag, "relaxed")
    else:
        thread.load("line", line(slot), "relaxed")
        thread.wait("vote", lambda seen, r: seen >= flag, said=f"≥ {flag}")
    if lines.converges:
        thread.barrier()
    if lines.overtaken:
        thread.load_later("line", line(slot))
    elif lines.reloads:
        thread.load("line", line(slot), "relaxed")


def _read_words(thread: Thread, lines: Lines, position: int, slot: int) -> None:
    flag, expected = position + 1, (ll_flag(lines, position + 1), "any bits")
    thread.wait(word(slot, 1), lambda v, r: v == flag, "acquire", said=f"flag {flag}")
    thread.load("data", word(slot, 0), "relaxed")
    thread.check(lambda r: r["data"] == expected, f"message {position} is another's")
    if lines.clears:
        thread.store(word(slot, 0), 0, "relaxed")
        thread.store(word(slot, 1), 0, "relaxed")


def _check_line(thread: Thread, lines: Lines, position: int) -> None:
    """What every lane has of its line, where it is needed."""
    if _mixed(lines):
        return
    if lines.overtaken:
        thread.use("line")
    thread.check(lambda r: r["line"] != 0 and r["line"][0] == position, f"message {position} is another's")


def flagged(shape: Shape, lines: Lines, but: str = "") -> Searched:
    writer, reader = Block("writer", shape, but), Block("reader", shape, but)
    for position in range(shape.messages):
        lines_send(writer, lines, position)
        lines_receive(reader, lines, position)
    return search(writer.threads + reader.threads)


# ---- launches


def launches(wires: Sequence[str], lines: Lines, but: str = "", slots: int = 2) -> Searched:
    """A launch per message, each with its wire, on one connection: ``open_end`` and ``close`` keep the position.

    Launches of one rank follow each other in its stream, and the end of a kernel is a fence for all of its threads.
    Another thread has the end in each launch, as may be where programs differ.
    """
    shape = Shape(2, slots, len(wires))
    writer, reader = Block("writer", shape, but), Block("reader", shape, but)
    for position, wire in enumerate(wires):
        for block in (writer, reader):
            block.counting = block.threads[position % 2]
            if position > 0:
                block.counting.load("opened", f"{block.name}.position_at")
                block.counting.check(lambda r, position=position: r["opened"] == position, "another position than left")
        # seen_head is 0 again.
        writer.counting.let("seen_head", 0)
        (simple_send if wire == "Simple" else _send_lines(lines))(writer, position)
        (simple_receive if wire == "Simple" else _receive_lines(lines))(reader, position)
        for block in (writer, reader):
            block.barrier("barrier of close()")
            closing = block.threads[position % 2]
            closing.load("closed", f"{block.name}.position")
            closing.store(f"{block.name}.position_at", lambda r: r["closed"])
            for thread in block.threads:
                if but != "no order between launches":
                    thread.barrier()
                if but != "no fence between launches":
                    thread.fence()
    return search(writer.threads + reader.threads)


def gives_up(but: str = "") -> Searched:
    """An execution that was not completed: ``step_back`` by the thread that has the end, then ``close`` by another."""
    block = Block("reader", Shape(), but)
    block.advance(0)
    block.barrier("last barrier")
    block.counting.store("reader.position", 0)
    block.barrier("barrier of close()")
    closing = block.threads[1]
    closing.load("closed", "reader.position")
    block.barrier("end of the kernel")
    closing.check(lambda r: r["closed"] == 0, "the position of an execution that was not completed")
    return search(block.threads)


def _send_lines(lines: Lines) -> Any:
    return lambda block, position: lines_send(block, lines, position)


def _receive_lines(lines: Lines) -> Any:
    return lambda block, position: lines_receive(block, lines, position)
