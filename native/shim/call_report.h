// The call report: counts of a communicator's calls by (collective, type, operation, choice), written as log lines while
// it lives, once each, and as lines of BLINK_REPORT at its end.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "bundle.h"
#include "call_arguments.h"

namespace blink::shim {

class CallReport {
 public:
  CallReport(std::string key, int rank, int nranks);
  ~CallReport();
  CallReport(const CallReport&) = delete;
  CallReport& operator=(const CallReport&) = delete;

  // One call. `bundle` is null where nothing is ours; `choice` −1: NCCL's, for the reason `why`.
  void count(const Operation& operation, std::uint64_t bytes, const Bundle* bundle, int choice, const std::string& why);
  // Writes the report's lines for all calls since the last time.
  void tell();
  // The same for all communicators of the process that still resources; at its exit.
  static void tell_all();

 private:
  using Row = std::tuple<int, int, int, int, int>;  // collective, size class, type, operation, choice
  struct Count {
    std::uint64_t calls = 0, bytes = 0, least = 0, most = 0;
    std::string protocol, why;
    int program = -1;
  };

  std::string key_;
  int rank_, nranks_;
  std::mutex mutex_;
  std::map<Row, Count> counts_;
  std::set<std::tuple<int, int, int>> logged_;  // collective, size class, choice
};

}  // namespace blink::shim
