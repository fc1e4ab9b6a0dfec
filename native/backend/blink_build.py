"""The build backend: scikit-build-core's, with PyPI's ziglang as C++ compiler on systems without one.

The compiler is the one in CXX, or c++, g++ or clang++ on PATH. Without any, pip downloads ziglang for the build, as it
downloads cmake and ninja, and its clang compiles everything for this machine's C library. So the native libraries are
always built, and a failed build is an error.

BLINK_MANYLINUX (x86_64 or aarch64; `make wheels` sets it) names the machines of a wheel for others. Then ziglang
compiles for glibc 2.28, and the wheel has the tag of such machines.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from scikit_build_core import build as scikit

ZIGLANG = "ziglang==0.17.1"
#: Without this CPU's own instructions and zig's checks for unoptimized code, as other compilers do.
FLAGS = "c++ -mcpu=baseline -fno-sanitize=undefined"
#: Folder with an editable build's objects: cmake stores the compiler's path, and pip's differs in every build.
KEPT = Path("build", "zig")


def needs_zig() -> bool:
    """True if there is no C++ compiler, or for other machines. Without a ziglang wheel for this one pip reports it."""
    if os.environ.get("BLINK_MANYLINUX"):
        return True
    return not os.environ.get("CXX") and not any(map(shutil.which, ("c++", "g++", "clang++")))


@contextmanager
def _compiler(kept: Path | None) -> Iterator[None]:
    """Set CXX to zig if needed; its cache and a link to it are in ``kept``, or in a temporary folder."""
    if not needs_zig():
        yield
        return
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        sys.exit(
            f"No C++ compiler: none of c++, g++ and clang++ is on PATH (Debian: apt install g++), or BLINK_MANYLINUX "
            f"is set, and {ZIGLANG}, which pip would fetch, is not here."
        )
    with TemporaryDirectory() as temporary:
        folder = (kept or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / "ziglang"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(spec.origin).parent)
        print(f"{ZIGLANG} compiles everything, which takes some minutes.", flush=True)
        zig = {"CXX": f"{link / 'zig'} {FLAGS}"}
        if machine := os.environ.get("BLINK_MANYLINUX"):
            zig["CXX"] += f" -target {machine}-linux-gnu.2.28"
            zig["CMAKE_ARGS"] = f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={machine}"
            zig["_PYTHON_HOST_PLATFORM"] = f"manylinux_2_28_{machine}"  # which scikit-build-core makes the tag of
        zig |= dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(folder))
        # Without symbols: those of its C++ library are large, and this system may have no program to strip files.
        with patch.dict(os.environ, zig, LDFLAGS=f"{os.environ.get('LDFLAGS', '')} -s"):
            yield


def _built(hook: Callable[..., str], kept: Path | None = None) -> Callable[..., str]:
    @wraps(hook)
    def build(*arguments: Any, **named: Any) -> str:
        with _compiler(kept):
            return hook(*arguments, **named)

    return build


def _required(hook: Callable[..., list[str]]) -> Callable[..., list[str]]:
    @wraps(hook)
    def required(*arguments: Any, **named: Any) -> list[str]:
        return [*hook(*arguments, **named), *([ZIGLANG] if needs_zig() else [])]

    return required


build_sdist = scikit.build_sdist
get_requires_for_build_sdist = scikit.get_requires_for_build_sdist
build_wheel = _built(scikit.build_wheel)
build_editable = _built(scikit.build_editable, KEPT)
prepare_metadata_for_build_wheel = _built(scikit.prepare_metadata_for_build_wheel)  # with the same tag
prepare_metadata_for_build_editable = scikit.prepare_metadata_for_build_editable
get_requires_for_build_wheel = _required(scikit.get_requires_for_build_wheel)
get_requires_for_build_editable = _required(scikit.get_requires_for_build_editable)
