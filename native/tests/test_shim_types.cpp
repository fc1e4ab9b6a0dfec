// Which of NCCL's configurations say that calls do not block, whatever their size, and what the environment overrules;
// and what a driver lacks.
// Sanitizers: address.

#include <cstdlib>
#include <string>

#include "call_arguments.h"
#include "check.h"
#include "copy_engine.h"
#include "nccl_types.h"

using blink_test::expect;
using namespace blink::shim;

int main() {
  ConfigHead head{sizeof(ConfigHead), kConfigMagic, 23203, 0};
  const auto* config = reinterpret_cast<const ncclConfig_t*>(&head);
  unsetenv("NCCL_COMM_BLOCKING");
  expect(blocking(nullptr, true) && !blocking(nullptr, false), "without a configuration: inherited");
  expect(!blocking(config, true), "a configuration that says so");
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
  expect(blocking(nullptr, true), "unless it is no number");
  for (int dtype = -1; dtype <= 12; ++dtype) {
    expect((size_of(dtype) > 0) == (dtype >= 0 && dtype < 12), "the size of type %d", dtype);
  }
  std::string why;
  setenv("BLINK_CUDA_LIB", "/no/such/libcuda.so.1", 1);
  expect(driver(&why) == nullptr && why.find("no CUDA driver: /no/such/libcuda.so.1") == 0, "%s", why.c_str());
  expect(CopyEngineRun::open(Driver{}, Bundle{}, {}, &why) == nullptr &&
             why.find("the CUDA driver has no stream memory operations") == 0,
         "%s", why.c_str());
  return blink_test::verdict();
}
