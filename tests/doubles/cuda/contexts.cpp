#include "devices.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <set>
#include <vector>

#include "entry.h"
#include "streams.h"

struct CUctx_st {
  int device = 0;
  int retained = 0;
  int claim = -1;  // of an exclusive device: a socket that excludes other processes
  std::set<int> peers;
};

namespace cuda_double {
namespace {

std::mutex& guard() {
  static std::mutex& only = *new std::mutex;
  return only;
}

std::vector<CUctx_st>& contexts() {
  static std::vector<CUctx_st>& only = *[] {
    auto* made = new std::vector<CUctx_st>(machine().devices.size());
    for (std::size_t device = 0; device < made->size(); ++device) (*made)[device].device = static_cast<int>(device);
    return made;
  }();
  return only;
}

// The contexts that programs use with BLINK_DOUBLE_GREEN_SMS: a green context per device.
std::vector<CUctx_st>& green_contexts() {
  static std::vector<CUctx_st>& only = *[] {
    auto* made = new std::vector<CUctx_st>(contexts());
    for (CUctx_st& one : *made) one.retained = 1;
    return made;
  }();
  return only;
}

bool is_green(CUcontext context) {
  const auto& all = green_contexts();
  return std::any_of(all.begin(), all.end(), [&](const CUctx_st& one) { return &one == context; });
}

thread_local std::vector<CUcontext> stack;

CUcontext current() { return stack.empty() ? nullptr : stack.back(); }

// Only one process can hold the name, until it ends.
int claim_of(int device) {
  const int claim = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = "cuda-double " + std::to_string(machine().devices[static_cast<std::size_t>(device)].number) +
                           " " + machine().exclusive;
  const std::size_t bytes = std::min(text.size(), sizeof name.sun_path - 1);
  text.copy(name.sun_path + 1, bytes);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  if (claim < 0 || !bind(claim, reinterpret_cast<const sockaddr*>(&name), size)) return claim;
  close(claim);
  return -1;
}

}  // namespace

int device_of(CUcontext context) {
  for (auto* all : {&contexts(), &green_contexts()}) {
    for (CUctx_st& one : *all) {
      if (&one == context) return one.device;
    }
  }
  return -1;
}

CUresult current_usable() {
  if (!current()) return kInvalidContext;
  std::lock_guard<std::mutex> lock(guard());
  return current()->retained > 0 ? kSuccess : kContextIsDestroyed;
}

int current_device() { return current() ? current()->device : -1; }

}  // namespace cuda_double

using namespace cuda_double;

CU_API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  CU_ENTER(kDriver);
  if (!context) return kInvalidValue;
  if (!machine().has(device)) return kInvalidDevice;
  std::lock_guard<std::mutex> lock(guard());
  CUctx_st& own = contexts()[static_cast<std::size_t>(device)];
  if (own.retained == 0 && !machine().exclusive.empty()) {
    own.claim = claim_of(device);
    if (own.claim < 0) return kDeviceUnavailable;
  }
  *context = &own;
  ++own.retained;
  return kSuccess;
}

CU_API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CU_ENTER(kDriver);
  if (!machine().has(device)) return kInvalidDevice;
  std::lock_guard<std::mutex> lock(guard());
  CUctx_st& context = contexts()[static_cast<std::size_t>(device)];
  if (context.retained == 0) return kInvalidContext;
  if (--context.retained > 0) return kSuccess;
  context.peers.clear();
  if (context.claim >= 0) close(context.claim);
  context.claim = -1;
  return kSuccess;
}

CU_API cuCtxPushCurrent_v2(CUcontext context) {
  CU_ENTER(kDriver);
  if (!context || device_of(context) < 0) return kInvalidContext;
  stack.push_back(context);
  return kSuccess;
}

CU_API cuCtxPopCurrent_v2(CUcontext* context) {
  CU_ENTER(kDriver);
  if (stack.empty()) return kInvalidContext;
  if (context) *context = stack.back();
  stack.pop_back();
  return kSuccess;
}

CU_API cuCtxSetCurrent(CUcontext context) {
  CU_ENTER(kDriver);
  if (context && device_of(context) < 0) return kInvalidContext;
  if (!stack.empty()) stack.pop_back();
  if (context && setting("BLINK_DOUBLE_GREEN_SMS", 0) > 0) {
    context = &green_contexts()[static_cast<std::size_t>(device_of(context))];
  }
  if (context) stack.push_back(context);
  return kSuccess;
}

CU_API cuCtxGetExecAffinity(CUexecAffinityParam* affinity, int type) {
  CU_ENTER(kDriver | kContext);
  if (!affinity || type != 0) return kInvalidValue;
  affinity->type = type;
  affinity->smCount = static_cast<unsigned>(setting("BLINK_DOUBLE_MPS_SMS", machine().multiprocessors));
  return kSuccess;
}

CU_API cuCtxGetDevResource(CUcontext context, CUdevResource* resource, int type) {
  CU_ENTER(kDriver);
  if (device_of(context) < 0) return kInvalidContext;
  if (!resource || type != 1) return kInvalidValue;
  resource->type = type;
  const long all = machine().multiprocessors;
  resource->smCount = static_cast<unsigned>(is_green(context) ? setting("BLINK_DOUBLE_GREEN_SMS", all) : all);
  return kSuccess;
}

CU_API cuCtxGetId(CUcontext context, unsigned long long* id) {
  CU_ENTER(kDriver);
  if (!id || device_of(context) < 0) return kInvalidContext;
  *id = 1 + static_cast<unsigned long long>(device_of(context));
  return kSuccess;
}

CU_API cuCtxGetCurrent(CUcontext* context) {
  CU_ENTER(kDriver);
  if (!context) return kInvalidValue;
  *context = current();
  return kSuccess;
}

CU_API cuCtxGetDevice(CUdevice* device) {
  CU_ENTER(kDriver);
  if (!device) return kInvalidValue;
  if (!current()) return kInvalidContext;
  *device = current()->device;
  return kSuccess;
}

CU_API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CU_ENTER(kDriver | kContext);
  if (flags != 0) return kInvalidValue;
  const int device = device_of(peer);
  if (device < 0) return kInvalidContext;
  if (device == current_device()) return kInvalidDevice;
  if (!machine().can_reach(current_device(), device)) return kPeerAccessUnsupported;
  std::lock_guard<std::mutex> lock(guard());
  return current()->peers.insert(device).second ? kSuccess : kPeerAccessAlreadyEnabled;
}
