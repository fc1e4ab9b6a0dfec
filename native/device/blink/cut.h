// Which elements are a part's own? The boundaries of blinkccl/schedule/chunking.py, cut once more into parts.
#pragma once

#include "blink/state.h"

namespace blink {
namespace device {

// The element at which num/den of `count` elements end, on a whole group of 16 bytes; the whole block ends where it
// ends. num · count may be too large for a word, its quotient and remainder by the denominator are not: den < 2^28.
BLINK_INLINE Word boundary(Word num, Word den, Word count, Word group) {
  if (num >= den) return count;
  const Word unit = den * group;
  return group * (num * (count / unit) + num * (count % unit) / unit);
}

// The part's piece of [start, stop) of a block: whole groups, so that pieces stay aligned as slices are.
BLINK_OUTLINE Slice cut(const State& state, Word source_block, Word target_block, Word start_num, Word start_den,
                       Word stop_num, Word stop_den) {
  const Word group = 16 / state.item_bytes;
  const Word start = boundary(start_num, start_den, state.count, group);
  const Word stop = boundary(stop_num, stop_den, state.count, group);
  const Word length = stop > start ? stop - start : 0;
  const Word groups = (length + group - 1) / group;
  const Word first = groups * state.part / state.parts * group;
  const Word last = groups * (state.part + 1) / state.parts * group;
  Slice slice;
  slice.source = source_block * state.count + start + first;
  slice.target = target_block * state.count + start + first;
  slice.length = (last < length ? last : length) - first;
  slice.chunk = state.chunk_bytes / state.item_bytes;
  slice.chunks = (slice.length + slice.chunk - 1) / slice.chunk;
  return slice;
}

// Where the data of one firing are: elements of the input and of the output, and how many bytes.
struct Chunk {
  const char* source;
  char* target;
  uint32_t bytes;
};

BLINK_INLINE Chunk chunk_of(const State& state, const Slice& slice, Word k) {
  const Word first = k * slice.chunk;
  const Word left = slice.length - first;
  Chunk chunk;
  chunk.source = state.input + (slice.source + first) * state.item_bytes;
  chunk.target = state.output + (slice.target + first) * state.item_bytes;
  chunk.bytes = static_cast<uint32_t>((left < slice.chunk ? left : slice.chunk) * state.item_bytes);
  return chunk;
}

}  // namespace device
}  // namespace blink
