// The kernel context on emulated blocks with real threads: between a write of one thread and an access of another there
// is a barrier, a release and an acquire, or the access is atomic.
// Sanitizers: thread.
#define BLINK_EMULATED 1

#define main context_main
#include "test_device_context.cpp"
#undef main

int main() {
  std::mt19937 random(3);
  for (const Geometry& geometry : {Geometry{1, 2, 4096, 4096}, Geometry{2, 3, 256, 384}}) {
    Run run(geometry);
    for (int i = 0; i < 3; ++i) test_any(run, random, "launch " + std::to_string(i));
  }
  test_left_behind();
  test_fewer_parts();
  return blink_test::verdict();
}
