// The reduce kernel of a file of generated code, by one line, BLINK_FOLD_ENTRY(name): block b of a launch does piece b
// of a Reduction.
#pragma once

#include "blink/reduction.h"
#include "blink/context.h"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#include "blink/reduce.h"

#define BLINK_FOLD_ENTRY(name)                                                                                    \
  extern "C" __global__ void __launch_bounds__(::blink::kMostThreads)                                             \
      name(const __grid_constant__ ::blink::Reduction reduction) {                                                \
    __shared__ ::blink::device::State state;                                                                      \
    ::blink::device::reduce(state, reduction, blockIdx.x);                                                        \
  }

#else

extern "C" void blink_reduce(const blink::Reduction* reduction, uint32_t block);

#define BLINK_FOLD_ENTRY(name)                                                                                    \
  extern "C" __attribute__((visibility("default"))) void name(const ::blink::Reduction* reduction,                \
                                                              uint32_t block) {                                   \
    blink_reduce(reduction, block);                                                                               \
  }

#endif
