"""Plans as Chakra traces: the bytes are those of the protobuf package, and the traces equal the program."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.api import export
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import UnsupportedError
from blinkccl.formats import chakra
from blinkccl.formats.registry import Choices
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.lower import lower
from blinkccl.trees.forest.model import Forest
from support.examples import examples
from support.forests import random_collective, random_forest
from support.message_schedules import CHUNK, JOBS, SIZE, Operation, bound_of, faults, pace_of, plans
from support.planned import asked, planned

pytest.importorskip("google.protobuf")

from support import chakra_file

#: Nanoseconds.
MICROSECOND = 1000


def exported(forest: Forest, size: int = SIZE, chunk: int | None = CHUNK) -> list[bytes]:
    choices = Choices(size_bytes=size, chunk_bytes=chunk)
    files = export.exported(lower(forest), forest, "chakra", choices)
    assert [file.name for file in files] == [f"{forest.collective.name}.{rank}.et" for rank in range(len(files))]
    return [file.data or b"" for file in files]


def wrong(files: list[bytes], forest: Forest, bound: Bound | None = None) -> list[str]:
    ranks: list[list[Operation]] = chakra_file.read(files)
    return faults(ranks, bound or bound_of(forest), pace_of(forest, MICROSECOND))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spec", JOBS)
def test_every_plan_is_read_back_as_its_program(spec: str, collective: str) -> None:
    served = [forest for forest in plans(spec, collective) if not lower(forest).relays]
    assert served
    for forest in served:
        assert wrong(exported(forest), forest) == []


@given(seed=st.integers(0, 2**32), size=st.integers(1024, 2**14), ranks=st.integers(2, 8))
@examples(40)
def test_random_plans_are_read_back_as_their_programs(seed: int, size: int, ranks: int) -> None:
    random = Random(seed)
    forest = random_forest(random, random_collective(random, ranks))
    assert wrong(exported(forest, size, 512), forest, bound_of(forest, size, 512)) == []


def test_sums_take_whole_microseconds() -> None:
    forest = planned("optimal", asked("dgx-1v", "allreduce", "1,4,5,6"))
    size, chunk = 2**26, 2**22
    assert wrong(exported(forest, size, chunk), forest, bound_of(forest, size, chunk)) == []
    nodes = [node for file in exported(forest, size, chunk) for node in chakra_file.messages(file)[1]]
    sums = [node for node in nodes if node.type == chakra_file.NODE_TYPES["COMP_NODE"]]
    assert {node.duration_micros for node in sums} >= {12, 16}  # 4 MiB at 339 GB/s are 12.4 us, of two operands
    values = {attribute.name: attribute for attribute in sums[0].attr}
    assert (values["num_ops"].int64_val, values["tensor_size"].uint64_val) == (3 * 2**20, 5 * 2**22)  # of four


def test_a_rank_that_does_nothing_has_a_node() -> None:
    forest = planned("one_hop", asked("clique:4", "sendrecv"))
    files = exported(forest)
    for rank in (2, 3):
        (node,) = chakra_file.messages(files[rank])[1]
        assert (node.name, node.duration_micros, list(node.data_deps)) == ("nothing to do", 0, [])
    assert wrong(files, forest) == []


def test_relays_are_refused() -> None:
    forest = planned("optimal", asked("chain:7", "broadcast", "0,3,6", relays=True))
    with pytest.raises(UnsupportedError, match=r"through vertices \[2, 5\] outside the job, .*; plan without --relays"):
        exported(forest)


@given(value=st.integers(0, 2**64 - 1), name=st.text(max_size=300), deps=st.lists(st.integers(0, 2**64 - 1)))
@examples(100)
def test_bytes_are_those_of_protobuf(value: int, name: str, deps: list[int]) -> None:
    """The fields have lengths of one byte and more, are empty, and hold numbers of all sizes."""
    node = chakra_file.CLASSES["Node"](id=value, name=name, data_deps=deps)
    written = chakra._number(1, value) + chakra._text(2, name) + chakra._packed(5, deps)
    assert written == node.SerializeToString()
    attribute = chakra_file.CLASSES["AttributeProto"](name="n", uint64_val=value)
    assert chakra._attribute("n", "uint64", value) == attribute.SerializeToString()
    text = chakra_file.CLASSES["AttributeProto"](name="n", string_val=name)
    assert chakra._attribute("n", "string", name) == text.SerializeToString()
    flag = chakra_file.CLASSES["AttributeProto"](name="n", bool_val=bool(value % 2))
    assert chakra._attribute("n", "bool", value % 2) == flag.SerializeToString()


#: A fault: a function that changes the nodes of rank 2's trace, which forwards and reduces.
Fault = Callable[[list[Any]], None]


def _of(nodes: list[Any], kind: str, place: int = 0) -> Any:
    return [node for node in nodes if node.type == chakra_file.NODE_TYPES[kind]][place]


def _value(nodes: list[Any], kind: str, name: str, value: int) -> None:
    attribute = next(one for one in _of(nodes, kind).attr if one.name == name)
    setattr(attribute, attribute.WhichOneof("value"), value)


def _other_type(nodes: list[Any]) -> None:
    attribute = next(one for one in nodes[0].attr if one.name == "comm_size")
    attribute.uint64_val = attribute.int64_val


def _to_ctrl(nodes: list[Any]) -> None:
    node = _of(nodes, "COMP_NODE")
    node.ctrl_deps.extend(node.data_deps)
    del node.data_deps[:]


def _duration(nodes: list[Any]) -> None:
    _of(nodes, "COMP_NODE").duration_micros += 2


def _exchanged(nodes: list[Any]) -> None:
    one, other = _of(nodes, "COMM_SEND_NODE"), _of(nodes, "COMM_SEND_NODE", 3)
    one.id, other.id = other.id, one.id


FAULTS: dict[str, Fault] = {
    "a dependence is missing": lambda nodes: _of(nodes, "COMP_NODE").data_deps.pop() and None,
    "the last dependence is missing": lambda nodes: nodes[-1].data_deps.pop() and None,
    "a dependence too many": lambda nodes: nodes[-1].data_deps.append(1),
    "a dependence on itself": lambda nodes: nodes[-1].data_deps.append(nodes[-1].id),
    "a dependence on nothing": lambda nodes: nodes[-1].data_deps.append(9999),
    "a dependence twice": lambda nodes: nodes[-1].data_deps.append(nodes[-1].data_deps[0]),
    "dependences that one feeder does not see": _to_ctrl,
    "a send has other bytes": lambda nodes: _value(nodes, "COMM_SEND_NODE", "comm_size", 4),
    "a tag is another": lambda nodes: _value(nodes, "COMM_RECV_NODE", "comm_tag", 77),
    "a message goes to another": lambda nodes: _value(nodes, "COMM_SEND_NODE", "comm_dst", 2),
    "a message is of another": lambda nodes: _value(nodes, "COMM_RECV_NODE", "comm_dst", 1),
    "a size has a type that one feeder reads as 0": _other_type,
    "an attribute is missing": lambda nodes: nodes[0].attr.pop() and None,
    "a node is missing": lambda nodes: nodes.pop() and None,
    "a node has no number": lambda nodes: setattr(nodes[0], "id", 0),
    "two nodes are exchanged": _exchanged,
    "a sum takes longer": _duration,
    "a node of another kind": lambda nodes: setattr(nodes[0], "type", 7),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_noticed(name: str) -> None:
    forest = planned("optimal", asked("dgx-1v", "allreduce", "1,4,5,6"))
    files = exported(forest)
    metadata, nodes = chakra_file.messages(files[2])
    FAULTS[name](nodes)
    written = [message.SerializeToString() for message in (metadata, *nodes)]
    planted = b"".join(chakra._varint(len(one)) + one for one in written)
    assert planted != files[2]
    assert errors([*files[:2], planted, files[3]], forest)


@pytest.mark.parametrize("cut", [1, 100])
def test_damaged_bytes_are_noticed(cut: int) -> None:
    forest = planned("optimal", asked("dgx-1v", "allreduce", "1,4,5,6"))
    files = exported(forest)
    assert errors([files[0][:-cut], *files[1:]], forest)
    assert errors([files[0][cut:], *files[1:]], forest)
    assert errors([files[0] + bytes(cut), *files[1:]], forest)
    assert errors([files[1], files[0], *files[2:]], forest)


def errors(files: list[bytes], forest: Forest) -> list[str]:
    try:
        return wrong(files, forest)
    except ValueError as error:
        return [str(error)]
