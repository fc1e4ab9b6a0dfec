"""The device layer's own code that cuts a program's slices into pieces, for one part of one call."""

import ctypes as c
from functools import cache

from blinkccl.codegen.build import build
from blinkccl.codegen.host_compiler import host_compiler
from blinkccl.schedule.chunking import Extent, largest_share
from blinkccl.schedule.dealing import turns
from blinkccl.schedule.program import Program
from support.generated import LaunchCall

TEXT = """\
#include "blink/cut.h"

extern "C" void cut(const blink::Call* call, uint32_t part, uint64_t num, uint64_t den, const uint64_t (*asked)[5],
                    uint32_t count, blink::Slice* pieces) {
  blink::device::State state;
  blink::device::begin(state, *call, blink::Simple::kNumber, 0, part);
  const uint64_t rounds = den == 0 ? 0 : blink::device::rounds_of(state, num, den);
  for (uint32_t n = 0; n < count; ++n) {
    const uint64_t* of = asked[n];
    pieces[n] = blink::device::cut(state, 5, 7, of[0], of[1], of[2], of[3], of[4], rounds);
  }
}
"""


class Piece(c.Structure):
    """``blink::Slice``."""

    _fields_ = [(name, c.c_uint64) for name in ("source", "target", "length", "chunks", "chunk")]


@cache
def _library() -> c.CDLL:
    return c.CDLL(str(build(TEXT, host_compiler())))


def pieces(of: Program, call: LaunchCall, part: int, begins: tuple[int, ...] | None = None) -> list[Extent]:
    """Return the pieces of one part; ``begins``: the slices' turns."""
    begins = turns(of) if begins is None else begins
    rows = [
        (*one.start.as_integer_ratio(), *one.stop.as_integer_ratio(), turn)
        for one, turn in zip(of.slices, begins, strict=True)
    ]
    share = largest_share(of)
    largest = (0, 0) if share is None else share.as_integer_ratio()
    cut = (Piece * len(rows))()
    table = (c.c_uint64 * 5 * len(rows))(*rows)
    _library().cut(c.byref(call), part, *map(c.c_uint64, largest), table, len(rows), cut)
    assert all(piece.target - piece.source == 2 * call.count for piece in cut)
    return [Extent(piece.source - 5 * call.count, piece.length, piece.chunks, piece.chunk) for piece in cut]
