// The driver's functions that the client calls. It opens BLINK_CUDA_LIB, or libcuda.so.1.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../nccl_abi.h"

typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUevent_st* CUevent;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;

#define CUDA_CALLS(X)                                                                \
  X(cuInit, (unsigned))                                                              \
  X(cuDeviceGetCount, (int*))                                                        \
  X(cuDevicePrimaryCtxRetain, (CUcontext*, int))                                     \
  X(cuCtxSetCurrent, (CUcontext))                                                    \
  X(cuMemAlloc_v2, (CUdeviceptr*, size_t))                                           \
  X(cuMemFree_v2, (CUdeviceptr))                                                     \
  X(cuMemGetInfo_v2, (size_t*, size_t*))                                             \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, cudaStream_t))          \
  X(cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, size_t, cudaStream_t))                \
  X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, cudaStream_t))             \
  X(cuStreamCreate, (cudaStream_t*, unsigned))                                       \
  X(cuStreamDestroy_v2, (cudaStream_t))                                              \
  X(cuStreamSynchronize, (cudaStream_t))                                             \
  X(cuStreamWaitEvent, (cudaStream_t, CUevent, unsigned))                            \
  X(cuStreamBeginCapture_v2, (cudaStream_t, int))                                    \
  X(cuStreamEndCapture, (cudaStream_t, CUgraph*))                                    \
  X(cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))        \
  X(cuGraphLaunch, (CUgraphExec, cudaStream_t))                                      \
  X(cuGraphExecDestroy, (CUgraphExec))                                               \
  X(cuGraphDestroy, (CUgraph))                                                       \
  X(cuEventCreate, (CUevent*, unsigned))                                             \
  X(cuEventRecord, (CUevent, cudaStream_t))                                          \
  X(cuEventDestroy_v2, (CUevent))

struct Cuda {
#define CUDA_MEMBER(name, arguments) int (*name) arguments;
  CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};
extern struct Cuda cuda;

void open_cuda(void);  // exits the program without a driver
