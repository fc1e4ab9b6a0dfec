// A file in memory, without a name, that is closed on exec.
#pragma once

#include <sys/mman.h>

#include <cerrno>

namespace blink::shim {

// −1 and errno if there can be none. Some systems insist on such files that can never be run; older ones do not know
// that flag. It may be sealed.
inline int memory_file(const char* name) {
  constexpr unsigned kNeverRun = 8;  // MFD_NOEXEC_SEAL
  const int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNeverRun);
  return file >= 0 || errno != EINVAL ? file : memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

}  // namespace blink::shim
