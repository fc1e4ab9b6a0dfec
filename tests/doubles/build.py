"""Builds the test doubles with g++, once per content, into a directory of this checkout that git ignores.

``python tests/doubles/build.py [DIRECTORY]`` prints the built files. Tests call :func:`build`.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Headers that native code and Python share.
SHARED = ROOT / "src" / "blinkccl" / "native" / "include"
COMPILER = os.environ.get("CXX", "g++")
C_COMPILER = os.environ.get("CC", "gcc")
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Werror")


@dataclass(frozen=True)
class Doubles:
    """Paths of the built files."""

    #: ``libcuda.so.1``, for ``BLINK_CUDA_LIB``; an old one without ``cuDeviceGetUuid_v2``; and one of CUDA 11.7,
    #: without ``cuLaunchKernelEx`` and ``cuCtxGetDevResource``.
    cuda: Path
    cuda_old: Path
    cuda_11_7: Path
    #: ``libnccl.so.2``, for ``BLINK_NCCL_LIB``; its directory is for ``LD_LIBRARY_PATH``.
    nccl: Path
    #: The programs that use NCCL's interface; and the scenes as a library, to be opened as Python opens torch.
    client: Path
    ranks: Path
    ranks_library: Path
    #: Compiler for ``BLINK_NVCC``: it accepts nvcc's command line, and compiles for this CPU.
    compiler: Path


def have_compiler() -> bool:
    """Return whether the doubles can be built on this system."""
    return sys.platform.startswith("linux") and bool(shutil.which(COMPILER)) and bool(shutil.which(C_COMPILER))


def build(directory: Path | None = None, *, sanitizer: str | None = None) -> Doubles:
    """Build all doubles into ``directory``, by default ``build/doubles/<content>``, and return their paths.

    ``sanitizer``: ``address``, ``thread`` or ``undefined``; a program that loads the libraries must be built with it
    too, as the client is. Raises RuntimeError with the compiler's output if a file does not compile.
    """
    sources = sorted(path for path in HERE.rglob("*") if path.suffix in {".cpp", ".c", ".h", ".map", ".py"})
    sources += sorted(SHARED.glob("blink/*.h"))
    content = hashlib.sha256()
    for source in sources:
        content.update(f"{source.name}\0".encode())
        content.update(source.read_bytes())
    content.update(repr((COMPILER, C_COMPILER, sanitizer)).encode())
    place = directory or ROOT / "build" / "doubles" / content.hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    places = _places(place)
    with open(place / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = place / ".built"
        if not (stamp.exists() and stamp.read_text() == content.hexdigest()):
            _build(places, sanitizer)
            stamp.write_text(content.hexdigest())
    return places


def compile_library(
    sources: Sequence[Path], output: Path, *, flags: Sequence[str] = (), sanitizer: str | None = None
) -> Path:
    """Compile sources into a shared library (``.c`` as C11, others as C++17); warnings are errors.

    ``flags`` that begin with ``-f``, ``-I`` or ``-D`` go to the compiler, others to the linker.
    """
    compiler_flags = [flag for flag in flags if flag.startswith(("-f", "-I", "-D"))]
    objects = _objects(sources, ("-fPIC", *compiler_flags), sanitizer)
    _link(objects, output, ("-shared", *(flag for flag in flags if flag not in compiler_flags)), sanitizer)
    return output


def nvrtc_wheel(directory: Path) -> Path:
    """Build NVRTC's double in ``directory`` as CUDA 13.0's wheel has it in site-packages; return the library."""
    source, place = HERE / "compiler" / "nvrtc.c", directory / "nvidia" / "cu13" / "lib"
    place.mkdir(parents=True)
    for name in ("libnvrtc-builtins.so.13.0", "libnvrtc.so.13"):
        compile_library([source], place / name, flags=(f"-Wl,-soname,{name}", "-ldl"))
    return place / name


def _places(place: Path) -> Doubles:
    return Doubles(
        cuda=place / "libcuda.so.1",
        cuda_old=place / "libcuda_old.so",
        cuda_11_7=place / "libcuda_11_7.so",
        nccl=place / "libnccl.so.2",
        client=place / "nccl_client",
        ranks=place / "ranks",
        ranks_library=place / "libranks.so",
        compiler=HERE / "compiler" / "nvcc",
    )


def _build(found: Doubles, sanitizer: str | None) -> None:
    flags = ("-fPIC", "-fvisibility=hidden", f"-I{SHARED}")
    objects = _objects([_whole("cuda")], flags, sanitizer)
    for library, lacks in {
        found.cuda: "",
        found.cuda_old: "cuDeviceGetUuid_v2;",
        found.cuda_11_7: "cuLaunchKernelEx; cuCtxGetDevResource;",
    }.items():
        exports = library.with_suffix(".map")
        exports.write_text(f"{{ global: cu*; local: {lacks} *; }};\n")
        link = ("-shared", f"-Wl,--version-script={exports}", "-Wl,-soname,libcuda.so.1", "-ldl")
        _link(objects, library, link, sanitizer)

    link = ("-shared", f"-Wl,--version-script={HERE / 'nccl' / 'exports.map'}", "-Wl,-soname,libnccl.so.2", "-ldl")
    _link(_objects([_whole("nccl")], ("-fPIC",), sanitizer), found.nccl, link, sanitizer)

    sources = sorted((HERE / "client" / "nccl_client").glob("*.c"))
    link = (str(found.nccl), "-ldl")
    _link(_objects(sources, (), sanitizer), found.client, link, sanitizer)
    ranks = [HERE / "client" / "ranks.c", HERE / "client" / "nccl_client" / "world.c"]
    objects = _objects(ranks, ("-fPIC", "-fvisibility=hidden"), sanitizer)
    _link(objects, found.ranks, link, sanitizer)
    _link(objects, found.ranks_library, ("-shared", *link), sanitizer)


def _whole(library: str) -> Path:
    """Return one file with all sources of a library: the standard headers take most of each source's compile time."""
    sources = sorted((HERE / library).glob("*.cpp"))
    text = "".join(f'#include "{source}"\n' for source in sources)
    content = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    place = ROOT / "build" / "doubles" / f"{library}.cpp"
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_suffix(f".{os.getpid()}")
    fresh.write_text(f"// {content}\n{text}")
    fresh.rename(place)
    return place


def _objects(sources: Sequence[Path], flags: Sequence[str], sanitizer: str | None) -> list[Path]:
    """Compile each source once for its content, its headers and its flags: two at a time."""
    cache = ROOT / "build" / "doubles" / "objects"
    cache.mkdir(parents=True, exist_ok=True)
    # Line numbers are only for a sanitizer's reports; without them a build takes a quarter less time.
    extra = ("-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all") if sanitizer else ()
    objects, running = [], []
    for source in sources:
        start = [C_COMPILER, "-std=c11", "-D_GNU_SOURCE"] if source.suffix == ".c" else [COMPILER, "-std=c++17"]
        command = [*start, "-O1", *WARNINGS, *extra, *flags, "-c", str(source)]
        name = hashlib.sha256(repr(command).encode() + source.read_bytes() + _headers(source)).hexdigest()[:24]
        made = cache / f"{source.stem}-{name}.o"
        objects.append(made)
        if made.exists():
            continue
        fresh = cache / f"{made.name}.{os.getpid()}"
        process = subprocess.Popen([*command, "-o", str(fresh)], stderr=subprocess.PIPE, text=True)
        running.append((source, process, fresh, made))
        if len(running) > 1:
            _compiled(*running.pop(0))
    for one in running:
        _compiled(*one)
    return objects


def _headers(source: Path) -> bytes:
    """Return a hash of the headers that a source may include: doubles all of theirs and the shared ones, others own."""
    own = HERE in source.parents or source.parent == ROOT / "build" / "doubles"
    headers = sorted([*HERE.rglob("*.h"), *SHARED.glob("blink/*.h")] if own else source.parent.glob("*.h"))
    return hashlib.sha256(b"".join(header.read_bytes() for header in headers)).digest()


def _compiled(source: Path, process: subprocess.Popen[str], fresh: Path, made: Path) -> None:
    _finish(source, process)
    fresh.rename(made)


def _link(objects: Sequence[Path], output: Path, flags: Sequence[str], sanitizer: str | None) -> None:
    extra = (f"-fsanitize={sanitizer}",) if sanitizer else ()
    fresh = output.with_name(f"{output.name}.{os.getpid()}")
    command = [COMPILER, *extra, *map(str, objects), "-o", str(fresh), *flags, "-pthread", "-Wl,--as-needed"]
    _finish(output, subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    fresh.rename(output)  # atomic: a process that has the old file open keeps it


def _finish(what: Path, process: subprocess.Popen[str]) -> None:
    _, complaints = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{what} cannot be built:\n{complaints}")


if __name__ == "__main__":
    for name, path in vars(build(Path(sys.argv[1]) if len(sys.argv) > 1 else None)).items():
        print(f"{name} {path}")
