// The call report: counts of a communicator's calls by (collective, type, operation, choice), written as log lines when
// they are first made, and as lines of BLINK_REPORT at the communicator's end, or the process's; its first call is marked
// there at once.
#pragma once

#include <cstdint>
#include <string>

#include "bundle.h"
#include "call_arguments.h"

namespace blink::shim {

// Whose calls: a communicator's key, and a rank, of which a process may have several.
struct Caller {
  std::string key;
  int rank, nranks;
  bool operator<(const Caller& other) const { return key == other.key ? rank < other.rank : key < other.key; }
};

// One call. `bundle` is null where nothing is ours; `choice` −1: NCCL's, for the reason `why`.
void count_call(const Caller& caller, const Operation& operation, std::uint64_t bytes, const Bundle* bundle, int choice,
                const std::string& why);
// Writes the report's lines for all its calls so far, and forgets them.
void report_calls(const Caller& caller);

}  // namespace blink::shim
