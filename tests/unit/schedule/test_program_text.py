"""Programs as text and as JSON."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from small_forests import chain_allreduce, one_shot_allreduce, two_slices_broadcast

from blinkccl.errors import ScheduleError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.text import from_json, program_hash, to_json, to_text
from blinkccl.trees.forest.model import forest_hash, topology_hash
from support.programs import random_program

CHAIN = lower(chain_allreduce())


def test_text_of_a_small_program() -> None:
    forest = chain_allreduce()
    assert (
        to_text(CHAIN)
        == f"""\
program allreduce ranks 0,1,2 rate 1
made from forest {forest_hash(forest)} topology {topology_hash(forest.topology)}
slice 0 block - from 0 to 1
queue 0 rank 2 to 1 path 2,1
queue 1 rank 1 to 0 path 1,0
queue 2 rank 0 to 1 path 0,1
queue 3 rank 1 to 2 path 1,2
channel 0 slots 2 protocol simple shares 0
rank 0 channel 0 share 0 broadcast @4 slice 0: receive 1, keep
rank 1 channel 0 share 0 broadcast @3 slice 0: receive 0, keep, send 1
rank 2 channel 0 share 0 root @2 slice 0: receive 3, own input, complete, keep, send 0
rank 1 channel 0 share 0 reduce @1 slice 0: receive 2, own input, send 3
rank 0 channel 0 share 0 reduce @0 slice 0: own input, send 2
"""
    )


def test_json_round_trip() -> None:
    for seed in range(60):
        program, _ = random_program(Random(seed))
        text = to_json(program)
        again = from_json(text)
        assert again == program
        assert to_json(again) == text
        assert program_hash(again) == program_hash(program)


READERS = """
import os, sys, threading
from blinkccl.schedule.text import from_json
text = sys.stdin.read()
sys.setswitchinterval(1e-6)
for _ in range(40):
    if os.fork() == 0:
        gate = threading.Barrier(4)
        threads = [threading.Thread(target=lambda: (gate.wait(), from_json(text))) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        os._exit(0)
    print(os.wait()[1])
"""


def test_threads_may_read_at_once_from_the_first_time_on() -> None:
    """Ranks may be threads, and msgspec 0.22.0 crashes if several threads decode a new type at once."""
    command = [sys.executable, "-c", READERS]
    ended = subprocess.run(command, input=to_json(CHAIN), capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("0\n" * 40, "")


def test_json_carries_a_schema_version_and_strings_for_fractions() -> None:
    form = json.loads(to_json(lower(two_slices_broadcast())))
    assert form["schema_version"] == 2
    assert [part["stop"] for part in form["slices"]] == ["2/3", "1"]
    assert form["collective"] == {"name": "broadcast", "root": 0, "src": None, "dst": None}


def test_own_operand_index_is_written_and_may_be_left_out() -> None:
    form = json.loads(to_json(CHAIN))
    assert [role["own_operand_index"] for role in form["roles"]] == [0, 0, 1, 1, 0]
    for role in form["roles"]:
        role["turn"] = role.pop("own_operand_index")  # as schema_version 1 had it
    assert from_json(json.dumps(form | {"schema_version": 1})) == CHAIN
    for role in form["roles"]:
        del role["turn"]
    before = from_json(json.dumps(form))
    assert before == replace(CHAIN, roles=tuple(replace(r, own_operand_index=0) for r in CHAIN.roles))


def test_texts_tell_own_operand_indexes_apart() -> None:
    star = lower(one_shot_allreduce(4))
    root = next(role for role in star.roles if role.stage == "root")
    actions = {}
    for contributes in (True, False):
        for index in range(-2, 6):
            alone = replace(star, roles=(replace(root, contributes=contributes, own_operand_index=index),))
            actions[contributes, index] = to_text(alone).splitlines()[-1].partition(": ")[2]
    assert len(set(actions.values())) == len(actions)
    assert actions[True, 0] == "own input, receive 0,1,2, complete, keep"
    assert actions[True, 2] == "receive 0,1, own input, receive 2, complete, keep"
    assert actions[True, 3] == "receive 0,1,2, own input, complete, keep"
    assert actions[True, 4] == "receive 0,1,2, own input, own operand 4, complete, keep"
    assert actions[False, 0] == "receive 0,1,2, complete, keep"


def test_hashes_tell_programs_apart() -> None:
    hashes = {program_hash(lower(chain_allreduce(), slots)) for slots in (1, 2, 3)}
    assert len(hashes) == 3
    assert program_hash(lower(chain_allreduce())) == program_hash(CHAIN)


def test_topology_names_take_no_part_in_its_hash() -> None:
    topology = chain_allreduce().topology
    assert topology_hash(replace(topology, name="other").noted("note")) == topology_hash(topology)
    assert topology_hash(replace(topology, unit_gb_per_s=50.0)) != topology_hash(topology)


Change = Callable[[dict[str, Any]], object]

MALFORMED: list[tuple[Change, str]] = [
    (lambda f: f.update(schema_version=3), r"expected schema_version 1 or 2, got 3 - at `\$.schema_version`"),
    (lambda f: f.pop("rate"), "missing required field `rate`"),
    (lambda f: f.update(rate=1.5), r"Expected `str`, got `float` - at `\$.rate`"),
    (lambda f: f.update(rate="1/0"), r"divides by zero - at `\$.rate`"),
    (lambda f: f.update(rate="nan"), r"at `\$.rate`"),
    (lambda f: f.update(extra=1), "unknown field `extra`"),
    (lambda f: f["roles"][2].update(rank="x"), r"Expected `int`, got `str` - at `\$.roles\[2\].rank`"),
    (lambda f: f["roles"][2].update(keeps=1), r"Expected `bool`, got `int` - at `\$.roles\[2\].keeps`"),
    (lambda f: f["roles"][0].update(offset=10**30), r"at `\$.roles\[0\].offset`"),
    (
        lambda f: f["roles"][1].update(own_operand_index="first"),
        r"Expected `int`, got `str` - at `\$.roles\[1\].own_operand_index`",
    ),
    (lambda f: f["slices"][0].update(block=[1]), r"at `\$.slices\[0\].block`"),
    (lambda f: f["slices"][0].update(block="all"), r"at `\$.slices\[0\].block`"),
    (lambda f: f["queues"][1].update(path=3), r"at `\$.queues\[1\].path`"),
    (lambda f: f["channels"][0].pop("slots"), r"`slots` - at `\$.channels\[0\]`"),
    (lambda f: f["collective"].update(name="xreduce"), r"unknown collective 'xreduce'.* at `\$.collective`"),
    (lambda f: f["collective"].update(root=1), r"takes no root, got 1 - at `\$.collective`"),
    (lambda f: f.update(ranks=[]), r"world_size must be at least 1.* at `\$.collective`"),
]


@pytest.mark.parametrize(("change", "message"), MALFORMED)
def test_malformed_json_names_the_path(change: Change, message: str) -> None:
    form = json.loads(to_json(CHAIN))
    change(form)
    with pytest.raises(ScheduleError, match=message):
        from_json(json.dumps(form))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", "[" * 100_000, '{"roles":' * 100_000, b"\xff\xfe", '{"schema_version": 1}'],
)
def test_nonsense_is_a_schedule_error(text: str | bytes) -> None:
    with pytest.raises(ScheduleError, match="not a program"):
        from_json(text)


def test_a_wrong_but_readable_program_can_be_read() -> None:
    wrong = replace(CHAIN, rate=Fraction(-1), roles=(replace(CHAIN.roles[0], rank=77, offset=-3),))
    assert from_json(to_json(wrong)) == wrong
