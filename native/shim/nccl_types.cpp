#include "nccl_types.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "environment.h"

namespace blink::shim {

// The layout of NCCL's own declarations on 64-bit machines.
static_assert(sizeof(ncclUniqueId) == 128 && sizeof(ncclTeam_t) == 12 && sizeof(ncclMultimemHandle_t) == 8);
static_assert(offsetof(ConfigHead, magic) == 8 && offsetof(ConfigHead, blocking) == 16);
static_assert(offsetof(ConfigHead, max_ctas) == 28 && offsetof(ConfigHead, cta_policy) == 60);
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

namespace {

// A field of the configuration, read as NCCL does: fields beyond its end, or newer than the caller's header, are unset.
int field(const ncclConfig_t* config, std::size_t at, unsigned since) {
  const auto* head = reinterpret_cast<const ConfigHead*>(config);
  int value = kConfigUnset;
  if (head->magic != kConfigMagic || head->version < since || head->size < at + sizeof value) return value;
  std::memcpy(&value, reinterpret_cast<const char*>(config) + at, sizeof value);
  return value;
}

bool number_of(const char* name, long* value) {
  const char* const text = variable(name);
  if (text == nullptr) return false;
  char* end = nullptr;
  *value = std::strtol(text, &end, 0);
  return *end == '\0';
}

void at_most(Wishes* wishes, long blocks) {
  if (blocks < 1 || blocks > INT32_MAX || (wishes->most_blocks != 0 && wishes->most_blocks <= blocks)) return;
  wishes->most_blocks = static_cast<int>(blocks);
}

void only_nccl(Wishes* wishes, const std::string& name, const std::string& value) {
  const std::string setting = name + "=" + value;
  if (wishes->only_nccl.find(setting) != std::string::npos) return;  // a child's parent had the same setting
  wishes->only_nccl += (wishes->only_nccl.empty() ? "" : ", ") + setting;
}

void read(const ncclConfig_t* config, Wishes* wishes) {
  const struct { const char* name; int value, usual; } rows[] = {
      {"cgaClusterSize", field(config, offsetof(ConfigHead, cga_cluster_size), 21700), 0},
      {"minCTAs", field(config, offsetof(ConfigHead, min_ctas), 21700), 1},
      {"CTAPolicy", field(config, offsetof(ConfigHead, cta_policy), 22700), 0},
  };
  for (const auto& row : rows) {
    if (row.value != kConfigUnset && row.value != row.usual) only_nccl(wishes, row.name, std::to_string(row.value));
  }
  at_most(wishes, field(config, offsetof(ConfigHead, max_ctas), 21700));
  const int blocking = field(config, offsetof(ConfigHead, blocking), 0);
  wishes->blocking = blocking != 0;
}

}  // namespace

Wishes wishes_of(const ncclConfig_t* config, const Wishes& inherited) {
  Wishes wishes;
  if (config == nullptr) wishes = inherited;
  else read(config, &wishes);  // it replaces the parent's; its unset fields have NCCL's defaults
  long value = 0;
  if (number_of("NCCL_COMM_BLOCKING", &value) && (value == 0 || value == 1)) wishes.blocking = value == 1;
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "NCCL_MAX_NCHANNELS",
                           "NCCL_MIN_NCHANNELS", "NCCL_CGA_CLUSTER_SIZE", "NCCL_CTA_POLICY"}) {
    if (const char* const text = variable(name); text != nullptr) only_nccl(&wishes, name, text);
  }
  // These limit NCCL to one channel for one order of its sums, which does not depend on Blink's blocks.
  for (const char* name : {"NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"}) {
    if (!order_promised() && number_of(name, &value)) at_most(&wishes, value);
  }
  return wishes;
}

bool order_promised() { return variable("BLINK_DETERMINISTIC") != nullptr; }

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
