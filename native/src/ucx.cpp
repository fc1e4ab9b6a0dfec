#include "ucx.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <cstdio>
#include <mutex>
#include <string>

namespace blink::ucx {
namespace {

// Replacements of UCX's defaults, which do not suit a library in a user's process: handlers of signals, a thread that
// watches a file system, and log lines on lost peers, which the group's error names. UCX reads them at loading. Settings of
// the user take precedence.
constexpr const char* kQuiet[][2] = {
    {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"}, {"UCX_VFS_ENABLE", "n"}, {"UCX_LOG_LEVEL", "fatal"}};

class Defaults {
 public:
  Defaults() {
    for (const auto& [name, value] : kQuiet) {
      if (getenv(name) == nullptr && setenv(name, value, 0) == 0) set_[count_++] = name;
    }
  }
  ~Defaults() {
    while (count_ > 0) unsetenv(set_[--count_]);
  }
  Defaults(const Defaults&) = delete;
  Defaults& operator=(const Defaults&) = delete;

 private:
  const char* set_[sizeof kQuiet / sizeof kQuiet[0]] = {};
  std::size_t count_ = 0;
};

template <class Function>
bool find(void* handle, const char* name, Function& function, const char*& missing) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) missing = name;
  return function != nullptr;
}

// False with the name of the first function that `handle` lacks in `missing`.
bool fill(void* handle, Library& library, const char*& missing) {
#define BLINK_UCP(name) find(handle, "ucp_" #name, library.name, missing)
  return BLINK_UCP(init_version) && BLINK_UCP(cleanup) && BLINK_UCP(config_read) && BLINK_UCP(config_modify) && BLINK_UCP(config_release) &&
         BLINK_UCP(get_version) && BLINK_UCP(worker_create) && BLINK_UCP(worker_destroy) &&
         BLINK_UCP(worker_get_address) && BLINK_UCP(worker_release_address) && BLINK_UCP(worker_get_efd) &&
         BLINK_UCP(worker_arm) && BLINK_UCP(worker_progress) &&
         BLINK_UCP(worker_set_am_recv_handler) && BLINK_UCP(ep_create) && BLINK_UCP(ep_close_nbx) &&
         BLINK_UCP(am_send_nbx) && BLINK_UCP(am_recv_data_nbx) && BLINK_UCP(am_data_release) &&
         BLINK_UCP(request_check_status) && BLINK_UCP(request_free) &&
         find(handle, "ucs_status_string", library.status_string, missing);
#undef BLINK_UCP
}

// Fills `library` from `file`; false, and the reason in `why`, if this is no UCX that serves.
bool take(void* handle, const char* file, Library& library, char* why, std::size_t room) {
  const char* missing = nullptr;
  if (!find(handle, "ucp_get_version", library.get_version, missing)) {
    std::snprintf(why, room, "%s is no UCX: it has no function %s", file, missing);
    return false;
  }
  unsigned version[3] = {};
  library.get_version(&version[0], &version[1], &version[2]);
  if (version[0] == kMajor && version[1] >= kMinor && fill(handle, library, missing)) return true;
  char reason[96] = {};
  if (missing != nullptr) std::snprintf(reason, sizeof reason, " without the function %s", missing);
  std::snprintf(why, room, "%s is UCX %u.%u.%u%s; expected %u.%u or newer, below %u.0", file, version[0], version[1],
                version[2], reason, kMajor, kMinor, kMajor + 1);
  return false;
}

}  // namespace

const Library* load(const char* file, char* why, std::size_t room) {
  static std::mutex mutex;
  static Library library;
  static std::string loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!loaded.empty()) return &library;  // one process has one UCX
  const Defaults quiet;
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    std::snprintf(why, room, "UCX cannot be loaded: %s", dlerror());
    return nullptr;
  }
  if (!take(handle, file, library, why, room)) {
    dlclose(handle);
    return nullptr;
  }
  loaded = file;
  return &library;
}

}  // namespace blink::ucx
