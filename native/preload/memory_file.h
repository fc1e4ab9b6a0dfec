// Anonymous files in memory, closed on exec.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace blink::shim {

// A file that can be sealed; −1 and errno on an error. Some systems require MFD_NOEXEC_SEAL; older ones do not know it.
inline int memory_file(const char* name) {
  constexpr unsigned kNeverRun = 8;  // MFD_NOEXEC_SEAL
  const int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNeverRun);
  return file >= 0 || errno != EINVAL ? file : memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

// A file of `bytes` bytes, sealed against changes of its size; −1 and errno on an error.
inline int shared_file(const char* name, std::uint64_t bytes) {
  const int file = memory_file(name);
  if (file < 0 || (ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
                   fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)) {
    return file;
  }
  const int error = errno;
  close(file);
  errno = error;
  return -1;
}

}  // namespace blink::shim
