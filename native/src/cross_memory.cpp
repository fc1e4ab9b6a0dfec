#include "cross_memory.h"

#include <sys/uio.h>

namespace blink {
namespace {

using Copy = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

bool copy_all(Copy copy, std::int64_t pid, std::uint64_t here, std::uint64_t there, std::size_t bytes) {
  while (bytes > 0) {
    const iovec own{reinterpret_cast<void*>(here), bytes};
    const iovec others{reinterpret_cast<void*>(there), bytes};
    const ssize_t done = copy(static_cast<pid_t>(pid), &own, 1, &others, 1, 0);
    if (done <= 0) return false;
    here += static_cast<std::uint64_t>(done);
    there += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

}  // namespace

bool read_other(std::int64_t pid, void* into, std::uint64_t from, std::size_t bytes) {
  return copy_all(process_vm_readv, pid, reinterpret_cast<std::uint64_t>(into), from, bytes);
}

bool write_other(std::int64_t pid, std::uint64_t into, const void* from, std::size_t bytes) {
  return copy_all(process_vm_writev, pid, reinterpret_cast<std::uint64_t>(from), into, bytes);
}

}  // namespace blink
