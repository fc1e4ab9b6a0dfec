// What does NCCL's interface look like? Its public functions of 2.32.3 and the types that they take, declared anew.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct ncclParamHandle* ncclParamHandle_t;
typedef struct { char internal[128]; } ncclUniqueId;

typedef enum {
  ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInternalError = 3, ncclInvalidArgument = 4,
  ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7, ncclTimeout = 8, ncclNumResults = 9,
} ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef int ncclScalarResidence_t;
typedef int ncclCommMemStat_t;

typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char* netName;
  int splitShare, trafficClass;
  const char* commName;
  int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched, graphUsageMode,
      numRmaCtx, maxP2pPeers, graphStreamOrdering, launchOrderImplicit, numRmaSig, rmaEagerInit, hostCftMode,
      nvlsHostMode;
} ncclConfig_t;

typedef struct {
  size_t size;
  unsigned magic, version;
  void* ext;
  int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection, CTAPolicy;
  uint64_t userProfilerTag;
  cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

typedef struct { size_t size; unsigned magic, version; float estimatedTime; } ncclSimInfo_t;
typedef struct { size_t size; unsigned magic, version; int mode; const char* psk; } ncclEncryptionConfig_t;
typedef struct { int opCnt, peer, sigIdx, ctx; } ncclWaitSignalDesc_t;
typedef struct { int nRanks, rank, stride; } ncclTeam_t;

}  // extern "C"

constexpr unsigned kConfigMagic = 0xcafebeef, kSimInfoMagic = 0x74685283;
constexpr int kUndefined = -2147483647 - 1;

// X(type of the result, name without "nccl", arguments)
#define NCCL_COLLECTIVES(X)                                                                                            \
  X(AllReduce, (const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,     \
                cudaStream_t stream))                                                                                  \
  X(Reduce, (const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root,               \
             ncclComm_t comm, cudaStream_t stream))                                                                    \
  X(Broadcast, (const void* send, void* recv, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,           \
                cudaStream_t stream))                                                                                  \
  X(AllGather, (const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,                     \
                cudaStream_t stream))                                                                                  \
  X(ReduceScatter, (const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm, \
                    cudaStream_t stream))                                                                              \
  X(AlltoAll, (const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,                      \
               cudaStream_t stream))                                                                                   \
  X(Gather, (const void* send, void* recv, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,              \
             cudaStream_t stream))                                                                                     \
  X(Scatter, (const void* send, void* recv, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,             \
              cudaStream_t stream))

// Calls of public functions from within go through the procedure linkage table, as in the real library: the `nccl`
// names are weak aliases that a preloaded library may take.
#define NCCL_DECLARE(type, name, arguments)                         \
  extern "C" __attribute__((visibility("default"))) type name arguments;
#define NCCL_API(type, name, arguments)                                                                  \
  extern "C" __attribute__((visibility("default"))) type p##name arguments;                              \
  extern "C" __attribute__((visibility("default"), weak, alias("p" #name))) type name arguments;         \
  extern "C" type p##name arguments

NCCL_DECLARE(ncclResult_t, ncclGetVersion, (int*))
NCCL_DECLARE(ncclResult_t, ncclGetUniqueId, (ncclUniqueId*))
NCCL_DECLARE(const char*, ncclGetErrorString, (ncclResult_t))
NCCL_DECLARE(ncclResult_t, ncclMemAlloc, (void**, size_t))
NCCL_DECLARE(ncclResult_t, ncclMemFree, (void*))
NCCL_DECLARE(ncclResult_t, ncclCommRegister, (const ncclComm_t, void*, size_t, void**))
NCCL_DECLARE(ncclResult_t, ncclCommDeregister, (const ncclComm_t, void*))
NCCL_DECLARE(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t*))
NCCL_DECLARE(ncclResult_t, ncclGroupStart, ())
NCCL_DECLARE(ncclResult_t, ncclGroupEnd, ())
NCCL_DECLARE(ncclResult_t, ncclBroadcast,
             (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
