"""C declarations as :mod:`ctypes` types, read from the headers that native code is compiled with.

The headers in ``include/blink/`` are the only definition of the numbers, structs and functions that Python and native
code share. The parser understands only the C that they use: constant integers, ``enum``, prototypes, and ``struct`` of
integers, floats, pointers and arrays. Any other struct member is an error, so that none is skipped.

:func:`abi` is a number computed from all headers. Each library contains it, and a library with another one is refused.
"""

from __future__ import annotations

import ctypes as c
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

S = TypeVar("S", bound=c.Structure)
#: Function → (result, arguments).
Functions = Mapping[str, tuple[type | None, list[type]]]

DIRECTORY = Path(__file__).parent / "include"
_SCALARS: dict[str, Any] = {
    "char": c.c_char,
    "int": c.c_int,
    "double": c.c_double,
    "size_t": c.c_size_t,
    "Word": c.c_uint64,
    **{f"{sign}int{bits}_t": getattr(c, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
#: Format characters of the module struct.
_LETTERS: dict[type, str] = {c.c_uint32: "I", c.c_int32: "i", c.c_uint64: "Q", c.c_int64: "q", c.c_double: "d"}
_ENUM = re.compile(r"\benum\s+(\w*)\s*(?::\s*\w+\s*)?\{([^}]*)\}\s*;")
_CONSTANT = re.compile(r"(?:#define|constexpr \w+) (\w+) (?:= )?(-?\w+);? *$", re.MULTILINE)
_STRUCT = re.compile(
    r"(?:\btypedef\s+struct|\bstruct)\s*(__attribute__\(\(packed\)\))?\s*(\w*)\s*\{([^}]*)\}\s*(\w*)\s*;"
)
_FUNCTION = re.compile(r"^(?:const )?(\w+)(\s*\*+\s*|\s+)(\w+)\(([^()]*)\);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Struct:
    """The members of a struct in order; ``packed`` structs have no padding between them."""

    fields: tuple[tuple[str, type], ...]
    packed: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.fields)

    def wire(self) -> struct.Struct:
        """Return the format of the members as little-endian bytes without padding."""
        return struct.Struct("<" + "".join(_LETTERS.get(kind) or f"{c.sizeof(kind)}s" for _, kind in self.fields))


@dataclass(frozen=True)
class Header:
    """Declarations of a header. ``constants`` holds the defined integers and all enumerators."""

    constants: Mapping[str, int]
    enums: Mapping[str, Mapping[str, int]]
    structs: Mapping[str, Struct]
    functions: Functions

    def numbers(self, enum: str, prefix: str = "BLINK_") -> dict[str, int]:
        """Return the enumerators of ``enum``, in lower case and without ``prefix``."""
        return {name.removeprefix(prefix).lower(): number for name, number in self.enums[enum].items()}

    def layout(self, name: str) -> Callable[[type[S]], type[S]]:
        """Return a decorator that gives a ctypes structure the members of the struct ``name``."""

        def laid_out(structure: type[S]) -> type[S]:
            if self.structs[name].packed:
                structure._pack_ = 1
            structure._fields_ = list(self.structs[name].fields)
            return structure

        return laid_out


@lru_cache
def header(name: str) -> Header:
    """Return the declarations of the header ``blink/<name>``."""
    return parse((DIRECTORY / "blink" / name).read_text(encoding="utf-8"))


def parse(text: str) -> Header:
    """Return the declarations in the text of a header; raise ValueError for a struct member that it cannot parse."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    constants = {name: int(value, 0) for name, value in _CONSTANT.findall(text)}
    enums = {}
    for name, body in _ENUM.findall(text):
        enums[name] = _enumerators(body)
        constants |= enums[name]
    structs = {
        name or alias: Struct(tuple(_members(body, constants)), bool(packed))
        for packed, name, body, alias in _STRUCT.findall(text)
    }
    functions = {
        name: (_type_of(result, bool(stars.strip())), [_argument(each) for each in _listed(arguments)])
        for result, stars, name, arguments in _FUNCTION.findall(text)
    }
    return Header(constants, enums, structs, functions)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip() not in ("", "void")]


def _enumerators(body: str) -> dict[str, int]:
    enumerators: dict[str, int] = {}
    following = 0
    for entry in _listed(body):
        name, _, value = (part.strip() for part in entry.partition("="))
        enumerators[name] = int(value, 0) if value else following
        following = enumerators[name] + 1
    return enumerators


def _members(body: str, constants: Mapping[str, int]) -> Iterator[tuple[str, type]]:
    """Yield the name and type of each member; a function pointer is a plain pointer."""
    for declaration in filter(None, map(str.strip, body.split(";"))):
        pointer = re.fullmatch(r"[\w ]+\*? *\(\*(\w+)\)\(.*\)", declaration)
        if pointer:
            yield pointer[1], c.c_void_p
            continue
        kind, declared = declaration.removeprefix("const ").removeprefix("struct ").split(maxsplit=1)
        while kind.endswith("*"):
            kind, declared = kind[:-1], "*" + declared
        for each in _listed(declared):
            member = re.fullmatch(r"(\**) ?(\w+)(?:\[(\w+)\])?", each)
            if member is None or not (member[1] or kind in _SCALARS):
                raise ValueError(f"cannot parse the struct member {declaration!r}")
            scalar: Any = c.c_void_p if member[1] else _SCALARS[kind]
            size = member[3] and (constants[member[3]] if member[3] in constants else int(member[3]))
            yield member[2], scalar * size if size else scalar


def _type_of(name: str, pointer: bool) -> type | None:
    if pointer:
        return c.c_char_p if name == "char" else c.c_void_p
    return None if name == "void" else _SCALARS[name]


def _argument(declaration: str) -> type:
    """Return the type of an argument; C passes an array as a pointer."""
    name = declaration.replace("const ", "").replace("struct ", "").split()[0].rstrip("*")
    return _type_of(name, "*" in declaration or "[" in declaration) or c.c_void_p


@lru_cache
def abi() -> int:
    """Return 32 bits of a hash of all headers without comments and layout; CMakeLists.txt computes the same number."""
    from hashlib import sha256  # imported late: callers that need only numbers do not use it

    digest = sha256()
    for path in sorted((DIRECTORY / "blink").glob("*.h")):
        text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
        digest.update(re.sub(r"[ \t\r\n]+", " ", text).encode())
    return int(digest.hexdigest()[:8], 16)
