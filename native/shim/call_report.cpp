#include "call_report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "log.h"

namespace blink::shim {
namespace {

struct Living {
  std::mutex mutex;
  std::set<CallReport*> reports;
};

Living& living() {
  static Living* living = [] {
    static const pid_t owner = getpid();
    std::atexit([] {
      if (getpid() == owner) CallReport::tell_all();  // a forked child has made none of these calls
    });
    return new Living;  // never destroyed: communicators may go at the very end of the process
  }();
  return *living;
}

int size_class(std::uint64_t bytes) { return bytes == 0 ? -1 : 63 - __builtin_clzll(bytes); }

std::string size_text(std::uint64_t bytes) {
  static const char* const kUnits[] = {" B", " KiB", " MiB", " GiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 3) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + kUnits[unit];
}

}  // namespace

CallReport::CallReport(std::string key, int rank, int nranks) : key_(std::move(key)), rank_(rank), nranks_(nranks) {
  Living& all = living();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.reports.insert(this);
}

CallReport::~CallReport() {
  Living& all = living();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.reports.erase(this);
  }
  tell();
}

void CallReport::count(const Operation& operation, std::uint64_t bytes, const Bundle* bundle, int choice,
                  const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Row row(static_cast<int>(operation.collective), size_class(bytes), operation.dtype, operation.op, choice);
  Count& count = counts_[row];
  if (count.calls == 0) {
    count.least = bytes;
    count.why = why;
    if (choice >= 0 && is_message(operation.collective)) {
      count.protocol = Bundle::kProtocols[Bundle::kCopies];
    } else if (choice >= 0) {
      const Bundle::Choice& chosen = bundle->choices[static_cast<std::size_t>(choice)];
      count.protocol = Bundle::kProtocols[chosen.protocol];
      count.program = chosen.program;
    }
  }
  count.calls += 1;
  count.bytes += bytes;
  count.least = std::min(count.least, bytes);
  count.most = std::max(count.most, bytes);
  // Where nothing at all is ours, the communicator has said so.
  if (rank_ == 0 && bundle != nullptr && log_level() >= Level::kInfo &&
      logged_.emplace(static_cast<int>(operation.collective), size_class(bytes), choice).second) {
    info(std::string(name_of(operation.collective)) + " from " + size_text(bytes) + " on " + std::to_string(nranks_) +
         " ranks [" + key_.substr(0, 8) + "]: " +
         (choice < 0 ? "NCCL"
                     : "Blink, " + count.protocol +
                           (count.program < 0 ? "" : ", program " + std::to_string(count.program))) +
         (count.why.empty() ? "" : ": " + count.why));
  }
}

void CallReport::tell() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [row, count] : counts_) {
    const auto& [collective, unused, dtype, op, choice] = row;
    (void)unused;
    std::ostringstream line;
    line << "{\"pid\":" << getpid() << ",\"rank\":" << rank_ << ",\"nranks\":" << nranks_
         << ",\"comm\":" << quoted(key_.substr(0, 16)) << ",\"state\":" << (choice >= 0 ? "\"blink\"" : "\"nccl\"")
         << ",\"why\":" << quoted(count.why)
         << ",\"collective\":" << quoted(name_of(static_cast<Collective>(collective)))
         << ",\"dtype\":" << quoted(type_name(dtype))
         << ",\"op\":" << quoted(is_message(static_cast<Collective>(collective)) ? "" : operation_name(op))
         << ",\"least\":" << count.least << ",\"most\":" << count.most << ",\"program\":" << count.program
         << ",\"protocol\":" << quoted(count.protocol) << ",\"calls\":" << count.calls << ",\"bytes\":" << count.bytes
         << "}";
    report(line.str());
  }
  counts_.clear();
}

void CallReport::tell_all() {
  Living& all = living();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (CallReport* report : all.reports) report->tell();
}

}  // namespace blink::shim
