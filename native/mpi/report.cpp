#include "report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "job.h"
#include "log.h"
#include "names.h"

namespace blink::mpi {
namespace {

const char* const kFunctionNames[] = {
#define BOTH(name, ...) "MPI_" #name, "MPI_" #name,
#define ONE(name, ...) "MPI_" #name,
    BLINK_MPI_FUNCTIONS(BOTH, ONE, BOTH, ONE)
#undef BOTH
#undef ONE
};
const char* const kReasonTexts[] = {
#define REASON(name, text) text,
    BLINK_MPI_REASONS(REASON)
#undef REASON
};

struct Passed {
  std::array<std::array<std::atomic<std::uint64_t>, kReasons>, kFunctions> calls{};
  std::mutex mutex;
  std::string why;
  pid_t owner = 0;
};

// Never destroyed, since the program may call MPI until its very end.
Passed& passed() {
  static Passed* const all = new Passed;
  return *all;
}

std::string beginning(const std::string& communicator, int rank, int size, const char* state) {
  return shim::report_start(rank, size, communicator) + ",\"state\":\"" + state + "\"";
}

std::string of_this_rank() {
  return beginning("MPI", world_rank() < 0 ? 0 : world_rank(), world_size() < 1 ? 1 : world_size(), "mpi");
}

void tell_passed() {
  Passed& all = passed();
  if (all.owner != getpid()) return;  // this process has not called MPI, or is a child of one that has
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::string start = of_this_rank();
  if (!all.why.empty()) shim::report(start + ",\"why\":" + shim::quoted("on a communicator " + all.why) + "}");
  all.why.clear();
  for (std::size_t f = 0; f < kFunctions; ++f) {
    for (std::size_t r = 0; r < kReasons; ++r) {
      const std::uint64_t calls = all.calls[f][r].exchange(0);
      if (calls == 0) continue;
      shim::report(start + ",\"collective\":" + shim::quoted(kFunctionNames[f]) + ",\"why\":" + shim::quoted(kReasonTexts[r]) +
                   ",\"calls\":" + std::to_string(calls) + "}");
    }
  }
  shim::report(start + ",\"mark\":\"end\"}");
}

}  // namespace

void begin_report(const std::string& library, const std::string& unbound) {
  Passed& all = passed();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.owner = getpid();
  std::string text = library.substr(0, library.find_first_of("\n,"));
  std::replace(text.begin(), text.end(), '\t', ' ');
  if (!unbound.empty()) text += "; Blink serves no calls: " + unbound;
  // Written at once, since a rank killed by a signal cannot report at its end.
  shim::report(of_this_rank() + ",\"mark\":\"begin\",\"why\":" + shim::quoted(text) + "}");
  std::atexit(tell_passed);
}

void keep_why(const std::string& why) {
  const std::lock_guard<std::mutex> lock(passed().mutex);
  passed().why = why;
}

void say(const std::string& line) {
  const shim::KeepErrno keep;
  const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(written);  // there is no other place for it
}

void report_served(const std::string& communicator, int rank, int size, const ServedCalls& calls) {
  for (const auto& [call, served] : calls) {
    const auto& [collective, dtype, op] = call;
    std::ostringstream line;
    line << beginning(communicator, rank, size, "blink")
         << ",\"collective\":" << shim::quoted(name_of_collective(collective));
    if (has_operation(collective)) {
      line << ",\"dtype\":" << shim::quoted(name_of_dtype(dtype)) << ",\"op\":" << shim::quoted(name_of_operation(op));
    }
    line << ",\"least\":" << served.least << ",\"most\":" << served.most << ",\"calls\":" << served.calls
         << ",\"bytes\":" << served.bytes << "}";
    shim::report(line.str());
  }
}

}  // namespace blink::mpi

extern "C" {

void blink_mpi_passed(blink_mpi_function function, blink_mpi_reason reason) {
  blink::mpi::passed().calls[function][reason].fetch_add(1, std::memory_order_relaxed);
}
}
