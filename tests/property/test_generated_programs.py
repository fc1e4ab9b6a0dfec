"""Generated code against the reference engine, bit for bit: odd programs, all protocols, rounding, reused memory."""

import ctypes as c
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from math import lcm
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_programs import unlike, wild, wild_scales

from blinkccl.codegen.layout import LINE_BYTES, Geometry, ProgramGroup
from blinkccl.codegen.text import WIRES, Kernel
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import reference
from blinkccl.schedule.chunking import largest_share
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.model import Share, Tree
from support import generated
from support.engines import ENGINES, Array
from support.examples import examples
from support.forests import random_collective
from support.generated import ConnectionEnd, LaunchCall
from support.planned import by_hand, with_homes
from support.programs import random_program

pytestmark = pytest.mark.skipif(ENGINES["generated"].missing is not None, reason=str(ENGINES["generated"].missing))

PROGRAMS = 60
RANKS = 4
SERVED = [(dtype, op) for dtype, row in DTYPES.items() for op, chosen in OPS.items() if row.serves(chosen)]


def a_program(seed: int) -> Program:
    """A program on 2 to 6 ranks. Collectives alternate; every fifth program goes through memories."""
    random = Random(seed)
    name = list(COLLECTIVES)[seed % len(COLLECTIVES)]
    program, _ = random_program(random, random_collective(random, random.randint(2, 6), name))
    return program if seed % 5 else with_homes(program)


@cache
def programs() -> tuple[Program, ...]:
    """All programs, compiled at once."""
    batch = tuple(a_program(seed) for seed in range(PROGRAMS))
    generated.prepare(batch)
    return batch


@examples(200)
@given(
    which=st.integers(0, PROGRAMS - 1),
    protocol=st.sampled_from(list(WIRES)),
    parts=st.integers(1, 4),
    piece_bytes=st.sampled_from([0, 16, 64, 1024]),
    chunk_bytes=st.sampled_from([16, 48, 112, 256, 4096]),
    count=st.sampled_from([0, 1, 7, 130, 1031]),
    served=st.sampled_from(SERVED),
    in_place=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_odd_programs_give_the_bits_of_the_reference(
    which: int,
    protocol: str,
    parts: int,
    piece_bytes: int,
    chunk_bytes: int,
    count: int,
    served: tuple[str, str],
    in_place: bool,
    seed: int,
) -> None:
    program, (dtype, op) = programs()[which], served
    random = Random(seed)
    inputs, scales = wild(random, program, count, dtype), wild_scales(random, program, op, dtype)
    arguments = {
        "call": CollectiveCall.of(program.collective, dtype, count, op),
        "scales": scales,
        "chunk_bytes": chunk_bytes,
    }
    with np.errstate(over="ignore", invalid="ignore"):
        expected = reference.run(program, inputs, **arguments)
    in_place = in_place and program.collective.name != "alltoall"
    options = generated.GeneratedOptions(protocol, parts, piece_bytes)
    run = partial(generated.run, options=options, in_place=in_place, deadline_s=20)
    assert unlike(run(program, inputs, **arguments), expected) is None


def test_programs_of_a_group_take_turns_on_one_memory() -> None:
    """Counters continue from launch to launch, as on GPUs, after any program, protocol and number of parts."""
    random = Random(5)
    group = []
    for name in COLLECTIVES:
        for _ in range(2):
            program, _ = random_program(random, random_collective(random, RANKS, name))
            group.append(replace(program, ranks=tuple(range(RANKS))))
    slots = max(channel.slots for program in group for channel in program.channels)
    parts = [1 + number % 3 for number in range(len(group))]
    session = generated.Session(group, Geometry(parts=3, slots=slots, slot_bytes=256, line_bytes=384), parts)
    for turn in range(150):
        program, (dtype, op) = random.choice(group), random.choice(SERVED)
        protocol = random.choice(list(WIRES))
        count, chunk_bytes = random.choice([1, 33, 500]), random.choice([16, 96, 192])
        inputs, scales = wild(random, program, count, dtype), wild_scales(random, program, op, dtype)
        arguments = {
            "call": CollectiveCall.of(program.collective, dtype, count, op),
            "scales": scales,
            "chunk_bytes": chunk_bytes,
        }
        with np.errstate(over="ignore", invalid="ignore"):
            expected = reference.run(program, inputs, **arguments)
        ways = {"protocol": protocol, "piece_bytes": random.choice([0, 64]), "deadline_s": 20}
        assert unlike(session.run(program, inputs, **arguments, **ways), expected) is None, turn


def messages_passed(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], connections: int) -> list[int]:
    """Number of messages per connection, over all parts, after the first launch of ``run``."""
    passed: list[int] = []
    launch = generated.launch

    def spy(entry: int, calls: c.Array[LaunchCall], blocks: int, timeout_s: float) -> None:
        launch(entry, calls, blocks, timeout_s)
        ends = [c.cast(call.connections, c.POINTER(ConnectionEnd)) for call in calls]
        for number in range(connections):
            heads = [table[number].head for table in ends if table[number].head]
            parts = range(calls[0].parts)
            passed.append(sum(c.c_uint64.from_address(heads[0] + part * LINE_BYTES).value for part in parts))

    with monkeypatch.context() as patch:
        patch.setattr(generated, "launch", spy)
        run()
    return passed


@pytest.mark.parametrize("protocol", WIRES)
def test_shares_of_any_size_take_the_same_rounds(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, parts, checked = 5, 2, 0
    for program in programs()[:36]:
        largest = largest_share(program) or program.slices[0].stop - program.slices[0].start
        finest = lcm(*(edge.denominator for part in program.slices for edge in (part.start, part.stop)))
        count = rounds * parts * finest * (16 // 4)  # an integer number of groups per share, part and round
        inputs = wild(Random(1), program, count, "float32")
        run = partial(
            generated.run,
            program,
            inputs,
            CollectiveCall.of(program.collective, "float32", count),
            options=generated.GeneratedOptions(protocol, parts),
            chunk_bytes=int(largest * count) * 4 // parts // rounds,
        )
        group = ProgramGroup([program])
        passed = messages_passed(monkeypatch, run, len(group.ways))
        used = Counter(queue for role in program.roles for queue in role.sends)
        for queue, connection in enumerate(group.connections_of(program)):
            assert passed[connection] == rounds * parts * used[queue], (program.slices, queue)
        checked += largest_share(program) is not None
    assert checked > 20


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (", complete)", ", partial)"),
        ("from_gpu1, from_gpu2)", "from_gpu2, from_gpu1)"),
        ("from_gpu0);", "from_gpu0, ends());"),
        ("context.slice(0, 0, 0, 1, 1, 1)", "context.slice(0, 0, 0, 1, 1, 2)"),
    ],
)
def test_another_text_gives_another_result(monkeypatch: pytest.MonkeyPatch, part: str, other: str) -> None:
    """The test runs the compiled text: its division, order of reduction, kept data and extents."""
    star = Tree(0, ((1, 0), (2, 0)))
    shares = (Share(Fraction(1), 0, None, 0, star, star.reversed()),)
    program = lower(by_hand(Collective("allreduce", 3), parse_spec("clique:3"), shares))
    inputs: list[Array | None] = [np.full(9, value, np.float32) for value in (1.0, 2.0**24, -(2.0**24) + 6)]
    arguments = {"call": CollectiveCall.of(program.collective, "float32", 9, "avg")}
    expected = reference.run(program, inputs, **arguments)
    assert unlike(generated.run(program, inputs, **arguments), expected) is None
    whole = generated.code

    def changed(kernel: Kernel, group: ProgramGroup) -> str:
        text = whole(kernel, group)
        assert part in text
        text = text.replace(part, other)
        return text.replace("context.recv(", "context.recv_send(") if other.endswith("ends());") else text

    monkeypatch.setattr(generated, "code", changed)
    monkeypatch.setattr(generated, "_libraries", {})
    assert unlike(generated.run(program, inputs, **arguments), expected) is not None
