// The tests of the device layer on emulated blocks with threads: what GPUs run, under a schedule and a memory that differ
// from launch to launch.
// Sanitizers: address.
#define BLINK_EMULATED 1

#define main context_main
#include "test_device_context.cpp"
#undef main
#define main fold_main
#include "test_device_fold.cpp"
#undef main

int main() {
  const int code = context_main();
  return fold_main() | code;
}
