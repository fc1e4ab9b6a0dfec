// A reduce kernel's block: it reduces operands as an execution does (fold.h), without waiting. Each block takes one
// piece of the chunk.
#pragma once

#include "blink/fold.h"
#include "blink/reduction.h"

namespace blink {
namespace device {

BLINK_INLINE void reduce(State& state, const Reduction& reduction, uint32_t block) {
  const Word first = static_cast<Word>(block) * reduction.piece_bytes;
  if (first >= reduction.bytes) return;
  const uint32_t left = reduction.bytes - static_cast<uint32_t>(first);
  const bool joins = reduction.own_operand_index != kOwnStaysOut;
  if (thread_index() == 0) {
    state.folding = threads();  // there is no publisher
    set_operation(state, reduction.dtype, reduction.op, reduction.scale_kind, reduction.scale,
                  reinterpret_cast<const char*>(reduction.scale));
    const uint32_t bytes = left < reduction.piece_bytes ? left : reduction.piece_bytes;
    state.job = job_of<Simple>(joins ? reduction.own + first : nullptr, reduction.target + first, bytes,
                               reduction.receives, 0, joins ? reduction.own_operand_index : kNoOwnOperand,
                               reduction.divisor);
  }
  for (uint32_t i = thread_index(); i < reduction.receives; i += threads()) {
    const char* const message = reduction.messages + static_cast<Word>(reduction.lines[i]) * kLineBytes;
    state.message[i] = const_cast<char*>(message) + first;
  }
  barrier();
  fold<Simple>(state);
}

}  // namespace device
}  // namespace blink
