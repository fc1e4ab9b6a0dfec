// A block of threads, which runs the rows of its channel tick by tick. Its state is in the block's shared memory;
// values that differ between threads are in registers.
#pragma once

#include "blink/context.h"
#include "blink/execute.h"

namespace blink {
namespace device {

// Rows kept in shared memory, which an acquire leaves intact; the others are read again in every tick.
constexpr uint32_t kNearRows = 32;

// The shared memory of a block.
struct BlockMemory {
  State state;
  Slice slices[kMostSlices];
  Row rows[kNearRows];  // the channel's first rows
};

// The ends of an execution, 8 bits each. For more ends than that, `listed` has the receives', then the sends'.
struct PackedEnds {
  Word from = 0, to = 0;
  const uint8_t* listed = nullptr;
};

template <class Wire>
BLINK_OUTLINE bool carry_out(State& state, const Slice& slice, const Word k, const Order order,
                             const PackedEnds ends) {
  if (Units<Wire>::kCounted && thread_index() >= workers(Wire::kNumber)) return publish_next(state);
  bool ready = true;
  for (uint32_t i = thread_index(); i < order.receives + order.sends; i += workers(Wire::kNumber)) {
    const bool sending = i >= order.receives;
    const Word packed = sending ? ends.to : ends.from;
    const uint32_t place = sending ? i - order.receives : i;
    const End end = ends.listed != nullptr ? ends.listed[i] : static_cast<End>(packed >> (8 * place) & 255);
    ready = await_end<Wire>(state, i, end, sending) && ready;
  }
  return execute<Wire>(state, ready, slice, k, order);
}

// Runs one block's part of its channel, tick by tick.
template <class Wire>
BLINK_INLINE void run_channel(BlockMemory& memory, const Call& call, const ProgramRows& program, uint32_t channel,
                              uint32_t part) {
  State& state = memory.state;
  begin(state, call, Wire::kNumber, channel, part);
  const Channel& of = program.channel[call.rank * program.channels + channel];
  if (thread_index() == 0) state.contributors = of.contributors;
  // Divisions are slow, so different warps cut the slices concurrently. open() waits for all of them.
  for (uint32_t n = 0; n < of.pieces; ++n) {
    if (thread_index() != n * kWarp % threads()) continue;
    const Piece& piece = program.pieces[of.first_piece + n];
    const Word rounds = of.den == 0 ? 0 : rounds_of(state, of.num, of.den);
    const Slice slice = cut(state, piece.source_block, piece.target_block, piece.start_num, piece.start_den,
                            piece.stop_num, piece.stop_den, piece.turn, rounds);
    memory.slices[n] = slice;
  }
  const Row* const rows = program.rows + of.first_row;
  for (uint32_t n = thread_index(); n < of.rows && n < kNearRows; n += threads()) memory.rows[n] = rows[n];
  open(state, program.connections + of.first_connection, of.connections);
  bool more = true;
  for (Word tick = 0; more; ++tick) {
    more = false;
    for (uint32_t n = 0; n < of.rows; ++n) {
      const Row row = n < kNearRows ? memory.rows[n] : rows[n];
      const Slice& slice = memory.slices[row.slice];
      const long long k = static_cast<long long>(tick) + row.chunk;
      const long long chunks = static_cast<long long>(slice.chunks);
      more = more || k + 1 < chunks;
      if (k < 0 || k >= chunks) continue;
      PackedEnds ends;
      ends.from = row.from;
      ends.to = row.to;
      if (row.order.receives > kPacked || row.order.sends > kPacked) ends.listed = program.ends + row.first_end;
      if (!carry_out<Wire>(state, slice, static_cast<Word>(k), row.order, ends)) return close(state);
    }
  }
  close(state);
}

// Runs one block of a rank, in the program that the call selects.
template <class Wire, Text... kTexts>
BLINK_INLINE void run(BlockMemory& memory, const Call& call, uint32_t block) {
  run_channel<Wire>(memory, call, program_rows<kTexts...>(call.program), block / call.parts, block % call.parts);
}

}  // namespace device
}  // namespace blink
