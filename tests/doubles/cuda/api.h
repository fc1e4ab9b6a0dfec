// What does a program see of this driver? The types and numbers of CUDA's driver API, as far as the double has them.
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
typedef void (*CUhostFn)(void*);

#define CU_API extern "C" __attribute__((visibility("default"))) CUresult

namespace cuda_double {

enum Error : CUresult {
  kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kDeviceUnavailable = 46, kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200, kInvalidContext = 201, kNoBinaryForGpu = 209, kPeerAccessUnsupported = 217,
  kInvalidHandle = 400, kIllegalState = 401, kNotFound = 500, kNotReady = 600, kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705, kContextIsDestroyed = 709, kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713, kNotSupported = 801, kCaptureUnsupported = 900, kCaptureInvalidated = 901,
  kCaptureMerge = 902, kCaptureUnmatched = 903, kCaptureUnjoined = 904, kCaptureIsolation = 905,
  kCaptureImplicit = 906, kCapturedEvent = 907, kCaptureWrongThread = 908,
};

constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2;
constexpr unsigned kEventExternal = 1;  // CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL: while capturing only
constexpr int kCaptureModeGlobal = 0, kCaptureModeThreadLocal = 1, kCaptureModeRelaxed = 2;
constexpr int kCaptureStatusNone = 0, kCaptureStatusActive = 1, kCaptureStatusInvalidated = 2;

}  // namespace cuda_double
