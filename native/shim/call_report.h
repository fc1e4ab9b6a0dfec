// The call report: counts of a communicator's calls by (collective, type, operation, choice). A combination is logged
// at its first call. The counts become lines of BLINK_REPORT when the communicator or the process ends; the first call
// is marked there at once.
#pragma once

#include <cstdint>
#include <string>

#include "bundle.h"
#include "call_arguments.h"

namespace blink::shim {

// The caller: a communicator's key and a rank, since a process may have several ranks.
struct Caller {
  std::string key;
  int rank, nranks;
  bool operator<(const Caller& other) const { return key == other.key ? rank < other.rank : key < other.key; }
};

// Counts one call. `bundle` is null if NCCL runs all calls; `choice` −1: NCCL runs this one, for the reason `why`.
void count_call(const Caller& caller, const Operation& operation, std::uint64_t bytes, const Bundle* bundle, int choice,
                const std::string& why);
// Writes the report's lines for all calls so far, and forgets them.
void report_calls(const Caller& caller);

}  // namespace blink::shim
