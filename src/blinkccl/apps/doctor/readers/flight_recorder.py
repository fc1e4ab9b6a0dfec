"""PyTorch's flight recorder: the last collectives of one rank, from its pickle or JSON, one file per rank.

A pickle can run any code when it is loaded, so only plain data are loaded.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator
from typing import Any

from blinkccl.apps.doctor.evidence import Evidence, Location, RankReport
from blinkccl.topology.limits import shortened

#: Names by which torch marks lists of one type.
_LISTS = ("build_intlist", "build_doublelist", "build_boollist")
_LAST = 64


def is_pickle(start: bytes) -> bool:
    """True if ``start`` begins a pickle of protocol 2 or newer."""
    return len(start) > 2 and start[0] == 0x80 and 2 <= start[1] <= 5


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch.jit._pickle" and name in _LISTS:
            return list
        if module == "torch.jit._pickle" and name == "restore_type_tag":
            return lambda value, tag: value
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def from_pickle(data: bytes, source: str) -> Iterator[Evidence]:
    """The pieces of a dump that torch wrote; ValueError for other data."""
    try:
        document = _PlainData(io.BytesIO(data)).load()
    except Exception as error:  # any bytes are possible, and a pickle's errors have no common class
        raise ValueError(f"no dump of plain data: {error}") from None
    return pieces(document, source)


def pieces(document: Any, source: str) -> Iterator[Evidence]:
    """The last collective that this rank began, per group; ``collective_seq_id`` numbers them equally on all ranks."""
    rank = _rank(document, source)
    groups = document.get("pg_config") or {}
    last: dict[str, dict[str, Any]] = {}
    done: dict[str, int] = {}
    for entry in document["entries"]:
        group, number = str(entry["process_group"][0]), int(entry["collective_seq_id"])
        if entry.get("is_p2p"):
            continue
        if entry["state"] == "completed":
            done[group] = max(done.get(group, -1), number)
        if number >= int(last.get(group, entry)["collective_seq_id"]):
            last[group] = entry
    for group, entry in last.items():
        members = _members(groups.get(group))
        name = str(entry["profiling_name"]).removeprefix("nccl:")
        doing = f"{name} of {entry.get('input_sizes')}" if entry["state"] != "completed" else ""
        calls = (("", int(entry["collective_seq_id"])),)
        yield RankReport(
            Location(source),
            f"process group {group}",
            rank,
            "",
            calls,
            done.get(group),
            shortened(doing, 120),
            tuple(members),
            _line(entry.get("frames") or ()),
        )


def _members(config: Any) -> list[int]:
    """The ranks of a group in its configuration: a list, or text like "[0, 1]"."""
    ranks = config.get("ranks") if isinstance(config, dict) else None
    return [int(number) for number in re.findall(r"\d+", str(ranks))[:4096]] if ranks else []


def _rank(document: Any, source: str) -> int:
    """The rank of this file: stated in it, or the number at the end of its name, as torch names dumps."""
    if isinstance(document.get("rank"), int):
        return int(document["rank"])
    name = re.search(r"(\d+)(?:\.\w+)?$", source)
    if name is None:
        raise ValueError("neither the dump nor its name says of which rank it is")
    return int(name[1])


def _line(frames: Any) -> str:
    """The line of the program: the innermost frame outside torch."""
    for frame in list(frames)[:_LAST]:
        file = str(frame.get("filename", ""))
        if file and "/torch/" not in file:
            return shortened(f"{file}:{frame.get('line')} in {frame.get('name')}", 160)
    return ""
