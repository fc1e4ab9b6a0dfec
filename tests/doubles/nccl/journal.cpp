#include "journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "communicator.h"
#include "group.h"

namespace nccl_double {
namespace {

thread_local int inner = 0;

int journal() {
  static const int file = [] {
    const char* path = std::getenv("BLINK_DOUBLE_NCCL_JOURNAL");
    return path && *path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  }();
  return file;
}

struct Last {
  std::mutex mutex;
  char text[512] = "";
};

Last& last() {
  static Last& only = *new Last;
  return only;
}

}  // namespace

Inner::Inner() { ++inner; }
Inner::~Inner() { --inner; }

void note(const char* function, ncclComm_t comm, std::size_t count) {
  if (journal() < 0) return;
  const auto known = comm ? find(comm) : nullptr;
  const char* name = function[0] == 'p' ? function + 1 : function;
  char line[256];
  const int length = std::snprintf(line, sizeof line, "%s %s %d %zu %d %s\n", name,
                                   known ? known->key.substr(0, 8).c_str() : "-", known ? known->rank : -1, count,
                                   static_cast<int>(getpid()), inner ? "inner" : "outer");
  if (write(journal(), line, static_cast<std::size_t>(length)) != length) std::abort();
}

ncclResult_t fail(ncclResult_t code, const char* format, ...) {
  fail_group(code);
  std::lock_guard<std::mutex> lock(last().mutex);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last().text, sizeof last().text, format, arguments);
  va_end(arguments);
  const char* level = std::getenv("NCCL_DEBUG");
  if (level && std::strcmp(level, "VERSION") != 0 && *level) {
    const Inner guard;
    std::fprintf(stderr, "nccl double: %s (%s)\n", last().text, ncclGetErrorString(code));
  }
  return code;
}

const char* last_failure() { return last().text; }

}  // namespace nccl_double
