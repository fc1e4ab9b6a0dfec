"""Mutated plans of MSCCL++: refused with a name, judged wrong, or right in every order of execution."""

import json
import re
from functools import cache
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blinkccl.api import export
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.errors import ScheduleError
from blinkccl.formats.registry import Choices
from blinkccl.schedule.lower import lower
from support import foreign_files as files
from support.examples import examples
from support.planned import asked, planned


@cache
def originals() -> tuple[str, ...]:
    """Plans written by hand, and exported ones."""
    texts = [
        files.text(files.read_allreduce()),
        files.text(files.put_reduce_scatter()),
        files.text(files.port_allgather()),
        files.text(files.packet_allreduce()),
        files.text(files.grouped_allreduce()),
        files.text(files.pipelined_allreduce()),
        files.text(files.switch_allreduce()),
    ]
    for collective in ("allreduce", "reduce_scatter"):
        forest = planned("optimal", asked("dgx-1v", collective, "1,4,5,6"))
        choices = Choices(in_place=collective == "allreduce")
        texts.append(export.exported(lower(forest), forest, "mscclpp", choices)[0].text)
    return tuple(texts)


def mutated(random: Random, text: str) -> str:
    """``text`` with one operation removed, doubled, moved or with another number."""
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


@given(number=st.integers(0, 8), seed=st.integers(0, 2**32))
@examples(300)
def test_accepted_plans_are_right_in_every_order(number: int, seed: int) -> None:
    text, random = originals()[number], Random(seed)
    try:
        verdict = files.audited(mutated(random, text))
    except ScheduleError:
        return
    if verdict.ok:
        whole = verdict.plan
        for plan in [whole.sized(size) for size in whole.judged_bytes] if whole.sized else [whole]:
            inputs = make_inputs(plan.collective, plan.chunks, "int32")
            for order in range(3):
                outputs = files.run(plan, inputs, seed=order)
                assert mismatch(outputs, oracle(plan.collective, inputs), plan.chunks) is None
    else:
        assert all(re.search(r"GPU \d+", fault) for fault in verdict.faults)


def test_originals_are_right() -> None:
    for text in originals():
        verdict = files.audited(text)
        assert verdict.ok, verdict.text()
