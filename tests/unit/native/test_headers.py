"""The headers that native code and Python share: parsed with C's meaning, and a difference is detected."""

import ctypes as c
import shutil
import subprocess
from pathlib import Path

import pytest

from blinkccl import native
from blinkccl.collectives.ops import DTYPE_CODES, DTYPES, OP_CODES
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines import native_library
from blinkccl.native import headers
from blinkccl.native.headers import DIRECTORY, header, parse
from support import generated
from support.engines import ENGINES

NAMES = sorted(path.name for path in (DIRECTORY / "blink").glob("*.h"))
COMPILER = shutil.which("c++")


def test_declarations_are_parsed() -> None:
    declared = parse(
        """
        #define SIZE 0x10  // bytes
        #define NEGATIVE -1
        enum colour { RED, GREEN = 4, BLUE };  // BLACK
        typedef struct {
          int64_t a, b[2];  /* two */
          const struct point* at; double *x, *y;
          void (*call)(int, void**);
          char text[SIZE];
        } row;
        struct __attribute__((packed)) wire { uint32_t n; uint64_t m; };
row* make(const char* name, uint32_t n,
          const uint8_t token[16]);
void stop(void);
        """
    )
    assert declared.constants == {"SIZE": 16, "NEGATIVE": -1, "RED": 0, "GREEN": 4, "BLUE": 5}
    assert declared.numbers("colour", "") == {"red": 0, "green": 4, "blue": 5}
    assert declared.structs["row"].names == ("a", "b", "at", "x", "y", "call", "text")
    assert [c.sizeof(kind) for _, kind in declared.structs["row"].fields] == [8, 16, 8, 8, 8, 8, 16]
    assert declared.structs["wire"].wire().format == "<IQ"
    assert declared.functions == {"make": (c.c_void_p, [c.c_char_p, c.c_uint32, c.c_void_p]), "stop": (None, [])}


@pytest.mark.parametrize("text", ["struct s { point at; };", "struct s { int bits : 3; };", "enum e { A = 1 << 2 };"])
def test_unknown_declarations_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot parse|invalid literal"):
        parse(text)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_a_compiler_lays_structs_out_in_the_same_way(tmp_path: Path) -> None:
    lines, wanted = [], []
    for name in NAMES:
        for struct, members in header(name).structs.items():
            made = type(struct, (c.Structure,), {"_pack_": 1} if members.packed else {})
            made._fields_ = list(members.fields)
            full = struct if struct.islower() else f"blink::{struct}"
            lines.append(f'std::printf("{struct} %zu", sizeof({full}));')
            lines += [f'std::printf(" %zu", offsetof({full}, {member}));' for member in members.names]
            lines.append('std::puts("");')
            offsets = [getattr(made, member).offset for member in members.names]
            wanted.append(" ".join(map(str, (struct, c.sizeof(made), *offsets))))
    includes = "".join(f'#include "blink/{name}"\n' for name in NAMES)
    source = tmp_path / "layout.cpp"
    source.write_text(f"#include <cstddef>\n#include <cstdio>\n{includes}int main() {{ {' '.join(lines)} }}\n")
    assert COMPILER is not None
    subprocess.run([COMPILER, f"-I{DIRECTORY}", source, "-o", tmp_path / "layout"], check=True, timeout=120)
    output = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert output.splitlines() == wanted
    assert len(wanted) > 15


@pytest.mark.skipif(ENGINES["host"].missing is not None, reason="this installation has no native library")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("BLINK_INT8, BLINK_UINT8,", "BLINK_UINT8, BLINK_INT8,"),
        ("int64_t line, staging, stride, slots;", "int64_t line, stride, staging, slots;"),
        ("int64_t chunk_elements;", "int32_t chunk_elements;"),
        ("Word slot_bytes;", "uint32_t slot_bytes;"),
    ],
)
def test_a_planted_mismatch_is_noticed(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(DIRECTORY, tmp_path / "include")
    (changed,) = [path for path in (tmp_path / "include" / "blink").iterdir() if before in path.read_text("utf-8")]
    changed.write_text(changed.read_text("utf-8").replace(before, after), "utf-8")
    monkeypatch.setattr(headers, "DIRECTORY", tmp_path / "include")
    headers.abi.cache_clear()
    try:
        for library in (native_library, generated):
            with pytest.raises(Exception, match="was compiled with other headers than this package has"):
                library.load.__wrapped__()
    finally:
        headers.abi.cache_clear()


def test_comments_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(DIRECTORY, tmp_path / "include")
    path = tmp_path / "include" / "blink" / "types.h"
    path.write_text("// Another comment.\n" + path.read_text("utf-8").replace("\n", "\n\n"), "utf-8")
    monkeypatch.setattr(headers, "DIRECTORY", tmp_path / "include")
    assert headers.abi.__wrapped__() == headers.abi()


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_an_abi_number_with_its_top_bit_set_is_read_as_unsigned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, library = tmp_path / "abi.cpp", tmp_path / "libabi.so"
    source.write_text('extern "C" unsigned tell() { return 0x80000001u; }\n')
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", library], check=True, timeout=120)
    monkeypatch.setattr(native, "abi", lambda: 0x80000001)
    native.open_library(library, {}, "tell")


def test_every_name_has_a_number() -> None:
    types = header("types.h")
    assert list(DTYPE_CODES) == list(DTYPES)
    assert list(types.numbers("blink_collective")) == list(COLLECTIVES)
    assert list(OP_CODES.values()) == list(range(7))
