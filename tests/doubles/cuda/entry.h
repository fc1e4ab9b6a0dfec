// The first step of every function of the double: the call is recorded in the journal, fails if a test requests that,
// and is rejected if the real driver rejects it.
#pragma once

#include "api.h"

namespace cuda_double {

enum Needs : unsigned {
  kNothing = 0,
  kDriver = 1,       // cuInit was called, in this process and not in its parent
  kContext = 2,      // and a context is current
  kNoCapture = 4,    // and CUDA does not call the function unsafe during stream capture
};

// Returns 0, or the error. The function's name becomes a line of the journal. `caller`: the return address.
CUresult enter(const char* function, unsigned needs, const void* caller);

void mark_initialized();

}  // namespace cuda_double

#define CU_ENTER(needs) \
  if (CUresult refused = ::cuda_double::enter(__func__, (needs), __builtin_return_address(0))) return refused
