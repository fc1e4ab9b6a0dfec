"""Versions of the JSON and TOML documents that Blink writes, and the conversion of version 1.

Version 1 called gigabytes per second ``gbps``, which is commonly read as gigabits; since version 2 the name is
``gb_per_s``. Nothing else differs.
"""

from __future__ import annotations

from typing import Any

SCHEMA_VERSION = 2
#: The versions that readers accept.
READABLE = (1, SCHEMA_VERSION)


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A plan, topology or calibration of version 1 converted to version 2; any other document unchanged.

    Only renamed fields are read, so a malformed document stays malformed. ``document`` itself is not changed.
    """
    topology = document.get("topology")
    if isinstance(topology, dict):
        document = {**document, "topology": _upgraded(topology)}
    return _upgraded(document)


def version_fault(version: object) -> str | None:
    """The message for a version that is not readable; None if it is readable or not an integer."""
    if type(version) is not int or version in READABLE:
        return None
    shown = version if abs(version) < 10**9 else "of a bigger number"
    return (
        f"schema_version {shown}; this blink reads {' and '.join(map(str, READABLE))}: write the file again with this "
        "blink, or read it with the blink that wrote it"
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
