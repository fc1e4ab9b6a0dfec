// NCCL's types as its ABI has them (nccl.h of 2.32.3): numbers, sizes and orders, declared anew; no header of NCCL is
// needed to build this library. A structure that only ever passes through by address is an incomplete type.
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

// Passed by value: their layout decides in which registers they travel.
typedef struct ncclUniqueIdBytes { char internal[128]; } ncclUniqueId;
typedef struct ncclTeamOfRanks { int nRanks, rank, stride; } ncclTeam_t;
typedef struct ncclMultimemBase { void* mcBasePtr; } ncclMultimemHandle_t;

// Passed by address. Of the two configurations we read the head, see below.
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
constexpr int kShrinkAbort = 1;  // a flag: what the parent still runs is ended first
constexpr int kConfigUnset = INT32_MIN;
constexpr unsigned kConfigMagic = 0xcafebeef;

// ncclConfig_t as of 2.27, as far as we read it; it is append-only, and `size` says how much of it there is.
struct ConfigHead {
  std::size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share, traffic_class;
  const char* comm_name;
  int collnet_enable, cta_policy;
};

// ncclCollConfig_t as of 2.32; append-only too.
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

// Our own words for a result, for when there is no NCCL to ask; total.
const char* text_of(ncclResult_t result);

// What a program asks of a communicator.
struct Wishes {
  bool blocking = true;   // calls wait for their end
  int most_blocks = 0;    // of a kernel; 0: as many as it wants
  std::string only_nccl;  // what only NCCL can do, in its words: "cgaClusterSize=4, NCCL_ALGO=Ring"
};

// Those of a communicator made with `config`; `inherited` where there is none. NCCL's variables overrule both, as in
// NCCL; where one order is promised they do not bound our blocks.
Wishes wishes_of(const ncclConfig_t* config, const Wishes& inherited);

// Whether BLINK_DETERMINISTIC promises one order of every sum, which NCCL keeps for no two sizes.
bool order_promised();

// Whether a call's configuration asks for something that only NCCL can do: anything but "as usual", and all that we
// cannot read.
bool tuned(const ncclCollConfig_t* config);

}  // namespace blink::shim
