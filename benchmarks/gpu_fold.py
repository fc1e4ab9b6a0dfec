"""Throughput of reductions and copies on a GPU, compared with a device-to-device copy in the same run.

It calls the function of all executions in generated code (``fold_as`` of ``native/device/blink/fold.h``), compiled for
one type: sources are the rank's own data and messages, destinations its output and slots of messages. The rate counts
bytes read and written: (n + m) · B for n sources and m destinations of B bytes, and 2 · B for a copy.
"""

from __future__ import annotations

import ctypes as c
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from cuda_driver import Cuda
from gpu_kernels import FRAME, THREADS, as_long_as_a_call

from blinkccl.collectives.ops import DTYPE_CODES, DTYPES, OP_CODES, fold, operation

MOST_SOURCES, MOST_TARGETS = 8, 4
#: (sources, destinations).
SHAPES = (*((sources, 1) for sources in range(1, MOST_SOURCES + 1)), (1, 2), (1, 4), (2, 2), (4, 2), (8, 2))
BLOCKS_PER_MULTIPROCESSOR = (1, 2, 4)
#: Type → its format in the device layer.
FORMATS = {"float32": "Float32", "bfloat16": "Bfloat16"}

TEXT = f"""
#include "blink/context.h"
#include "blink/fold.h"
{FRAME}
namespace blink {{
struct Bench {{
  const char* source[4];
  Word nothing;
  const char* more_sources[{MOST_SOURCES} - 4];
  char* target[{MOST_TARGETS}];
  Word bytes;
  uint32_t chunk_bytes, blocks;
  uint16_t sources, targets, dtype, op;

  BLINK_INLINE const char* source_of(uint32_t i) const {{ return i < 4 ? source[i] : more_sources[i - 4]; }}
}};

// A block's own part in one piece: nothing waits for the block between its units.
BLINK_INLINE void bench(const Bench& of, uint32_t block) {{
  using namespace device;
  BENCH_SHARED(State, state);
  const uint32_t receives = of.sources - 1, sends = of.targets - 1;
  if (thread_index() == 0) {{
    state.dtype = of.dtype;
    state.op = of.op;
    state.item_bytes = item_bytes(of.dtype);
    state.scale_kind = kUnscaled;
    state.stopped = 0;
    state.folding = threads();  // nobody publishes
  }}
  for (Word first = block * static_cast<Word>(of.chunk_bytes); first < of.bytes;
       first += of.blocks * static_cast<Word>(of.chunk_bytes)) {{
    barrier();
    for (uint32_t i = thread_index(); i < receives + sends; i += threads()) {{
      const char* const at = i < receives ? of.source_of(i + 1) : of.target[i - receives + 1];
      state.message[i] = const_cast<char*>(at) + first;
    }}
    if (thread_index() == 0) {{
      const Word left = of.bytes - first;
      const uint32_t bytes = static_cast<uint32_t>(left < of.chunk_bytes ? left : of.chunk_bytes);
      state.job = job_of<Simple>(of.source[0] + first, of.target[0] + first, bytes, receives, sends, 0, 1);
    }}
    barrier();
    if (receives == 0) {{
      fold_as<Simple, Untouched>(state);
    }} else {{
      fold_as<Simple, FORMAT>(state);
    }}
  }}
}}
}}  // namespace blink

BENCH_KERNEL(bench_fold, blink::Bench, blink::bench)
"""


class Bench(c.Structure):
    """``blink::Bench``."""

    _fields_ = as_long_as_a_call(
        ("source", c.c_uint64 * 4),
        ("nothing", c.c_uint64),
        ("more_sources", c.c_uint64 * (MOST_SOURCES - 4)),
        ("target", c.c_uint64 * MOST_TARGETS),
        ("bytes", c.c_uint64),
        *((name, c.c_uint32) for name in ("chunk_bytes", "blocks")),
        *((name, c.c_uint16) for name in ("sources", "targets", "dtype", "op")),
    )


class Folds:
    """Buffers of ``nbytes`` each, the kernel and a stream of one GPU."""

    def __init__(self, cuda: Cuda, nbytes: int, threads: int = THREADS) -> None:
        self._cuda, self._nbytes, self._threads = cuda, nbytes, threads
        with ThreadPoolExecutor(len(FORMATS)) as pool:
            images = list(pool.map(cuda.compiled, map(text_of, FORMATS.values())))
        self._functions = {
            dtype: cuda.function(image, "bench_fold") for dtype, image in zip(FORMATS, images, strict=True)
        }
        self._stream = cuda.stream()
        values = np.random.default_rng(0)
        self._host = [values.integers(0, 1 << 14, nbytes // 2, np.uint16) for _ in range(MOST_SOURCES)]
        self._sources = [cuda.put(one) for one in self._host]
        self._targets = [cuda.empty(nbytes) for _ in range(MOST_TARGETS)]
        self._events = cuda.event(), cuda.event()

    def check(self, dtype: str, sources: int, targets: int) -> bool:
        """True if every destination has the result of the definition, bit for bit."""
        self._launch(dtype, sources, targets, 2 * self._cuda.multiprocessors)
        self._cuda.synchronize(self._stream)
        row = DTYPES[dtype]
        count = min(self._nbytes, 1 << 22) // row.itemsize
        operands = [one.view(row.storage)[:count] for one in self._host[:sources]]
        with np.errstate(all="ignore"):
            expected = fold(row, operation("sum"), operands).view(np.uint8)
        outputs = (self._cuda.get(self._targets[i], expected.size, np.uint8) for i in range(targets))
        return all(np.array_equal(one, expected) for one in outputs)

    def seconds(self, dtype: str, sources: int, targets: int, blocks: int, times: int) -> float:
        """Seconds of one launch, from ``times`` in a row."""
        return self._timed(lambda: self._launch(dtype, sources, targets, blocks), times)

    def copy_seconds(self, times: int) -> float:
        """Seconds of one device-to-device copy, from ``times`` in a row."""
        return self._timed(
            lambda: self._cuda.copy(self._targets[0], self._sources[0], self._nbytes, self._stream), times
        )

    def _timed(self, launch: Any, times: int) -> float:
        before, after = self._events
        launch()
        self._cuda.record(before, self._stream)
        for _ in range(times):
            launch()
        self._cuda.record(after, self._stream)
        return self._cuda.elapsed_s(before, after) / times

    def _launch(self, dtype: str, sources: int, targets: int, blocks: int) -> None:
        chunk_bytes = -(-self._nbytes // blocks // 16) * 16
        bench = Bench(
            (c.c_uint64 * 4)(*self._sources[:4]),
            0,
            (c.c_uint64 * (MOST_SOURCES - 4))(*self._sources[4:]),
            (c.c_uint64 * MOST_TARGETS)(*self._targets),
            self._nbytes,
            chunk_bytes,
            blocks,
            sources,
            targets,
            DTYPE_CODES[dtype],
            OP_CODES["sum"],
        )
        self._cuda.launch(self._functions[dtype], blocks, self._threads, self._stream, [bench])


def text_of(format_: str) -> str:
    """The kernel ``bench_fold`` of one type."""
    return f"#define FORMAT {format_}\n{TEXT}"


def measure(cuda: Cuda, nbytes: int, rounds: int, times: int) -> Iterator[dict[str, Any]]:
    """A row per type and shape: rate relative to the copy, medians of rounds in turns."""
    folds = Folds(cuda, nbytes)
    for dtype in FORMATS:
        for sources, targets in SHAPES:
            right = folds.check(dtype, sources, targets)
            grids = [per * cuda.multiprocessors for per in BLOCKS_PER_MULTIPROCESSOR]
            blocks = min(grids, key=lambda grid: folds.seconds(dtype, sources, targets, grid, times))
            pairs = [
                (folds.copy_seconds(times), folds.seconds(dtype, sources, targets, blocks, times))
                for _ in range(rounds)
            ]
            moved = (sources + targets) * nbytes
            yield {
                "dtype": dtype,
                "sources": sources,
                "destinations": targets,
                "buffer_bytes": nbytes,
                "blocks": blocks,
                "right": right,
                "gb_per_s": moved / statistics.median(fold_s for _, fold_s in pairs) / 1e9,
                "copy_gb_per_s": 2 * nbytes / statistics.median(copy for copy, _ in pairs) / 1e9,
                "of_copy": statistics.median(moved / fold_s / (2 * nbytes / copy) for copy, fold_s in pairs),
            }
