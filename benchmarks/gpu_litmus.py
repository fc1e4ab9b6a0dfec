"""A litmus test of torn 128-byte lines, which generated code must survive: LL128's reader against its writer.

A warp writes lines by one store per line, with all words equal to the round's number. A warp on another multiprocessor
reads them: it polls until all flags of its lines are of the round, as ``fold.h`` does. Then it compares the data of the
same look, and those of a second look behind the vote. In PTX each thread's load is separate, so data of the first look
may be older than the flag. Data of the second look may not, or every wire would be wrong.
"""

from __future__ import annotations

import ctypes as c
from typing import NamedTuple

import numpy as np
from cuda_driver import Cuda
from gpu_kernels import FRAME, as_long_as_a_call

#: Lines of a warp, and number of messages in flight.
LINES, SLOTS = 4, 4
#: Timeout of a waiting warp.
TIMEOUT_NS = 5 * 10**9
_WARP = 32

TEXT = f"""
#include "blink/context.h"
#include "blink/wires.h"
{FRAME}
namespace blink {{
struct Litmus {{
  char* lines;   // of each pair of warps: slots of {LINES} lines
  Word* heads;   // of each pair: rounds that have been read, a line each
  Word* counts;  // of each reading thread: torn at the first look, at the second, and rounds
  Word rounds;
  Word nothing;
  Word timeout_ns;
}};

// Blocks come in twos: the warps of the first write to those of the second.
BLINK_INLINE void litmus(const Litmus& of, uint32_t block) {{
  using namespace device;
  if constexpr (kWarp == 1) return;  // blocks have no warps, and there are no such lines
  const uint32_t thread = block / 2 * threads() + thread_index(), pair = thread / kWarp, lane = thread_index() % kWarp;
  char* const lines = of.lines + static_cast<Word>(pair) * {SLOTS} * {LINES} * 128 + lane * 16;
  Word* const head = of.heads + pair * kStride;
  const bool writes = block % 2 == 0, has_flag = lane % 8 == 7;
  const Word began = now_ns();
  Word first = 0, second = 0, round = 1;
  for (; round <= of.rounds; ++round) {{
    char* const at = lines + round % {SLOTS} * {LINES} * 128;
    bool ready = false, late = false;
    Pair seen = {{0, 0}};
    while (!late && !all_of_warp(ready)) {{
      if (writes) {{
        ready = load_relaxed(head) + {SLOTS} >= round;
      }} else {{
        converge();
        seen = load_halves(at);
        ready = !has_flag || seen.high == round;
      }}
      late = any_of_warp(now_ns() - began > of.timeout_ns);
    }}
    if (late) break;
    converge();
    if (writes) {{
      store_halves(at, {{round, round}});
      continue;
    }}
    const Pair again = load_halves(at);
    first += seen.low < round || seen.high < round ? 1 : 0;
    second += again.low < round || again.high < round ? 1 : 0;
    converge();
    if (lane == 0) store_relaxed(head, round);
  }}
  if (writes) return;
  of.counts[3 * thread] = first;
  of.counts[3 * thread + 1] = second;
  of.counts[3 * thread + 2] = round - 1;
}}
}}  // namespace blink

BENCH_KERNEL(bench_litmus, blink::Litmus, blink::litmus)
"""


class Litmus(c.Structure):
    """``blink::Litmus``."""

    _fields_ = as_long_as_a_call(
        *((name, c.c_uint64) for name in ("lines", "heads", "counts", "rounds", "nothing", "timeout_ns"))
    )


class Torn(NamedTuple):
    """Rounds of all pairs of warps (0: no warp has lines), and lanes that saw data older than the flag, by look."""

    rounds: int
    first: int
    second: int


def litmus(cuda: Cuda, pairs: int, threads: int, rounds: int, text: str = TEXT) -> Torn:
    """Run ``pairs`` of blocks, each warp for ``rounds`` rounds."""
    warps = pairs * threads // _WARP
    lines = cuda.put(np.zeros(warps * SLOTS * LINES * 128, np.uint8))
    heads = cuda.put(np.zeros(warps * 128, np.uint8))
    counts = cuda.put(np.zeros(3 * warps * _WARP, np.uint64))
    stream = cuda.stream()
    function = cuda.function(cuda.compiled(text), "bench_litmus")
    cuda.launch(function, 2 * pairs, threads, stream, [Litmus(lines, heads, counts, rounds, 0, TIMEOUT_NS)])
    cuda.synchronize(stream)
    seen = cuda.get(counts, 3 * warps * _WARP, np.uint64).reshape(-1, 3)
    first, second, _ = map(int, seen.sum(axis=0))
    return Torn(int(seen[::_WARP, 2].sum()), first, second)
