// The calls that reached this library: one line for each in the file BLINK_DOUBLE_NCCL_JOURNAL,
// "<function> <communicator> <rank> <count> <process> outer|inner"; "inner" are calls by the library itself.
#pragma once

#include <cstddef>

#include "nccl_types.h"

namespace nccl_double {

void note(const char* function, ncclComm_t comm = nullptr, std::size_t count = 0);

// While it lives, the calls of this thread count as the library's own.
class Inner {
 public:
  Inner();
  ~Inner();
};

// Sets the last error, for ncclGetLastError; prints it if NCCL_DEBUG is WARN or more. Returns `code`.
ncclResult_t fail(ncclResult_t code, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* last_failure();

}  // namespace nccl_double
