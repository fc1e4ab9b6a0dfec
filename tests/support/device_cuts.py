"""What the device layer cuts of a program's slices for one part of one call: asked of ``libblink_device.so`` itself."""

from __future__ import annotations

import ctypes as c

from blinkccl.engines import generated
from blinkccl.engines.generated import LaunchCall
from blinkccl.schedule.chunking import Extent, largest_share
from blinkccl.schedule.dealing import turns
from blinkccl.schedule.program import Program

#: More than kRoomBytes of context_host.h.
ROOM_BYTES = 1 << 15


class Piece(c.Structure):
    """``blink::Slice``."""

    _fields_ = [(name, c.c_uint64) for name in ("source", "target", "length", "chunks", "chunk")]


def pieces(of: Program, call: LaunchCall, part: int, begins: tuple[int, ...] | None = None) -> list[Extent]:
    """What the context of one part gets, as the generated text asks for it; ``begins``: the slices' turns."""
    library = generated.load()
    library.blink_context_rounds.restype = c.c_uint64
    room, piece, found = (c.c_uint64 * (ROOM_BYTES // 8))(), Piece(), []
    library.blink_context_begin(room, c.byref(call), 0, 0, part)
    share, rounds = largest_share(of), 0
    if share is not None:
        rounds = library.blink_context_rounds(room, c.c_uint64(share.numerator), c.c_uint64(share.denominator))
    for one, turn in zip(of.slices, turns(of) if begins is None else begins, strict=True):
        numbers = (5, 7, *one.start.as_integer_ratio(), *one.stop.as_integer_ratio(), turn, rounds)
        library.blink_context_slice(room, *map(c.c_uint64, numbers), c.byref(piece))
        assert piece.target - piece.source == 2 * call.count
        found.append(Extent(piece.source - 5 * call.count, piece.length, piece.chunks, piece.chunk))
    return found
