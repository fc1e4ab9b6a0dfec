"""JSON documents: their kinds, how each is recognized, and a reader for each.

Ours (topologies, ``blink topo --gather``, ``blink dump --json``, ``blink bench --json``), nccl-tests' ``-J``, NCCL's
RAS and Inspector, and PyTorch's flight recorder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from blinkccl.apps.doctor import gathered
from blinkccl.apps.doctor.evidence import Evidence, Location, MachineRead, MeasuredCall, RankReport, printable
from blinkccl.apps.doctor.readers import flight_recorder
from blinkccl.apps.doctor.readers.nccl_tests import document_rows, measured_call
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.topology import json_format

#: Our name of a collective by NCCL's (AllReduce, ReduceScatter), in lower case.
_BY_NCCL = {name.replace("_", ""): name for name in COLLECTIVES}


def _has(*keys: str) -> Callable[[Any], bool]:
    return lambda document: isinstance(document, dict) and all(key in document for key in keys)


def _topology(document: Any, source: str) -> Iterator[Evidence]:
    yield MachineRead(Location(source), json_format.parse(json.dumps(document), source))


def benchmark(document: Any, source: str) -> Iterator[Evidence]:
    """Results of ``-J`` of nccl-tests and of ``blink bench``."""
    for row in document_rows(document, source):
        if row.run.collective and row.run.ranks and row.busbw_gb_per_s is not None:
            place = Location(f"{source}, {row.where.partition('.')[0]}")
            yield measured_call(row, place, row.run.collective, row.run.ranks)


def inspector(lines: Sequence[tuple[int, Any]], source: str) -> Iterator[Evidence]:
    """Results of NCCL Inspector: one object per collective."""
    for number, row in lines:
        header, measured = row["header"], row["coll_perf"]
        collective, ranks = _BY_NCCL.get(str(measured["coll"]).lower()), int(header["n_ranks"])
        if collective is not None and ranks > 1:
            size, seconds = int(measured["coll_msg_size_bytes"]), float(measured["coll_exec_time_us"]) * 1e-6
            busbw, hosts = float(measured["coll_busbw_gbs"]), int(header.get("nnodes", 1))
            yield MeasuredCall(Location(source, number), collective, ranks, size, seconds, busbw, hosts=hosts)


def _ras(document: Any, source: str) -> Iterator[Evidence]:
    """Output of NCCL's RAS client with ``-f json``, since 2.28."""
    place = Location(source)
    for communicator in document["communicators"]:
        group, members = f"communicator {communicator['hash']}", tuple(range(int(communicator["size"])))
        for rank in communicator.get("ranks", ()):
            counts = rank.get("collective_counts") or {}
            status = rank.get("status") or {}
            failed = status.get("abort_flag") or status.get("async_error") not in (None, 0, 7)
            calls = tuple((printable(str(name)), int(count)) for name, count in counts.items())
            yield RankReport(place, group, int(rank["rank"]), "failed" if failed else "", calls, members=members)
        for rank in communicator.get("missing_ranks", ()):
            status = rank.get("status") or {}
            state = "unresponsive" if status.get("unresponsive") else "missing"
            state = "dead" if status.get("considered_dead") else state
            yield RankReport(place, group, int(rank["rank"]), state, members=members)


#: RankReport's states by those of ``blink dump``.
_DUMPED = {"gone": "dead", "stopped": "stopped", "absent": "missing", "left": "missing", "remote": ""}


def _dump(document: Any, source: str) -> Iterator[Evidence]:
    for group in document["groups"]:
        for rank in group["ranks"]:
            state = rank["state"]
            yield RankReport(
                Location(source),
                f"group {group['segment']}",
                int(rank["rank"]),
                _DUMPED.get(state, ""),
                () if state in _DUMPED else (("", int(rank["calls"])),),
                doing=str(rank.get("call") or "") if state in ("waiting", "running") else "",
                members=tuple(range(int(group["size"]))),
            )


Read = Callable[[Any, str], Iterable[Evidence]]
#: (title, test of a document, reader); the first kind whose test passes reads it.
KINDS: tuple[tuple[str, Callable[[Any], bool], Read], ...] = (
    ("blink topo --gather", _has("blink_gather"), gathered.pieces),
    ("topology", _has("vertices", "links"), _topology),
    ("blink dump", _has("groups", "pid"), _dump),
    ("RAS", _has("communicators"), _ras),
    ("flight recorder", _has("entries", "pg_config"), flight_recorder.pieces),
    ("benchmark results", _has("results", "config"), benchmark),
    ("NCCL Inspector", _has("header", "coll_perf"), lambda document, source: inspector([(1, document)], source)),
)
