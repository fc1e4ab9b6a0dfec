// The memory that the library knows: what it allocated, and what was registered with it.
#include <map>
#include <mutex>
#include <set>

#include "communicator.h"
#include "journal.h"

using namespace nccl_double;

struct ncclWindow_vidmem { const ncclComm* comm; };

namespace {

struct Registered {
  std::mutex mutex;
  std::map<void*, const ncclComm*> buffers;  // handle to its communicator
  std::set<ncclWindow_t> windows;
  std::set<void*> allocated;
};

Registered& registered() {
  static Registered& only = *new Registered;
  return only;
}

}  // namespace

NCCL_API(ncclResult_t, ncclMemAlloc, (void** pointer, size_t bytes)) {
  note(__func__, nullptr, bytes);
  if (!pointer || bytes == 0) return fail(ncclInvalidArgument, "ncclMemAlloc : invalid argument");
  int device;
  CUcontext context;
  if (!current_device(&device, &context)) return fail(ncclUnhandledCudaError, "there is no CUDA driver or no GPU");
  CUdeviceptr memory;
  if (driver()->mem_alloc(&memory, bytes)) return fail(ncclUnhandledCudaError, "no device memory of %zu bytes", bytes);
  *pointer = reinterpret_cast<void*>(memory);
  std::lock_guard<std::mutex> lock(registered().mutex);
  registered().allocated.insert(*pointer);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclMemFree, (void* pointer)) {
  note(__func__);
  if (!pointer) return ncclSuccess;
  {
    std::lock_guard<std::mutex> lock(registered().mutex);
    if (!registered().allocated.erase(pointer)) return fail(ncclInvalidArgument, "ncclMemFree : not from ncclMemAlloc");
  }
  return driver()->mem_free(reinterpret_cast<CUdeviceptr>(pointer)) ? ncclUnhandledCudaError : ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommRegister, (const ncclComm_t handle, void* buffer, size_t bytes, void** out)) {
  note(__func__, handle, bytes);
  const auto comm = handle ? find(handle) : nullptr;
  if (!comm || !buffer || bytes == 0 || !out) return fail(ncclInvalidArgument, "ncclCommRegister : invalid argument");
  *out = new char;
  std::lock_guard<std::mutex> lock(registered().mutex);
  registered().buffers[*out] = comm.get();
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommDeregister, (const ncclComm_t handle, void* buffer)) {
  note(__func__, handle);
  std::lock_guard<std::mutex> lock(registered().mutex);
  const auto at = registered().buffers.find(buffer);
  if (!handle || at == registered().buffers.end() || at->second != handle) {
    return fail(ncclInvalidArgument, "ncclCommDeregister : invalid argument");
  }
  delete static_cast<char*>(buffer);
  registered().buffers.erase(at);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommWindowRegister,
         (ncclComm_t handle, void* buffer, size_t bytes, ncclWindow_t* out, int)) {
  note(__func__, handle, bytes);
  std::shared_ptr<ncclComm> comm;
  if (ncclResult_t error = usable(handle, "ncclCommWindowRegister", &comm)) return error;
  if (!buffer || bytes == 0 || !out) return fail(ncclInvalidArgument, "ncclCommWindowRegister : invalid argument");
  *out = new ncclWindow_vidmem{comm.get()};
  std::lock_guard<std::mutex> lock(registered().mutex);
  registered().windows.insert(*out);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t handle, ncclWindow_t window)) {
  note(__func__, handle);
  if (!window) return ncclSuccess;
  std::lock_guard<std::mutex> lock(registered().mutex);
  if (!registered().windows.count(window) || window->comm != handle) {
    return fail(ncclInvalidArgument, "ncclCommWindowDeregister : invalid argument");
  }
  registered().windows.erase(window);
  delete window;
  return ncclSuccess;
}
