// The library's access to CUDA: the driver's interface, opened at the first use.
#pragma once

#include <cstddef>

#include "nccl_types.h"

namespace nccl_double {

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;

#define NCCL_DOUBLE_DRIVER(X)                                                      \
  X(init, "cuInit", (unsigned))                                                    \
  X(device_count, "cuDeviceGetCount", (int*))                                      \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext*, int))                 \
  X(push_current, "cuCtxPushCurrent_v2", (CUcontext))                              \
  X(pop_current, "cuCtxPopCurrent_v2", (CUcontext*))                               \
  X(set_current, "cuCtxSetCurrent", (CUcontext))                                   \
  X(get_current, "cuCtxGetCurrent", (CUcontext*))                                  \
  X(get_device, "cuCtxGetDevice", (int*))                                          \
  X(mem_alloc, "cuMemAlloc_v2", (CUdeviceptr*, std::size_t))                       \
  X(mem_free, "cuMemFree_v2", (CUdeviceptr))                                       \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))                     \
  X(capture_info, "cuStreamGetCaptureInfo_v2",                                     \
    (cudaStream_t, int*, unsigned long long*, void**, const void**, std::size_t*)) \
  X(event_create, "cuEventCreate", (cudaEvent_t*, unsigned))                       \
  X(event_destroy, "cuEventDestroy_v2", (cudaEvent_t))                             \
  X(event_record, "cuEventRecord", (cudaEvent_t, cudaStream_t))                    \
  X(record_with_flags, "cuEventRecordWithFlags", (cudaEvent_t, cudaStream_t, unsigned)) \
  X(wait_event, "cuStreamWaitEvent", (cudaStream_t, cudaEvent_t, unsigned))        \
  X(host_function, "cuLaunchHostFunc", (cudaStream_t, void (*)(void*), void*))

struct Driver {
#define NCCL_DOUBLE_MEMBER(member, name, arguments) CUresult(*member) arguments = nullptr;
  NCCL_DOUBLE_DRIVER(NCCL_DOUBLE_MEMBER)
#undef NCCL_DOUBLE_MEMBER
};

constexpr unsigned kEventExternal = 1;  // CU_EVENT_WAIT_EXTERNAL, CU_EVENT_RECORD_EXTERNAL

const Driver* driver();  // nullptr: no GPU

// The calling thread's device; like CUDA's runtime, makes device 0's context current if no context is.
bool current_device(int* device, CUcontext* context);

// Makes a context current while it lives; its calls do not invalidate a capture.
class Current {
 public:
  explicit Current(CUcontext context);
  ~Current();

 private:
  int mode_ = 2;
};

}  // namespace nccl_double
