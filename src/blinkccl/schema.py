"""Versions of the JSON and TOML documents that Blink writes, and the conversion of version 1.

Version 1 called gigabytes per second ``gbps``, which is commonly read as gigabits; since version 2 the name is
``gb_per_s``. Nothing else differs. Version 3 is for plans that state their shares by orbits
(:mod:`blinkccl.trees.forest.turns`). Smaller plans are written as version 2, which earlier programs read too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SCHEMA_VERSION = 2
#: The versions that readers accept.
READABLE = (1, SCHEMA_VERSION)
#: The version of a plan with ``turns``, and of no other document.
TURNED_VERSION = 3
READABLE_PLANS = (*READABLE, TURNED_VERSION)


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A plan, topology or calibration of version 1 converted to version 2; any other document unchanged.

    Only renamed fields are read, so a malformed document stays malformed. ``document`` itself is not changed.
    """
    topology = document.get("topology")
    if isinstance(topology, dict):
        document = {**document, "topology": _upgraded(topology)}
    return _upgraded(document)


def version_fault(version: object, readable: Sequence[int] = READABLE) -> str | None:
    """The message for a version that is not readable; None if it is readable or not an integer."""
    if type(version) is not int or version in readable:
        return None
    shown = version if abs(version) < 10**9 else "of a bigger number"
    *others, last = map(str, readable)
    return (
        f"schema_version {shown}; this blink reads {', '.join(others)} and {last}: write the file again with this "
        "blink, or read it with the blink that wrote it"
    )


def turns_fault(plan: dict[str, Any]) -> str | None:
    """The message for a plan with ``turns`` of another version than 3, or of version 3 without ``turns``; else None."""
    stated, required = "turns" in plan, plan.get("schema_version") == TURNED_VERSION
    if stated == required:
        return None
    return "turns: " + (
        f"missing, with schema_version {TURNED_VERSION}" if required else f"expected schema_version {TURNED_VERSION}"
    )


def _upgraded(document: dict[str, Any]) -> dict[str, Any]:
    version = document.get("schema_version")
    if type(version) is not int or version != 1:
        return document
    upgraded_document = {**_renamed(document), "schema_version": SCHEMA_VERSION}
    for table in ("links", "link"):  # of a topology; of a calibration
        rows = upgraded_document.get(table)
        if isinstance(rows, list):
            upgraded_document[table] = [_renamed(row) if isinstance(row, dict) else row for row in rows]
    engine = upgraded_document.get("engine")
    return {**upgraded_document, "engine": _renamed(engine)} if isinstance(engine, dict) else upgraded_document


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("gbps", "gb_per_s"): value for name, value in fields.items()}
