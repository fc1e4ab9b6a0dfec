"""The version of the JSON and TOML documents that Blink writes, and how documents of version 1 are read.

Version 1 called gigabytes per second ``gbps``, which everybody else reads as gigabits; since version 2 they are
``gb_per_s``. Nothing else differs. Version 3 is that of plans which state their shares by orbits
(:mod:`blinkccl.trees.forest.turns`); what is not so big is written as version 2, which earlier programs read too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SCHEMA_VERSION = 2
#: What readers take.
READABLE = (1, SCHEMA_VERSION)
#: Of a plan with ``turns``, and of no other document.
TURNED_VERSION = 3
READABLE_PLANS = (*READABLE, TURNED_VERSION)


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A plan, topology or calibration of version 1 as version 2 says it; any other document as it is.

    Only fields that have changed are looked at, so a document of wrong shape stays one. ``document`` is not changed.
    """
    topology = document.get("topology")
    if isinstance(topology, dict):
        document = {**document, "topology": _upgraded(topology)}
    return _upgraded(document)


def version_fault(version: object, readable: Sequence[int] = READABLE) -> str | None:
    """What to say of a document of a version that nobody here reads; None for others, and for what is no version."""
    if type(version) is not int or version in readable:
        return None
    shown = version if abs(version) < 10**9 else "of a bigger number"
    *others, last = map(str, readable)
    return (
        f"schema_version {shown}; this blink reads {', '.join(others)} and {last}: the file was written by "
        "another version of this program"
    )


def turns_fault(plan: dict[str, Any]) -> str | None:
    """What to say of a plan with ``turns`` that earlier programs would not see, or of one that lacks them."""
    stated, wanted = "turns" in plan, plan.get("schema_version") == TURNED_VERSION
    if stated == wanted:
        return None
    return "turns: " + (
        f"missing, with schema_version {TURNED_VERSION}" if wanted else f"expected schema_version {TURNED_VERSION}"
    )


def _upgraded(document: dict[str, Any]) -> dict[str, Any]:
    version = document.get("schema_version")
    if type(version) is not int or version != 1:
        return document
    now = {**_renamed(document), "schema_version": SCHEMA_VERSION}
    for table in ("links", "link"):  # of a topology; of a calibration
        rows = now.get(table)
        if isinstance(rows, list):
            now[table] = [_renamed(row) if isinstance(row, dict) else row for row in rows]
    engine = now.get("engine")
    return {**now, "engine": _renamed(engine)} if isinstance(engine, dict) else now


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("gbps", "gb_per_s"): value for name, value in fields.items()}
