// CUDA through the driver API, opened at first need: a process that uses no GPU must not be affected by this library.
//
// The types and functions are CUDA's, with its numbers, declared here as far as Blink uses them.
#pragma once

#include <cstddef>
#include <string>

namespace blink::shim {

typedef int CUresult;  // 0: CUDA_SUCCESS
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUgraph_st* CUgraph;
struct CUipcMemHandle { char reserved[64]; };
struct CUuuid { char bytes[16]; };
struct CUlaunchAttribute {
  int id;
  char before_value[4];
  union { char bytes[64]; int memory_domain; } value;
};
struct CUlaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};

struct CUexecAffinity { int type; unsigned multiprocessors; };
struct CUdevResource {
  int type;
  char internal[92];
  unsigned multiprocessors;
  char others[156];  // 44 bytes in CUDA 13; later versions may need more
};

constexpr CUresult kCudaSuccess = 0, kCudaOutOfMemory = 2, kCudaInvalidContext = 201, kCudaNotReady = 600;
constexpr int kStreamNonBlocking = 1, kEventDisableTiming = 2, kHostRegisterPortable = 1, kHostRegisterDeviceMap = 2;
constexpr int kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2;
// Within a capture, a wait or record across the graph's border: a node, executed by each launch of the graph.
constexpr unsigned kEventExternal = 1;
constexpr int kAttributeMultiprocessors = 16, kAttributeMajor = 75, kAttributeMinor = 76;
constexpr int kCaptureModeRelaxed = 2;
constexpr CUresult kCudaCaptureUnsupported = 900, kCudaCaptureInvalidated = 901, kCudaCaptureMerge = 902;
// An error of the capture, not of earlier work: the context stays usable.
inline bool concerns_capture(CUresult result) { return 900 <= result && result <= 908; }
constexpr int kAttributeStreamMemoryOperations64 = 122;
constexpr int kAffinityMultiprocessors = 0, kResourceMultiprocessors = 1;
constexpr int kAttributeMemoryDomains = 126, kLaunchMemoryDomain = 10, kRemoteMemoryDomain = 1;
constexpr unsigned kWaitUntilAtLeast = 0, kWriteAfterAllBefore = 0;

// name of the member, name in libcuda (versioned as in the header's macros), arguments
#define BLINK_DRIVER_FUNCTIONS(X)                                                                                     \
  X(init, "cuInit", (unsigned))                                                                                       \
  X(driver_version, "cuDriverGetVersion", (int*))                                                                     \
  X(error_name, "cuGetErrorName", (CUresult, const char**))                                                           \
  X(error_string, "cuGetErrorString", (CUresult, const char**))                                                       \
  X(device_get, "cuDeviceGet", (CUdevice*, int))                                                                      \
  X(device_name, "cuDeviceGetName", (char*, int, CUdevice))                                                           \
  X(device_uuid, "cuDeviceGetUuid_v2", (CUuuid*, CUdevice))                                                           \
  X(device_bus_id, "cuDeviceGetPCIBusId", (char*, int, CUdevice))                                                     \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, CUdevice))                                                  \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext*, CUdevice))                                               \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                                                      \
  X(push_current, "cuCtxPushCurrent_v2", (CUcontext))                                                                 \
  X(pop_current, "cuCtxPopCurrent_v2", (CUcontext*))                                                                  \
  X(enable_peer, "cuCtxEnablePeerAccess", (CUcontext, unsigned))                                                      \
  X(mem_alloc, "cuMemAlloc_v2", (CUdeviceptr*, std::size_t))                                                          \
  X(mem_free, "cuMemFree_v2", (CUdeviceptr))                                                                          \
  X(host_register, "cuMemHostRegister_v2", (void*, std::size_t, unsigned))                                            \
  X(host_unregister, "cuMemHostUnregister", (void*))                                                                  \
  X(host_device_pointer, "cuMemHostGetDevicePointer_v2", (CUdeviceptr*, void*, unsigned))                             \
  X(memset_async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, std::size_t, CUstream))                             \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void*, std::size_t, CUstream))                        \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void*, CUdeviceptr, std::size_t, CUstream))                                \
  X(copy_on_device, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))                        \
  X(ipc_get, "cuIpcGetMemHandle", (CUipcMemHandle*, CUdeviceptr))                                                     \
  X(ipc_open, "cuIpcOpenMemHandle_v2", (CUdeviceptr*, CUipcMemHandle, unsigned))                                      \
  X(stream_create, "cuStreamCreate", (CUstream*, unsigned))                                                           \
  X(stream_destroy, "cuStreamDestroy_v2", (CUstream))                                                                 \
  X(stream_synchronize, "cuStreamSynchronize", (CUstream))                                                            \
  X(stream_wait_event, "cuStreamWaitEvent", (CUstream, CUevent, unsigned))                                            \
  X(stream_capture, "cuStreamGetCaptureInfo_v2",                                                                      \
    (CUstream, int*, unsigned long long*, CUgraph*, const void**, std::size_t*))                                      \
  X(stream_capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))                                                 \
  X(event_create, "cuEventCreate", (CUevent*, unsigned))                                                              \
  X(event_destroy, "cuEventDestroy_v2", (CUevent))                                                                    \
  X(event_record, "cuEventRecord", (CUevent, CUstream))                                                               \
  X(event_record_with_flags, "cuEventRecordWithFlags", (CUevent, CUstream, unsigned))                                 \
  X(event_query, "cuEventQuery", (CUevent))                                                                           \
  X(event_elapsed, "cuEventElapsedTime", (float*, CUevent, CUevent))                                                  \
  X(module_load, "cuModuleLoadData", (CUmodule*, const void*))                                                        \
  X(module_function, "cuModuleGetFunction", (CUfunction*, CUmodule, const char*))                                     \
  X(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int*, CUfunction, int, std::size_t))                   \
  X(launch, "cuLaunchKernel",                                                                                         \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**))

// Optional functions: nullptr if the driver lacks them.
#define BLINK_DRIVER_EXTRAS(X)                                                                                        \
  X(write_value, "cuStreamWriteValue64_v2", (CUstream, CUdeviceptr, unsigned long long, unsigned))                    \
  X(wait_value, "cuStreamWaitValue64_v2", (CUstream, CUdeviceptr, unsigned long long, unsigned))                      \
  X(launch_with_attributes, "cuLaunchKernelEx", (const CUlaunchConfig*, CUfunction, void**, void**))                  \
  X(context_id, "cuCtxGetId", (CUcontext, unsigned long long*))                                                        \
  X(current_context, "cuCtxGetCurrent", (CUcontext*))                                                                 \
  X(current_device, "cuCtxGetDevice", (CUdevice*))                                                                    \
  X(exec_affinity, "cuCtxGetExecAffinity", (CUexecAffinity*, int))                                                    \
  X(context_resource, "cuCtxGetDevResource", (CUcontext, CUdevResource*, int))                                        \
  X(stream_create_with_priority, "cuStreamCreateWithPriority", (CUstream*, unsigned, int))                            \
  X(stream_priorities, "cuCtxGetStreamPriorityRange", (int*, int*))

struct Driver {
#define BLINK_MEMBER(member, name, arguments) CUresult(*member) arguments = nullptr;
  BLINK_DRIVER_FUNCTIONS(BLINK_MEMBER)
  BLINK_DRIVER_EXTRAS(BLINK_MEMBER)
#undef BLINK_MEMBER
};

// The driver: BLINK_CUDA_LIB, else libcuda.so.1; nullptr and `why` if it is missing or too old (naming the function
// that it lacks). The first call opens it, in one thread; later calls return the same result.
const Driver* driver(std::string* why);

// True if kernels that store into other GPUs run in the remote memory-sync domain, as NCCL's do. There their fences
// wait for their own stores only, and fences of the program's kernels do not wait for these. Used if the GPU has
// several domains (from Hopper on, with CUDA 12), unless NCCL_MEM_SYNC_DOMAIN is 0.
bool has_remote_domain(const Driver& driver, CUdevice device);

// The number of a GPU's multiprocessors that kernels can use: fewer than all in a green context or under an MPS share.
// (Drivers differ in which of two functions reports it.) A current context of another GPU is ignored.
CUresult multiprocessors_here(const Driver& driver, CUdevice device, unsigned* count);

struct Grid { unsigned blocks, threads; };
CUresult launch(const Driver& driver, CUfunction kernel, Grid grid, CUstream stream, void** arguments, bool remote);

// A text for people: "CUDA_ERROR_OUT_OF_MEMORY (out of memory) from cuMemAlloc_v2".
std::string describe(const Driver& driver, CUresult result, const char* what);

// Makes a context current for a scope, in the relaxed capture mode. In the default mode an allocation or release would
// invalidate another thread's stream capture.
class InContext {
 public:
  InContext(const Driver& driver, CUcontext context) : driver_(driver) {
    relaxed_ = driver.stream_capture_mode(&mode_) == kCudaSuccess;
    pushed_ = driver.push_current(context) == kCudaSuccess;
  }
  ~InContext() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.pop_current(&popped);
    if (relaxed_) driver_.stream_capture_mode(&mode_);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  explicit operator bool() const { return pushed_; }

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;  // after the exchange, the thread's own mode
  bool relaxed_, pushed_;
};

}  // namespace blink::shim
