"""libblink.so and the library of generated code, built with a sanitizer or with a planted fault."""

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from preloaded import DOUBLES, HERE, Built, Preloaded, built

from blinkccl.native.headers import DIRECTORY, abi
from blinkccl.runtime.peer_info import package_version
from doubles.build import compile_library

NATIVE = DOUBLES.parents[1] / "native"
SHIM, DEVICE, SHARED = NATIVE / "shim", NATIVE / "device", DIRECTORY
ROOMS = [SHIM, *(NATIVE / name for name in ("copies", "preload", "bootstrap"))]

_ADDR_NO_RANDOMIZE = 0x0040000  # linux/personality.h
#: Options of the sanitizers' runtimes.
OPTIONS = {
    "TSAN_OPTIONS": f"halt_on_error=1 exitcode=66 print_suppressions=0 suppressions={HERE / 'tsan.supp'}",
    # Memory that lives until the end of the process is intended: NCCL's and CUDA's libraries are not closed either.
    "ASAN_OPTIONS": "detect_leaks=0 exitcode=66",
    "UBSAN_OPTIONS": "halt_on_error=1 print_stacktrace=1 exitcode=66",
}


def sanitized(plain: Preloaded, sanitizers: str) -> Preloaded:
    """The same runner with all but the interpreter built with ``sanitizers``: "thread" or "address,undefined"."""
    files = with_sanitizer(sanitizers)
    assert files.library is not None
    # The interpreter has no sanitizer, so the planner gets neither its runtime nor a driver that needs it.
    python = plain.directory / "python-without-sanitizers"
    driver = f"BLINK_CUDA_LIB={plain.built.doubles.cuda}"
    python.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexport {driver}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    cache = plain.cache / sanitizers
    cache.mkdir(mode=0o700, exist_ok=True)
    flags = f"-fsanitize={sanitizers} -fno-sanitize-recover=all"
    more = {"BLINK_PYTHON": python, "BLINK_DOUBLE_CXXFLAGS": flags, **OPTIONS}
    runner = replace(plain, built=files, cache=cache, more=more)
    if "address" in sanitizers:
        return replace(runner, runtime=_address_runtime())
    without = "the thread sanitizer comes with the program, and this one is not built with it"
    return replace(runner, before=_where_thread_sanitizer_starts, others=without)


def _where_thread_sanitizer_starts() -> None:
    """Disable address randomisation: GCC 12's and 13's thread sanitizer may abort with more than 2^28 random places."""
    ctypes.CDLL(None).personality(_ADDR_NO_RANDOMIZE)


def _address_runtime() -> str:
    """The path of libasan.so, which must come first, since not every program of the tests is built with it."""
    command = [os.environ.get("CXX", "g++"), "-print-file-name=libasan.so"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def with_sanitizer(sanitizer: str) -> Built:
    """The files built with ``sanitizer``, except generated code, which gets its flags from BLINK_DOUBLE_CXXFLAGS."""
    files = built(sanitizer)
    place = files.doubles.nccl.parent
    device = _device_library(place, sanitizer)
    return replace(files, library=_library(place, {}, sanitizer), device_library=device)


def with_fault(directory: Path, planted: Mapping[str, tuple[str, str]]) -> Built:
    """The files with faults; ``planted``: file of libblink.so → (text that occurs there once, its replacement)."""
    return replace(built(), library=_library(directory, planted, None))


def _library(place: Path, planted: Mapping[str, tuple[str, str]], sanitizer: str | None) -> Path:
    sources = []
    for source in sorted([*(path for room in ROOMS for path in room.glob("*.cpp")), NATIVE / "simulate" / "miad.cpp"]):
        if source.name in planted:
            before, after = planted[source.name]
            text = source.read_text()
            assert text.count(before) == 1, f"{source.name} has changed: plant the fault elsewhere"
            source = place / source.name
            source.write_text(text.replace(before, after))
        sources.append(source)
    exports = f"-Wl,--version-script={SHIM / 'blink_shim_exports.map'}"
    flags = [*_flags(*ROOMS, DEVICE, SHARED), exports, "-Wl,-soname,libblink.so", "-ldl"]
    return compile_library(sources, place / "libblink.so", flags=flags, sanitizer=sanitizer)


def _device_library(place: Path, sanitizer: str) -> Path:
    flags = [
        *_flags(DEVICE, SHARED),
        "-ffp-contract=off",
        f"-Wl,--version-script={NATIVE / 'blink_exports.map'}",
    ]
    sources = sorted((DEVICE / "host").glob("*.cpp"))
    return compile_library(sources, place / "libblink_device.so", flags=flags, sanitizer=sanitizer)


def _flags(*directories: Path) -> list[str]:
    """Compiler flags, which include a hash of the headers, since objects are cached by their flags."""
    content = hashlib.sha256()
    for directory in (*ROOMS, DEVICE, SHARED):
        for header in sorted([*directory.rglob("*.h"), *directory.rglob("*.def")]):
            content.update(header.read_bytes())
    version = f'-DBLINK_VERSION="{package_version()}"'
    named = [f"-DBLINK_ABI={abi()}u", f"-DBLINK_TEST_{content.hexdigest()[:16].upper()}", version]
    return [*(f"-I{one}" for one in directories), *named]
