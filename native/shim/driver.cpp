#include "driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "environment.h"

namespace blink::shim {
namespace {

struct Opened {
  Driver functions;
  bool good = false;
  std::string why;
};

std::string error_of_loader() {
  const char* text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

Opened open_driver() {
  Opened opened;
  const char* named = variable("BLINK_CUDA_LIB");
  const std::string library = named != nullptr ? named : "libcuda.so.1";
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    opened.why = "no CUDA driver: " + error_of_loader();
    return opened;
  }
  // The library is never closed, since a driver that has run may have threads.
#define BLINK_FIND(member, name, arguments)                                                                           \
  *reinterpret_cast<void**>(&opened.functions.member) = dlsym(handle, name);                                          \
  if (opened.functions.member == nullptr && opened.why.empty()) {                                                     \
    opened.why = library + " is too old for Blink: it has no " + name;                                                \
  }
  BLINK_DRIVER_FUNCTIONS(BLINK_FIND)
#undef BLINK_FIND
#define BLINK_FIND(member, name, arguments)                                                                           \
  *reinterpret_cast<void**>(&opened.functions.member) = dlsym(handle, name);
  BLINK_DRIVER_EXTRAS(BLINK_FIND)
#undef BLINK_FIND
  if (!opened.why.empty()) return opened;
  const CUresult result = opened.functions.init(0);
  if (result != kCudaSuccess) {
    opened.why = "the CUDA driver does not start: " + describe(opened.functions, result, "cuInit");
    return opened;
  }
  opened.good = true;
  return opened;
}

}  // namespace

const Driver* driver(std::string* why) {
  static std::once_flag once;
  static Opened* opened = nullptr;  // never freed, since threads may use it while the process ends
  std::call_once(once, [] { opened = new Opened(open_driver()); });
  if (!opened->good) {
    *why = opened->why;
    return nullptr;
  }
  return &opened->functions;
}

bool has_remote_domain(const Driver& driver, CUdevice device) {
  const char* named = std::getenv("NCCL_MEM_SYNC_DOMAIN");
  int domains = 0;  // drivers before CUDA 12 lack the attribute
  return driver.launch_with_attributes != nullptr && (named == nullptr || std::strcmp(named, "0") != 0) &&
         driver.device_attribute(&domains, kAttributeMemoryDomains, device) == kCudaSuccess && domains > 1;
}

CUresult multiprocessors_here(const Driver& driver, CUdevice device, unsigned* count) {
  int all = 0;
  const CUresult result = driver.device_attribute(&all, kAttributeMultiprocessors, device);
  *count = static_cast<unsigned>(std::max(all, 0));
  CUcontext context = nullptr;
  CUdevice own = 0;
  const bool knows = result == kCudaSuccess && driver.current_context != nullptr && driver.current_device != nullptr;
  if (!knows || driver.current_context(&context) != kCudaSuccess || context == nullptr ||
      driver.current_device(&own) != kCudaSuccess || own != device) {
    return result;
  }
  CUexecAffinity affinity{};
  if (driver.exec_affinity != nullptr && driver.exec_affinity(&affinity, kAffinityMultiprocessors) == kCudaSuccess &&
      affinity.multiprocessors > 0) {
    *count = std::min(*count, affinity.multiprocessors);
  }
  CUdevResource resource{};
  if (driver.context_resource != nullptr &&
      driver.context_resource(context, &resource, kResourceMultiprocessors) == kCudaSuccess &&
      resource.multiprocessors > 0) {
    *count = std::min(*count, resource.multiprocessors);
  }
  return result;
}

CUresult launch(const Driver& driver, CUfunction kernel, Grid grid, CUstream stream, void** arguments, bool remote) {
  if (!remote) return driver.launch(kernel, grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream, arguments, nullptr);
  CUlaunchAttribute domain{};
  domain.id = kLaunchMemoryDomain;
  domain.value.memory_domain = kRemoteMemoryDomain;
  const CUlaunchConfig config{grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream, &domain, 1};
  return driver.launch_with_attributes(&config, kernel, arguments, nullptr);
}

std::string describe(const Driver& driver, CUresult result, const char* what) {
  const char *name = nullptr, *text = nullptr;
  // Both calls may fail, for example with the error of a newer driver.
  if (driver.error_name == nullptr || driver.error_name(result, &name) != kCudaSuccess) name = nullptr;
  if (driver.error_string == nullptr || driver.error_string(result, &text) != kCudaSuccess) text = nullptr;
  std::string message = name != nullptr ? name : "CUDA error " + std::to_string(result);
  if (text != nullptr) message += std::string(" (") + text + ")";
  return message + " from " + what;
}

}  // namespace blink::shim
