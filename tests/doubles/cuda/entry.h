// What every function of the double asks first: whether the call may go on. It is written into the journal, told to
// fail if a test wants that, and refused where the real driver refuses it.
#pragma once

#include "api.h"

namespace cuda_double {

enum Needs : unsigned {
  kNothing = 0,
  kDriver = 1,       // cuInit was called, in this process and not in its parent
  kContext = 2,      // and a context is current
  kNoCapture = 4,    // and is not among what CUDA calls unsafe while a stream is captured
};

// 0, or the error to return. The function's name becomes a line of the journal. `caller`: the address to return to.
CUresult enter(const char* function, unsigned needs, const void* caller);

void mark_initialized();

}  // namespace cuda_double

#define CU_ENTER(needs) \
  if (CUresult refused = ::cuda_double::enter(__func__, (needs), __builtin_return_address(0))) return refused
