"""Chakra traces, read by the protobuf package: field numbers, messages, and operations."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint32  # type: ignore[attr-defined]
from google.protobuf.unknown_fields import UnknownFieldSet

from support.message_schedules import Operation

_F = descriptor_pb2.FieldDescriptorProto
#: (field, number, type, repeated, member of the oneof "value")
_MESSAGES: dict[str, list[tuple[str, int, str, bool, bool]]] = {
    "AttributeProto": [
        ("name", 1, "string", False, False),
        ("doc_string", 2, "string", False, False),
        ("double_val", 3, "double", False, True),
        ("float_val", 5, "float", False, True),
        ("int32_val", 7, "int32", False, True),
        ("int64_val", 9, "int64", False, True),
        ("uint32_val", 11, "uint32", False, True),
        ("uint64_val", 13, "uint64", False, True),
        ("bool_val", 27, "bool", False, True),
        ("string_val", 29, "string", False, True),
        ("bytes_val", 31, "bytes", False, True),
    ],
    "GlobalMetadata": [("version", 1, "string", False, False), ("attr", 2, "AttributeProto", True, False)],
    "Node": [
        ("id", 1, "uint64", False, False),
        ("name", 2, "string", False, False),
        ("type", 3, "NodeType", False, False),
        ("ctrl_deps", 4, "uint64", True, False),
        ("data_deps", 5, "uint64", True, False),
        ("start_time_micros", 6, "uint64", False, False),
        ("duration_micros", 7, "uint64", False, False),
        ("attr", 10, "AttributeProto", True, False),
    ],
}
NODE_TYPES = {
    "INVALID_NODE": 0,
    "METADATA_NODE": 1,
    "MEM_LOAD_NODE": 2,
    "MEM_STORE_NODE": 3,
    "COMP_NODE": 4,
    "COMM_SEND_NODE": 5,
    "COMM_RECV_NODE": 6,
    "COMM_COLL_NODE": 7,
}
_PACKAGE = "ChakraProtoMsg"
#: The type in which the feeder without conversion reads each attribute.
_TYPES = {"is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val", "comm_size": "int64_val"} | {
    f"comm_{name}": "int32_val" for name in ("src", "dst", "tag")
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    enum = file.enum_type.add(name="NodeType")
    for name, number in NODE_TYPES.items():
        enum.value.add(name=name, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if any(field[4] for field in fields):
            message.oneof_decl.add(name="value")
        for field, number, kind, repeated, one in fields:
            added = message.field.add(name=field, number=number)
            added.label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            if one:
                added.oneof_index = 0
            if kind in _MESSAGES or kind == "NodeType":
                added.type = _F.TYPE_ENUM if kind == "NodeType" else _F.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{kind}"
            else:
                added.type = getattr(_F, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {name: classes[f"{_PACKAGE}.{name}"] for name in _MESSAGES}


CLASSES = _classes()


def messages(content: bytes) -> tuple[Any, list[Any]]:
    """Return metadata and nodes; ValueError for unknown fields, or an encoding that the package would not write."""
    parsed: list[Any] = []
    at = 0
    while at < len(content):
        size, at = _DecodeVarint32(content, at)
        if not size or at + size > len(content):
            raise ValueError(f"a message of {size} bytes at {at} of {len(content)}")
        message = CLASSES["Node" if parsed else "GlobalMetadata"]()
        try:
            message.ParseFromString(content[at : at + size])
        except Exception as error:
            raise ValueError(str(error)) from None
        if len(UnknownFieldSet(message)) or message.SerializeToString(deterministic=True) != content[at : at + size]:
            raise ValueError(f"message {len(parsed)} has other bytes than fields")
        parsed.append(message)
        at += size
    if not parsed or not parsed[0].version or content[:2] == b"\x1f\x8b":
        raise ValueError("no metadata in front")
    return parsed[0], parsed[1:]


def read(files: list[bytes]) -> list[list[Operation]]:
    """Return the operations of each rank; ValueError if a reader of Chakra would stop or misread."""
    return [_rank(rank, messages(content)[1]) for rank, content in enumerate(files)]


def _rank(rank: int, nodes: list[Any]) -> list[Operation]:
    if not nodes:
        raise ValueError(f"rank {rank} has no node, so nothing to begin with")
    return [_operation(rank, node) for node in nodes]


def _operation(rank: int, node: Any) -> Operation:
    kinds = {
        NODE_TYPES["COMP_NODE"]: "calc",
        NODE_TYPES["COMM_SEND_NODE"]: "send",
        NODE_TYPES["COMM_RECV_NODE"]: "recv",
    }
    if node.type not in kinds or not node.id or node.ctrl_deps:
        raise ValueError(f"node {node}")
    values = {attribute.name: attribute for attribute in node.attr}
    if len(values) != len(node.attr) or any(values[name].WhichOneof("value") != _TYPES.get(name) for name in values):
        raise ValueError(f"attributes of {node}")
    after, kind = tuple(map(str, node.data_deps)), kinds[node.type]
    if kind == "calc":
        return Operation(rank, str(node.id), kind, ns=node.duration_micros * 1000, after=after)
    if not {"is_cpu_op", "comm_size", "comm_src", "comm_dst", "comm_tag"} <= values.keys():
        raise ValueError(f"attributes of {node}")
    ends = values["comm_src"].int32_val, values["comm_dst"].int32_val
    if ends[kind == "recv"] != rank:
        raise ValueError(f"rank {rank} has {node}")
    size, tag = values["comm_size"].int64_val, values["comm_tag"].int32_val
    return Operation(rank, str(node.id), kind, ends[kind == "send"], size, tag, after=after)
