// The interface of generated text: a kernel context runs the loop of one rank and channel, for one part.
//
//   context.program(…)      how many ranks there are, and how many channels each has
//   context.largest(…)      the largest share, where they differ: all are cut into as many chunks, so that trees which
//                           take turns on a link get it by their weights
//   context.slice(…)        the part's own piece of a share, there after open(); last where its first piece lies, in
//                           kTurns-ths of all parts
//   context.open(…)         the channel's connections; each becomes an End, counted from 0
//   context.recv_reduce_…   the execution of one role each (blinkccl/schedule/program.py says what one does)
//   context.close()
//
// The text is run once, with a context that notes what it says as rows (rows.h), and kernels go by the rows. nvcc and NVRTC
// compile all of it. Any C++17 compiler compiles the text alone, in a moment: what goes by the rows is in
// libblink_device.so then, and a block is one thread.
#pragma once

#include "blink/call.h"
#include "blink/target.h"

#define BLINK_DEVICE constexpr BLINK_INLINE  // as generated text says it

namespace blink {

// How a message travels (wires.h). Simple: plain data and a counter. LL: a flag beside every 4 bytes. LL128: a flag
// beside every 120 bytes.
struct Simple {
  static constexpr uint32_t kNumber = 0;
};
struct LL {
  static constexpr uint32_t kNumber = 1;
};
struct LL128 {
  static constexpr uint32_t kNumber = 2;
};

// A connection of the channel, in the order of open().
typedef uint32_t End;
// The own data do not join a reduction.
constexpr uint32_t kNoOwnOperand = 0xff;

enum Completion { partial = 0, complete = 1 };

// What one part does of a share, in elements.
struct Slice {
  Word source;  // its first element in the input
  Word target;  // and in the output
  Word length;
  Word chunks;
  Word chunk;   // elements of a chunk; the last has what is left
};

template <uint32_t kCount>
struct Ends {
  End at[kCount == 0 ? 1 : kCount];
};

template <class... E>
BLINK_DEVICE Ends<static_cast<uint32_t>(sizeof...(E))> ends(E... of) {
  if constexpr (sizeof...(E) == 0) {
    return {{0}};
  } else {
    return {{static_cast<End>(of)...}};
  }
}

BLINK_DEVICE Word latest(Word only) { return only; }
template <class... More>
BLINK_DEVICE Word latest(Word first, Word second, More... more) {
  return latest(first < second ? second : first, static_cast<Word>(more)...);
}

// What becomes of an execution: it is noted (rows.h).
template <class Wire>
class ContextBase;

// What a channel's loop calls.
template <class Wire>
class KernelContext : public ContextBase<Wire> {
 public:
  using ContextBase<Wire>::ContextBase;

  // Executions, each for chunk k of a slice. Where there is no such chunk nothing happens; k may have wrapped below 0.
  template <uint32_t kTo>
  BLINK_DEVICE void send(const Slice& slice, Word k, const Ends<kTo>& to) {
    this->execute(slice, k, ends(), 0, to, false, partial);
  }
  BLINK_DEVICE void copy(const Slice& slice, Word k) { this->execute(slice, k, ends(), 0, ends(), true, partial); }
  template <uint32_t kTo>
  BLINK_DEVICE void copy_send(const Slice& slice, Word k, const Ends<kTo>& to) {
    this->execute(slice, k, ends(), 0, to, true, partial);
  }
  BLINK_DEVICE void recv(const Slice& slice, Word k, End from) {
    this->execute(slice, k, ends(from), kNoOwnOperand, ends(), true, partial);
  }
  template <uint32_t kTo>
  BLINK_DEVICE void recv_send(const Slice& slice, Word k, End from, const Ends<kTo>& to) {
    this->execute(slice, k, ends(from), kNoOwnOperand, to, false, partial);
  }
  template <uint32_t kTo>
  BLINK_DEVICE void recv_copy_send(const Slice& slice, Word k, End from, const Ends<kTo>& to) {
    this->execute(slice, k, ends(from), kNoOwnOperand, to, true, partial);
  }
  // The own data are operand number `own_operand_index` of the reduction, after as many messages; kNoOwnOperand: they
  // do not join.
  template <uint32_t kFrom, uint32_t kTo>
  BLINK_DEVICE void recv_reduce_send(const Slice& slice, Word k, const Ends<kFrom>& from, uint32_t own_operand_index,
                                     const Ends<kTo>& to, Completion completion) {
    this->execute(slice, k, from, own_operand_index, to, false, completion);
  }
  template <uint32_t kFrom>
  BLINK_DEVICE void recv_reduce_copy(const Slice& slice, Word k, const Ends<kFrom>& from, uint32_t own_operand_index,
                                     Completion completion) {
    this->execute(slice, k, from, own_operand_index, ends(), true, completion);
  }
  template <uint32_t kFrom, uint32_t kTo>
  BLINK_DEVICE void recv_reduce_copy_send(const Slice& slice, Word k, const Ends<kFrom>& from,
                                          uint32_t own_operand_index, const Ends<kTo>& to, Completion completion) {
    this->execute(slice, k, from, own_operand_index, to, true, completion);
  }
};

}  // namespace blink

#include "blink/rows.h"
#include "blink/reduction.h"
