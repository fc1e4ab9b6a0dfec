// NCCL's configurations that make calls nonblocking, of any size, and the environment's overrides; and functions that a
// driver lacks.
// Sanitizers: address.

#include <cstdlib>
#include <string>

#include "call_arguments.h"
#include "check.h"
#include "copy_engine.h"
#include "nccl_types.h"
#include "resident_blocks.h"

using blink_test::expect;
using namespace blink::shim;

static bool blocking(const ncclConfig_t* config, bool inherited) {
  Wishes parent;
  parent.blocking = inherited;
  return wishes_of(config, parent).blocking;
}

static std::string only_nccl(const ConfigHead& head) {
  return wishes_of(reinterpret_cast<const ncclConfig_t*>(&head), {}).only_nccl;
}

// A communicator on a few multiprocessors leaves little room beside it, and all of it after its end.
static void room_of_a_share_that_is_gone() {
  std::string why;
  const ResidentBlocks::Gpu whole{0, 64, 2, 1}, share{0, 8, 2, 1};
  {
    ResidentBlocks few, beside;
    expect(few.reserve(share, 1, 64, &why) == 2, "%s", why.c_str());
    expect(beside.reserve(whole, 1, 64, &why) == 2, "beside a share");
  }
  ResidentBlocks alone;
  expect(alone.reserve(whole, 1, 64, &why) == 16, "an eighth of a whole GPU");
}

// Blocking in configurations: unsupported fields make NCCL serve the call, by name; fields of newer headers are not
// read.
static void blocks_of_configurations() {
  ConfigHead head{};
  head.size = sizeof head;
  head.magic = kConfigMagic;
  head.version = 22700;
  head.blocking = head.cga_cluster_size = head.min_ctas = head.max_ctas = head.cta_policy = kConfigUnset;
  const ConfigHead unset = head;
  const auto* config = reinterpret_cast<const ncclConfig_t*>(&head);
  expect(only_nccl(head).empty() && wishes_of(config, {}).most_blocks == 0, "nothing is asked");
  head.max_ctas = 6;
  expect(only_nccl(head).empty() && wishes_of(config, {}).most_blocks == 6, "maxCTAs");
  Wishes parent;
  parent.most_blocks = 3;
  expect(wishes_of(nullptr, parent).most_blocks == 3 && wishes_of(config, parent).most_blocks == 6, "inherited");
  head.min_ctas = 1;
  head.cga_cluster_size = 0;
  expect(only_nccl(head).empty(), "a default value");
  head.cta_policy = 2;
  expect(only_nccl(head) == "CTAPolicy=2", "a policy");
  head.version = 21700;
  expect(only_nccl(head).empty(), "a header that has no policy");
  head.min_ctas = 16;
  expect(only_nccl(head) == "minCTAs=16", "the least");
  head.min_ctas = 1;
  head.cga_cluster_size = 4;
  expect(only_nccl(head) == "cgaClusterSize=4", "clusters");
  head.size = 20;
  expect(only_nccl(head).empty() && wishes_of(config, {}).most_blocks == 0, "a configuration that is too short");
  setenv("NCCL_MAX_NCHANNELS", "2", 1);
  expect(only_nccl(head) == "NCCL_MAX_NCHANNELS=2" && wishes_of(nullptr, {}).most_blocks == 2, "NCCL's variable");
  setenv("NCCL_ALGO", "allreduce:tree", 1);
  const Wishes all = wishes_of(nullptr, {});
  expect(all.only_nccl == "NCCL_ALGO=allreduce:tree, NCCL_MAX_NCHANNELS=2", "all of them");
  expect(wishes_of(nullptr, all).only_nccl == all.only_nccl, "a child's, each once");
  setenv("BLINK_DETERMINISTIC", "order", 1);
  expect(order_promised() && wishes_of(nullptr, {}).most_blocks == 0, "one channel is for the order of NCCL's sums");
  head = unset;
  head.max_ctas = 3;
  expect(wishes_of(config, {}).most_blocks == 3, "the program's own bound holds");
  for (const char* name : {"NCCL_MAX_NCHANNELS", "NCCL_ALGO", "BLINK_DETERMINISTIC"}) unsetenv(name);
}

int main() {
  ConfigHead head{};
  head.size = sizeof head;
  head.magic = kConfigMagic;
  head.version = 23203;
  const auto* config = reinterpret_cast<const ncclConfig_t*>(&head);
  unsetenv("NCCL_COMM_BLOCKING");
  expect(blocking(nullptr, true) && !blocking(nullptr, false), "without a configuration: inherited");
  expect(!blocking(config, true), "a nonblocking configuration");
  head.blocking = kConfigUnset;
  expect(blocking(config, false), "unset: NCCL's default");
  head.blocking = 0;
  head.size = 16;
  expect(blocking(config, false), "a configuration that is too short");
  head.size = sizeof(ConfigHead);
  head.magic = 1;
  expect(blocking(config, false), "no configuration at all");
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  expect(!blocking(nullptr, true), "the environment overrules");
  setenv("NCCL_COMM_BLOCKING", "two", 1);
  expect(blocking(nullptr, true), "unless it is not a number");
  for (int dtype = -1; dtype <= 12; ++dtype) {
    expect((size_of(dtype) > 0) == (dtype >= 0 && dtype < 12), "the size of type %d", dtype);
  }
  blocks_of_configurations();
  room_of_a_share_that_is_gone();
  std::string why;
  setenv("BLINK_CUDA_LIB", "/no/such/libcuda.so.1", 1);
  expect(driver(&why) == nullptr && why.find("no CUDA driver: /no/such/libcuda.so.1") == 0, "%s", why.c_str());
  expect(CopyEngines::open(Driver{}, Bundle{}, {}, &why) == nullptr &&
             why.find("the CUDA driver has no stream memory operations") == 0,
         "%s", why.c_str());
  return blink_test::verdict();
}
