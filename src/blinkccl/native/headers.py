"""C declarations as :mod:`ctypes` sees them, read from the headers that native code is compiled with.

The headers in ``include/blink/`` are the one definition of what Python and native code share: numbers, structs and
functions. Read is the C that they use and no more: constant integers, ``enum``, ``struct`` of integers, floats,
pointers and arrays, and prototypes. A struct member of any other kind is an error, so that nothing is overlooked.

Libraries know :func:`abi`, a number made of all headers, by which they are refused where these say something else.
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
#: Of the module struct.
_LETTERS: dict[type, str] = {c.c_uint32: "I", c.c_int32: "i", c.c_uint64: "Q", c.c_int64: "q", c.c_double: "d"}
_ENUM = re.compile(r"\benum\s+(\w*)\s*(?::\s*\w+\s*)?\{([^}]*)\}\s*;")
_CONSTANT = re.compile(r"(?:#define|constexpr \w+) (\w+) (?:= )?(-?\w+);? *$", re.MULTILINE)
_STRUCT = re.compile(
    r"(?:\btypedef\s+struct|\bstruct)\s*(__attribute__\(\(packed\)\))?\s*(\w*)\s*\{([^}]*)\}\s*(\w*)\s*;"
)
_FUNCTION = re.compile(r"^(?:const )?(\w+)(\s*\*+\s*|\s+)(\w+)\(([^()]*)\);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Struct:
    """The members of a struct, in order, and whether nothing lies between them."""

    fields: tuple[tuple[str, type], ...]
    packed: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.fields)

    def wire(self) -> struct.Struct:
        """The members as little-endian bytes without padding."""
        return struct.Struct("<" + "".join(_LETTERS.get(kind) or f"{c.sizeof(kind)}s" for _, kind in self.fields))


@dataclass(frozen=True)
class Header:
    """What a header declares: integers that are defined, all enumerators among them, enums by name, and the rest."""

    constants: Mapping[str, int]
    enums: Mapping[str, Mapping[str, int]]
    structs: Mapping[str, Struct]
    functions: Functions

    def numbers(self, enum: str, prefix: str = "BLINK_") -> dict[str, int]:
        """The enumerators of ``enum`` in small letters, without ``prefix``."""
        return {name.removeprefix(prefix).lower(): number for name, number in self.enums[enum].items()}

    def layout(self, name: str) -> Callable[[type[S]], type[S]]:
        """Decorates a ctypes structure, which gets the members of the struct ``name``."""

        def laid_out(made: type[S]) -> type[S]:
            if self.structs[name].packed:
                made._pack_ = 1
            made._fields_ = list(self.structs[name].fields)
            return made

        return laid_out


@lru_cache
def header(name: str) -> Header:
    """The header ``blink/<name>``."""
    return parse((DIRECTORY / "blink" / name).read_text(encoding="utf-8"))


def parse(text: str) -> Header:
    """What the text of a header declares; a ValueError if it has a kind of member or entry that is not understood."""
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
    found: dict[str, int] = {}
    following = 0
    for entry in _listed(body):
        name, _, value = (part.strip() for part in entry.partition("="))
        found[name] = int(value, 0) if value else following
        following = found[name] + 1
    return found


def _members(body: str, constants: Mapping[str, int]) -> Iterator[tuple[str, type]]:
    """One member after the other; function pointers are pointers."""
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
                raise ValueError(f"a struct's member is not understood: {declaration!r}")
            made: Any = c.c_void_p if member[1] else _SCALARS[kind]
            size = member[3] and (constants[member[3]] if member[3] in constants else int(member[3]))
            yield member[2], made * size if size else made


def _type_of(name: str, pointer: bool) -> type | None:
    if pointer:
        return c.c_char_p if name == "char" else c.c_void_p
    return None if name == "void" else _SCALARS[name]


def _argument(declaration: str) -> type:
    """Also of an array, which C passes as a pointer."""
    name = declaration.replace("const ", "").replace("struct ", "").split()[0].rstrip("*")
    return _type_of(name, "*" in declaration or "[" in declaration) or c.c_void_p


@lru_cache
def abi() -> int:
    """32 bits that differ for headers that differ in more than comments and layout; CMakeLists.txt makes the same."""
    from hashlib import sha256  # only here: who asks for numbers alone need not pay for it

    digest = sha256()
    for path in sorted((DIRECTORY / "blink").glob("*.h")):
        text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
        digest.update(re.sub(r"[ \t\r\n]+", " ", text).encode())
    return int(digest.hexdigest()[:8], 16)
