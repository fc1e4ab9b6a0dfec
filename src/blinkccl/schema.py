"""The version of the JSON and TOML documents that Blink writes and reads."""

from __future__ import annotations

SCHEMA_VERSION = 2


def version_fault(version: object) -> str | None:
    """The message for a version that is not readable; None if it is readable or not an integer."""
    if type(version) is not int or version == SCHEMA_VERSION:
        return None
    shown = version if abs(version) < 10**9 else "of a bigger number"
    return (
        f"schema_version {shown}; this blink reads {SCHEMA_VERSION}: write the file again with this blink, or read it "
        "with the blink that wrote it"
    )
