"""libblink.so and what generated code needs, built with a sanitizer or with a planted fault."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from preloaded import DOUBLES, Built, built

from blinkccl.native.headers import DIRECTORY, abi
from blinkccl.runtime.peer_info import package_version
from doubles.build import compile_library

NATIVE = DOUBLES.parents[1] / "native"
SHIM, BOOTSTRAP, DEVICE, SHARED = NATIVE / "shim", NATIVE / "bootstrap", NATIVE / "device", DIRECTORY


def with_sanitizer(sanitizer: str) -> Built:
    """Everything but generated code, which gets its flags from BLINK_DOUBLE_CXXFLAGS."""
    files = built(sanitizer)
    place = files.doubles.nccl.parent
    device = _device_library(place, sanitizer)
    return replace(files, library=_library(place, {}, sanitizer), device_library=device)


def with_fault(directory: Path, planted: Mapping[str, tuple[str, str]]) -> Built:
    """``planted``: file of native/shim → (text that is there once, what it becomes)."""
    return replace(built(), library=_library(directory, planted, None))


def _library(place: Path, planted: Mapping[str, tuple[str, str]], sanitizer: str | None) -> Path:
    sources = []
    for source in sorted([*SHIM.glob("*.cpp"), *BOOTSTRAP.glob("*.cpp")]):
        if source.name in planted:
            before, after = planted[source.name]
            text = source.read_text()
            assert text.count(before) == 1, f"{source.name} has changed: plant the fault elsewhere"
            source = place / source.name
            source.write_text(text.replace(before, after))
        sources.append(source)
    exports = f"-Wl,--version-script={SHIM / 'blink_shim_exports.map'}"
    flags = [*_flags(SHIM, BOOTSTRAP, DEVICE, SHARED), exports, "-Wl,-soname,libblink.so", "-ldl"]
    return compile_library(sources, place / "libblink.so", flags=flags, sanitizer=sanitizer)


def _device_library(place: Path, sanitizer: str) -> Path:
    flags = [
        *_flags(DEVICE, SHARED),
        f"-DBLINK_ABI={abi()}u",
        "-ffp-contract=off",
        f"-Wl,--version-script={NATIVE / 'blink_exports.map'}",
    ]
    sources = sorted((DEVICE / "host").glob("*.cpp"))
    return compile_library(sources, place / "libblink_device.so", flags=flags, sanitizer=sanitizer)


def _flags(*directories: Path) -> list[str]:
    """Objects are cached by their flags: the headers are one of them."""
    content = hashlib.sha256()
    for directory in (SHIM, BOOTSTRAP, DEVICE, SHARED):
        for header in sorted([*directory.rglob("*.h"), *directory.rglob("*.def")]):
            content.update(header.read_bytes())
    version = f'-DBLINK_VERSION="{package_version()}"'
    return [*(f"-I{one}" for one in directories), f"-DBLINK_TEST_{content.hexdigest()[:16].upper()}", version]
