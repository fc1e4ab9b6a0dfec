// The tests of the kernel context with one of the faults planted in the headers: `planted_faults FAULT LAUNCHES` exits
// with 0 if no test failed in about LAUNCHES launches; fault 0 plants nothing.
int blink_planted = 0;

#define main context_main
#include "test_device_context.cpp"
#undef main

int main(int count, char** arguments) {
  if (count != 3) return 2;
  blink_planted = std::atoi(arguments[1]);
  const int launches = std::atoi(arguments[2]);
  std::mt19937 random(5);
  const auto noticed = [] { return blink_test::failures > 0; };
  int launched = 0;
  for (std::uint32_t round = 0; launched < launches && !noticed(); ++round) {
    const Word from = round % 2 == 0 ? 0 : (Word{1} << (30 + round % 4)) - 10;
    const std::uint32_t slots = 2 + round / 2 % 2;
    Run run(round % 2 == 0 ? Geometry{1, slots, 4096, 4096} : Geometry{2, slots, 256, 384});
    run.mesh.pretend(from);
    for (int i = 0; i < 6 && !noticed(); ++i, ++launched) test_any(run, random, "launch " + std::to_string(launched));
#ifdef BLINK_REAL_THREADS  // These run in real time.
    continue;
#endif
    if (!noticed()) test_star(round % 3);
    if (round % 4 == 0 && !noticed()) test_stale_flags();
    if (round % 4 == 1 && !noticed()) test_left_behind();
    if (round % 4 == 3 && !noticed()) test_fewer_parts();
    if (round % 4 == 2 && !noticed()) test_half_messages();
    if (!noticed()) test_missing(round % 3, round / 3 % 3, round / 9 % 2 == 0);
    launched += 2;
  }
  std::printf("%d launches\n", launched);
  return noticed() ? 1 : 0;
}
