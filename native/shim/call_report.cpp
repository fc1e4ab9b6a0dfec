#include "call_report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <tuple>

#include "log.h"

namespace blink::shim {
namespace {

using Row = std::tuple<int, int, int, int, int>;  // collective, size class, type, operation, choice
struct Count {
  std::uint64_t calls = 0, bytes = 0, least = 0, most = 0;
  std::string protocol, why;
  int program = -1;
};
struct Calls {
  std::map<Row, Count> counts;
  std::set<std::tuple<int, int, int>> logged;  // collective, size class, choice
};
struct Book {
  std::mutex mutex;
  std::map<Caller, Calls> callers;
};

void write_all_lines();

Book& book() {
  static Book* const the = [] {
    static const pid_t owner = getpid();
    std::atexit([] {
      if (getpid() == owner) write_all_lines();  // a forked child ran none of these calls
    });
    return new Book;  // never destroyed, since communicators may end after static destructors
  }();
  return *the;
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

std::string beginning(const Caller& caller) {
  return report_start(caller.rank, caller.nranks, caller.key.substr(0, 16));
}

// Writes the begin or end mark of `caller`; a report without an end mark is of a process that was killed.
void write_mark(const Caller& caller, const char* mark) {
  report(beginning(caller) + ",\"mark\":\"" + mark + "\"}");
}

void write_lines(const Caller& caller, const Calls& calls) {
  for (const auto& [row, count] : calls.counts) {
    const auto& [kind, unused, dtype, op, choice] = row;
    static_cast<void>(unused);
    const auto collective = static_cast<Collective>(kind);
    std::ostringstream line;
    line << beginning(caller) << ",\"state\":" << (choice >= 0 ? "\"blink\"" : "\"nccl\"") << ",\"why\":" << quoted(count.why)
         << ",\"collective\":" << quoted(name_of(collective)) << ",\"dtype\":" << quoted(type_name(dtype))
         << ",\"op\":" << quoted(is_message(collective) ? "" : operation_name(op)) << ",\"least\":" << count.least
         << ",\"most\":" << count.most << ",\"program\":" << count.program
         << ",\"protocol\":" << quoted(count.protocol) << ",\"calls\":" << count.calls << ",\"bytes\":" << count.bytes
         << "}";
    report(line.str());
  }
  write_mark(caller, "end");
}

void write_all_lines() {
  const std::lock_guard<std::mutex> lock(book().mutex);
  for (const auto& [caller, calls] : book().callers) write_lines(caller, calls);
}

}  // namespace

void count_call(const Caller& caller, const Operation& operation, std::uint64_t bytes, const Bundle* bundle, int choice,
                const std::string& why) {
  const std::lock_guard<std::mutex> lock(book().mutex);
  const auto [found, fresh] = book().callers.try_emplace(caller);
  if (fresh) write_mark(caller, "begin");
  Calls& calls = found->second;
  const int collective = static_cast<int>(operation.collective);
  Count& count = calls.counts[Row(collective, size_class(bytes), operation.dtype, operation.op, choice)];
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
  // The communicator has already logged that NCCL runs all of its calls.
  if (caller.rank != 0 || bundle == nullptr || log_level() < Level::kInfo) return;
  if (!calls.logged.emplace(collective, size_class(bytes), choice).second) return;
  const std::string program = count.program < 0 ? "" : ", program " + std::to_string(count.program);
  info(std::string(name_of(operation.collective)) + " from " + size_text(bytes) + " on " +
       std::to_string(caller.nranks) + " ranks [" + caller.key.substr(0, 8) + "]: " +
       (choice < 0 ? "NCCL" : "Blink, " + count.protocol + program) + (count.why.empty() ? "" : ": " + count.why));
}

void report_calls(const Caller& caller) {
  const std::lock_guard<std::mutex> lock(book().mutex);
  const auto calls = book().callers.find(caller);
  if (calls == book().callers.end()) return;
  write_lines(caller, calls->second);
  book().callers.erase(calls);
}

}  // namespace blink::shim
