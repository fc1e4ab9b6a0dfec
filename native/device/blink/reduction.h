// The arguments of a fused reduce kernel, and the kernel itself as one line of generated code, BLINK_FOLD_ENTRY(name):
// block b of a launch handles piece b of a Reduction. It reduces messages in the rank's own memory, and the rank's own
// data, into one buffer. It never waits, since its stream has waited.
#pragma once

#include "blink/call.h"
#include "blink/target.h"

namespace blink {

constexpr uint32_t kLineBytes = 128;

// As long as a Call, so that code that forwards one can forward the other.
struct Reduction {
  const char* own;       // operand number `own_operand_index` of the reduction
  char* target;          // may be one of the messages, or the own data
  const char* messages;  // message i is lines[i] lines from here
  Word scale;            // depending on scale_kind: bits, or their address
  uint32_t bytes;
  uint32_t piece_bytes;  // per block, a multiple of 16
  uint32_t divisor;      // > 1: the divisor of an average
  uint8_t receives;
  uint8_t own_operand_index;          // kOwnStaysOut: the own data are not an operand
  uint8_t dtype, op;
  uint8_t scale_kind;
  uint8_t reserved[11];
  uint32_t lines[kMostOperands];
};
constexpr uint8_t kOwnStaysOut = 0xff;
static_assert(sizeof(Reduction) == sizeof(Call), "kernels of both kinds take as many bytes");

}  // namespace blink

#if defined(BLINK_COPIES)

#define BLINK_FOLD_ENTRY(name)

#elif defined(BLINK_BLOCKS)

#include "blink/reduce.h"

#ifdef BLINK_CUDA
#define BLINK_FOLD_ENTRY(name)                                                                                    \
  extern "C" __global__ void __launch_bounds__(::blink::kMostThreads, ::blink::kBlocksAtOnce)                     \
      name(const __grid_constant__ ::blink::Reduction reduction) {                                                \
    __shared__ ::blink::device::State state;                                                                      \
    ::blink::device::reduce(state, reduction, blockIdx.x);                                                        \
  }
#else  // called for each of its threads
#define BLINK_FOLD_ENTRY(name)                                                                                    \
  extern "C" __attribute__((visibility("default"))) void name(const ::blink::Reduction* reduction,                \
                                                              uint32_t block) {                                   \
    ::blink::device::reduce(::blink::device::block_state<::blink::device::State>(), *reduction, block);           \
  }
#endif

#else

extern "C" void blink_reduce(const blink::Reduction* reduction, uint32_t block);

#define BLINK_FOLD_ENTRY(name)                                                                                    \
  extern "C" __attribute__((visibility("default"))) void name(const ::blink::Reduction* reduction,                \
                                                              uint32_t block) {                                   \
    blink_reduce(reduction, block);                                                                               \
  }

#endif
