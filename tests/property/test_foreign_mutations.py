"""Mutated plans of other runtimes: refused by name, found wrong, or right in every order in which they run."""

from __future__ import annotations

import json
import re
from functools import cache
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.errors import ScheduleError
from blinkccl.export.registry import Choices, format_of
from blinkccl.foreign.formats import audits
from blinkccl.foreign.verify import run
from blinkccl.schedule.lower import lower
from support import foreign_files as files
from support.examples import examples
from support.planned import asked, planned


@cache
def originals() -> tuple[str, ...]:
    """By hand, and exported."""
    found = [
        files.ring_allreduce(),
        files.gathered_reduce_scatter(),
        files.relayed_alltoall(),
        files.text(files.read_allreduce()),
        files.text(files.put_reduce_scatter()),
        files.text(files.port_allgather()),
        files.text(files.packet_allreduce()),
        files.text(files.grouped_allreduce()),
        files.text(files.pipelined_allreduce()),
        files.text(files.switch_allreduce()),
    ]
    for name in ("msccl", "mscclpp"):
        for collective in ("allreduce", "reduce_scatter"):
            forest = planned("optimal", asked("dgx-1v", collective, "1,4,5,6"))
            write = format_of(name).write_as(Choices(in_place=collective == "allreduce"))
            found.append(write(lower(forest), forest, None)[0].text)
    return tuple(found)


def mutated_xml(random: Random, text: str) -> str:
    """One number or type of a step is another's, or a step is gone and those behind it move up."""
    steps = list(re.finditer(r"<step [^>]*/>", text))
    step = random.choice(steps)
    if random.random() < 0.3:
        end = text.index("</tb>", step.start())
        rest = text[step.end() : end]
        rest = re.sub(r'<step s="(\d+)"', lambda found: f'<step s="{int(found[1]) - 1}"', rest)
        return text[: step.start()] + rest + text[end:]
    key = random.choice(["type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"])
    other = re.search(rf' {key}="([^"]*)"', random.choice(steps)[0])
    assert other is not None
    return text[: step.start()] + re.sub(rf' {key}="[^"]*"', other[0], step[0]) + text[step.end() :]


def mutated_json(random: Random, text: str) -> str:
    """An operation is gone, doubled or at another place, or a number in it is another."""
    plan: dict[str, Any] = json.loads(text)
    bodies = [tb["ops"] for gpu in plan["gpus"] for tb in gpu["threadblocks"]]
    bodies += [op["ops"] for body in bodies for op in body if op["name"] == "pipeline"]
    ops = random.choice([body for body in bodies if body])
    place = random.randrange(len(ops))
    kind = random.randrange(4)
    if kind == 0:
        del ops[place]
    elif kind == 1:
        ops.insert(place, ops[place])
    elif kind == 2:
        ops.insert(random.randrange(len(ops)), ops.pop(place))
    else:
        spans = [span for op in ops for key in ("src_buff", "dst_buff") for span in op.get(key, [])]
        if spans:
            span = random.choice(spans)
            key = random.choice(list(span))
            span[key] = random.choice(spans).get(key, 0)
    return json.dumps(plan)


@given(number=st.integers(0, 13), seed=st.integers(0, 2**32))
@examples(300)
def test_what_is_accepted_is_right_in_every_order(number: int, seed: int) -> None:
    text, random = originals()[number], Random(seed)
    changed = (mutated_xml if text.startswith("<") else mutated_json)(random, text)
    try:
        (found,) = audits(changed.encode(), "mutated") or ()
    except ScheduleError:
        return
    if found.ok:
        whole = found.plan
        for plan in [whole.sized(size) for size in whole.judged_bytes] if whole.sized else [whole]:
            inputs = make_inputs(plan.collective, plan.chunks, "int32")
            for order in range(3):
                outputs = run(plan, inputs, seed=order)
                assert mismatch(outputs, oracle(plan.collective, inputs), plan.chunks) is None
    else:
        assert all(re.search(r"GPU \d+", fault) for fault in found.faults)


def test_originals_are_right() -> None:
    for text in originals():
        (found,) = audits(text.encode(), "original") or ()
        assert found.ok, found.text()
