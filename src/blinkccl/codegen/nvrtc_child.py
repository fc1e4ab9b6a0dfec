"""The process in which NVRTC runs.

``facts LIBRARY`` prints version and architectures as JSON. ``compile LIBRARY SOURCE OUTPUT`` reads its options as JSON
from standard input, writes a cubin and prints the log. Exit code 1 is a failure, with the reason on standard output.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from pathlib import Path


class _FailureError(Exception):
    pass


class _Library:
    def __init__(self, path: str) -> None:
        try:
            self._library = c.CDLL(path)
            self._library.nvrtcGetErrorString.restype = c.c_char_p
        except (OSError, AttributeError) as error:
            raise _FailureError(str(error)) from None
        major, minor = c.c_int(), c.c_int()
        self.call("nvrtcVersion", c.byref(major), c.byref(minor))
        self.version = major.value, minor.value
        self._load_other_half(Path(path))

    def _load_other_half(self, path: Path) -> None:
        """Load NVRTC's builtins, which it opens by name: the wheels of CUDA 13.0 have no run path to them.

        The one beside it is loaded first, by its path, so that the loader knows the name. The directory may contain
        other versions, too.
        """
        name = "libnvrtc-builtins.so." + ".".join(map(str, self.version))
        for half in (path.with_name(name), path.resolve().with_name(name)):
            if half.exists():
                try:
                    c.CDLL(str(half), mode=c.RTLD_GLOBAL)
                except OSError as error:
                    raise _FailureError(str(error)) from None
                return

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; any result but 0 is a failure."""
        result = getattr(self._library, name)(*arguments)
        if result:
            raise _FailureError(f"{name}: {self._library.nvrtcGetErrorString(result).decode()}")


def _facts(library: _Library) -> None:
    count = c.c_int()
    library.call("nvrtcGetNumSupportedArchs", c.byref(count))
    numbers = (c.c_int * count.value)()
    library.call("nvrtcGetSupportedArchs", numbers)
    # Some installations lack a part that compilation needs, so this fails here and not with a plan's code.
    program = c.c_void_p()
    library.call("nvrtcCreateProgram", c.byref(program), b"__global__ void nothing() {}", b"nothing.cu", 0, None, None)
    library.call("nvrtcCompileProgram", program, 0, None)
    print(json.dumps({"version": library.version, "architectures": list(numbers)}))


def _compile(library: _Library, source: Path, output: Path) -> None:
    options = [option.encode() for option in json.load(sys.stdin)]
    program, size = c.c_void_p(), c.c_size_t()
    library.call("nvrtcCreateProgram", c.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    try:
        library.call("nvrtcCompileProgram", program, len(options), (c.c_char_p * len(options))(*options))
    finally:
        library.call("nvrtcGetProgramLogSize", program, c.byref(size))
        log = c.create_string_buffer(size.value)
        library.call("nvrtcGetProgramLog", program, log)
        print(log.value.decode(errors="replace"), end="", flush=True)
    library.call("nvrtcGetCUBINSize", program, c.byref(size))
    code = c.create_string_buffer(size.value)
    library.call("nvrtcGetCUBIN", program, code)
    output.write_bytes(code.raw)


def main(arguments: list[str]) -> int:
    """Run the command in ``arguments`` and return the exit code."""
    try:
        library = _Library(arguments[1])
        if arguments[0] == "facts":
            _facts(library)
        else:
            _compile(library, Path(arguments[2]), Path(arguments[3]))
    except _FailureError as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
