// NCCL's types as in its ABI (nccl.h of 2.32.3): numbers, sizes and orders, declared anew, so that the build needs no
// header of NCCL. A structure that is only passed on by address is an incomplete type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "blink/types.h"

extern "C" {

// Handles.
typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef struct ncclParamHandle* ncclParamHandle_t;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

// Enums are ints in C's ABI.
typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef int ncclScalarResidence_t;
typedef int ncclCommMemStat_t;
typedef int ncclCftTeamMode_t;
typedef uint32_t ncclCftLeId;

// Passed by value: the layout decides the registers.
typedef struct ncclUniqueIdBytes { char internal[128]; } ncclUniqueId;
typedef struct ncclTeamOfRanks { int nRanks, rank, stride; } ncclTeam_t;
typedef struct ncclMultimemBase { void* mcBasePtr; } ncclMultimemHandle_t;

// Passed by address. Blink reads the head of the two configurations, see below.
typedef struct ncclConfig ncclConfig_t;
typedef struct ncclCollConfig ncclCollConfig_t;
typedef struct ncclSimInfo ncclSimInfo_t;
typedef struct ncclEncryptionConfig ncclEncryptionConfig_t;
typedef struct ncclWaitSignalDesc ncclWaitSignalDesc_t;
typedef struct ncclCommProperties ncclCommProperties_t;
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle_t;
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

}  // extern "C"

namespace blink::shim {

enum Result : int {
  ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInternalError = 3, ncclInvalidArgument = 4,
  ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7, ncclTimeout = 8,
};
constexpr int kSum = BLINK_NCCL_SUM, kAvg = BLINK_NCCL_AVG, kPremulSum = BLINK_NCCL_PREMUL_SUM;
enum Residence : int { kScalarDevice = 0, kScalarHost = 1 };

constexpr int kSplitNoColor = -1;
constexpr int kShrinkAbort = 1;  // a flag: the parent's running calls are aborted first
constexpr int kConfigUnset = INT32_MIN;
constexpr unsigned kConfigMagic = 0xcafebeef;

// The part of ncclConfig_t that Blink reads, as of 2.27. The structure is append-only, and `size` is the caller's.
struct ConfigHead {
  std::size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share, traffic_class;
  const char* comm_name;
  int collnet_enable, cta_policy;
};

// ncclCollConfig_t as of 2.32, also append-only.
struct CollConfigHead {
  std::size_t size;
  unsigned magic, version;
  const void* ext;  // other vendors' options, which NCCL ignores
  int min_ctas, max_ctas, nvls_ctas, cga_cluster_size;
  const char* alg_selection;
  int force_alg_selection, cta_policy;
  std::uint64_t user_profiler_tag;
  cudaEvent_t launch_completion_event;
};

// Blink's own text for a result, used without an NCCL; total.
const char* text_of(ncclResult_t result);

// A program's settings for a communicator.
struct Wishes {
  bool blocking = true;   // calls wait for their end
  int most_blocks = 0;    // of a kernel; 0: no limit
  std::string only_nccl;  // settings that need NCCL, in its words: "cgaClusterSize=4, NCCL_ALGO=Ring"
};

// The settings of a communicator made with `config`; `inherited` if it is null. NCCL's variables override both, as in
// NCCL. With a promised order they do not limit Blink's blocks.
Wishes wishes_of(const ncclConfig_t* config, const Wishes& inherited);

// True if BLINK_DETERMINISTIC promises one order for every sum; NCCL's order depends on the size.
bool order_promised();

// True if a call's configuration asks for something that only NCCL can do: any non-default field, and any configuration
// that Blink cannot read.
bool tuned(const ncclCollConfig_t* config);

}  // namespace blink::shim
