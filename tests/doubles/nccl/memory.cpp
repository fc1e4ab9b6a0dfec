// Memory allocated by the library, and registration, which has no effect here.
#include "communicator.h"
#include "journal.h"

using namespace nccl_double;

NCCL_API(ncclResult_t, ncclMemAlloc, (void** pointer, size_t bytes)) {
  note(__func__, nullptr, bytes);
  if (!pointer || bytes == 0) return fail(ncclInvalidArgument, "ncclMemAlloc : invalid argument");
  int device;
  CUcontext context;
  if (!current_device(&device, &context)) return fail(ncclUnhandledCudaError, "there is no CUDA driver or no GPU");
  CUdeviceptr memory;
  if (driver()->mem_alloc(&memory, bytes)) return fail(ncclUnhandledCudaError, "no device memory of %zu bytes", bytes);
  *pointer = reinterpret_cast<void*>(memory);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclMemFree, (void* pointer)) {
  note(__func__);
  if (!pointer) return ncclSuccess;
  return driver()->mem_free(reinterpret_cast<CUdeviceptr>(pointer)) ? ncclUnhandledCudaError : ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommRegister, (const ncclComm_t handle, void* buffer, size_t bytes, void** out)) {
  note(__func__, handle, bytes);
  const auto comm = handle ? find(handle) : nullptr;
  if (!comm || !buffer || bytes == 0 || !out) return fail(ncclInvalidArgument, "ncclCommRegister : invalid argument");
  *out = buffer;
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommDeregister, (const ncclComm_t handle, void* buffer)) {
  note(__func__, handle);
  if (!handle || !buffer) return fail(ncclInvalidArgument, "ncclCommDeregister : invalid argument");
  return ncclSuccess;
}
