// Which of NCCL's configurations say that calls do not block, whatever their size, and what the environment overrules.
// Sanitizers: address.

#include <cstdlib>

#include "check.h"
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
  for (int dtype = -1; dtype <= kDataTypes; ++dtype) {
    expect((size_of(dtype) > 0) == (dtype >= 0 && dtype < kDataTypes), "the size of type %d", dtype);
  }
  return blink_test::verdict();
}
