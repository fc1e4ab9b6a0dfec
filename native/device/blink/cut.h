// A part's elements and chunks: the boundaries of blinkccl/schedule/chunking.py, cut once more into parts, and its even
// chunks.
#pragma once

#include "blink/state.h"

namespace blink {
namespace device {

// The element at which num/den of `count` elements end, rounded down to a group of 16 bytes; the whole block ends at
// its end. num · count may overflow a word; its quotient and remainder by the denominator do not, since den < 2^28.
BLINK_INLINE Word boundary(Word num, Word den, Word count, Word group) {
  if (num >= den) return count;
  const Word unit = den * group;
  return group * (num * (count / unit) + num * (count % unit) / unit);
}

// The number of pieces for a share of `groups` groups: one per part, or fewer if they would be too small. Each has at
// least one group.
BLINK_INLINE Word pieces_of(const State& state, Word groups) {
  const Word least = state.piece_bytes / 16;
  const Word worth = least == 0 ? groups : (groups + least - 1) / least;
  return worth == 0 ? 1 : worth < state.parts ? worth : state.parts;
}

// The number of chunks of the call's size for the longest piece of a share of num/den of a block; at least 1 if it has
// elements. The two ends of a connection must agree on their chunks, so the number is equal on all ranks and parts. It
// therefore depends on the fraction, not on the position of the largest share's elements.
BLINK_OUTLINE Word rounds_of(const State& state, Word num, Word den) {
  const Word unit = den * (16 / state.item_bytes);
  const Word groups = num * (state.count / unit) + (num * (state.count % unit) + unit - 1) / unit;
  const Word pieces = pieces_of(state, groups);
  const Word piece = (groups + pieces - 1) / pieces;
  const Word chunk = state.chunk_bytes / 16;
  return (piece + chunk - 1) / chunk;
}

// The part's piece of [start, stop) of a block, in whole groups, so that pieces are aligned as slices are. The first
// piece is that of part `turn` · parts / kTurns, the next that of the following part, and so on cyclically; if there
// are fewer pieces than parts, the other parts have none. If `rounds` is not 0 a piece is cut into that many chunks, or
// one per group if it has fewer groups. Chunks are never larger than the call's.
BLINK_OUTLINE Slice cut(const State& state, Word source_block, Word target_block, Word start_num, Word start_den,
                       Word stop_num, Word stop_den, Word turn, Word rounds) {
  const Word group = 16 / state.item_bytes;
  const Word start = boundary(start_num, start_den, state.count, group);
  const Word stop = boundary(stop_num, stop_den, state.count, group);
  const Word length = stop > start ? stop - start : 0;
  const Word groups = (length + group - 1) / group;
  const Word pieces = pieces_of(state, groups);
  const Word begin = turn * state.parts / kTurns;
  const Word piece = state.part + (state.part < begin ? state.parts : 0) - begin;
  const Word first = piece < pieces ? groups * piece / pieces * group : 0;
  const Word last = piece < pieces ? groups * (piece + 1) / pieces * group : 0;
  Slice slice;
  slice.source = source_block * state.count + start + first;
  slice.target = target_block * state.count + start + first;
  slice.length = (last < length ? last : length) - first;
  slice.chunk = state.chunk_bytes / state.item_bytes;
  if (rounds > 1) {
    const Word even = (slice.length + rounds * group - 1) / (rounds * group) * group;
    if (even < slice.chunk) slice.chunk = even > 0 ? even : group;
  }
  slice.chunks = (slice.length + slice.chunk - 1) / slice.chunk;
  return slice;
}

// The data of one execution: the elements' addresses in input and output, and the number of bytes.
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
