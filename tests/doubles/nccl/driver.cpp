#include "driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "journal.h"

namespace nccl_double {
namespace {

const Driver* opened() {
  const char* path = std::getenv("BLINK_CUDA_LIB");
  void* const library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return nullptr;
  auto* made = new Driver;
#define NCCL_DOUBLE_OPEN(member, name, arguments)                                          \
  *reinterpret_cast<void**>(&made->member) = dlsym(library, name);                         \
  if (!made->member) return nullptr;
  NCCL_DOUBLE_DRIVER(NCCL_DOUBLE_OPEN)
#undef NCCL_DOUBLE_OPEN
  return made->init(0) == 0 ? made : nullptr;
}

}  // namespace

const Driver* driver() {
  static const Driver* const only = opened();
  return only;
}

bool current_device(int* device, CUcontext* context) {
  const Driver* const cuda = driver();
  if (!cuda) return false;
  if (cuda->get_current(context)) return false;
  if (!*context) {
    if (cuda->primary_retain(context, 0) || cuda->set_current(*context)) return false;
  }
  return cuda->get_device(device) == 0;
}

Current::Current(CUcontext context) {
  driver()->push_current(context);
  driver()->capture_mode(&mode_);
}

Current::~Current() {
  driver()->capture_mode(&mode_);
  driver()->pop_current(nullptr);
}

}  // namespace nccl_double
