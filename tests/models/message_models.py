"""Models of a message from one block to another, as threads of :mod:`support.weak_memory`.

The models follow the code line by line: ``execute<Wire>`` with ``await_end`` and ``sweep``
(native/device/blink/execute.h), the reads and writes of messages in ``fold_as`` (fold.h: every thread has its units), a
wire's ``Units`` (wires.h), and ``open_end`` and ``close`` (state.h). A model has one connection with a writing and a
reading block; thread 0 has the end (``i = 0``).

``but`` names the change of a variant: one step of the protocol left out or weakened. The tests list the variants that
the search must refute, and those that are sound.
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
    """The threads of a block, with its state in shared memory: plain places with the block's name as prefix."""

    def __init__(self, name: str, shape: Shape, but: str) -> None:
        self.name, self.shape, self.but = name, shape, but
        self.threads = [Thread(f"{name}{t}", name) for t in range(shape.threads)]
        self.counting = self.threads[0]
        #: The publisher, which synchronizes with the first thread alone; None if the block publishes itself.
        self.publisher: Thread | None = None

    def with_publisher(self) -> Block:
        self.publisher = Thread(f"{self.name}'s publisher")
        return self

    @property
    def all(self) -> list[Thread]:
        return [*self.threads, self.publisher] if self.publisher else self.threads

    def arrive(self, thread: Thread, barrier: str, position: int) -> None:
        """``arrive_at`` of two alternating barriers: a thread that waits there sees everything done before."""
        order = "relaxed" if self.but == f"no order by {barrier}" else "release"
        thread.store(f"{self.name}.{barrier}{position % 2}", position + 1, order)

    def meet(self, thread: Thread, barrier: str, position: int) -> None:
        """``meet_at`` of the same barriers."""
        if self.but != f"{barrier} not awaited":
            place = f"{self.name}.{barrier}{position % 2}"
            thread.wait(place, lambda seen, r: seen >= position + 1, "acquire", said=f"≥ {position + 1}")

    def await_free(self, position: int) -> None:
        """Wait until the notice of this turn has been published; the previous one may not have been."""
        if self.publisher and position >= 2:
            self.meet(self.threads[0], "free", position - 2)

    def await_published(self, messages: int) -> None:
        """Model ``close``, in which all threads meet."""
        for position in range(max(0, messages - 2), messages):
            self.meet(self.threads[0], "free", position)

    def publish(self, counter: str, position: int, order: str) -> None:
        """A notice after the last barrier, and the publisher's store for it."""
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
        """``advance`` before the last barrier, after which the job may be the next one."""
        if self.but != "job read after the last barrier":
            self._read_job()
        self.counting.store(f"{self.name}.position", position + 1)
        if self.publisher:
            self.counting.store(f"{self.name}.notice{position % 2}", position + 1)

    def _read_job(self) -> None:
        for thread in self.threads:
            thread.load("job", f"{self.name}.job")

    def tell(self, counter: str, position: int, order: str) -> None:
        """The counter of an end, one store of one thread after the last barrier."""
        if self.publisher:
            self.publish(counter, position, order)
            return
        if self.but == "job read after the last barrier":
            self._read_job()
        self.counting.load("told", f"{self.name}.position")
        self.counting.store(counter, lambda r: r["told"], order)

    def await_room(self, position: int, acquire: str = "acquire") -> None:
        """``await_end`` of a send; credit that was acquired once needs no other load (``seen_head``)."""
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
    """One execution that receives. Each thread reads a unit of another thread, in the order of the barriers."""
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
    """Simple in blocks of several warps: one more thread in each publishes while the others continue."""
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
    """The variant of a protocol with flags."""

    #: The wires of the messages in turn.
    wires: tuple[str, ...] = ("LL",)
    #: Memory orders of the reader's store of a head, and of the writer's load.
    head: str = "relaxed"
    acquire: str = "relaxed"
    #: True if each wire has its own memory; if not, ``clears`` makes LL128's receiver zero the words after its read.
    apart: bool = True
    clears: bool = False
    #: LL's flags repeat after ``modulus`` messages. Every half of that the sender sweeps LL's lines, in a message of a
    #: wire in ``sweeps``.
    modulus: int = 1 << 31
    sweeps: tuple[str, ...] = ("LL", "LL128")
    #: True if stores of half a round of flags ago have arrived. PTX gives no time limit for the visibility of a store.
    old_arrive: bool = True
    #: True if a line of LL128, which becomes visible in parts, has its flag in the last part.
    flag_last: bool = True
    #: True if its lanes load it again after their vote, and if they converge before that load.
    reloads: bool = True
    converges: bool = True
    #: True if a thread's store after a barrier may overtake its load before.
    overtaken: bool = False

    def wire(self, position: int) -> str:
        return self.wires[position % len(self.wires)]


def word(slot: int, unit: int) -> str:
    return f"line{slot}[{unit}]"


def line(slot: int) -> str:
    """The place of an LL128 line, if LL128 has its own memory."""
    return f"wide{slot}"


def ll_flag(lines: Lines, position: int) -> tuple[str, int]:
    """Units<LL>::flag: the position modulo 2^31, with the highest bit set."""
    return ("LL", position % lines.modulus)


def lines_send(block: Block, lines: Lines, position: int) -> None:
    """Units<LL>::write and Units<LL128>::write (flag after the data), and sweep()."""
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
    """Write a line of data and a flag, which several lanes store by one instruction; the model has one thread.

    A line is one place: each load returns the whole line, and it arrives in parts, the flag last. (Both wires on the
    same memory are modelled with one slot and with words as places, as on a CPU. LL128's data may then be any bits,
    also those of the next LL flag.)
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


#: The lane with the flag, among the lanes of a line, which are a reader's threads.
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
    """The position of the message that stored a word, or -1."""
    if not isinstance(value, tuple):
        return -1
    return int(value[1] if value[0] == "swept" else value[1][0])


def _read_line(thread: Thread, lines: Lines, position: int, slot: int, unit: int) -> None:
    """All lanes load until the last one has the flag, and vote on it, which orders nothing; then all load again."""
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
        thread.wait("vote", lambda value, r: value >= flag, said=f"≥ {flag}")
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
    """Check every lane's value of its line before its use."""
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

    Launches of one rank are ordered by its stream, and the end of a kernel is a fence for all its threads. Each launch
    gives the end to another thread, as different programs may.
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
    """An incomplete execution: ``step_back`` by the thread with the end, then ``close`` by another thread."""
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
