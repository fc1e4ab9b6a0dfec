// The report of a process's calls: lines of the file BLINK_REPORT (blinkccl/nccl/call_report.py), written when the
// process begins, when a communicator ends and when the process ends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "core.h"

namespace blink::mpi {

// Begins the report at the first MPI call: the library, and the reason why Blink serves no calls (empty: it does).
void begin_report(const std::string& library, const std::string& unbound);
// Keeps the reason why a communicator's ranks could not share memory.
void keep_why(const std::string& why);
// Writes a line to stderr, in one write.
void say(const std::string& line);

// Served calls of a communicator by (collective, type, operation).
struct Served {
  std::uint64_t calls = 0, bytes = 0, least = UINT64_MAX, most = 0;
};
using ServedCalls = std::map<std::tuple<std::int32_t, std::uint32_t, std::uint32_t>, Served>;
void report_served(const std::string& communicator, int rank, int size, const ServedCalls& calls);

}  // namespace blink::mpi
