#include "entry.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "devices.h"
#include "streams.h"

namespace cuda_double {
namespace {

std::atomic<int> initialized_by{0};

  // "cuMemAlloc_v2:2:2,cuInit:*:100": function, number of the call (from 1, or all), the error; -1: it crashes, -2: it
  // never returns.
struct Fault { std::string function; long nth; CUresult error; };

struct Faults {
  std::mutex mutex;
  std::vector<Fault> list;
  std::map<std::string, long> calls;

  Faults() {
    for (const std::string& one : words("BLINK_DOUBLE_FAIL")) {
      const std::size_t first = one.find(':'), second = one.find(':', first + 1);
      if (first == std::string::npos || second == std::string::npos) {
        std::fprintf(stderr, "cuda double: BLINK_DOUBLE_FAIL wants function:call:error, got %s\n", one.c_str());
        std::abort();
      }
      const std::string nth = one.substr(first + 1, second - first - 1);
      list.push_back({one.substr(0, first), nth == "*" ? 0 : std::atol(nth.c_str()),
                      std::atoi(one.c_str() + second + 1)});
    }
  }

  CUresult ask(const char* function) {
    if (list.empty()) return kSuccess;
    std::lock_guard<std::mutex> lock(mutex);
    const long call = ++calls[function];
    for (const Fault& fault : list) {
      if (fault.function != function || (fault.nth != 0 && fault.nth != call)) continue;
      if (fault.error == -1) std::abort();
      while (fault.error == -2) pause();
      return fault.error;
    }
    return kSuccess;
  }
};

int journal() {
  static const int file = [] {
    const char* path = std::getenv("BLINK_DOUBLE_JOURNAL");
    return path && *path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  }();
  return file;
}

void note(const char* function) {
  if (journal() < 0) return;
  const std::string line = std::string(function) + "\n";
  if (write(journal(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
}

// BLINK_DOUBLE_CALLER: only calls from files with that in their name are recorded and can be made to fail. The program
// and NCCL call the same driver.
bool counts(const void* caller) {
  static const char* const wanted = std::getenv("BLINK_DOUBLE_CALLER");
  if (!wanted || !*wanted) return true;
  Dl_info found{};
  return dladdr(caller, &found) && found.dli_fname && std::strstr(found.dli_fname, wanted);
}

}  // namespace

void mark_initialized() { initialized_by = getpid(); }

CUresult enter(const char* function, unsigned needs, const void* caller) {
  static Faults& faults = *new Faults;
  if (counts(caller)) {
    note(function);
    if (CUresult wanted = faults.ask(function)) return wanted;
  }
  // A child made by fork has not initialised CUDA, although the inherited memory may suggest it.
  if (needs && initialized_by.load() != getpid()) return kNotInitialized;
  if (needs & kContext) {
    if (CUresult error = current_usable()) return error;
  }
  if (needs & kNoCapture) {
    if (CUresult error = refuse_while_capturing()) return error;
  }
  return kSuccess;
}

}  // namespace cuda_double
