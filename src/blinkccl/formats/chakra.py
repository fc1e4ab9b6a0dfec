"""Export of a plan for one size as MLCommons Chakra execution traces, one file per rank, for ASTRA-sim.

A trace is a ``GlobalMetadata`` and ``Node`` messages of ``et_def.proto`` (github.com/mlcommons/chakra, 1.0.0), each
preceded by its length. :mod:`blinkccl.formats.messages` defines the dependences. If readers differ, the trace has the
form that all accept:

- Dependences are ``data_deps``, since one of Chakra's two feeders reads no others.
- Attributes have the types of that feeder, which does not convert them.
- An idle rank has one node, since the other feeder needs a first one.
- Ids begin at 1.
- ``duration_micros`` is an integer: a reduction of less than half a microsecond has 0, which ASTRA-sim treats as a
  nanosecond.
- ``num_ops`` and ``tensor_size`` are inputs of its roofline model.

The encoder for Protocol Buffers takes forty lines here, less than a dependency for it would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from blinkccl.errors import UnsupportedError
from blinkccl.formats.messages import Messages, Task, messages, remarks
from blinkccl.formats.registry import Choices, File
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest

SCHEMA = "1.0.0"

#: Numbers of the fields in use, and values of NodeType.
_VERSION, _METADATA_ATTR = 1, 2
_ID, _NAME, _TYPE, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 5, 7, 10
_NODE_TYPES = {"calc": 4, "send": 5, "recv": 6}
#: AttributeProto: the fields of its name and of each type of value.
_ATTR_NAME = 1
_VALUES = {"int32": 7, "int64": 9, "uint64": 13, "bool": 27, "string": 29}
_VARINT, _BYTES = 0, 2


def write(program: Program, forest: Forest, _machine: Topology | None, choices: Choices) -> tuple[File, ...]:
    """One file per rank, with the rank in its name; see :class:`blinkccl.formats.registry.Write`.

    Errors are those of :func:`~blinkccl.formats.messages.messages`, and an UnsupportedError for relays, which are not
    ranks of a collective.
    """
    if program.relays:
        raise UnsupportedError(
            f"the plan passes data through vertices {list(program.relays)} outside the job, but Chakra has traces only "
            "for ranks; plan without --relays"
        )
    unrolled = messages(program, forest, choices)
    about = "\n".join(remarks(unrolled, forest))
    name = program.collective.name
    return tuple(
        File(f"{name}.{rank}.et", "", data=_trace(unrolled, rank, about)) for rank in range(len(unrolled.tasks))
    )


def _trace(unrolled: Messages, rank: int, about: str) -> bytes:
    metadata = _text(_VERSION, SCHEMA) + _field(_METADATA_ATTR, _attribute("about", "string", about))
    tasks = unrolled.tasks[rank]
    nodes = [_node(place, task, rank, unrolled.bound.itemsize) for place, task in enumerate(tasks)]
    if not tasks:
        nodes = [_number(_ID, 1) + _text(_NAME, "nothing to do") + _number(_TYPE, _NODE_TYPES["calc"])]
    return b"".join(_varint(len(message)) + message for message in (metadata, *nodes))


def _node(place: int, task: Task, rank: int, itemsize: int) -> bytes:
    name = "calc"
    if task.kind != "calc":
        name = f"{task.kind} {task.tag} {'to' if task.kind == 'send' else 'from'} {task.peer}"
    parts = [
        _number(_ID, place + 1),
        _text(_NAME, name),
        _number(_TYPE, _NODE_TYPES[task.kind]),
        _packed(_DATA_DEPS, (before + 1 for before in task.after)),
        _number(_DURATION, round(task.seconds * 1e6)),
    ]
    return b"".join([*parts, *(_field(_ATTR, attribute) for attribute in _attributes(task, rank, itemsize))])


def _attributes(task: Task, rank: int, itemsize: int) -> Iterator[bytes]:
    yield _attribute("is_cpu_op", "bool", 0)
    if task.kind == "calc":
        yield _attribute("num_ops", "int64", (task.operands - 1) * task.size_bytes // itemsize)
        yield _attribute("tensor_size", "uint64", (task.operands + 1) * task.size_bytes)
        return
    src, dst = (rank, task.peer) if task.kind == "send" else (task.peer, rank)
    yield _attribute("comm_size", "int64", task.size_bytes)
    yield _attribute("comm_src", "int32", src)
    yield _attribute("comm_dst", "int32", dst)
    yield _attribute("comm_tag", "int32", task.tag)


def _attribute(name: str, kind: Literal["bool", "int32", "int64", "uint64", "string"], value: int | str) -> bytes:
    """An attribute of a node; zero and empty values are encoded too, because the value is one field of a oneof."""
    head = _text(_ATTR_NAME, name)
    if isinstance(value, str):
        return head + _field(_VALUES[kind], value.encode())
    return head + _key(_VALUES[kind], _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    """Base 128: seven bits per byte, lowest first; all bytes but the last have the eighth bit set."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _number(field: int, value: int) -> bytes:
    """A number ≥ 0; 0 is the default and is left out."""
    return _key(field, _VARINT) + _varint(value) if value else b""


def _field(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _field(field, value.encode()) if value else b""


def _packed(field: int, values: Iterable[int]) -> bytes:
    content = b"".join(map(_varint, values))
    return _field(field, content) if content else b""
