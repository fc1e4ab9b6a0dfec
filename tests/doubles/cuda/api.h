// The public interface of this driver: the types and numbers of CUDA's driver API that the double implements.
#pragma once

#include <cstddef>
#include <cstdint>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;
struct CUipcMemHandle { char reserved[64]; };
struct CUuuid { char bytes[16]; };
struct CUlaunchAttribute {
  int id;
  char pad[4];
  union { char pad[64]; int memSyncDomain; } value;
};
struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};
struct CUexecAffinityParam { int type; unsigned smCount; };
struct CUdevResource {
  int type;
  char padding[92];
  unsigned smCount;
  char others[44];
};
typedef void (*CUhostFn)(void*);

#define CU_API extern "C" __attribute__((visibility("default"))) CUresult

// X(name here, code, CUDA's name after CUDA_ERROR_, CUDA's text for it)
#define CUDA_DOUBLE_ERRORS(X)                                                                                         \
  X(kInvalidValue, 1, "INVALID_VALUE", "invalid argument")                                                            \
  X(kOutOfMemory, 2, "OUT_OF_MEMORY", "out of memory")                                                                \
  X(kNotInitialized, 3, "NOT_INITIALIZED", "initialization error")                                                    \
  X(kDeviceUnavailable, 46, "DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable")                \
  X(kNoDevice, 100, "NO_DEVICE", "no CUDA-capable device is detected")                                                \
  X(kInvalidDevice, 101, "INVALID_DEVICE", "invalid device ordinal")                                                  \
  X(kInvalidImage, 200, "INVALID_IMAGE", "device kernel image is invalid")                                            \
  X(kInvalidContext, 201, "INVALID_CONTEXT", "invalid device context")                                                \
  X(kNoBinaryForGpu, 209, "NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device")            \
  X(kPeerAccessUnsupported, 217, "PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices") \
  X(kInvalidHandle, 400, "INVALID_HANDLE", "invalid resource handle")                                                 \
  X(kIllegalState, 401, "ILLEGAL_STATE", "the operation cannot be performed in the present state")                    \
  X(kNotFound, 500, "NOT_FOUND", "named symbol not found")                                                            \
  X(kNotReady, 600, "NOT_READY", "device not ready")                                                                  \
  X(kIllegalAddress, 700, "ILLEGAL_ADDRESS", "an illegal memory access was encountered")                              \
  X(kPeerAccessAlreadyEnabled, 704, "PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled")                  \
  X(kContextIsDestroyed, 709, "CONTEXT_IS_DESTROYED", "context is destroyed")                                         \
  X(kHostMemoryAlreadyRegistered, 712, "HOST_MEMORY_ALREADY_REGISTERED",                                              \
    "part or all of the memory range is already registered")                                                          \
  X(kHostMemoryNotRegistered, 713, "HOST_MEMORY_NOT_REGISTERED",                                                      \
    "pointer does not correspond to a registered memory region")                                                      \
  X(kLaunchFailed, 719, "LAUNCH_FAILED", "unspecified launch failure")                                                \
  X(kNotSupported, 801, "NOT_SUPPORTED", "operation not supported")                                                   \
  X(kCaptureUnsupported, 900, "STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing")       \
  X(kCaptureInvalidated, 901, "STREAM_CAPTURE_INVALIDATED",                                                           \
    "operation failed due to a previous error during capture")                                                        \
  X(kCaptureMerge, 902, "STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences")    \
  X(kCaptureUnmatched, 903, "STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began")       \
  X(kCaptureUnjoined, 904, "STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work")                           \
  X(kCaptureIsolation, 905, "STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream")    \
  X(kCaptureImplicit, 906, "STREAM_CAPTURE_IMPLICIT",                                                                 \
    "operation would make the legacy stream depend on a capturing one")                                               \
  X(kCapturedEvent, 907, "CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream") \
  X(kCaptureWrongThread, 908, "STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a capture from another thread")    \
  X(kUnknown, 999, "UNKNOWN", "unknown error")

namespace cuda_double {

enum Error : CUresult {
  kSuccess = 0,
#define CUDA_DOUBLE_ERROR(name, code, cuda_name, text) name = code,
  CUDA_DOUBLE_ERRORS(CUDA_DOUBLE_ERROR)
#undef CUDA_DOUBLE_ERROR
};

constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2;
constexpr unsigned kEventExternal = 1;  // CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL: while capturing only
constexpr int kCaptureModeGlobal = 0, kCaptureModeRelaxed = 2;
constexpr int kCaptureStatusNone = 0, kCaptureStatusActive = 1, kCaptureStatusInvalidated = 2;

}  // namespace cuda_double
