// The functions that libblink.so exports for NCCL: all of NCCL's, from one table (real_nccl.cpp). Each forwards to the
// real one or, for the program's own calls, to Blink's version, which lets no exception out.
#pragma once

#include <cxxabi.h>

#include <exception>
#include <new>
#include <string>

#include "log.h"
#include "nccl_types.h"

extern "C" {
#define BLINK_FUNCTION(result, name, count, types, absent) result name types;
#include "nccl_functions.def"
}

namespace blink::shim {

namespace ours {
#define BLINK_HANDLED(name, count, types) ncclResult_t name types;
#define BLINK_FUNCTION(result, name, count, types, absent)
#include "nccl_functions.def"
}  // namespace ours

template <class Body>
ncclResult_t guarded(Body body) {
  const KeepErrno keep;
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ncclSystemError;
  } catch (const std::exception& error) {
    warn(std::string("internal error: ") + error.what());
#ifdef __GLIBCXX__
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread is being cancelled, which must continue; libc++ has no handler for it
#endif
  } catch (...) {
  }
  return ncclInternalError;
}

inline bool failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

}  // namespace blink::shim
