// The interface of generated text: a kernel context, for one rank, channel and part.
//
//   context.program(…)      the number of ranks, and of channels per rank.
//   context.largest(…)      the largest share, if shares differ. All are cut into the same number of chunks, so that
//                           trees that alternate on a link get shares of it by their weights.
//   context.slice(…)        the part's piece of a share, valid after open(). The last argument is the place of its
//                           first piece, in kTurns-ths of all parts.
//   context.open(…)         the channel's connections; each becomes an End, numbered from 0.
//   context.recv_reduce_…   one execution of a role each (blinkccl/schedule/program.py defines them).
//   context.close()
//
// The text runs once, in a context that records its calls as rows (rows.h); kernels interpret the rows. nvcc and NVRTC
// compile all of it. Without a GPU any C++17 compiler compiles the text alone, quickly: libblink_device.so has the code
// that interprets rows, and a block is one thread.
#pragma once

#include "blink/call.h"
#include "blink/target.h"

#define BLINK_DEVICE constexpr BLINK_INLINE  // the spelling in generated text

namespace blink {

// The protocol of a message (wires.h). Simple: plain data and a counter. LL: a flag beside every 4 bytes. LL128: a flag
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

// The index of a connection in the channel's open().
typedef uint32_t End;
// The rank's own data are not an operand of the reduction.
constexpr uint32_t kNoOwnOperand = 0xff;

enum Completion { partial = 0, complete = 1 };

// One part's piece of a share, in elements.
struct Slice {
  Word source;  // its first element in the input
  Word target;  // and in the output
  Word length;
  Word chunks;
  Word chunk;   // elements of a chunk; the last may be shorter
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

// The base that receives executions and records them (rows.h).
template <class Wire>
class ContextBase;

// The functions that a channel's loop calls.
template <class Wire>
class KernelContext : public ContextBase<Wire> {
 public:
  using ContextBase<Wire>::ContextBase;

  // Executions, each for chunk k of a slice. A k beyond the slice's chunks does nothing; k may have wrapped below 0.
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
  // The rank's own data are operand number `own_operand_index` of the reduction, after as many messages; kNoOwnOperand:
  // they are not an operand.
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
