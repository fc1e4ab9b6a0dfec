#include "nccl_types.h"

#include <cstdlib>
#include <initializer_list>

namespace blink::shim {

// As a compiler lays out NCCL's own declarations on 64-bit machines.
static_assert(sizeof(ncclUniqueId) == 128 && sizeof(ncclTeam_t) == 12 && sizeof(ncclMultimemHandle_t) == 8);
static_assert(offsetof(ConfigHead, magic) == 8 && offsetof(ConfigHead, blocking) == 16);
static_assert(offsetof(CollConfigHead, min_ctas) == 24 && offsetof(CollConfigHead, alg_selection) == 40);
static_assert(offsetof(CollConfigHead, cta_policy) == 52 && offsetof(CollConfigHead, launch_completion_event) == 64);
static_assert(sizeof(CollConfigHead) == 72);

const char* text_of(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "a CUDA call failed";
    case ncclSystemError: return "a call to the system failed, or there is no NCCL library";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "another rank failed or has gone";
    case ncclInProgress: return "in progress";
    case ncclTimeout: return "timed out";
    default: return "unknown result code";
  }
}

bool blocking(const ncclConfig_t* config, bool inherited) {
  if (const char* text = std::getenv("NCCL_COMM_BLOCKING"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 0);
    if (*end == '\0' && (value == 0 || value == 1)) return value == 1;
  }
  if (config == nullptr) return inherited;
  const auto* head = reinterpret_cast<const ConfigHead*>(config);
  // A configuration that is given replaces the parent's; what is unset in it has NCCL's default.
  if (head->magic != kConfigMagic || head->size < offsetof(ConfigHead, blocking) + sizeof head->blocking) return true;
  return head->blocking != 0;
}

bool tuned(const ncclCollConfig_t* config) {
  if (config == nullptr) return false;
  const auto* head = reinterpret_cast<const CollConfigHead*>(config);
  if (head->size != sizeof(CollConfigHead) || head->magic != kConfigMagic) return true;
  for (const int value : {head->min_ctas, head->max_ctas, head->nvls_ctas, head->cga_cluster_size, head->cta_policy}) {
    if (value != kConfigUnset) return true;
  }
  return (head->alg_selection != nullptr && *head->alg_selection != '\0') || head->launch_completion_event != nullptr;
}

}  // namespace blink::shim
